// Threads of C++ that run operators, and a device whose streams have handles, for tests of the observer without a GPU.

#include <ATen/ops/zeros.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace {

constexpr int64_t kStream = 5;
constexpr uintptr_t kHandle = 0x5000;
std::atomic<uintptr_t> asked{0};
std::atomic<uint64_t> asks{0};
std::atomic<bool> refuses{false};
std::atomic<uint64_t> ran{0};
std::atomic<bool> halted{false};
std::atomic<int> inside{0};

struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::UNSAFE, device, kStream);
  }
  void* getStreamNativeHandle(const c10::Stream stream) const {  // not there to be overridden before torch 2.11
    return reinterpret_cast<void*>(stream.id() == kStream ? kHandle : 0);
  }
};

void run(uint64_t count) {
  inside.fetch_add(1);
  {
    at::Tensor x = at::zeros({4});
    for (uint64_t at = 0; at < count && !halted; ++at) {
      x.add_(1);
      ran.fetch_add(1);
    }
  }
  inside.fetch_sub(1);
}

}  // namespace

extern "C" {

// As a driver of which every stream captures into graph 7, without nodes. Throws as long as it refuses.
int native_ask(void* stream, int* status, uint64_t* id, void** graph, void*** nodes, size_t* count) {
  static void* none = nullptr;
  asks.fetch_add(1);
  if (refuses) {
    throw std::runtime_error("no handle of a stream");
  }
  asked.store(reinterpret_cast<uintptr_t>(stream));
  *status = 1;
  *id = 1;
  *graph = reinterpret_cast<void*>(7);
  *nodes = &none;
  *count = 0;
  return 0;
}

void native_refuse(int wanted) {
  refuses.store(wanted != 0);
}

uint64_t native_asks() {
  return asks.load();
}

uint64_t native_asked() {
  return asked.load();
}

uint64_t native_ran() {
  return ran.load();
}

void native_streams() {
  static Guard guard;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
}

// Waits until no thread runs operators any more: none may while torch's own objects end.
void native_halt() {
  halted.store(true);
  while (inside.load() != 0) {
    std::this_thread::yield();
  }
}

// In this thread.
void native_run(uint64_t count) {
  run(count);
}

// Gives tensors, by the addresses of their objects, other storages; slowly, so that a thread that wants the interpreter's
// lock has it by then.
void native_move(void* const* tensors, uint64_t count) {
  for (uint64_t at = 0; at < count; ++at) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    auto* impl = static_cast<c10::TensorImpl*>(tensors[at]);
    at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl)).set_();
  }
}

// In a thread that has never run Python; waits for it.
void native_run_in_thread(uint64_t count) {
  std::thread(run, count).join();
}
}
