// Kernels of ours in the place of those of torch's operators that write tensors: they note the call in `observer.cpp`, and
// call the kernel whose place they took. Operators that write nothing run as ever.

#include <ATen/ops/_foreach_copy_ops.h>
#include <ATen/ops/_index_put_impl_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/index_put_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/resize_ops.h>
#include <ATen/ops/set_ops.h>
#include <ATen/ops/zero_ops.h>

namespace {

// An operator that runs in this thread; `noted` notes its call, unless a row of its caller covers it.
struct Running {
  template <class Noted>
  explicit Running(Noted noted) {
    ++thread.depth;
    if (thread.covered != 0 || !noting.load(std::memory_order_relaxed)) {
      return;
    }
    try {
      noted();
    } catch (...) {
      shadowgraph_failures.fetch_add(1, std::memory_order_relaxed);
    }
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  ~Running() {
    if (thread.covered == thread.depth) {
      thread.covered = 0;
    }
    --thread.depth;
  }
};

void note_boxed(const Operator& op, const torch::jit::Stack& stack) {
  if (stack.size() < op.arguments) {
    shadowgraph_failures.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  auto given = c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - op.arguments);  // TorchScript gives its whole stack
  bool trains = op.statistics != 0 && given[op.training].isBool() && given[op.training].toBool();
  note(op, op.written | (trains ? op.statistics : 0), [&](Adder add) {
    for (size_t at = 0; at < given.size(); ++at) {
      add(at, given[at]);
    }
  });
}

// A thread that calls an operator while its kernel is replaced may see a mixture of the two: one's function with the
// other's state, or with none. So only kernels without state take part: this one, and those that torch generates.
template <Slot kSlot>
void stands_in(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  std::atomic_thread_fence(std::memory_order_acquire);
  const Operator* op = operator_of(handle.schema());
  TORCH_CHECK(op != nullptr && op->kernels[kSlot].has_value(), "no kernel to stand in for: ", handle.schema().name());
  Running running([&] { note_boxed(*op, *stack); });
  op->kernels[kSlot]->callBoxed(handle, keys, stack);
}

// The same for an operator whose type is known here, such as `at::_ops::copy_`: without boxes.
template <class Op, class Type = typename Op::schema>
struct Typed;

template <class Op, class Result, class... Args>
struct Typed<Op, Result(Args...)> {
  static inline const Operator* known = nullptr;  // set before its kernels are registered

  template <Slot kSlot>
  static Result stands_in(c10::DispatchKeySet keys, Args... args) {
    std::atomic_thread_fence(std::memory_order_acquire);
    const Operator& op = *known;
    Running running([&] {
      note(op, op.written, [&](Adder add) {
        size_t at = 0;
        (add(at++, args), ...);
      });
    });
    const auto& kernel = *op.kernels[kSlot];
    return kernel_in(kernel).template call<Result, Args...>(kernel.opHandle(), keys, std::forward<Args>(args)...);
  }

  template <Slot kSlot>
  static void make_for(const Operator& op, std::optional<c10::KernelFunction>& kernel) {
    if (op.name == Op::name && op.overload == Op::overload_name) {
      known = &op;
      using Function = c10::CompileTimeFunctionPointer<Result(c10::DispatchKeySet, Args...), &Typed::stands_in<kSlot>>;
      kernel.emplace(c10::KernelFunction::makeFromUnboxedFunction(Function()));
    }
  }
};

// A kernel with the type of one of these operators, or a boxed one.
template <Slot kSlot, class... Ops>
c10::KernelFunction kernel_among(const Operator& op) {
  std::optional<c10::KernelFunction> kernel;
  (Typed<Ops>::template make_for<kSlot>(op, kernel), ...);
  return kernel.has_value() ? *kernel : c10::KernelFunction::makeFromBoxedFunction<&stands_in<kSlot>>();
}

// Typed are the operators that a server calls most between two replays.
template <Slot kSlot>
c10::KernelFunction kernel_for(const Operator& op) {
  using namespace at::_ops;
  return kernel_among<
      kSlot, copy_, fill__Scalar, zero_, set__source_Storage_storage_offset, set__source_Tensor, resize_, add__Tensor,
      mul__Tensor, masked_fill__Scalar, index_put_, _index_put_impl_, _foreach_copy_, arange_start_out>(op);
}

// Torch warns once of kernels that are registered a second time. The program's own warning of that kind is still to come.
struct Silent : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

// Takes the place of the kernel that is registered at `key`, and that calls for `runtime` reach.
template <Slot kSlot>
void stand_in(const c10::OperatorHandle& handle, Operator& op, c10::DispatchKey key, c10::DispatchKey runtime) {
  auto kernel = handle.getComputedKernelForDispatchKey(runtime);
  if (handle.isKernelFallthroughKernel(key) || kernel.debug().find("/ATen/Register") == std::string::npos) {
    return;  // not torch's own: of Python code, which may take it back, or of a library
  }
  op.kernels[kSlot].emplace(kernel);
  std::atomic_thread_fence(std::memory_order_release);
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>();  // for the life of the process
  kept->push_back(c10::Dispatcher::singleton().registerImpl(
      handle.operator_name(), key, kernel_for<kSlot>(op), std::nullopt, nullptr, kernel.debug()));
}

// Whether a boxed call would return another tensor: such a one is taken to return its first argument.
bool returns_another(const Operator& op) {
  return op.overload == "out" && op.name.find("resize") != std::string::npos;
}

void stand_in_for(const c10::OperatorHandle& handle, Operator& op) {
  using Key = c10::DispatchKey;
  bool cpu = handle.hasKernelForDispatchKey(Key::CPU), cuda = handle.hasKernelForDispatchKey(Key::CUDA);
  if (cpu) {
    stand_in<kCpu>(handle, op, Key::CPU, Key::CPU);
  }
  if (cuda) {
    stand_in<kCuda>(handle, op, Key::CUDA, Key::CUDA);
  }
  if (cpu && cuda) {
    return;
  }
  for (Key key : {Key::CompositeExplicitAutogradNonFunctional, Key::CompositeExplicitAutograd}) {
    if (handle.hasKernelForDispatchKey(key)) {  // the first of them is reached; others consist of operators
      stand_in<kBoth>(handle, op, key, cpu ? Key::CUDA : Key::CPU);
      return;
    }
  }
}

}  // namespace

extern "C" {

// Has kernels of ours stand in for those of some of torch's operators, so that no caller waits for long; returns how many
// operators are left to be looked at, or -1. Calls are serialised by the caller. Operators may be called meanwhile.
int64_t shadowgraph_look() {
  try {
    static const auto names = c10::Dispatcher::singleton().getAllOpNames();
    static size_t at = 0;
    Silent silent;
    c10::WarningUtils::WarningHandlerGuard guard(&silent);
    c10::WarningUtils::WarnAlways always;  // so that the once of torch's warning is not spent
    for (size_t until = std::min(names.size(), at + kLooked); at < until;) {
      const auto& name = names[at++];
      auto handle = name.name.rfind("aten::", 0) == 0 ? c10::Dispatcher::singleton().findSchema(name) : std::nullopt;
      Operator* op = handle.has_value() ? operator_of(handle->schema()) : nullptr;
      if (op != nullptr && (op->written | op->statistics) != 0 && !returns_another(*op)) {
        stand_in_for(*handle, *op);
      }
    }
    return static_cast<int64_t>(names.size() - at);
  } catch (...) {
    return -1;
  }
}

}
