// One recording: which nodes are whose, which operators have the stacks of an earlier capture, which storages are inputs.
//
// An operator belongs to a capture if the current stream of its thread captures into that graph, whichever thread that
// is: autograd has its own. The newest nodes of the stream are looked up before and after, as `node_attribution.Marks`
// does in Python.
//
// A recording has a lock. It is never held while the driver, Python or a destructor of tensors is called, nor while a
// storage gets an owner more, which may take the interpreter's lock: the thread that has that one may be waiting for ours.

#include <dlfcn.h>

#include <array>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace {
namespace captures {

constexpr int kCapturing = 1;  // CU_STREAM_CAPTURE_STATUS_ACTIVE
constexpr uint64_t kOperatorRow = 1, kLaunchRow = 2;
constexpr uint64_t kNoTrace = UINT64_MAX;
constexpr long long kNoNumber = -1;  // of an operator that consists of others
constexpr uint64_t kLearnt = UINT64_C(1) << 63;  // in place of a stack: with the operator's number in the capture
constexpr uint64_t kUntold = UINT64_C(1) << 63;  // flag of an operator of an earlier capture that has no stack
constexpr uint64_t kChecked = 16;  // one operator in so many has a stack
constexpr size_t kTaught = 16;  // earlier captures to compare with
constexpr uint64_t kHeadWords = 4;  // of an operator's row

// cuStreamGetCaptureInfo_v2, and _v3, which also returns data of edges.
using Ask = int (*)(void*, int*, uint64_t*, void**, void***, size_t*);
using AskWithEdges = int (*)(void*, int*, uint64_t*, void**, void***, void**, size_t*);
using Nodes = std::vector<uint64_t>;
using Strong = c10::intrusive_ptr<c10::StorageImpl>;

struct Open {
  uint64_t token;
  bool marked;  // nodes were attributed to it
};

// The operators of an earlier capture, in order; the memory is the caller's, until the recording is freed.
struct Taught {
  const uint64_t* operators;
  uint64_t count;
};

struct Recorder {
  Recorder(uint64_t graph, c10::Device device, void* ask, bool edges, bool keep)
      : graph(graph), device(device), ask(ask), edges(edges), keep(keep) {
    rows.reserve(1 << 12);
  }

  const uint64_t graph;
  const c10::Device device;
  void* const ask;
  const bool edges;
  const bool keep;  // every storage until the recording is freed
  const pthread_t owner = pthread_self();

  std::mutex mutex;  // for all below
  std::atomic<bool> closed{false};
  void* gather = nullptr;  // a Python callable, see `trace_of`; a reference, until the recording is freed
  bool blind = false;  // the driver could not tell the newest nodes since the last mark
  uint64_t tokens = 0;
  uint64_t strays = 0;  // times that there were new nodes which no launch made
  std::vector<Open> open;
  Nodes last;
  std::vector<uint64_t> rows, marks, fresh, inputs, ops;
  std::vector<Taught> taught;
  uint32_t alike = 0;  // a bit for each of them that has had the same operators so far
  uint32_t last_alike = 0;  // the same, before none was left; without those that a stack refuted
  uint64_t agreed = 0;  // operators before none was left
  bool traces = true;  // whether each operator gets a stack
  std::unordered_set<uint64_t> made;  // addresses of storages
  std::unordered_set<c10::StorageImpl*> known;  // inputs, and kept storages
  std::vector<Weak> weak;  // of `inputs`
  std::vector<Weak> ended;  // of `known`, so that no other storage gets such an address
  std::vector<Strong> kept;
};

using Shared = std::shared_ptr<Recorder>;

// -- the driver and Python, called without a lock

void* of_cuda(const char* name) {
  void* library = dlopen("libc10_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  return library != nullptr ? dlsym(library, name) : nullptr;
}

// The driver's handle of a stream. Older releases of torch have only a method of `c10::cuda::CUDAStream`, which has a
// `c10::Stream` as its one member.
template <typename Guard>
void* handle_of(const Guard& guard, const c10::Stream& stream) {
  if constexpr (requires { guard.getStreamNativeHandle(stream); }) {
    return guard.getStreamNativeHandle(stream);
  } else {
    using Method = void* (*)(const c10::Stream*);
    static const Method method = reinterpret_cast<Method>(of_cuda("_ZNK3c104cuda10CUDAStream6streamEv"));
    if (method == nullptr) {
      throw std::runtime_error("torch does not tell the handles of streams");
    }
    return method(&stream);
  }
}

// The handle of this thread's current stream on a device.
void* current_stream(c10::Device device) {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(device.type())].load();
  return device.is_cpu() || guard == nullptr ? nullptr : handle_of(*guard, guard->getStream(device));
}

enum class Look { kElsewhere, kBlind, kInside, kHere };

// Whether the current stream captures into the graph, and the nodes that its next node would depend on. Inside: into
// another graph, such as the body of a conditional node.
Look look(Recorder& recorder, Nodes& newest) {
  void* stream = current_stream(recorder.device);
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
uint64_t trace_of(Recorder& recorder, long long number, uint32_t* refuted) {
  Asking counted;
  if (!may_ask()) {
    return kNoTrace;
  }
  Interpreter interpreter;
  void* gather = nullptr;
  {
    std::lock_guard<std::mutex> guard(recorder.mutex);
    gather = recorder.gather;
    if (gather != nullptr) {
      Py_IncRef(gather);
    }
  }
  if (gather == nullptr) {
    return kNoTrace;  // the recording has been freed
  }
  long long value = answer_of(gather, number);
  Py_DecRef(gather);
  if (value < 0) {
    return kNoTrace;
  }
  *refuted = static_cast<uint32_t>(value >> 32);
  return static_cast<uint64_t>(value) & 0xFFFFFFFF;
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
  for (size_t at = recorder.open.size(); at > 0; --at) {
    if (recorder.open[at - 1].token == token) {
      marked = recorder.open[at - 1].marked;
      recorder.open.erase(recorder.open.begin() + static_cast<std::ptrdiff_t>(at - 1));
      break;
    }
  }
  if (advanced(recorder, seen, newest)) {
    mark(recorder, token, newest);
    marked = true;
  }
  return marked;
}

// -- stacks, with the recording's lock held

// Numbers an operator. Returns whether it needs a stack, else what stands for one.
bool needs_trace(Recorder& recorder, uint64_t op, uint64_t* number) {
  uint64_t at = recorder.ops.size();
  recorder.ops.push_back(op);
  if (recorder.traces) {
    return true;
  }
  uint32_t alike = recorder.alike;
  bool untold = false;
  for (size_t each = 0; each < recorder.taught.size(); ++each) {
    const Taught& taught = recorder.taught[each];
    uint64_t expected = at < taught.count ? taught.operators[at] : UINT64_MAX;
    if ((expected & ~kUntold) != op) {
      alike &= ~(uint32_t{1} << each);
    } else if ((alike >> each & 1) != 0) {
      untold |= (expected & kUntold) != 0;
    }
  }
  if (alike == 0) {
    recorder.last_alike = recorder.alike;
    recorder.agreed = at;
    recorder.alike = 0;
    recorder.traces = true;
    return true;
  }
  recorder.alike = alike;
  *number = kLearnt | at;
  return untold || at % kChecked == 0;
}

// An operator was called from elsewhere than in these earlier captures: nothing of theirs holds for this one. After the
// operators have parted that is no news, and what agreed before stands.
void refute(Recorder& recorder, uint64_t number, uint32_t refuted) {
  if (recorder.alike == 0 && number >= recorder.agreed) {
    return;
  }
  recorder.alike &= ~refuted;
  recorder.last_alike &= ~refuted;
  recorder.traces |= recorder.alike == 0;
}

// -- rows, with the recording's lock held

// Notes an operator's storages: those from before the capture, and those to be kept, which the caller does.
void note_storages(Recorder& recorder, Tensors& all, uint64_t row, bool results, std::vector<Weak>& keep) {
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
      keep.push_back(storage);
    }
  }
}

