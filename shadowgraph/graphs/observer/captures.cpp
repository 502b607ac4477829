// Records the operators of a CUDA capture without Python, but for stacks: a second callback, which is on while captures
// run. An operator gets no stack as long as the operators are those of an earlier capture by the same code, but for one
// in sixteen, which shows whether the code is the same. Compiled together with observer.cpp, whose operators and tests of tensors it shares; `recording.py`
// begins, ends and reads a recording.
//
// An operator belongs to a capture if the current stream of its thread captures into that graph, whichever thread that
// is: autograd has its own. The newest nodes of the stream are looked up before and after, as `node_attribution.Marks`
// does in Python. Of an operator that consists of others, those are recorded; of any other, its callees are not.
//
// A recording has a lock. It is never held while the driver, Python or a destructor of tensors is called: the thread
// that has the interpreter's lock may be waiting for it.

#include <c10/util/intrusive_ptr.h>

#include <array>
#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <vector>

// Of the interpreter, whose headers may be missing; these are part of its stable interface.
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int);
void* PyObject_CallObject(void*, void*);
long long PyLong_AsLongLong(void*);
void Py_DecRef(void*);
void PyErr_Clear();
}

namespace {
namespace captures {

constexpr size_t kMost = 16;  // recordings at a time
constexpr int kCapturing = 1;  // CU_STREAM_CAPTURE_STATUS_ACTIVE
constexpr uint64_t kOperatorRow = 1, kLaunchRow = 2;
constexpr uint64_t kResult = 1, kFresh = 2;  // flags of a tensor
constexpr uint64_t kNoTrace = UINT64_MAX;
constexpr uint64_t kLearnt = UINT64_C(1) << 63;  // in place of a stack: with the operator's number in the capture
constexpr uint64_t kChecked = 16;  // one operator in so many has a stack
constexpr size_t kTaught = 16;  // earlier captures to compare with

// cuStreamGetCaptureInfo_v2, and _v3, which also returns data of edges.
using Ask = int (*)(void*, int*, uint64_t*, void**, void***, size_t*);
using AskWithEdges = int (*)(void*, int*, uint64_t*, void**, void***, void**, size_t*);
using RawStream = uint64_t (*)();
using Nodes = std::vector<uint64_t>;

struct Open {
  uint64_t token;
  bool marked;  // nodes were attributed to it
};

// The operators of an earlier capture, in order; the memory is the caller's.
struct Taught {
  const uint64_t* operators;
  uint64_t count;
};

struct Recorder {
  Recorder(uint64_t graph, c10::Device device, void* ask, bool edges, bool keep, void* gather, RawStream raw_stream)
      : graph(graph), device(device), ask(ask), edges(edges), keep(keep), gather(gather), raw_stream(raw_stream) {
    rows.reserve(1 << 12);
  }

  const uint64_t graph;
  const c10::Device device;
  void* const ask;
  const bool edges;
  const bool keep;  // every storage until the recording is freed
  void* const gather;  // a Python callable, see `trace_of`
  const RawStream raw_stream;  // a C function of Python's: handle of the current stream
  const pthread_t owner = pthread_self();

