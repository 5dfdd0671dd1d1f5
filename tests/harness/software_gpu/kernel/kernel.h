// What CUDA C++ finds when the host's compiler reads it: qualifiers, threads, exchanges, arithmetic of small types.
//
// Types and their rounding are NVIDIA's own headers', which compile for a host; what those keep for devices is
// computed here in float and rounded once. Fast math is exact here.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __forceinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__
#define __device__ __attribute__((always_inline))
#define __host__
#define __constant__
#define __shared__ static __attribute__((section("gpu_shared")))
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __CUDA_ARCH__ 900
#define __CUDACC_VER_MAJOR__ 13
#define __CUDACC_VER_MINOR__ 0
#define GPU_EXPORTED extern "C" __attribute__((visibility("default")))
#define GPU_UNCHECKED __attribute__((no_sanitize("thread"), noinline)) static

extern "C" {
extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
void gpu_barrier();
void gpu_warp_barrier(unsigned mask);
unsigned gpu_converge();
uint64_t* gpu_warp_slots();
unsigned gpu_lane();
void gpu_atomic(void* address, unsigned bytes);
void gpu_trap(const char* why);
unsigned char* gpu_dynamic_shared();
extern const unsigned char __ehdr_start __attribute__((visibility("hidden")));
extern const unsigned char _end __attribute__((visibility("hidden")));
extern const unsigned char __start_gpu_shared __attribute__((visibility("hidden"), weak));
extern const unsigned char __stop_gpu_shared __attribute__((visibility("hidden"), weak));
struct gpu_kernel_entry {  // `KernelEntry` of the device
  void (*call)(void**);
  const char* name;
  const unsigned* parameter_bytes;
  unsigned num_parameters, max_threads, static_shared_bytes, has_barriers;
  const unsigned char *image_begin, *image_end, *shared_begin, *shared_end;
};
}
static const int warpSize = 32;

// Threads of a block, and of a warp.
static inline void __syncthreads() { gpu_barrier(); }
static inline void __syncwarp(unsigned mask = ~0u) { gpu_warp_barrier(mask); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __trap() { gpu_trap("a trap"); }
static inline unsigned __activemask() { return gpu_converge(); }
GPU_UNCHECKED uint64_t gpu_exchange_bits(unsigned mask, uint64_t value, unsigned lane) {
  gpu_warp_slots()[gpu_lane()] = value;
  gpu_warp_barrier(mask);
  const uint64_t found = gpu_warp_slots()[lane % 32];
  gpu_warp_barrier(mask);
  return found;
}
template <class T>
static inline T gpu_exchange(unsigned mask, T value, unsigned lane) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = gpu_exchange_bits(mask, bits, lane);
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  return gpu_exchange(mask, value, gpu_lane() / width * width + source % width);
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = gpu_lane();
  return gpu_exchange(mask, value, lane % width + delta < unsigned(width) ? lane + delta : lane);
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const unsigned lane = gpu_lane();
  return gpu_exchange(mask, value, lane % width >= delta ? lane - delta : lane);
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T value, unsigned bits, int width = 32) {
  const unsigned lane = gpu_lane(), other = lane ^ bits;
  return gpu_exchange(mask, value, other / width <= lane / width ? other : lane);
}
GPU_UNCHECKED unsigned __ballot_sync(unsigned mask, int predicate) {
  gpu_warp_slots()[gpu_lane()] = predicate != 0;
  gpu_warp_barrier(mask);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < 32; lane++)
    if (mask >> lane & 1 && gpu_warp_slots()[lane]) votes |= 1u << lane;
  gpu_warp_barrier(mask);
  return votes;
}
static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

// Atomics.
template <class T, class F>
GPU_UNCHECKED T gpu_update(T* address, F update) {
  gpu_atomic(address, sizeof(T));
  const T before = *address;
  *address = update(before);
  return before;
}
#define GPU_ATOMIC(T)                                                                                           \
  static inline T atomicAdd(T* a, T v) { return gpu_update(a, [=](T b) -> T { return b + v; }); }               \
  static inline T atomicMax(T* a, T v) { return gpu_update(a, [=](T b) -> T { return b > v ? b : v; }); }       \
  static inline T atomicMin(T* a, T v) { return gpu_update(a, [=](T b) -> T { return b < v ? b : v; }); }       \
  static inline T atomicExch(T* a, T v) { return gpu_update(a, [=](T) -> T { return v; }); }                    \
  static inline T atomicCAS(T* a, T c, T v) { return gpu_update(a, [=](T b) -> T { return b == c ? v : b; }); }
