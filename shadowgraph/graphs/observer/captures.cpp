// Records the operators of a CUDA capture without Python, but for stacks: a second callback, which is on while captures
// run. An operator gets no stack as long as the operators are those of an earlier capture by the same code, but for one
// in sixteen, which shows whether the code is the same.
//
// This is what `recorder.py` calls, with the interpreter's lock held. A recording has a number, which is never used again:
// any call may come after it was freed, from any thread and in a forked child, and does nothing then. Compiled together with
// observer.cpp, whose operators and tests of tensors it shares, and the files of its parts (`building.SOURCES`).

namespace {
namespace captures {

// A look at the current stream, and work on the recording with its lock held; `none` where it has been freed.
template <typename Work, typename Result>
Result looking(uint64_t number, Result none, Work work) {
  try {
    Shared recorder = recording_of(number);
    if (recorder != nullptr) {
      Nodes newest;
      Look seen = look(*recorder, newest);
      std::lock_guard<std::mutex> guard(recorder->mutex);
      return work(*recorder, seen, newest);
    }
  } catch (...) {
    note_failure();
  }
  return none;
}

// Stops a recording; returns how often there were new nodes that no launch made.
uint64_t stop(Recorder& recorder) {
  Nodes newest;
  Look seen = Look::kElsewhere;
  try {
    if (!recorder.closed) {
      seen = look(recorder, newest);
    }
  } catch (...) {  // the nodes are not known; the recording ends all the same
    note_failure();
  }
  uint64_t strays = 0;
  {
    std::lock_guard<std::mutex> guard(recorder.mutex);
    recorder.strays += advanced(recorder, seen, newest);
    recorder.closed = true;
    strays = recorder.strays;
  }
  turn_off(recorder);
  return strays;
}

// Makes a recording known, and turns it on. Returns its number, or 0 where too many are on or the interpreter ends.
uint64_t admit(const Shared& recorder) {
  std::lock_guard<std::mutex> guard(registry_mutex);
  if (ending.load()) {
    return 0;
  }
  for (auto& slot : slots) {
    if (slot == nullptr) {
      if (running.load() == 0) {
        turn_on();
      }
      uint64_t number = numbers.fetch_add(1) + 1;
      recordings.emplace(number, recorder);
      slot = recorder;
      running.fetch_add(1);
      return number;
    }
  }
  return 0;
}

}  // namespace captures
}  // namespace