  std::mutex mutex;  // for all below
  std::atomic<bool> closed{false};
  bool blind = false;  // the driver could not tell the newest nodes since the last mark
  uint64_t tokens = 0;
  uint64_t strays = 0;  // times that there were new nodes which no launch made
  std::unordered_map<int64_t, uint64_t> streams;  // handles by torch's numbers
  std::vector<Open> open;
  Nodes last;
  std::vector<uint64_t> rows, marks, fresh, inputs, ops;
  std::vector<Taught> taught;
  uint32_t alike = 0;  // a bit for each of them that has had the same operators so far
  uint32_t last_alike = 0;  // the same, before none was left
  bool traces = true;  // whether each operator gets a stack
  std::unordered_set<uint64_t> made;  // addresses of storages
  std::unordered_set<c10::StorageImpl*> known;  // inputs, and kept storages
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> weak;  // of `inputs`
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> kept;
};

using Shared = std::shared_ptr<Recorder>;

std::mutex slots_mutex;
std::array<Shared, kMost> slots;
std::atomic<size_t> running{0};
at::CallbackHandle callback = at::INVALID_CALLBACK_HANDLE;
thread_local bool covered = false;  // within an operator whose callees are not recorded
thread_local Shared own;  // the latest recording that this thread began

// -- the driver and Python, called without a lock

// The handle of the current stream on a device. Torch's number for it leads to it, once Python was asked.
uint64_t stream_of(Recorder& recorder) {
  int64_t number = recorder.device.is_cpu() ? 0 : stream_on(recorder.device);
  {
    std::lock_guard<std::mutex> guard(recorder.mutex);
    auto found = recorder.streams.find(number);
    if (found != recorder.streams.end()) {
      return found->second;
    }
  }
  uint64_t handle = recorder.raw_stream();
  std::lock_guard<std::mutex> guard(recorder.mutex);
  recorder.streams[number] = handle;
  return handle;
}

enum class Look { kElsewhere, kBlind, kInside, kHere };

// Whether the current stream captures into the graph, and the nodes that its next node would depend on. Inside: into
// another graph, such as the body of a conditional node.
Look look(Recorder& recorder, Nodes& newest) {
  void* stream = reinterpret_cast<void*>(stream_of(recorder));
  int status = 0;
  uint64_t id = 0;
  void* graph = nullptr;
  void** nodes = nullptr;
  void* edges = nullptr;
  size_t count = 0;
  int code = recorder.edges
      ? reinterpret_cast<AskWithEdges>(recorder.ask)(stream, &status, &id, &graph, &nodes, &edges, &count)
      : reinterpret_cast<Ask>(recorder.ask)(stream, &status, &id, &graph, &nodes, &count);
  if (code != 0) {
    return Look::kBlind;
  }
  if (status != kCapturing) {
    return Look::kElsewhere;
  }
  if (reinterpret_cast<uintptr_t>(graph) != recorder.graph) {
    return Look::kInside;
  }
  newest.clear();
  for (size_t at = 0; at < count; ++at) {
    newest.push_back(reinterpret_cast<uintptr_t>(nodes[at]));
  }
  return Look::kHere;
}

// Has Python keep the stack of an operator. It returns the stack's number, and from bit 32 on a bit for each earlier
// capture whose operator here had another stack.
uint64_t trace_of(Recorder& recorder, uint32_t* refuted) {
  int state = PyGILState_Ensure();
  uint64_t number = kNoTrace;
  void* made = PyObject_CallObject(recorder.gather, nullptr);
  if (made != nullptr) {
    long long value = PyLong_AsLongLong(made);
    if (value >= 0) {
      number = static_cast<uint64_t>(value) & 0xFFFFFFFF;
      *refuted = static_cast<uint32_t>(value >> 32);
    }
    Py_DecRef(made);
  }
  if (number == kNoTrace) {
    PyErr_Clear();
  }
  PyGILState_Release(state);
  return number;
}

// The recording that an operator of this thread belongs to, or none.
Shared recorder_here(Look& seen, Nodes& newest) {
  if (own != nullptr && !own->closed.load(std::memory_order_relaxed)) {
    seen = look(*own, newest);
    if (seen == Look::kHere) {
      return own;
    }
  }
  std::array<Shared, kMost> found;
  Shared around;
  {
    std::lock_guard<std::mutex> guard(slots_mutex);
    found = slots;
  }
  for (auto& each : found) {
    if (each == nullptr) {
      continue;
    }
    bool own = pthread_equal(each->owner, pthread_self()) != 0;
    if (!own && (each->device.is_cpu() || stream_on(each->device) == 0)) {
      continue;  // a stream that never captures
    }
    seen = look(*each, newest);
    if (seen == Look::kHere || (seen == Look::kBlind && own)) {
      return each;
    }
    if (seen == Look::kInside && own) {
      around = each;
    }
  }
  seen = Look::kInside;
  return around;
}

// -- marks, with the recording's lock held

void mark(Recorder& recorder, uint64_t owner, const Nodes& newest) {
  recorder.last = newest;
  recorder.marks.push_back(recorder.blind ? 0 : owner);
  recorder.marks.push_back(newest.size());
  recorder.marks.insert(recorder.marks.end(), newest.begin(), newest.end());
  recorder.blind = false;
}

// Whether there are nodes since the last mark.
bool advanced(Recorder& recorder, Look seen, const Nodes& newest) {
  recorder.blind |= seen == Look::kBlind;
  return seen == Look::kHere && newest != recorder.last;
}

uint64_t launch_begins(Recorder& recorder, Look seen, const Nodes& newest) {
  if (advanced(recorder, seen, newest)) {
    if (!recorder.open.empty()) {
      recorder.open.back().marked = true;
    }
    recorder.strays += recorder.open.empty();
    mark(recorder, recorder.open.empty() ? 0 : recorder.open.back().token, newest);
  }
  recorder.open.push_back({++recorder.tokens, false});
  return recorder.tokens;
}

// Whether nodes were attributed to the launch.
bool launch_ends(Recorder& recorder, uint64_t token, Look seen, const Nodes& newest) {
  bool marked = false;
  if (advanced(recorder, seen, newest)) {
    mark(recorder, token, newest);
    marked = true;
  }
  for (size_t at = recorder.open.size(); at > 0; --at) {
    if (recorder.open[at - 1].token == token) {
      marked |= recorder.open[at - 1].marked;
      recorder.open.erase(recorder.open.begin() + static_cast<std::ptrdiff_t>(at - 1));
      break;
    }
  }
  return marked;
}

// -- stacks, with the recording's lock held

void keep_alike(Recorder& recorder, uint32_t alike) {
  recorder.last_alike = recorder.alike;
  recorder.alike = alike;
  recorder.traces = alike == 0;
}

// Numbers an operator. Returns whether it needs a stack, else what stands for one.
bool needs_trace(Recorder& recorder, uint64_t op, uint64_t* number) {
  uint64_t at = recorder.ops.size();
  recorder.ops.push_back(op);
  if (recorder.traces) {
    return true;
  }
  uint32_t alike = recorder.alike;
  for (size_t each = 0; each < recorder.taught.size(); ++each) {
    const Taught& taught = recorder.taught[each];
    if (at >= taught.count || taught.operators[at] != op) {
      alike &= ~(uint32_t{1} << each);
    }
  }
  if (alike == 0) {
    keep_alike(recorder, 0);
    return true;
  }
  recorder.alike = alike;
  *number = kLearnt | at;
  return at % kChecked == 0;
}

// -- operators

struct Tensors {
  std::vector<uint64_t> words;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  std::vector<size_t> places;  // of each tensor's words
  uint64_t opaque = 0;  // tensors without an address

