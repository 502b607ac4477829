// The callback at the operators of a capture, and the recordings that are on.
//
// It runs in the program's threads, with or without the interpreter's lock, and throws nothing. Of an operator that consists
// of others, those are recorded; of any other, its callees are not, but for what they make and leave. Autocast's kernel of an
// operator consists of conversions and of the operator without autocast. Captures of a forked child are its parent's: none
// is known there.

namespace {
namespace captures {

constexpr size_t kMost = 16;  // recordings at a time
constexpr size_t kSpare = 4;

std::mutex registry_mutex;  // for the next two
std::array<Shared, kMost> slots;  // recordings that are on
std::unordered_map<uint64_t, Shared> recordings;  // by number, until they are freed
std::atomic<uint64_t> numbers{0};
std::atomic<size_t> running{0};
at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
const char* no_overload = nullptr;  // what a name that is no operator's has in place of an overload

// An operator that runs.
struct Call {
  Ran ran;
  Shared recorder;
  bool covers = false;
  Nodes newest;
  Call* around = nullptr;  // the call around this one that covers its callees
  bool inside = false;  // is covered by that one
  std::vector<Inside> made;  // by those that this one covers
};

// Of this thread. Whether it has ended is no member: operators may run in destructors of other thread-local objects.
thread_local Call* covering = nullptr;  // the operator that runs, if its callees are not recorded
thread_local bool over = false;
struct Local {
  ~Local() {
    over = true;
  }
  std::vector<std::unique_ptr<Call>> spare;  // whose memory is used again
  std::weak_ptr<Recorder> own;  // the latest recording that the thread began
};
thread_local Local local;

struct Running : at::ObserverContext {
  Running() {
    if (local.spare.empty()) {
      call = std::make_unique<Call>();
    } else {
      call = std::move(local.spare.back());
      local.spare.pop_back();
    }
  }
  ~Running() override {
    call->recorder.reset();
    call->ran.given.clear();
    call->ran.results.clear();
    call->made.clear();
    if (!over && local.spare.size() < kSpare) {
      local.spare.push_back(std::move(call));
    }
  }
  std::unique_ptr<Call> call;
};

// A recording by its number, or null once it is freed, and in a forked child.
Shared recording_of(uint64_t number) {
  std::lock_guard<std::mutex> guard(registry_mutex);
  auto found = recordings.find(number);
  return found != recordings.end() ? found->second : nullptr;
}

// The recording that an operator of this thread belongs to, or none.
Shared recorder_here(Look& seen, Nodes& newest) {
  Shared own = local.own.lock();
  if (own != nullptr && !own->closed.load(std::memory_order_relaxed)) {
    seen = look(*own, newest);
    if (seen == Look::kHere) {
      return own;
    }
  }
  std::array<Shared, kMost> found;
  Shared around;
  {
    std::lock_guard<std::mutex> guard(registry_mutex);
    found = slots;
  }
  for (auto& each : found) {
    if (each == nullptr) {
      continue;
    }
    bool mine = pthread_equal(each->owner, pthread_self()) != 0;
    if (!mine && (each->device.is_cpu() || stream_on(each->device) == 0)) {
      continue;  // a stream that never captures
    }
    seen = look(*each, newest);
    if (seen == Look::kHere || (seen == Look::kBlind && mine)) {
      return each;
    }
    if (seen == Look::kInside && mine) {
      around = each;
    }
  }
  seen = Look::kInside;
  return around;
}

void note_failure() {
  shadowgraph_failures.fetch_add(1, std::memory_order_relaxed);
}

// The last values of a list: TorchScript gives its whole stack.
c10::ArrayRef<const c10::IValue> last_of(c10::ArrayRef<const c10::IValue> values, size_t count) {
  return values.slice(values.size() - count);
}

// Whether autocast's own kernel of an operator is the one that runs.
bool is_cast(const Operator& op, c10::Device device) {
  auto key = device.is_cpu() ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;
  if (c10::impl::tls_is_dispatch_key_excluded(key)) {
    return false;
  }
  auto known = c10::Dispatcher::singleton().findOp({op.name, op.overload});
  return known.has_value() && known->hasKernelForDispatchKey(key) && !known->isKernelFallthroughKernel(key);
}

// Reads what an operator was given; false if the operators on that are recorded, or nothing can be.
bool read_given(const at::RecordFunction& function, const Operator& op, const Recorder& recorder, Ran& ran) {
  auto given = function.inputs();
  if (given.size() < op.arguments) {
    note_failure();
    return false;
  }
  ran.op = &op;
  ran.trace = kNoTrace;
  Reader(ran.given, recorder.device.type()).add_all(last_of(given, op.arguments), 0);
  return ran.given.opaque == 0;  // else wrappers of tensors
}

void read_results(const at::RecordFunction& function, const Recorder& recorder, Ran& ran) {
  const auto& returned = function.outputs();
  if (returned.size() >= ran.op->returns) {
    c10::ArrayRef<const c10::IValue> all(returned.data(), returned.size());
    Reader(ran.results, recorder.device.type()).add_all(last_of(all, ran.op->returns), kResult);
  }
}

// Whether this thread has not begun another recording within the operator that covers the one which begins.
bool is_covered(const Call& outer) {
  Shared own = local.own.lock();
  return own == nullptr || own == outer.recorder || own->closed.load(std::memory_order_relaxed);
}

// A callee begins of an operator that covers it; false if it makes nothing.
bool begins_inside(const at::RecordFunction& function, const Operator& op, const Call& outer, Call& call) {
  call.inside = true;
  return op.makes && read_given(function, op, *outer.recorder, call.ran);
}

// An operator begins; false if it is not recorded.
bool begins(const at::RecordFunction& function, const Operator& op, Call& call) {
  if (covering != nullptr && is_covered(*covering)) {
    return begins_inside(function, op, *covering, call);
  }
  Look seen = Look::kElsewhere;
  Shared recorder = recorder_here(seen, call.newest);
  if (recorder == nullptr) {
    return false;
  }
  if (covering != nullptr && recorder == covering->recorder) {
    return begins_inside(function, op, *covering, call);
  }
  Ran& ran = call.ran;
  if (!read_given(function, op, *recorder, ran)) {
    return false;
  }
  call.inside = false;
  call.covers = !op.composite && !is_cast(op, recorder->device);
  bool traced = false;
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> guard(recorder->mutex);
    if (recorder->closed) {
      return false;
    }
    number = recorder->ops.size();
    traced = call.covers && needs_trace(*recorder, op.id, &ran.trace);
    ran.token = launch_begins(*recorder, seen, call.newest);
  }
  if (traced) {  // after the launch has begun: to a tracer of C functions, what this calls is no launch of its own
    uint32_t refuted = 0;
    ran.trace = trace_of(*recorder, static_cast<long long>(number), &refuted);
    std::lock_guard<std::mutex> guard(recorder->mutex);
    refute(*recorder, number, refuted);
  }
  call.recorder = std::move(recorder);
  return true;
}

bool is_text(const at::RecordFunction& call) {
  return call.overload_name() == no_overload;
}

// What a name that is no operator's has in place of an overload.
void learn_names() {
  at::RecordFunction text(at::RecordScope::LITE_INTERPRETER);
  no_overload = text.overload_name();
}

const Operator* operator_of(const at::RecordFunction& call) {
  return ::operator_of(call.overload_name(), call.name(), call.overload_name(), [&call] { return call.operator_schema(); });
}

std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction& function) {
  try {
    if (over || running.load(std::memory_order_acquire) == 0 || is_text(function)) {
      return nullptr;
    }
    // A dispatch mode of the program's calls what it likes; what it calls comes here without it.
    const Operator* op = operator_of(function);
    if (op == nullptr || op->transparent || c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      return nullptr;
    }
    auto context = std::make_unique<Running>();
    if (!begins(function, *op, *context->call)) {
      return nullptr;
    }
    Call& call = *context->call;
    call.around = covering;
    if (!call.inside && call.covers) {
      covering = &call;
    }
    return context;
  } catch (...) {
    note_failure();
    return nullptr;
  }
}

