// A block's threads as fibers, warp by warp: barriers, exchanges within a warp, and steps that a warp takes together.
//
// Blocks run one after the other, so that shared memory is one buffer. A thread runs until it waits; a barrier
// opens when every thread of the block that has not returned waits at it, an exchange when the lanes of its mask
// do. Lanes that converge (`__activemask`, accesses through `volatile`) go on once no other lane of their warp
// can: those at an access first, since what follows a branch's end is taken by all lanes. Where nothing can go on, the kernel would hang: it is ended and reported.
#include "device.h"
#include <sys/mman.h>
#include <cstring>
#include <deque>

extern uint3 thread_index __asm__("threadIdx");
extern uint3 block_index __asm__("blockIdx");
extern dim3 block_extent __asm__("blockDim");
extern dim3 grid_extent __asm__("gridDim");
uint3 thread_index, block_index;
dim3 block_extent, grid_extent;

// Ten lines to switch stacks: swapcontext makes a system call each time.
extern "C" void switch_stack(void** from, void* to);
asm(R"(
.text
.hidden switch_stack
.globl switch_stack
.type switch_stack,@function
switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace {
constexpr size_t kStack = 256 << 10;
constexpr unsigned kMostThreads = 1024, kLanes = 32;

enum State { kRunnable, kAtBarrier, kInExchange, kConverging, kAtVolatile, kDone };
struct Thread {
  void* stack_pointer;
  uint3 index;
  State state;
  unsigned mask;  // of an exchange
};
struct Warp {
  unsigned step, active;
  uint64_t slots[kLanes];
};

struct Copy {  // asynchronous, of a group that its thread may wait for
  void* to;
  const void* from;
  unsigned bytes, group;
};
struct Copies {
  std::deque<Copy> begun;
  unsigned num_groups;
};

Thread threads[kMostThreads];
Copies copies[kMostThreads];
Warp warps[kMostThreads / kLanes];
void* scheduler_stack;
unsigned current, num_threads, barrier, num_left;
uint64_t block_number;
cudaError_t failure;
const Launch* launch_now;
void** parameters_now;

unsigned char* stacks() {
  static auto* range = (unsigned char*)mmap(nullptr, kStack * kMostThreads, PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return range;
}

void leave(State state) {
  Thread& own = threads[current];
  own.state = state;
  switch_stack(&own.stack_pointer, scheduler_stack);
}

void first_call() {
  if (launch_now->kernel->has_barriers) launch_now->kernel->call(parameters_now);
  else
    for (unsigned i = 0; i < num_threads; i++) {  // one fiber runs them all
      current = i;
      thread_index = threads[i].index;
      launch_now->kernel->call(parameters_now);
    }
  if (!launch_now->kernel->has_barriers) current = 0;
  num_left--;
  leave(kDone);
  __builtin_unreachable();
}

void prepare(unsigned number) {
  auto** top = (void**)(stacks() + kStack * (number + 1) - 64);
  *--top = nullptr;
  *--top = (void*)first_call;
  for (int saved = 0; saved < 6; saved++) *--top = nullptr;
  threads[number].stack_pointer = top;
  threads[number].state = kRunnable;
}

void resume(unsigned number) {
  current = number;
  thread_index = threads[number].index;
  switch_stack(&scheduler_stack, threads[number].stack_pointer);
}

bool release_exchange(unsigned first, unsigned end) {
  for (unsigned i = first; i < end; i++) {
    if (threads[i].state != kInExchange) continue;
    const unsigned mask = threads[i].mask;
    bool is_complete = true;
    for (unsigned other = first; other < end; other++)
      if (mask >> (other - first) & 1 && threads[other].state != kDone)
        is_complete &= threads[other].state == kInExchange && threads[other].mask == mask;
    if (!is_complete) continue;
    for (unsigned other = first; other < end; other++)
      if (mask >> (other - first) & 1 && threads[other].state != kDone) threads[other].state = kRunnable;
    warps[first / kLanes].step++;
    return true;
  }
  return false;
}

bool release_converging(unsigned first, unsigned end, State state) {
  unsigned active = 0;
  for (unsigned i = first; i < end; i++)
    if (threads[i].state == state) active |= 1u << (i - first), threads[i].state = kRunnable;
  if (!active) return false;
  warps[first / kLanes].active = active;
  warps[first / kLanes].step++;
  return true;
}

void run_warp(unsigned first, unsigned end) {
  for (bool can_go_on = true; can_go_on && !failure;) {
    can_go_on = false;
    for (unsigned i = first; i < end && !failure; i++)
      if (threads[i].state == kRunnable) resume(i), can_go_on = true;
    can_go_on = can_go_on || release_exchange(first, end) || release_converging(first, end, kAtVolatile) ||
                release_converging(first, end, kConverging);
  }
}

void run_block() {
  const bool has_barriers = launch_now->kernel->has_barriers;
  const unsigned num_fibers = has_barriers ? num_threads : 1;
  block_number++;
  barrier++;
  num_left = num_fibers;
  for (unsigned i = 0; i < num_threads; i++) {
    const dim3& extent = launch_now->block;
    threads[i].index = {i % extent.x, i / extent.x % extent.y, i / (extent.x * extent.y)};
    if (copies[i].num_groups || !copies[i].begun.empty()) copies[i] = {};
  }
  for (unsigned i = 0; i < num_fibers; i++) prepare(i);
  while (num_left && !failure) {
    for (unsigned first = 0; first < num_fibers; first += kLanes)
      run_warp(first, std::min(first + kLanes, num_fibers));
    if (failure || !num_left) break;
    unsigned waiting = 0;
    for (unsigned i = 0; i < num_fibers; i++) waiting += threads[i].state == kAtBarrier;
    if (waiting != num_left) {
      report("kernel %s hangs: %u of %u threads wait for others that never come", launch_now->kernel->name,
             num_left - waiting, num_left);
      failure = cudaErrorLaunchTimeout;
      break;
    }
    barrier++;
    for (unsigned i = 0; i < num_fibers; i++)
      if (threads[i].state == kAtBarrier) threads[i].state = kRunnable;
  }
}
}  // namespace

cudaError_t run_kernel(const Launch& launch, void** parameters) {
  launch_now = &launch;
  parameters_now = parameters;
  num_threads = launch.block.x * launch.block.y * launch.block.z;
  block_extent = launch.block;
  grid_extent = launch.grid;
  failure = cudaSuccess;
  begin_checks(launch);
  for (unsigned z = 0; z < launch.grid.z; z++)
    for (unsigned y = 0; y < launch.grid.y; y++)
      for (unsigned x = 0; x < launch.grid.x && !failure; x++) {
        block_index = {x, y, z};
        run_block();
      }
  launch_now = nullptr;
  return failure;
}

const Launch* running_launch() { return launch_now; }
unsigned current_thread() { return current; }
unsigned current_barrier() { return barrier; }
unsigned current_warp_step() { return warps[current / kLanes].step; }
uint64_t current_block() { return block_number; }
bool is_own_stack(uintptr_t address) { return address - uintptr_t(stacks()) < kStack * kMostThreads; }

void abandon_kernel(cudaError_t error) {
  failure = error;
  leave(kDone);
  __builtin_unreachable();
}

void converge_warp() {
  if (launch_now->kernel->has_barriers) leave(kAtVolatile);
}

// What kernels call; `kernel/kernel.h` declares it.
extern "C" void gpu_barrier() { leave(kAtBarrier); }
extern "C" void gpu_warp_barrier(unsigned mask) {
  threads[current].mask = mask;
  leave(kInExchange);
}
extern "C" unsigned gpu_converge() {
  leave(kConverging);
  return warps[current / kLanes].active;
}
extern "C" uint64_t* gpu_warp_slots() { return warps[current / kLanes].slots; }
extern "C" unsigned gpu_lane() { return current % kLanes; }
extern "C" void gpu_begin_copy(void* to, const void* from, unsigned bytes) {
  copies[current].begun.push_back({to, from, bytes, copies[current].num_groups});
}
extern "C" void gpu_commit_copies() { copies[current].num_groups++; }
extern "C" unsigned gpu_take_copy(unsigned groups_left, void** to, const void** from) {
  Copies& own = copies[current];
  if (own.begun.empty() || own.begun.front().group + groups_left >= own.num_groups) return 0;
  const Copy first = own.begun.front();
  own.begun.pop_front();
  *to = first.to;
  *from = first.from;
  return first.bytes;
}
extern "C" void gpu_trap(const char* why) {
  report("kernel %s stops: %s", launch_now->kernel->name, why);
  abandon_kernel(cudaErrorLaunchFailure);
}