  void clear() {
    words.clear();
    storages.clear();
    places.clear();
    opaque = 0;
  }
};

// An operator that runs.
struct Call {
  Shared recorder;
  const Operator* op = nullptr;
  uint64_t token = 0, trace = kNoTrace;
  bool covers = false;
  Tensors given, results;
  Nodes newest;
};

thread_local std::vector<std::unique_ptr<Call>> spare;  // whose memory is used again

struct Running : at::ObserverContext {
  Running() {
    if (spare.empty()) {
      call = std::make_unique<Call>();
    } else {
      call = std::move(spare.back());
      spare.pop_back();
    }
  }
  ~Running() override {
    call->recorder.reset();
    call->given.clear();
    call->results.clear();
    if (spare.size() < 4) {
      spare.push_back(std::move(call));
    }
  }
  std::unique_ptr<Call> call;
};

void add(Tensors& all, c10::DeviceType wanted, const at::Tensor& tensor, size_t argument, size_t member, uint64_t flags) {
  if (!tensor.defined()) {
    return;
  }
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (impl.is_wrapped_number()) {
    return;
  }
  if (!is_plain(impl)) {
    ++all.opaque;
    return;
  }
  auto* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  if (data.device().type() != wanted || data.get() == nullptr || storage->nbytes() == 0 ||
      impl.layout() != c10::kStrided || impl.key_set().has(c10::DispatchKey::ZeroTensor) ||
      c10::impl::cow::is_cow_data_ptr(data)) {
    return;
  }
  uint64_t address = reinterpret_cast<uintptr_t>(data.get());
  auto sizes = impl.sizes();
  auto strides = impl.strides();
  uint64_t dtype = static_cast<uint8_t>(c10::typeMetaToScalarType(impl.dtype()));
  all.places.push_back(all.words.size());
  all.storages.push_back(impl.unsafe_storage().getWeakStorageImpl());
  all.words.push_back(address + static_cast<uint64_t>(impl.storage_offset()) * impl.itemsize());
  all.words.push_back(address);
  all.words.push_back(storage->nbytes());
  all.words.push_back(
      argument | dtype << 16 | static_cast<uint64_t>(static_cast<uint8_t>(data.device().index())) << 24 |
      static_cast<uint64_t>(std::min<size_t>(sizes.size(), 255)) << 32 | flags << 40);
  all.words.push_back(member);
  for (size_t dim = 0; dim < std::min<size_t>(sizes.size(), 255); ++dim) {
    all.words.push_back(static_cast<uint64_t>(sizes[dim]));
    all.words.push_back(static_cast<uint64_t>(strides[dim]));
  }
}

void add_all(Tensors& all, c10::DeviceType wanted, c10::ArrayRef<const c10::IValue> values, uint64_t flags) {
  for (size_t at = 0; at < values.size(); ++at) {
    const c10::IValue& value = values[at];
    if (value.isTensor()) {
      add(all, wanted, value.toTensor(), at, kAlone, flags);
    } else if (value.isList()) {
      auto members = value.toListRef();
      for (size_t member = 0; member < members.size(); ++member) {
        if (members[member].isTensor()) {
          add(all, wanted, members[member].toTensor(), at, member, flags);
        }
      }
    }
  }
}

// Notes an operator's storages, with the recording's lock held: those from before the capture, and those to be kept.
void note_storages(Recorder& recorder, Tensors& all, uint64_t row, bool results) {
  for (size_t at = 0; at < all.places.size(); ++at) {
    auto& storage = all.storages[at];
    uint64_t address = all.words[all.places[at] + 1];
    bool input = !results && recorder.made.count(address) == 0;
    if ((!input && !recorder.keep) || !recorder.known.insert(storage._unsafe_get_target()).second) {
      continue;
    }
    if (input) {
      recorder.inputs.push_back(row + all.places[at]);
      recorder.weak.push_back(storage);
    }
    if (recorder.keep) {
      recorder.kept.push_back(storage.lock());
    }
  }
}

// Marks the results that have memory of their own.
void find_fresh(Recorder& recorder, const Tensors& given, Tensors& results) {
  for (size_t place : results.places) {
    uint64_t address = results.words[place + 1];
    bool is_known = false;
    for (size_t each : given.places) {
      is_known |= given.words[each + 1] == address;
    }
    if (!is_known) {
      results.words[place + 3] |= kFresh << 40;
      recorder.made.insert(address);
      recorder.fresh.push_back(address);
    }
  }
}

constexpr uint64_t kHeadWords = 4;

void put_row(Recorder& recorder, Call& call) {
  Tensors& results = call.results;
  uint64_t start = recorder.rows.size();
  recorder.rows.push_back(kOperatorRow | static_cast<uint64_t>(call.op->id) << 8);
  recorder.rows.push_back(call.token);
  recorder.rows.push_back(call.trace);
  recorder.rows.push_back(call.given.places.size() + results.places.size());
  note_storages(recorder, call.given, start + kHeadWords, false);
  find_fresh(recorder, call.given, results);
  note_storages(recorder, results, start + kHeadWords + call.given.words.size(), true);
  recorder.rows.insert(recorder.rows.end(), call.given.words.begin(), call.given.words.end());
  recorder.rows.insert(recorder.rows.end(), results.words.begin(), results.words.end());
}

void note_failure() {
  shadowgraph_failures.fetch_add(1, std::memory_order_relaxed);
}

std::unique_ptr<at::ObserverContext> operator_begins(const at::RecordFunction& function) {
  try {
    if (covered || running.load(std::memory_order_acquire) == 0 || is_text(function)) {
      return nullptr;
    }
    // A dispatch mode of the program's calls what it likes; what it calls comes here without it.
    const Operator* op = operator_of(function);
    if (op == nullptr || op->transparent || c10::impl::TorchDispatchModeTLS::any_modes_set()) {
      return nullptr;
    }
    Look seen = Look::kElsewhere;
    auto context = std::make_unique<Running>();
    Call* call = context->call.get();
    Shared recorder = recorder_here(seen, call->newest);
    if (recorder == nullptr) {
      return nullptr;
    }
    auto given = function.inputs();
    if (given.size() < op->arguments) {
      note_failure();
      return nullptr;
    }
    given = given.slice(given.size() - op->arguments);  // TorchScript gives its whole stack
    add_all(call->given, recorder->device.type(), given, 0);
    if (call->given.opaque != 0) {  // wrappers of tensors: the operators on those are recorded
      return nullptr;
    }
    call->op = op;
    call->trace = kNoTrace;
    call->covers = !op->composite;
    bool traced = false;
    {
      std::lock_guard<std::mutex> guard(recorder->mutex);
      if (recorder->closed) {
        return nullptr;
      }
      call->token = launch_begins(*recorder, seen, call->newest);
      traced = call->covers && needs_trace(*recorder, op->id, &call->trace);
    }
    if (traced) {  // after the launch has begun: to a tracer of C functions, what this calls is no launch of its own
      uint32_t refuted = 0;
      call->trace = trace_of(*recorder, &refuted);
      std::lock_guard<std::mutex> guard(recorder->mutex);
      if ((recorder->alike & refuted) != 0) {
        keep_alike(*recorder, recorder->alike & ~refuted);
      }
    }
    call->recorder = std::move(recorder);
    covered = call->covers;
    return context;
  } catch (...) {
    note_failure();
    return nullptr;
  }
}

void operator_ends(const at::RecordFunction& function, at::ObserverContext* context) {
  if (context == nullptr) {
    return;
  }
  Call* call = static_cast<Running*>(context)->call.get();
  if (call->covers) {
    covered = false;
  }
  try {
    Recorder& recorder = *call->recorder;
    Look seen = look(recorder, call->newest);
    const auto& returned = function.outputs();
    add_all(call->results, recorder.device.type(), c10::ArrayRef<const c10::IValue>(returned.data(), returned.size()), kResult);
    bool marked = false;
    {
      std::lock_guard<std::mutex> guard(recorder.mutex);
      if (recorder.closed) {
        return;
      }
      marked = launch_ends(recorder, call->token, seen, call->newest);
    }
    if (!call->covers) {
      if (!marked) {
        return;  // its callees are recorded
      }
      uint32_t refuted = 0;
      call->trace = trace_of(recorder, &refuted);
    }
    std::lock_guard<std::mutex> guard(recorder.mutex);
    if (!recorder.closed) {
      put_row(recorder, *call);
    }
  } catch (...) {
    note_failure();
  }
}

void after_fork() {
  for (auto& each : slots) {
    new (&each) Shared();  // the capture is the parent's; its lock may be held by a thread that is gone
  }
  new (&slots_mutex) std::mutex();
  running.store(0);
}

bool turn_on() {
  if (callback != at::INVALID_CALLBACK_HANDLE) {
    at::reenableCallback(callback);
    return true;
  }
  learn_names();
  pthread_atfork(nullptr, nullptr, &after_fork);
  callback = at::addGlobalCallback(at::RecordFunctionCallback(&operator_begins, &operator_ends)
                                       .needsInputs(true)
                                       .needsOutputs(true)
                                       .scopes({at::RecordScope::FUNCTION}));
  return true;
}

Recorder& recorder_of(void* handle) {
  return **static_cast<Shared*>(handle);
}

}  // namespace captures
}  // namespace

