// What TVM writes as inline assembly, as calls: asynchronous copies, products by `dp4a`, `ldmatrix` and `mma`.
//
// An asynchronous copy is done as late as PTX allows, when its thread waits for its group, so that what does not
// wait reads what was there before. Source: PTX ISA 9.0, "Matrix fragments for mma.m16n8k*" and "cp.async".
#pragma once

extern "C" {
void gpu_begin_copy(void* to, const void* from, unsigned bytes);
void gpu_commit_copies();
unsigned gpu_take_copy(unsigned groups_left, void** to, const void** from);
}

// Addresses of shared memory have 32 bits.
static constexpr unsigned gpu_static_memory = 227 << 10;
static inline unsigned gpu_shared_address(const void* pointer) {
  const uintptr_t offset = uintptr_t(pointer) - uintptr_t(gpu_dynamic_shared());
  if (offset < gpu_static_memory) return offset;
  return gpu_static_memory + ((const unsigned char*)pointer - &__start_gpu_shared);
}
static inline unsigned char* gpu_shared_at(unsigned address) {
  if (address < gpu_static_memory) return gpu_dynamic_shared() + address;
  return const_cast<unsigned char*>(&__start_gpu_shared) + (address - gpu_static_memory);
}
#define __cvta_generic_to_shared gpu_shared_address

template <class T>
static inline void gpu_copy_one(void* to, const void* from) { *(T*)to = from ? *(const T*)from : T(0); }
static inline void gpu_copy(void* to, const void* from, unsigned bytes) {
  if (bytes == 16) gpu_copy_one<__int128>(to, from);
  else if (bytes == 8) gpu_copy_one<uint64_t>(to, from);
  else gpu_copy_one<uint32_t>(to, from);
}
static inline void gpu_copy_async(unsigned to, const void* from, unsigned bytes, int predicate = 1, int = 0) {
  if (predicate) gpu_begin_copy(gpu_shared_at(to), from, bytes);
  else gpu_copy(gpu_shared_at(to), nullptr, bytes);  // zeros, by plain stores
}
static inline void gpu_wait_copies(unsigned groups_left) {
  void* to;
  const void* from;
  while (const unsigned bytes = gpu_take_copy(groups_left, &to, &from)) gpu_copy(to, from, bytes);
}

// Registers of a fragment, whatever they hold.
template <class T>
static inline uint32_t gpu_bits(T value) {
  uint32_t bits;
  static_assert(sizeof value == sizeof bits);
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
template <class T>
static inline void gpu_set(T& variable, uint32_t bits) { memcpy(&variable, &bits, sizeof bits); }

template <class A, class B>
static inline void gpu_dp4a(uint32_t* result, const uint32_t* given) {
  uint32_t sum = given[2];
  for (int i = 0; i < 4; i++) sum += A(given[0] >> 8 * i) * B(given[1] >> 8 * i);
  *result = sum;
}

template <int NUM, bool IS_TRANSPOSED>
static inline void gpu_ldmatrix(uint32_t* loaded, const uint32_t* address) {
  const unsigned lane = gpu_lane();
  if (lane < 8 * NUM && *address % 16) gpu_trap("a row of ldmatrix lies at no multiple of 16 bytes");
  for (int i = 0; i < NUM; i++) {
    if (!IS_TRANSPOSED) {
      const unsigned char* row = gpu_shared_at(gpu_exchange(~0u, *address, 8 * i + lane / 4));
      loaded[i] = ((const uint32_t*)row)[lane % 4];
      continue;
    }
    for (int j = 0; j < 2; j++) {
      const unsigned char* row = gpu_shared_at(gpu_exchange(~0u, *address, 8 * i + lane % 4 * 2 + j));
      loaded[i] = j ? loaded[i] | uint32_t(((const uint16_t*)row)[lane / 4]) << 16 : ((const uint16_t*)row)[lane / 4];
    }
  }
}

template <class T>
GPU_UNCHECKED T gpu_element(const uint32_t* registers, unsigned number) {  // of 32 / bits to each register
  T element;
  memcpy(&element, (const unsigned char*)registers + number * sizeof(T), sizeof element);
  return element;
}
// A and B are of 16 rows × K and K × 8 columns; registers follow one another as A, B, C.
template <int K, class A, class B, class D>
GPU_UNCHECKED void gpu_mma(uint32_t* results, const uint32_t* registers) {
  static_assert(sizeof(A) == sizeof(B));
  using Sum = std::conditional_t<std::is_integral_v<D>, int, float>;
  constexpr unsigned each = 4 / sizeof(A), num_a = K / 2 / each, num_b = K / 4 / each;
  gpu_warp_slots()[gpu_lane()] = uint64_t(registers);
  gpu_warp_barrier(~0u);
  const uint32_t* lanes[32];
  for (int lane = 0; lane < 32; lane++) lanes[lane] = (const uint32_t*)gpu_warp_slots()[lane];
  for (unsigned i = 0; i < 4; i++) {
    const unsigned row = gpu_lane() / 4 + i / 2 * 8, column = gpu_lane() % 4 * 2 + i % 2;
    Sum sum = Sum(gpu_element<D>(registers + num_a + num_b, i));
    for (unsigned k = 0; k < K; k++) {
      const unsigned thread = k / each % 4, part = k / (4 * each), at = k % each;
      const A left = gpu_element<A>(lanes[row % 8 * 4 + thread], (row / 8 + 2 * part) * each + at);
      const B right = gpu_element<B>(lanes[column * 4 + thread] + num_a, part * each + at);
      sum += Sum(left) * Sum(right);
    }
    const D rounded = D(sum);
    memcpy((unsigned char*)results + i * sizeof(D), &rounded, sizeof rounded);
  }
  gpu_warp_barrier(~0u);
}
