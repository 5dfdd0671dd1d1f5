// Streams, events, copies, graphs and launches, as libcudart and libcuda answer them.
//
// Work waits in its stream until something synchronises with it: as late as CUDA allows, so that whatever forgets
// to wait reads what was there before. Work of the null stream and of blocking streams waits for one another.
// A kernel that fails leaves an error that every later call answers, as on a device.
#include "device.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <set>

namespace {
using Work = std::function<void()>;
constexpr size_t kQueueLength = 1024;  // launches that a device accepts before the host waits

struct Graph {
  std::vector<Work> work;
};
struct Queued;
struct Stream {
  bool is_blocking = true;
  std::deque<Queued> queue;
  uint64_t issued = 0, done = 0;
  Graph* captured = nullptr;
  bool is_capture_broken = false;
};
struct Queued {
  Work work;
  std::vector<std::pair<Stream*, uint64_t>> after;
};
struct Event {
  Stream* stream = nullptr;
  uint64_t number = 0;
  double time_s = -1;
};

Stream null_stream;
std::set<Stream*> streams = {&null_stream};
cudaError_t last_error = cudaSuccess, kernel_error = cudaSuccess;

Stream* stream_of(const void* handle) {
  return uintptr_t(handle) <= 2 ? &null_stream : (Stream*)handle;  // 1 and 2 name default streams
}

void run_until(Stream* stream, uint64_t number) {
  while (stream->done < number && !stream->queue.empty()) {
    Queued next = std::move(stream->queue.front());
    stream->queue.pop_front();
    for (auto [other, upto] : next.after)
      if (streams.count(other)) run_until(other, upto);
    if (!kernel_error) next.work();
    stream->done++;
  }
}

void issue(Stream* stream, Work work, std::vector<std::pair<Stream*, uint64_t>> after = {}) {
  if (stream->captured) {
    stream->captured->work.push_back(std::move(work));
    return;
  }
  for (Stream* other : streams) {
    const bool is_waited_for = stream == &null_stream ? other->is_blocking : other == &null_stream;
    if (other != stream && stream->is_blocking && is_waited_for && other->done < other->issued)
      after.push_back({other, other->issued});
  }
  stream->queue.push_back({std::move(work), std::move(after)});
  stream->issued++;
  if (stream->queue.size() > kQueueLength) {
    OpenArena open;
    run_until(stream, stream->done + 1);
  }
}

void synchronise(Stream* stream) {
  if (stream->done >= stream->issued) return;
  OpenArena open;
  run_until(stream, stream->issued);
}

cudaError_t refuse_in_capture(Stream* stream) {
  if (!stream->captured) return cudaSuccess;
  stream->is_capture_broken = true;
  return fail(cudaErrorStreamCaptureUnsupported);
}

double us_per_kernel = 0, kernels_s = 0;  // where tests set it, time passes in kernels alone

double clock_s(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}
double now_s() { return us_per_kernel ? kernels_s : clock_s(CLOCK_MONOTONIC); }

struct WorkDone {  // by all processes; `work_done` of build.py reads it
  std::atomic<uint64_t> launches, processor_us;
};
WorkDone& work_done() {
  static WorkDone own = {}, *shared = [] {
    const int file = open((std::string(getenv("SOFTWARE_GPU")) + "/launches").c_str(), O_RDWR);
    void* page = file < 0 ? MAP_FAILED : mmap(nullptr, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    return page == MAP_FAILED ? &own : (WorkDone*)page;
  }();
  return *shared;
}

cudaError_t copy(void* to, const void* from, size_t bytes, void* handle) {
  if (kernel_error) return kernel_error;
  if (!bytes) return cudaSuccess;
  Stream* stream = stream_of(handle);
  const bool to_device = in_arena(to), from_device = in_arena(from);
  for (const void* end : {to_device ? (const void*)to : nullptr, from_device ? from : nullptr})
    if (end && (byte_states(end)[0] == kFree || byte_states(end)[bytes - 1] == kFree)) {
      report("a copy of %zu bytes touches device memory that is not allocated", bytes);
      return fail(cudaErrorInvalidValue);
    }
  (to_device ? from_device ? counts.copies_on_device : counts.copies_to_device : counts.copies_to_host)++;
  (to_device ? from_device ? counts.bytes_on_device : counts.bytes_to_device : counts.bytes_to_host) += bytes;
  auto move = [=](const void* source) {
    memmove(to, source, bytes);
    if (to_device && from_device) memmove(byte_states(to), byte_states(from), bytes);
    else mark_written(to, bytes);
  };
  if (to_device && !from_device && !in_pinned(from) && !stream->captured) {
    auto staged = std::make_shared<std::vector<unsigned char>>((const unsigned char*)from,
                                                               (const unsigned char*)from + bytes);
    issue(stream, [=] { move(staged->data()); });
    return cudaSuccess;
  }
  const bool is_waited_for = !to_device && !in_pinned(to);  // the call returns once pageable memory has arrived
  if (is_waited_for)
    if (cudaError_t error = refuse_in_capture(stream)) return error;
  issue(stream, [=] { move(from); });
  if (is_waited_for) {
    counts.synchronisations++;
    synchronise(stream);
  }
  return kernel_error;
}
}  // namespace

Counts counts;
cudaError_t device_error() { return kernel_error; }
cudaError_t fail(cudaError_t error) { return last_error = error; }
cudaError_t refuse_while_capturing() {
  for (Stream* stream : streams)
    if (cudaError_t error = refuse_in_capture(stream)) return error;
  return cudaSuccess;
}
void synchronise_device() {
  for (Stream* stream : std::vector<Stream*>(streams.begin(), streams.end())) synchronise(stream);
}

#define ENTRY extern "C" cudaError_t
#define LOCKED std::lock_guard lock(device_mutex)

// For tests, beside CUDA's own calls.
extern "C" void softwareGpuCounts(Counts* found) { LOCKED; *found = counts; }
extern "C" void softwareGpuTimeKernels(double us) { LOCKED; us_per_kernel = us, kernels_s = 0; }
extern "C" void softwareGpuForgetError() { LOCKED; kernel_error = last_error = cudaSuccess; }

ENTRY cudaSetDevice(int device) { return device ? fail(cudaErrorInvalidDevice) : cudaSuccess; }
ENTRY cudaGetDevice(int* device) { *device = 0; return cudaSuccess; }
ENTRY cudaGetDeviceCount(int* count) { *count = 1; return cudaSuccess; }
ENTRY cudaGetLastError() {
  LOCKED;
  const cudaError_t error = kernel_error ? kernel_error : last_error;
  last_error = cudaSuccess;
  return error;
}
ENTRY cudaPeekAtLastError() { LOCKED; return kernel_error ? kernel_error : last_error; }

#define NAMES(name, text) case name: return is_name ? #name : text;
static const char* error_text(int error, bool is_name) {
  switch (error) {
    NAMES(cudaSuccess, "no error")
    NAMES(cudaErrorInvalidValue, "invalid argument")
    NAMES(cudaErrorMemoryAllocation, "out of memory")
    NAMES(cudaErrorInvalidDevice, "invalid device ordinal")
    NAMES(cudaErrorInvalidKernelImage, "device kernel image is invalid")
    NAMES(cudaErrorSymbolNotFound, "named symbol not found")
    NAMES(cudaErrorIllegalAddress, "an illegal memory access was encountered")
    NAMES(cudaErrorLaunchOutOfResources, "too many resources requested for launch")
    NAMES(cudaErrorLaunchTimeout, "the launch timed out and was terminated")
    NAMES(cudaErrorMisalignedAddress, "misaligned address")
    NAMES(cudaErrorLaunchFailure, "unspecified launch failure")
    NAMES(cudaErrorNotSupported, "operation not supported")
    NAMES(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")
    NAMES(cudaErrorStreamCaptureInvalidated, "operation failed due to a previous error during capture")
    default: return is_name ? "cudaErrorUnknown" : "unknown error";
  }
}
extern "C" const char* cudaGetErrorString(cudaError_t error) { return error_text(error, false); }
extern "C" const char* cudaGetErrorName(cudaError_t error) { return error_text(error, true); }

ENTRY cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) {
  LOCKED;
  auto* stream = new Stream;
  stream->is_blocking = !(flags & cudaStreamNonBlocking);
  streams.insert(stream);
  *handle = (cudaStream_t)stream;
  return cudaSuccess;
}
ENTRY cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithFlags(handle, cudaStreamDefault); }
ENTRY cudaStreamDestroy(cudaStream_t handle) {
  LOCKED;
  Stream* stream = stream_of(handle);
  synchronise(stream);
  streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
ENTRY cudaStreamSynchronize(cudaStream_t handle) {
  LOCKED;
  Stream* stream = stream_of(handle);
  if (cudaError_t error = refuse_in_capture(stream)) return error;
  counts.synchronisations++;
  if (stream == &null_stream) {
    for (Stream* other : std::vector<Stream*>(streams.begin(), streams.end()))
      if (other->is_blocking) synchronise(other);
  } else synchronise(stream);
  return kernel_error;
}
ENTRY cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t awaited, unsigned) {
  LOCKED;
  auto* event = (Event*)awaited;
  if (event->stream) issue(stream_of(handle), [] {}, {{event->stream, event->number}});
  return cudaSuccess;
}