// All of these are called with the interpreter's lock held.
extern "C" {

// A handle, or null where nothing can be recorded.
void* shadowgraph_capture_begin(
    uint64_t graph, int device_type, int device, void* ask, int edges, int keep, void* gather, void* raw_stream,
    uint64_t taught, const uint64_t* const* operators, const uint64_t* counts) {
  using namespace captures;
  try {
    auto type = static_cast<c10::DeviceType>(device_type);
    c10::Device place(type, static_cast<c10::DeviceIndex>(type == c10::DeviceType::CPU ? -1 : device));
    auto recorder = std::make_shared<Recorder>(
        graph, place, ask, edges != 0, keep != 0, gather, reinterpret_cast<RawStream>(raw_stream));
    Nodes newest;
    if (look(*recorder, newest) != Look::kHere) {
      return nullptr;
    }
    recorder->last = newest;
    for (size_t each = 0; each < std::min<uint64_t>(taught, kTaught); ++each) {
      recorder->taught.push_back({operators[each], counts[each]});
      keep_alike(*recorder, recorder->alike | uint32_t{1} << each);
    }
    auto handle = std::make_unique<Shared>(recorder);
    std::lock_guard<std::mutex> guard(slots_mutex);
    for (auto& slot : slots) {
      if (slot == nullptr) {
        if (running.load() == 0 && !turn_on()) {
          return nullptr;
        }
        slot = own = recorder;
        running.fetch_add(1);
        return handle.release();
      }
    }
  } catch (...) {
  }
  return nullptr;
}

// Records no more; returns how often there were new nodes that no launch made. May be called again.
uint64_t shadowgraph_capture_stop(void* handle) {
  using namespace captures;
  Recorder& recorder = recorder_of(handle);
  Nodes newest;
  Look seen = recorder.closed ? Look::kElsewhere : look(recorder, newest);
  {
    std::lock_guard<std::mutex> guard(recorder.mutex);
    recorder.strays += advanced(recorder, seen, newest);
    recorder.closed = true;
  }
  Shared removed;
  std::lock_guard<std::mutex> guard(slots_mutex);
  for (auto& slot : slots) {
    if (slot.get() == &recorder) {
      removed = std::move(slot);
      slot = nullptr;
      if (running.fetch_sub(1) == 1) {
        at::disableCallback(callback);
      }
    }
  }
  return recorder.strays;
}

// Releases the kept storages, and with the last reference of a thread, the recording.
void shadowgraph_capture_free(void* handle) {
  using namespace captures;
  shadowgraph_capture_stop(handle);
  std::unique_ptr<Shared> last(static_cast<Shared*>(handle));
  Recorder& recorder = **last;
  decltype(recorder.kept) kept;
  decltype(recorder.weak) weak;
  {
    std::lock_guard<std::mutex> guard(recorder.mutex);
    kept.swap(recorder.kept);
    weak.swap(recorder.weak);
  }
  if (own == *last) {
    own.reset();
  }
}

// Number of a launch that the caller is about to make, which ends with `shadowgraph_launch_end`.
uint64_t shadowgraph_launch_begin(void* handle) {
  using namespace captures;
  Recorder& recorder = recorder_of(handle);
  Nodes newest;
  Look seen = look(recorder, newest);
  std::lock_guard<std::mutex> guard(recorder.mutex);
  return launch_begins(recorder, seen, newest);
}

void shadowgraph_launch_end(void* handle, uint64_t token) {
  using namespace captures;
  Recorder& recorder = recorder_of(handle);
  Nodes newest;
  Look seen = look(recorder, newest);
  std::lock_guard<std::mutex> guard(recorder.mutex);
  launch_ends(recorder, token, seen, newest);
  recorder.rows.push_back(kLaunchRow);
  recorder.rows.push_back(token);
}

// Launches that run now.
uint64_t shadowgraph_capture_open(void* handle) {
  captures::Recorder& recorder = captures::recorder_of(handle);
  std::lock_guard<std::mutex> guard(recorder.mutex);
  return recorder.open.size();
}

// Whether there are nodes since the last mark; with an owner other than 0 they are attributed to it.
int shadowgraph_capture_advanced(void* handle, uint64_t owner) {
  using namespace captures;
  Recorder& recorder = recorder_of(handle);
  Nodes newest;
  Look seen = look(recorder, newest);
  std::lock_guard<std::mutex> guard(recorder.mutex);
  bool found = advanced(recorder, seen, newest);
  if (found && owner != 0) {
    mark(recorder, owner, newest);
  }
  return found;
}

// Number of the operator of this recording that began last, from 0.
uint64_t shadowgraph_capture_number(void* handle) {
  captures::Recorder& recorder = captures::recorder_of(handle);
  std::lock_guard<std::mutex> guard(recorder.mutex);
  return recorder.ops.size() - 1;
}

// The earlier captures whose operators those of this one were, a bit each, at the end or before none was left; and
// whether some were left.
uint32_t shadowgraph_capture_alike(void* handle, int* all) {
  captures::Recorder& recorder = captures::recorder_of(handle);
  *all = recorder.alike != 0;
  return recorder.alike != 0 ? recorder.alike : recorder.last_alike;
}

// Words of a stopped recording, valid until it is freed: 0 rows, 1 marks, 2 addresses of fresh storages, 3 places of
// the inputs' words in the rows, 4 operators in the order in which they began.
const uint64_t* shadowgraph_capture_words(void* handle, int which, uint64_t* count) {
  captures::Recorder& recorder = captures::recorder_of(handle);
  const std::vector<uint64_t>* all[] = {&recorder.rows, &recorder.marks, &recorder.fresh, &recorder.inputs, &recorder.ops};
  *count = all[which]->size();
  return all[which]->data();
}

// A weak reference to an input's storage, which the caller frees, as torch's `_weak_ref` returns one.
uint64_t shadowgraph_capture_weak(void* handle, uint64_t at) {
  auto& known = captures::recorder_of(handle).weak;
  return at < known.size() ? reinterpret_cast<uintptr_t>(c10::weak_intrusive_ptr<c10::StorageImpl>(known[at]).release()) : 0;
}
}
