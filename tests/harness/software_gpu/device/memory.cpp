// Device memory: one reserved range that the host can touch only while a kernel or a copy runs.
//
// A second range holds a byte's state for each byte of it (free, allocated, written). Allocations lie apart, so
// that an access beyond the end of one is an access to free memory. Both ranges are shared mappings, which the
// limit that measuring processes set on their data does not count.
#include "device.h"
#include <execinfo.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cstdlib>
#include <cstring>
#include <map>

std::recursive_mutex device_mutex;
static constexpr size_t kPage = 4096, kAlignment = 256, kGap = 256;

static unsigned char* reserve(int protection) {
  void* range = mmap(nullptr, kArenaBytes, protection, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) { perror("software GPU: cannot reserve device memory"); abort(); }
  return static_cast<unsigned char*>(range);
}
unsigned char* const arena = reserve(PROT_NONE);
static unsigned char* const states = reserve(PROT_READ | PROT_WRITE);

static size_t device_bytes() {
  static const size_t bytes = [] {
    const char* mib = getenv("SOFTWARE_GPU_MIB");
    return (mib ? strtoull(mib, nullptr, 10) : 8192) << 20;
  }();
  return bytes;
}

static std::map<size_t, size_t> taken;         // offset to bytes, gaps included
static std::map<size_t, size_t> free_ranges = {{0, kArenaBytes}};
static std::map<size_t, size_t> requested;     // offset to bytes as asked for
static std::map<uintptr_t, size_t> pinned;
static size_t used = 0, highest = 0;
static int open_depth = 0;

bool in_arena(const void* address) { return size_t((unsigned char*)address - arena) < kArenaBytes; }
unsigned char* byte_states(const void* address) { return states + ((unsigned char*)address - arena); }

bool in_pinned(const void* address) {
  auto after = pinned.upper_bound(uintptr_t(address));
  return after != pinned.begin() && uintptr_t(address) < std::prev(after)->first + std::prev(after)->second;
}

void mark_written(void* address, size_t bytes) {
  if (in_arena(address)) memset(byte_states(address), kWritten, bytes);
}

OpenArena::OpenArena() {
  device_mutex.lock();
  if (open_depth++ == 0 && highest) mprotect(arena, highest, PROT_READ | PROT_WRITE);
}
OpenArena::~OpenArena() {
  if (--open_depth == 0 && highest) mprotect(arena, highest, PROT_NONE);
  device_mutex.unlock();
}

static struct sigaction before_segv;

static void on_segv(int number, siginfo_t* info, void* context) {
  if (in_arena(info->si_addr)) {
    report("the host touches device memory: address %p, offset %zu of the device", info->si_addr,
           size_t((unsigned char*)info->si_addr - arena));
    void* frames[24];
    backtrace_symbols_fd(frames, backtrace(frames, 24), 2);
  }
  sigaction(SIGSEGV, &before_segv, nullptr);  // the access is tried again, and ends the process
}

__attribute__((constructor)) static void watch_host() {
  struct sigaction action = {};
  action.sa_sigaction = on_segv;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &before_segv);
}

extern "C" cudaError_t cudaMalloc(void** address, size_t bytes) {
  std::lock_guard lock(device_mutex);
  if (device_error()) return device_error();
  if (cudaError_t error = refuse_while_capturing()) return error;
  *address = nullptr;
  if (!bytes) return cudaSuccess;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment + kGap;
  if (used + bytes > device_bytes()) return fail(cudaErrorMemoryAllocation);
  for (auto [offset, length] : free_ranges) {
    if (length < rounded) continue;
    free_ranges.erase(offset);
    if (length > rounded) free_ranges[offset + rounded] = length - rounded;
    taken[offset] = rounded;
    requested[offset] = bytes;
    used += bytes;
    const size_t end = (offset + rounded + kPage - 1) / kPage * kPage;
    if (end > highest) {
      if (open_depth) mprotect(arena, end, PROT_READ | PROT_WRITE);
      highest = end;
    }
    memset(states + offset, kAllocated, bytes);
    counts.allocations++;
    *address = arena + offset;
    return cudaSuccess;
  }
  return fail(cudaErrorMemoryAllocation);
}

extern "C" cudaError_t cudaFree(void* address) {
  std::lock_guard lock(device_mutex);
  if (!address) return cudaSuccess;
  if (cudaError_t error = refuse_while_capturing()) return error;
  synchronise_device();  // as the device does; what runs may use it
  const size_t offset = (unsigned char*)address - arena;
  auto found = taken.find(offset);
  if (found == taken.end()) return fail(cudaErrorInvalidValue);
  size_t length = found->second;
  memset(states + offset, kFree, requested[offset]);
  used -= requested[offset];
  requested.erase(offset);
  taken.erase(found);
  auto next = free_ranges.lower_bound(offset);
  size_t begin = offset;
  if (next != free_ranges.end() && next->first == offset + length) {
    length += next->second;
    next = free_ranges.erase(next);
  }
  if (next != free_ranges.begin() && std::prev(next)->first + std::prev(next)->second == offset) {
    begin = std::prev(next)->first;
    length += std::prev(next)->second;
  }
  free_ranges[begin] = length;
  counts.frees++;
  return device_error();
}

extern "C" cudaError_t cudaMallocHost(void** address, size_t bytes) {
  std::lock_guard lock(device_mutex);
  const size_t rounded = (bytes + kPage) / kPage * kPage;
  *address = aligned_alloc(kPage, rounded);
  if (!*address) return fail(cudaErrorMemoryAllocation);
  pinned[uintptr_t(*address)] = rounded;
  return cudaSuccess;
}

extern "C" cudaError_t cudaFreeHost(void* address) {
  std::lock_guard lock(device_mutex);
  synchronise_device();
  if (address && !pinned.erase(uintptr_t(address))) return fail(cudaErrorInvalidValue);
  free(address);
  return cudaSuccess;
}

extern "C" cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  std::lock_guard lock(device_mutex);
  *total = device_bytes();
  *available = device_bytes() - used;
  return cudaSuccess;
}