// Marks the results that have memory of their own.
void find_fresh(Recorder& recorder, const Tensors& given, Tensors& results) {
  for (size_t place : results.places) {
    uint64_t address = results.words[place + 1];
    if (!given.has(address)) {
      results.words[place + 3] |= kFresh << 40;
      recorder.made.insert(address);
      recorder.fresh.push_back(address);
    }
  }
}

// An operator that has run, with the tensors of its row.
struct Ran {
  const Operator* op = nullptr;
  uint64_t token = 0, trace = kNoTrace;
  Tensors given, results;
};

// A storage that an operator made whose row is that of the one which called it.
struct Inside {
  Weak storage;
  uint64_t address;
};

// Notes what an operator's callees made and has outlived it, such as a cache's: it is no input of the operators that come.
void note_inside(Recorder& recorder, const std::vector<Inside>& made, std::vector<Weak>& keep) {
  for (const auto& each : made) {
    if (each.storage.expired()) {
      continue;
    }
    recorder.made.insert(each.address);
    if (recorder.keep && recorder.known.insert(each.storage._unsafe_get_target()).second) {
      keep.push_back(each.storage);
    }
  }
}

void put_row(Recorder& recorder, Ran& ran, std::vector<Weak>& keep) {
  Tensors& results = ran.results;
  uint64_t start = recorder.rows.size();
  recorder.rows.push_back(kOperatorRow | static_cast<uint64_t>(ran.op->id) << 8);
  recorder.rows.push_back(ran.token);
  recorder.rows.push_back(ran.trace);
  recorder.rows.push_back(ran.given.places.size() + results.places.size());
  note_storages(recorder, ran.given, start + kHeadWords, false, keep);
  find_fresh(recorder, ran.given, results);
  note_storages(recorder, results, start + kHeadWords + ran.given.words.size(), true, keep);
  recorder.rows.insert(recorder.rows.end(), ran.given.words.begin(), ran.given.words.end());
  recorder.rows.insert(recorder.rows.end(), results.words.begin(), results.words.end());
}

// -- storages, called without a lock

// Keeps storages until the recording is freed.
void keep_all(Recorder& recorder, const std::vector<Weak>& wanted) {
  if (wanted.empty()) {
    return;
  }
  std::vector<Strong> held;
  std::vector<Weak> ended;
  for (const auto& storage : wanted) {
    Strong one = storage.lock();
    if (one != nullptr) {
      held.push_back(std::move(one));
    } else {
      ended.push_back(storage);
    }
  }
  std::lock_guard<std::mutex> guard(recorder.mutex);  // left before `held` ends
  if (!recorder.closed) {
    for (auto& one : held) {
      recorder.kept.push_back(std::move(one));
    }
    held.clear();
    recorder.ended.insert(recorder.ended.end(), ended.begin(), ended.end());
  }
}

}  // namespace captures
}  // namespace
