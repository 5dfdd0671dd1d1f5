// Every access of a kernel to memory, checked: GCC puts a call before each (-fsanitize=thread), answered here.
//
// Device memory has to be allocated and written, accesses aligned. Two accesses of different threads to shared
// memory, one of them a write, need a barrier between them, or within a warp an exchange; to device memory in one
// launch they need one block and a barrier. Each word remembers its last write and its last readers, so of bytes
// within a word some races go unseen; none is seen where there is none. GCC checks no access that is the argument
// or the result of a call, as those of `half` and its like are: in kernels with so many of them that they are not
// inlined, some races go unseen, and what was never written is not reported. Accesses through `volatile` to shared
// memory are taken by the lanes of a warp together, as the reductions that are written that way assume.
#include "device.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

namespace {
struct SharedWord {
  const void *write_pc, *read_pc;
  uint64_t written_block;
  unsigned write_barrier, write_step, read_barrier, read_step, other_read_step;
  unsigned short writer, reader;
  unsigned char write_bytes, written_bytes, read_bytes, readers;  // readers: 0 one, 1 of a warp, 2 of several
  bool is_write_atomic;
};
struct DeviceWord {
  uint64_t block;
  const void* pc;
  unsigned launch, barrier;
  unsigned short thread;
  unsigned char bytes;
  bool is_atomic;
};

alignas(1024) unsigned char dynamic_buffer[kSharedBytes];
SharedWord dynamic_words[kSharedBytes / 4];
std::map<const KernelEntry*, std::vector<SharedWord>> static_words;
SharedWord* static_words_now;
DeviceWord* device_words;
const KernelEntry* kernel;
unsigned launch_number;
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

unsigned char mask_of(unsigned offset, unsigned bytes) { return ((1u << bytes) - 1) << offset & 15; }

void check_shared_word(SharedWord& word, const Access& access, unsigned char bytes) {
  const unsigned thread = current_thread(), barrier = current_barrier(), step = current_warp_step();
  const auto is_concurrent = [&](unsigned other, unsigned other_step) {
    return other / 32 != thread / 32 || (other_step == step && !access.is_volatile);
  };
  const bool is_earlier = word.write_barrier == barrier && word.write_bytes & bytes && word.writer != thread;
  if (is_earlier && is_concurrent(word.writer, word.write_step) && !(access.is_atomic && word.is_write_atomic))
    if (is_new(access, 1)) tell_race(access, "shared memory", word.writer, " wrote", word.write_pc);
  if (access.is_write) {
    if (word.read_barrier == barrier && word.read_bytes & bytes) {
      const bool is_other = word.reader != thread && is_concurrent(word.reader, word.read_step);
      const bool is_one_of = word.readers == 1 && is_concurrent(word.reader, word.other_read_step);
      if ((is_other || word.readers == 2 || is_one_of) && is_new(access, 4))
        tell_race(access, "shared memory", word.reader, " (or another) read", word.read_pc);
    }
    if (word.written_block != current_block()) word.written_block = current_block(), word.written_bytes = 0;
    word.written_bytes |= bytes;
    word.write_bytes = bytes;
    word.writer = thread;
    word.write_barrier = barrier;
    word.write_step = step;
    word.write_pc = access.pc;
    word.is_write_atomic = access.is_atomic;
    return;
  }
  if (word.written_block != current_block() || (word.written_bytes & bytes) != bytes)
    if (!kernel->hides_accesses && is_new(access, 2)) tell(access, "shared memory that no thread of the block has written");
  if (access.is_atomic) return;
  if (word.read_barrier != barrier || !(word.read_bytes & bytes)) {
    word.readers = 0;
    word.read_bytes = 0;
  } else if (word.reader != thread) {
    word.readers = word.readers == 2 || word.reader / 32 != thread / 32 ? 2 : 1;
    word.other_read_step = word.read_step;
  }
  word.read_bytes |= bytes;
  word.reader = thread;
  word.read_barrier = barrier;
  word.read_step = step;
  word.read_pc = access.pc;
}

void check_shared(const Access& access, uintptr_t offset, SharedWord* words) {
  if (access.is_volatile) converge_warp();
  for (unsigned done = 0; done < access.bytes;) {
    const unsigned at = (offset + done) % 4, length = std::min(4 - at, access.bytes - done);
    check_shared_word(words[(offset + done) / 4], access, mask_of(at, length));
    done += length;
  }
}

void check_device_word(DeviceWord& word, const Access& access, unsigned char bytes) {
  const unsigned thread = current_thread();
  const bool is_same_launch = word.launch == launch_number && word.bytes & bytes;
  const bool is_other = word.block != current_block() || (word.thread != thread && word.barrier == current_barrier());
  if (is_same_launch && is_other && !(access.is_atomic && word.is_atomic)) {
    const bool is_same_block = word.block == current_block();
    if (is_new(access, is_same_block ? 1 : 5))
      tell_race(access, "device memory", word.thread, is_same_block ? " wrote" : " of another block wrote", word.pc);
  }
  if (access.is_write)
    word = {current_block(), access.pc, launch_number, current_barrier(), (unsigned short)thread, bytes,
            access.is_atomic};
}

void check_device(const Access& access) {
  const unsigned char* states = byte_states((void*)access.address);
  for (unsigned i = 0; i < access.bytes; i++) {
    if (states[i] == kFree) {
      tell(access, "device memory that is not allocated");
      abandon_kernel(cudaErrorIllegalAddress);
    }
    if (!access.is_write && states[i] == kAllocated && !kernel->hides_accesses && is_new(access, 3)) {
      tell(access, "device memory that was never written");
      break;
    }
  }
  const uintptr_t offset = access.address - uintptr_t(arena);
  for (unsigned done = 0; done < access.bytes;) {
    const unsigned at = (offset + done) % 4, length = std::min(4 - at, access.bytes - done);
    check_device_word(device_words[(offset + done) / 4], access, mask_of(at, length));
    done += length;
  }
  if (access.is_write) memset((void*)states, kWritten, access.bytes);
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
    return check_shared(access, dynamic_offset, dynamic_words);
  }
  const uintptr_t shared_offset = access.address - uintptr_t(kernel->shared_begin);
  if (shared_offset < uintptr_t(kernel->shared_end - kernel->shared_begin))
    return check_shared(access, shared_offset, static_words_now);
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
  launch_number++;
  auto& words = static_words[kernel];
  words.resize((kernel->shared_end - kernel->shared_begin + 3) / 4);
  static_words_now = words.data();
  if (!device_words)
    device_words = (DeviceWord*)mmap(nullptr, kArenaBytes / 4 * sizeof(DeviceWord), PROT_READ | PROT_WRITE,
                                     MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