GPU_ATOMIC(int) GPU_ATOMIC(unsigned) GPU_ATOMIC(long long) GPU_ATOMIC(unsigned long long)
GPU_ATOMIC(float) GPU_ATOMIC(double) GPU_ATOMIC(long) GPU_ATOMIC(unsigned long)
GPU_ATOMIC(__half) GPU_ATOMIC(__nv_bfloat16)

// Arithmetic.
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
static inline std::common_type_t<A, B> max(A left, B right) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax(T(left), T(right));
  else return T(left) > T(right) ? T(left) : T(right);
}
template <class A, class B, class = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>>>
static inline std::common_type_t<A, B> min(A left, B right) {
  using T = std::common_type_t<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin(T(left), T(right));
  else return T(left) < T(right) ? T(left) : T(right);
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
#define GPU_BITS(NAME, FROM, TO) \
  static inline TO NAME(FROM x) { TO bits; memcpy(&bits, &x, sizeof bits); return bits; }
GPU_BITS(__int_as_float, int, float) GPU_BITS(__float_as_int, float, int)
GPU_BITS(__uint_as_float, unsigned, float) GPU_BITS(__float_as_uint, float, unsigned)
GPU_BITS(__longlong_as_double, long long, double) GPU_BITS(__double_as_longlong, double, long long)
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __mulhi(int x, int y) { return int((long long)x * y >> 32); }
template <class T> static inline T __ldg(const T* address) { return *address; }
#define __expf expf
#define __exp10f(x) powf(10.0f, x)
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __powf powf

#define GPU_SMALL(T, TO_FLOAT, FROM_FLOAT)                                                                     \
  static inline T hexp(T x) { return FROM_FLOAT(expf(TO_FLOAT(x))); }                                          \
  static inline T hexp2(T x) { return FROM_FLOAT(exp2f(TO_FLOAT(x))); }                                        \
  static inline T hexp10(T x) { return FROM_FLOAT(powf(10.0f, TO_FLOAT(x))); }                                 \
  static inline T hlog(T x) { return FROM_FLOAT(logf(TO_FLOAT(x))); }                                          \
  static inline T hlog2(T x) { return FROM_FLOAT(log2f(TO_FLOAT(x))); }                                        \
  static inline T hlog10(T x) { return FROM_FLOAT(log10f(TO_FLOAT(x))); }                                      \
  static inline T hsqrt(T x) { return FROM_FLOAT(sqrtf(TO_FLOAT(x))); }                                        \
  static inline T hrsqrt(T x) { return FROM_FLOAT(float(1.0 / sqrt(double(TO_FLOAT(x))))); }                   \
  static inline T hrcp(T x) { return FROM_FLOAT(1.0f / TO_FLOAT(x)); }                                         \
  static inline T hsin(T x) { return FROM_FLOAT(sinf(TO_FLOAT(x))); }                                          \
  static inline T hcos(T x) { return FROM_FLOAT(cosf(TO_FLOAT(x))); }                                          \
  static inline T hfloor(T x) { return FROM_FLOAT(floorf(TO_FLOAT(x))); }                                      \
  static inline T hceil(T x) { return FROM_FLOAT(ceilf(TO_FLOAT(x))); }                                        \
  static inline T htrunc(T x) { return FROM_FLOAT(truncf(TO_FLOAT(x))); }                                      \
  static inline T htanh(T x) { return FROM_FLOAT(tanhf(TO_FLOAT(x))); }                                        \
  static inline T hrint(T x) { return FROM_FLOAT(rintf(TO_FLOAT(x))); }                                        \
  static inline T __hfma(T x, T y, T z) {                                                                      \
    return FROM_FLOAT(float(fma(double(TO_FLOAT(x)), double(TO_FLOAT(y)), double(TO_FLOAT(z)))));              \
  }
GPU_SMALL(__half, __half2float, __float2half_rn)
GPU_SMALL(__nv_bfloat16, __bfloat162float, __float2bfloat16_rn)

template <class T> struct gpu_identity { using type = T; };