ENTRY cudaEventCreate(cudaEvent_t* event) { *event = (cudaEvent_t) new Event; return cudaSuccess; }
ENTRY cudaEventDestroy(cudaEvent_t event) {
  LOCKED;
  synchronise_device();  // a queued record writes to it
  delete (Event*)event;
  return cudaSuccess;
}
ENTRY cudaEventRecord(cudaEvent_t recorded, cudaStream_t handle) {
  LOCKED;
  auto* event = (Event*)recorded;
  event->stream = stream_of(handle);
  issue(event->stream, [=] { event->time_s = now_s(); });
  event->number = event->stream->issued;
  return kernel_error;
}
ENTRY cudaEventSynchronize(cudaEvent_t awaited) {
  LOCKED;
  auto* event = (Event*)awaited;
  counts.synchronisations++;
  if (event->stream && streams.count(event->stream)) {
    OpenArena open;
    run_until(event->stream, event->number);
  }
  return kernel_error;
}
ENTRY cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  LOCKED;
  const double begin_s = ((Event*)begin)->time_s, end_s = ((Event*)end)->time_s;
  if (begin_s < 0 || end_s < 0) return fail(cudaErrorNotReady);
  *ms = float((end_s - begin_s) * 1e3);
  return kernel_error;
}

ENTRY cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t handle) {
  LOCKED;
  return copy(to, from, bytes, handle);
}
ENTRY cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t handle) {
  LOCKED;
  return copy(to, from, bytes, handle);
}

