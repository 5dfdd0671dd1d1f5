// What the parts of the software device share: memory, launches, threads, and what is reported.
#pragma once
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

// A kernel as its library exports it; `kernel/kernel.h` declares the same.
struct KernelEntry {
  void (*call)(void**);
  const char* name;
  const unsigned* parameter_bytes;
  unsigned num_parameters;
  unsigned max_threads;   // launch bounds; 0 where the source has none
  unsigned static_shared_bytes;
  unsigned has_barriers;  // threads wait for one another
  const unsigned char *image_begin, *image_end, *shared_begin, *shared_end;
};

struct Launch {
  const KernelEntry* kernel;
  dim3 grid, block;
  unsigned dynamic_shared_bytes;
};

extern std::recursive_mutex device_mutex;

// memory.cpp
inline constexpr size_t kArenaBytes = size_t(1) << 36;
extern unsigned char* const arena;
enum ByteState : unsigned char { kFree = 0, kAllocated = 1, kWritten = 2 };
unsigned char* byte_states(const void* address);
bool in_arena(const void* address);
bool in_pinned(const void* address);
void mark_written(void* address, size_t bytes);
struct OpenArena {  // device memory is readable and writable while one lives
  OpenArena();
  ~OpenArena();
};

// threads.cpp
cudaError_t run_kernel(const Launch& launch, void** parameters);  // 0, or what the device would answer
unsigned current_thread();
unsigned current_barrier();
unsigned current_warp_step();
uint64_t current_block();  // differs between all blocks of all launches
bool is_own_stack(uintptr_t address);
[[noreturn]] void abandon_kernel(cudaError_t error);
void converge_warp();
const Launch* running_launch();

// checks.cpp
void begin_checks(const Launch& launch);
unsigned char* dynamic_shared();
inline constexpr size_t kSharedBytes = 227 * 1024;
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string source_line(const void* pc);

// streams.cpp
struct Counts {
  uint64_t launches, synchronisations, allocations, frees, graph_launches;
  uint64_t copies_to_device, copies_to_host, copies_on_device;
  uint64_t bytes_to_device, bytes_to_host, bytes_on_device;
};
extern Counts counts;
cudaError_t fail(cudaError_t error);  // what the last error is from now on
void synchronise_device();
cudaError_t refuse_while_capturing();  // what the device must not be asked for then
cudaError_t device_error();  // of a kernel that failed: every later call answers it
