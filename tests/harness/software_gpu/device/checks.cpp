// Every access of a kernel to memory, checked: GCC puts a call before each (-fsanitize=thread), answered here.
//
// Device memory has to be allocated and written, shared memory written by the block, accesses aligned. Two accesses
// of different threads, one of them a write, need a barrier between them, or within a warp an exchange; no barrier
// orders two blocks of a launch. Each word remembers its last write and its last readers, and each byte of it once
// a narrower access comes, so that some races go unseen; none is seen where there is none. Accesses through
// `volatile` to shared memory are taken by the lanes of a warp together, as the reductions that are written that way
// assume. GCC checks no structure that is the argument or the result of a call: those of small types copy
// themselves by members (`build.py`), so that their accesses are seen, too.
#include "device.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <set>

namespace {
struct Cell {
  const void *write_pc, *read_pc;
  uint64_t split_block, write_block, read_block;
  unsigned write_barrier, write_step, read_barrier, read_step, other_read_step;
  unsigned short writer, reader;
  unsigned char readers;  // 0 one, 1 of a warp, 2 of several, 3 of several blocks
  bool is_write_atomic;
};
constexpr size_t kStaticBytes = 64 << 20;  // of all kernels of a source
using Cells = Cell* [4];  // of words, or of their first bytes; then of their other bytes

alignas(1024) unsigned char dynamic_buffer[kSharedBytes];
Cells dynamic_cells, static_cells, device_cells;
const KernelEntry* kernel;
uint64_t first_block;  // of the launch
std::set<std::pair<const void*, int>> told;  // one report a place

struct Access {
  uintptr_t address;
  unsigned bytes;
  bool is_write, is_atomic, is_volatile;
  const void* pc;
};

bool is_new(const Access& access, int kind) { return told.insert({access.pc, kind}).second; }

void tell(const Access& access, const char* what, const std::string& more = "") {
  const unsigned thread = current_thread();
  report("kernel %s: thread %u %s %u bytes of %s%s\n  at %s", kernel->name, thread,
         access.is_write ? "writes" : "reads", access.bytes, what, more.c_str(), source_line(access.pc).c_str());
}

void tell_race(const Access& access, const char* where, unsigned other, const char* did, const void* pc) {
  tell(access, where, std::string(" which thread ") + std::to_string(other) + did +
       " with nothing between the two (a data race)\n  that was at " + source_line(pc) + ",");
}

// Compare an access with what a cell remembers since a block began, and remember it.
void check_cell(Cell& cell, const Access& access, const char* where, uint64_t since) {
  const unsigned thread = current_thread(), barrier = current_barrier(), step = current_warp_step();
  const uint64_t block = current_block();
  const auto is_concurrent = [&](unsigned other, unsigned other_step) {
    return other != thread && (other / 32 != thread / 32 || (other_step == step && !access.is_volatile));
  };
  if (cell.write_block >= since && !(access.is_atomic && cell.is_write_atomic)) {
    const bool is_other_block = cell.write_block != block;
    if (is_other_block || (cell.write_barrier == barrier && is_concurrent(cell.writer, cell.write_step)))
      if (is_new(access, is_other_block ? 5 : 1))
        tell_race(access, where, cell.writer, is_other_block ? " of another block wrote" : " wrote", cell.write_pc);
  }
  const bool is_read = cell.read_block >= since, is_read_now = cell.read_block == block && cell.read_barrier == barrier;
  if (access.is_write) {
    const bool is_other_block = is_read && (cell.read_block != block || cell.readers == 3);
    const bool is_one_of = cell.readers == 1 && cell.reader / 32 == thread / 32 && cell.other_read_step == step && !access.is_volatile;
    if (is_other_block || (is_read_now && (cell.readers == 2 || is_one_of || is_concurrent(cell.reader, cell.read_step))))
      if (is_new(access, is_other_block ? 6 : 4))
        tell_race(access, where, cell.reader, is_other_block ? " of another block read" : " (or another) read", cell.read_pc);
    cell.write_block = block;
    cell.writer = thread;
    cell.write_barrier = barrier;
    cell.write_step = step;
    cell.write_pc = access.pc;
    cell.is_write_atomic = access.is_atomic;
    return;
  }
  if (access.is_atomic) return;
  if (is_read && (cell.read_block != block || cell.readers == 3)) {
    cell.readers = 3;
  } else if (!is_read_now) {
    cell.readers = 0;
  } else if (cell.reader != thread) {
    cell.readers = cell.readers == 2 || cell.reader / 32 != thread / 32 ? 2 : 1;
    cell.other_read_step = cell.read_step;
  }
  cell.read_block = block;
  cell.reader = thread;
  cell.read_barrier = barrier;
  cell.read_step = step;
  cell.read_pc = access.pc;
}

template <class F>
void each_cell(Cells& cells, size_t offset, unsigned bytes, uint64_t since, F visit) {
  for (unsigned done = 0; done < bytes;) {
    const size_t word = (offset + done) / 4, at = (offset + done) % 4;
    Cell& first = cells[0][word];
    const bool is_split = first.split_block >= since;
    if (!at && bytes - done >= 4 && !is_split) {
      visit(first);
      done += 4;
      continue;
    }
    if (!is_split) {
      first.split_block = current_block();
      for (int other = 1; other < 4; other++) cells[other][word] = first;
    }
    visit(cells[at][word]);
    done++;
  }
}

void check_shared(const Access& access, size_t offset, Cells& cells) {
  if (access.is_volatile) converge_warp();
  const uint64_t block = current_block();
  each_cell(cells, offset, access.bytes, block, [&](Cell& cell) {
    if (!access.is_write && cell.write_block != block && is_new(access, 2))
      tell(access, "shared memory that no thread of the block has written");
    check_cell(cell, access, "shared memory", block);
  });
}

void check_device(Access access) {
  access.is_volatile = false;
  const unsigned char* states = byte_states((void*)access.address);
  for (unsigned i = 0; i < access.bytes; i++) {
    if (states[i] == kFree) {
      tell(access, "device memory that is not allocated");
      abandon_kernel(cudaErrorIllegalAddress);
    }
    if (!access.is_write && states[i] == kAllocated && is_new(access, 3)) {
      tell(access, "device memory that was never written");
      break;
    }
  }
  each_cell(device_cells, access.address - uintptr_t(arena), access.bytes, first_block,
            [&](Cell& cell) { check_cell(cell, access, "device memory", first_block); });
  if (access.is_write) memset((void*)states, kWritten, access.bytes);
}

void reserve_cells(Cells& cells, size_t bytes) {
  for (Cell*& each : cells)
    each = (Cell*)mmap(nullptr, (bytes / 4 + 1) * sizeof(Cell), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

void check(const Access& access, bool is_aligned = true) {
  if (is_own_stack(access.address)) return;
  if (is_aligned && access.address % access.bytes) {
    tell(access, "memory at an address that is no multiple of that");
    abandon_kernel(cudaErrorMisalignedAddress);
  }
  if (in_arena((void*)access.address)) return check_device(access);
  const uintptr_t dynamic_offset = access.address - uintptr_t(dynamic_buffer);
  if (dynamic_offset < kSharedBytes) {
    if (dynamic_offset + access.bytes > running_launch()->dynamic_shared_bytes) {
      tell(access, "shared memory beyond what the launch asks for");
      abandon_kernel(cudaErrorIllegalAddress);
    }
    return check_shared(access, dynamic_offset, dynamic_cells);
  }
  const uintptr_t shared_offset = access.address - uintptr_t(kernel->shared_begin);
  if (shared_offset < uintptr_t(kernel->shared_end - kernel->shared_begin))
    return check_shared(access, shared_offset, static_cells);
  if (access.address - uintptr_t(kernel->image_begin) < uintptr_t(kernel->image_end - kernel->image_begin)) return;
  if (in_pinned((void*)access.address)) return;
  tell(access, "the host's memory");
  abandon_kernel(cudaErrorIllegalAddress);
}
}  // namespace

unsigned char* dynamic_shared() { return dynamic_buffer; }
extern "C" unsigned char* gpu_dynamic_shared() { return dynamic_buffer; }

void begin_checks(const Launch& launch) {
  kernel = launch.kernel;
  first_block = current_block() + 1;
  if (device_cells[0]) return;
  reserve_cells(device_cells, kArenaBytes);
  reserve_cells(dynamic_cells, kSharedBytes);
  reserve_cells(static_cells, kStaticBytes);
}

void report(const char* format, ...) {
  char text[4096];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const char* path = getenv("SOFTWARE_GPU_REPORTS");
  FILE* file = path ? fopen(path, "a") : nullptr;
  for (FILE* each : {stderr, file})
    if (each) fprintf(each, "software GPU: %s\n", text), fflush(each);
  if (file) fclose(file);
}

std::string source_line(const void* pc) {
  Dl_info info;
  if (!dladdr(pc, &info)) return "an unknown place";
  char command[1024], found[512] = "";
  snprintf(command, sizeof command, "LD_LIBRARY_PATH= addr2line -i -e '%s' 0x%zx", info.dli_fname,
           size_t((char*)pc - (char*)info.dli_fbase) - 1);
  std::string place;
  if (FILE* pipe = popen(command, "r")) {
    while (fgets(found, sizeof found, pipe)) place = found;  // the kernel's own line, not a header's within it
    pclose(pipe);
  }
  place = place.substr(0, place.find_first_of(" \n"));
  const size_t colon = place.rfind(':');
  if (FILE* source = colon == std::string::npos ? nullptr : fopen(place.substr(0, colon).c_str(), "r")) {
    char line[4096];
    for (int number = atoi(place.c_str() + colon + 1); number > 0 && fgets(line, sizeof line, source); number--)
      if (number == 1) {
        line[strcspn(line, "\n")] = 0;
        place += ": " + std::string(line + strspn(line, " ")).substr(0, 300);
      }
    fclose(source);
  }
  return place;
}

#define PC __builtin_return_address(0)
#define HOOKS(n)                                                                                          \
  extern "C" void __tsan_read##n(void* a) { check({uintptr_t(a), n, false, false, false, PC}); }          \
  extern "C" void __tsan_write##n(void* a) { check({uintptr_t(a), n, true, false, false, PC}); }          \
  extern "C" void __tsan_volatile_read##n(void* a) { check({uintptr_t(a), n, false, false, true, PC}); }  \
  extern "C" void __tsan_volatile_write##n(void* a) { check({uintptr_t(a), n, true, false, true, PC}); }  \
  extern "C" void __tsan_unaligned_read##n(void* a) { check({uintptr_t(a), n, false, false, false, PC}, false); } \
  extern "C" void __tsan_unaligned_write##n(void* a) { check({uintptr_t(a), n, true, false, false, PC}, false); } \
  extern "C" void __tsan_unaligned_volatile_read##n(void* a) { check({uintptr_t(a), n, false, false, true, PC}, false); } \
  extern "C" void __tsan_unaligned_volatile_write##n(void* a) { check({uintptr_t(a), n, true, false, true, PC}, false); }
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16)
extern "C" void __tsan_read_range(void* a, size_t n) { check({uintptr_t(a), unsigned(n), false, false, false, PC}, false); }
extern "C" void __tsan_write_range(void* a, size_t n) { check({uintptr_t(a), unsigned(n), true, false, false, PC}, false); }
extern "C" void __tsan_init() {}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_read(void*) {}
extern "C" void gpu_atomic(void* a, unsigned n) {
  check({uintptr_t(a), n, false, true, false, PC});
  check({uintptr_t(a), n, true, true, false, PC});
}