extern "C" {

// The number of a new recording, or 0 where nothing can be recorded.
uint64_t shadowgraph_capture_begin(
    uint64_t graph, int device_type, int device, void* ask, int edges, int keep, void* gather, uint64_t taught,
    const uint64_t* const* operators, const uint64_t* counts) {
  using namespace captures;
  try {
    auto type = static_cast<c10::DeviceType>(device_type);
    c10::Device place(type, static_cast<c10::DeviceIndex>(type == c10::DeviceType::CPU ? -1 : device));
    auto recorder = std::make_shared<Recorder>(graph, place, ask, edges != 0, keep != 0);
    if (over || look(*recorder, recorder->last) != Look::kHere) {
      return 0;
    }
    for (size_t each = 0; each < std::min<uint64_t>(taught, kTaught); ++each) {
      recorder->taught.push_back({operators[each], counts[each]});
      recorder->alike |= uint32_t{1} << each;
    }
    recorder->traces = recorder->alike == 0;
    local.own = recorder;
    recorder->gather = gather;  // no other thread looks at it before this one gives up the interpreter's lock
    uint64_t number = admit(recorder);
    if (number != 0) {
      Py_IncRef(gather);
    }
    return number;
  } catch (...) {
  }
  return 0;
}

// Records no more; returns how often there were new nodes that no launch made. May be called again.
uint64_t shadowgraph_capture_stop(uint64_t number) {
  using namespace captures;
  try {
    Shared recorder = recording_of(number);
    return recorder != nullptr ? stop(*recorder) : 0;
  } catch (...) {
    note_failure();
  }
  return 0;
}

// Releases the recording, with the storages that it keeps; what operators that run now use of it, with the last of them.
void shadowgraph_capture_free(uint64_t number) {
  using namespace captures;
  shadowgraph_capture_stop(number);
  Shared recorder;
  {
    std::lock_guard<std::mutex> guard(registry_mutex);
    auto found = recordings.find(number);
    if (found == recordings.end()) {
      return;
    }
    recorder = std::move(found->second);
    recordings.erase(found);
  }
  turn_off(*recorder);
  decltype(recorder->kept) kept;
  void* gather = nullptr;
  {
    std::lock_guard<std::mutex> guard(recorder->mutex);
    recorder->closed = true;
    kept.swap(recorder->kept);
    gather = std::exchange(recorder->gather, nullptr);
  }
  if (gather != nullptr) {
    Py_DecRef(gather);
  }
}

// Stops all recordings, before the interpreter ends; there are no more from here on. Returns how many threads of C++ are in it, or wait for its lock.
uint64_t shadowgraph_captures_over() {
  using namespace captures;
  std::array<Shared, kMost> all;
  {
    std::lock_guard<std::mutex> guard(registry_mutex);
    ending.store(true);
    all = slots;
  }
  for (auto& recorder : all) {
    if (recorder != nullptr) {
      {
        std::lock_guard<std::mutex> guard(recorder->mutex);
        recorder->closed = true;
      }
      turn_off(*recorder);
    }
  }
  return static_cast<uint64_t>(std::max<int64_t>(asking.load(), 0));
}

// Recordings that have not been freed.
uint64_t shadowgraph_captures_known() {
  std::lock_guard<std::mutex> guard(captures::registry_mutex);
  return captures::recordings.size();
}

// Number of a launch that the caller is about to make, which ends with `shadowgraph_launch_end`.
uint64_t shadowgraph_launch_begin(uint64_t number) {
  using namespace captures;
  return looking(number, uint64_t{0}, [](Recorder& recorder, Look seen, const Nodes& newest) {
    return launch_begins(recorder, seen, newest);
  });
}

void shadowgraph_launch_end(uint64_t number, uint64_t token) {
  using namespace captures;
  looking(number, 0, [token](Recorder& recorder, Look seen, const Nodes& newest) {
    launch_ends(recorder, token, seen, newest);
    if (!recorder.closed) {
      recorder.rows.push_back(kLaunchRow);
      recorder.rows.push_back(token);
    }
    return 0;
  });
}

// Launches that run now.
uint64_t shadowgraph_capture_open(uint64_t number) {
  using namespace captures;
  Shared recorder = recording_of(number);
  if (recorder == nullptr) {
    return 0;
  }
  std::lock_guard<std::mutex> guard(recorder->mutex);
  return recorder->open.size();
}

// Whether there are nodes since the last mark; with an owner other than 0 they are attributed to it.
int shadowgraph_capture_advanced(uint64_t number, uint64_t owner) {
  using namespace captures;
  return looking(number, 0, [owner](Recorder& recorder, Look seen, const Nodes& newest) {
    bool found = advanced(recorder, seen, newest);
    if (found && owner != 0) {
      mark(recorder, owner, newest);
    }
    return static_cast<int>(found);
  });
}

// The earlier captures whose operators those of this one were, a bit each, at the end or before none was left, without
// those that a stack refuted; and how many operators there were until then.
uint32_t shadowgraph_capture_alike(uint64_t number, uint64_t* agreed) {
  using namespace captures;
  *agreed = 0;
  Shared recorder = recording_of(number);
  if (recorder == nullptr) {
    return 0;
  }
  std::lock_guard<std::mutex> guard(recorder->mutex);
  *agreed = recorder->alike != 0 ? recorder->ops.size() : recorder->agreed;
  return recorder->alike != 0 ? recorder->alike : recorder->last_alike;
}

// Copies words of a stopped recording as far as there is room; returns how many there are: 0 rows, 1 marks, 2 addresses
// of fresh storages, 3 places of the inputs' words in the rows, 4 operators in the order in which they began.
uint64_t shadowgraph_capture_words(uint64_t number, int which, uint64_t* words, uint64_t room) {
  using namespace captures;
  Shared recorder = recording_of(number);
  if (recorder == nullptr) {
    return 0;
  }
  std::lock_guard<std::mutex> guard(recorder->mutex);
  const std::vector<uint64_t>* all[] = {
      &recorder->rows, &recorder->marks, &recorder->fresh, &recorder->inputs, &recorder->ops};
  const auto& wanted = *all[which];
  std::copy_n(wanted.begin(), std::min<uint64_t>(room, wanted.size()), words);
  return wanted.size();
}

// A weak reference to an input's storage, which the caller frees, as torch's `_weak_ref` returns one.
uint64_t shadowgraph_capture_weak(uint64_t number, uint64_t at) {
  using namespace captures;
  Shared recorder = recording_of(number);
  if (recorder == nullptr) {
    return 0;
  }
  std::lock_guard<std::mutex> guard(recorder->mutex);
  return at < recorder->weak.size() ? reinterpret_cast<uintptr_t>(Weak(recorder->weak[at]).release()) : 0;
}
}