ENTRY cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode) {
  LOCKED;
  Stream* stream = stream_of(handle);
  if (stream == &null_stream || stream->captured) return fail(cudaErrorStreamCaptureUnsupported);
  stream->captured = new Graph;
  stream->is_capture_broken = false;
  return cudaSuccess;
}
ENTRY cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  LOCKED;
  Stream* stream = stream_of(handle);
  *graph = (cudaGraph_t)stream->captured;
  stream->captured = nullptr;
  return stream->is_capture_broken ? fail(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
}
ENTRY cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = (cudaGraphExec_t) new Graph(*(Graph*)graph);
  return cudaSuccess;
}
ENTRY cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  LOCKED;
  if (kernel_error) return kernel_error;
  counts.graph_launches++;
  for (const Work& work : ((Graph*)executable)->work) issue(stream_of(handle), work);
  return cudaSuccess;
}
ENTRY cudaGraphExecDestroy(cudaGraphExec_t executable) { LOCKED; delete (Graph*)executable; return cudaSuccess; }
ENTRY cudaGraphDestroy(cudaGraph_t graph) { LOCKED; delete (Graph*)graph; return cudaSuccess; }

// An H100's limits, with few multiprocessors.
ENTRY cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device) return fail(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: case cudaDevAttrMaxBlockDimX: case cudaDevAttrMaxBlockDimY: *value = 1024; break;
    case cudaDevAttrMaxBlockDimZ: *value = 64; break;
    case cudaDevAttrMaxGridDimX: *value = 2147483647; break;
    case cudaDevAttrMaxGridDimY: case cudaDevAttrMaxGridDimZ: *value = 65535; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = kSharedBytes; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 228 << 10; break;
    case cudaDevAttrMaxRegistersPerBlock: case cudaDevAttrMaxRegistersPerMultiprocessor: *value = 65536; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrClockRate: *value = 1980000; break;
    case cudaDevAttrMultiProcessorCount: *value = 16; break;
    case cudaDevAttrL2CacheSize: *value = 4 << 20; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    default: *value = 0;
  }
  return cudaSuccess;
}
static const char kName[] = "NVIDIA Software GPU";
ENTRY cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device) return fail(cudaErrorInvalidDevice);
  size_t available;
  memset(properties, 0, sizeof *properties);
  strcpy(properties->name, kName);
  properties->major = 9;
  properties->warpSize = 32;
  properties->multiProcessorCount = 16;
  properties->maxThreadsPerBlock = 1024;
  return cudaMemGetInfo(&available, &properties->totalGlobalMem);
}