// A callee has ended of an operator that covers it.
void ends_inside(const at::RecordFunction& function, Call& call) {
  Ran& ran = call.ran;
  read_results(function, *call.around->recorder, ran);
  for (size_t at = 0; at < ran.results.places.size(); ++at) {
    uint64_t address = ran.results.words[ran.results.places[at] + 1];
    if (!ran.given.has(address)) {
      call.around->made.push_back({ran.results.storages[at], address});
    }
  }
}

// An operator has ended, or has raised: then it has returned nothing.
void ends(const at::RecordFunction& function, Call& call) {
  Recorder& recorder = *call.recorder;
  Ran& ran = call.ran;
  Look seen = look(recorder, call.newest);
  bool marked = false;
  {
    std::lock_guard<std::mutex> guard(recorder.mutex);
    if (recorder.closed) {
      return;
    }
    marked = launch_ends(recorder, ran.token, seen, call.newest);
  }
  if (!call.covers) {
    if (!marked) {
      return;  // its callees are recorded
    }
    uint32_t refuted = 0;
    ran.trace = trace_of(recorder, kNoNumber, &refuted);
  }
  read_results(function, recorder, ran);
  std::vector<Weak> keep;
  {
    std::lock_guard<std::mutex> guard(recorder.mutex);
    if (!recorder.closed) {
      put_row(recorder, ran, keep);
      note_inside(recorder, call.made, keep);
    }
  }
  keep_all(recorder, keep);
}

void operator_ends(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) {
    return;
  }
  Call& call = *static_cast<Running*>(context)->call;
  if (!call.inside && call.covers) {
    covering = call.around;
  }
  try {
    call.inside ? ends_inside(function, call) : ends(function, call);
  } catch (...) {
    note_failure();
  }
}

void after_fork() {
  // Copies of what a thread that is gone may have been changing; what they refer to is never freed.
  new (&registry_mutex) std::mutex();
  new (&slots) std::array<Shared, kMost>();
  new (&recordings) std::unordered_map<uint64_t, Shared>();
  running.store(0);
  asking.store(0);
  if (!over) {
    new (&local.own) std::weak_ptr<Recorder>();
  }
}

// With the lock of the registry.
void turn_on() {
  if (callback != at::INVALID_CALLBACK_HANDLE) {
    at::reenableCallback(callback);
    return;
  }
  learn_names();
  pthread_atfork(nullptr, nullptr, &after_fork);
  callback = at::addGlobalCallback(at::RecordFunctionCallback(&operator_begins, &operator_ends)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
}

// Takes a recording from those that are on.
void turn_off(const Recorder& recorder) {
  Shared removed;  // ends after the lock is left
  std::lock_guard<std::mutex> guard(registry_mutex);
  for (auto& slot : slots) {
    if (slot.get() == &recorder) {
      removed = std::move(slot);
      slot = nullptr;
      if (running.fetch_sub(1) == 1) {
        at::disableCallback(callback);
      }
    }
  }
}

}  // namespace captures
}  // namespace