// The driver.
struct Module {
  void* library;
};
struct Function {
  const KernelEntry* kernel;
  unsigned dynamic_limit;
};
extern "C" CUresult cuDeviceGetName(char* name, int length, CUdevice) {
  strncpy(name, kName, length);
  return CUDA_SUCCESS;
}
extern "C" CUresult cuGetErrorName(CUresult error, const char** text) {
  *text = error_text(error, true);
  return CUDA_SUCCESS;
}
extern "C" CUresult cuGetErrorString(CUresult error, const char** text) {
  *text = error_text(error, false);
  return CUDA_SUCCESS;
}
extern "C" CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  LOCKED;
  static const char kMagic[] = "software-gpu:";
  const char* text = (const char*)image;
  if (strncmp(text, kMagic, strlen(kMagic))) return CUDA_ERROR_INVALID_IMAGE;
  if (cudaError_t error = refuse_while_capturing()) return CUresult(error);
  void* library = dlopen(text + strlen(kMagic), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    report("a kernel cannot be loaded: %s", dlerror());
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *module = (CUmodule) new Module{library};
  return CUDA_SUCCESS;
}
extern "C" CUresult cuModuleUnload(CUmodule module) {  // the library stays: queued work and lines may need it
  LOCKED;
  delete (Module*)module;
  return CUDA_SUCCESS;
}
extern "C" CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  LOCKED;
  auto* kernel = (const KernelEntry*)dlsym(((Module*)module)->library, (std::string(name) + "__entry").c_str());
  if (!kernel) return CUDA_ERROR_NOT_FOUND;
  *function = (CUfunction) new Function{kernel, 48 << 10};
  return CUDA_SUCCESS;
}
extern "C" CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  LOCKED;
  auto* function = (Function*)handle;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_SUCCESS;
  if (value < 0 || value + function->kernel->static_shared_bytes > kSharedBytes) return CUDA_ERROR_INVALID_VALUE;
  function->dynamic_limit = value;
  return CUDA_SUCCESS;
}
extern "C" CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                           const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                           CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                           CUtensorMapFloatOOBfill) {
  return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult refusal(const Function& function, const CUlaunchConfig& config) {
  const uint64_t threads = uint64_t(config.blockDimX) * config.blockDimY * config.blockDimZ;
  const KernelEntry& kernel = *function.kernel;
  if (!threads || threads > 1024 || config.blockDimZ > 64) return CUDA_ERROR_INVALID_VALUE;
  if (!config.gridDimX || !config.gridDimY || !config.gridDimZ) return CUDA_ERROR_INVALID_VALUE;
  if (config.gridDimX > 2147483647u || config.gridDimY > 65535 || config.gridDimZ > 65535)
    return CUDA_ERROR_INVALID_VALUE;
  if (config.sharedMemBytes > function.dynamic_limit) return CUDA_ERROR_INVALID_VALUE;
  if (config.sharedMemBytes + kernel.static_shared_bytes > std::max(48u << 10, function.dynamic_limit))
    return CUDA_ERROR_INVALID_VALUE;
  if (kernel.max_threads && threads > kernel.max_threads) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction handle, void** given, void**) {
  LOCKED;
  if (kernel_error) return CUresult(kernel_error);
  const Function& function = *(Function*)handle;
  if (CUresult refused = refusal(function, *config)) {
    report("the launch of %s is refused: %u x %u x %u threads, grid %u x %u x %u, %u + %u bytes of shared memory",
           function.kernel->name, config->blockDimX, config->blockDimY, config->blockDimZ, config->gridDimX,
           config->gridDimY, config->gridDimZ, function.kernel->static_shared_bytes, config->sharedMemBytes);
    return refused;
  }
  counts.launches++;
  const Launch launch = {function.kernel,
                         {config->gridDimX, config->gridDimY, config->gridDimZ},
                         {config->blockDimX, config->blockDimY, config->blockDimZ},
                         config->sharedMemBytes};
  std::vector<std::vector<unsigned char>> values;  // parameters are copied when a kernel is launched
  for (unsigned i = 0; i < launch.kernel->num_parameters; i++) {
    auto* value = (const unsigned char*)given[i];
    values.emplace_back(value, value + launch.kernel->parameter_bytes[i]);
  }
  issue(stream_of(config->hStream), [launch, values]() mutable {
    std::vector<void*> parameters;
    for (auto& value : values) parameters.push_back(value.data());
    const double begin_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
    kernel_error = run_kernel(launch, parameters.data());
    work_done().launches++;
    work_done().processor_us += uint64_t((clock_s(CLOCK_THREAD_CPUTIME_ID) - begin_s) * 1e6);
    kernels_s += us_per_kernel * 1e-6;
  });
  return CUDA_SUCCESS;
}
