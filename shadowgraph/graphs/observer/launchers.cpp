// Stands for the launcher of Triton or of torch's compiled code, as the functions in `graphs/triton/cuda.py` do where this
// library is missing: notes a launch that passes unobserved, and hands every other one to Python. Called in the launching
// thread, with the interpreter's lock. Arguments go on as they came, so that nothing is packed twice.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <unordered_set>

extern "C" {
void* PyInstanceMethod_New(void*);
int PyObject_IsTrue(void*);
void* PyObject_Vectorcall(void*, void* const*, size_t, void*);
}

namespace {
namespace rows {

constexpr int kKeywords = 0x2;  // METH_KEYWORDS

struct Grid {
  const void* kernel;
  std::array<uint32_t, 3> extents;
  bool operator==(const Grid&) const = default;
};

struct GridHash {
  size_t operator()(const Grid& grid) const {
    size_t found = reinterpret_cast<uintptr_t>(grid.kernel) >> 4;
    for (uint32_t extent : grid.extents) {
      found = (found ^ extent) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return found >> 16;
  }
};

enum Name : size_t { kGrid, kWarmup, kBenchmark, kStream, kFunction, kOn, kSizes, kNames };

// What a function of ours was made with, and the grids that were judged not to be larger than all before.
struct Launcher {
  Held writer_held;  // the capsule of `writer`
  Writer* writer = nullptr;
  Held original, seen, see_grid, stream, passing, novelty;  // functions, and the dictionaries of two modules
  std::array<Held, kNames> names;
  bool compiled = false;
  Held sizes;  // of which the grids are
  std::unordered_set<Grid, GridHash> judged;
};

// A call as it came.
struct Launch {
  void* const* args;
  size_t count;
  void* keywords;  // a tuple of names, or null; their values follow the others

  // The value of a keyword, or null. Names at a call are interned: one that is not is not found.
  void* keyword(void* name) const {
    intptr_t size = keywords != nullptr ? PyTuple_Size(keywords) : 0;
    for (intptr_t at = 0; at < size; ++at) {
      if (PyTuple_GetItem(keywords, at) == name) {
        return args[count + static_cast<size_t>(at)];
      }
    }
    return nullptr;
  }

  void* hand_to(void* function) const {
    return PyObject_Vectorcall(function, args, count, keywords);
  }
};

// The value of a name in a module, or null; no exception remains.
void* looked_up(const Held& module, const Held& name) {
  void* found = PyDict_GetItemWithError(module.get(), name.get());
  if (found == nullptr) {
    PyErr_Clear();
  }
  return found;
}

// Has a grid beyond all before be observed, as `see_grid` does; asks it once for each.
bool see(Launcher& launcher, void* kernel, void* given) {
  if (given == nullptr || type_of(given) != &PyTuple_Type) {
    return true;
  }
  void* sizes = looked_up(launcher.novelty, launcher.names[kSizes]);
  if (sizes == nullptr || sizes == &_Py_NoneStruct) {
    return true;
  }
  Row row;
  Grid grid{kernel, {}};
  bool fitted = grid_fits(given, row);
  std::memcpy(grid.extents.data(), row.grid, sizeof row.grid);
  if (launcher.sizes.get() != sizes || launcher.judged.size() >= launcher.writer->most) {
    launcher.judged.clear();
    launcher.sizes.take(shared(sizes));
  }
  if (fitted && launcher.judged.count(grid) != 0) {
    return true;
  }
  Held judged(PyObject_CallFunctionObjArgs(launcher.see_grid.get(), kernel, given, static_cast<void*>(nullptr)));
  if (judged.get() == &_Py_TrueStruct && fitted && launcher.sizes.get() == sizes) {
    launcher.judged.insert(grid);
  }
  return judged.get() != nullptr;
}

// The stream on which Triton launches, or null for the default one.
bool stream_here(const Launcher& launcher, Held& stream) {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load();
  if (guard == nullptr || guard->getStream(guard->getDevice()).id() == 0) {
    return true;
  }
  stream.take(PyObject_CallFunctionObjArgs(launcher.stream.get(), static_cast<void*>(nullptr)));
  return stream.get() != nullptr;
}

bool noted(const Launcher& launcher, const Launch& launch, void* grid) {
  void* kernel = launch.args[0];
  Held function(PyObject_GetAttr(kernel, launcher.names[kFunction].get()));  // which rows keep alive: the rest is large
  if (function.get() == nullptr) {
    PyErr_Clear();
    function.take(shared(kernel));
  }
  Held here;
  if (!launcher.compiled && !stream_here(launcher, here)) {
    return false;
  }
  void* stream = launcher.compiled ? launch.keyword(launcher.names[kStream].get()) : here.get();
  size_t given = launch.count;
  if (!launcher.compiled && launch.keywords != nullptr) {
    given += static_cast<size_t>(PyTuple_Size(launch.keywords));
  }
  return note_row(*launcher.writer, function.get(), grid, stream, [&](Row& row) {
    for (size_t at = 1; at < given; ++at) {
      if (!add_address(*launcher.writer, launch.args[at], row)) {
        return false;
      }
    }
    return true;
  });
}

// Whether a launch passes unobserved, and has been noted. With an exception set, it failed in a way that is the program's.
bool passes(Launcher& launcher, const Launch& launch) {
  void* other = launch.keyword(launcher.names[launcher.compiled ? kBenchmark : kWarmup].get());
  if (launch.count == 0 || (other != nullptr && other != &_Py_FalseStruct)) {
    return false;
  }
  void* grid = launcher.compiled ? nullptr : launch.keyword(launcher.names[kGrid].get());
  bool fine = false;
  try {
    fine = see(launcher, launch.args[0], grid);  // first: it may end the passing
    if (fine && looked_up(launcher.passing, launcher.names[kOn]) != &_Py_TrueStruct) {
      return false;
    }
    fine = fine && noted(launcher, launch, grid != nullptr ? grid : &_Py_NoneStruct);
  } catch (...) {
    PyErr_NoMemory();
  }
  return fine || reported(*launcher.writer);
}

void* launched(void* itself, void* const* args, intptr_t count, void* keywords) {
  auto* launcher = static_cast<Launcher*>(PyCapsule_GetPointer(itself, nullptr));
  if (launcher == nullptr) {
    return nullptr;
  }
  Launch launch{args, static_cast<size_t>(count), keywords};
  Held keep(shared(itself));  // Python may replace what stands for the launcher
  bool passed = passes(*launcher, launch);
  if (!passed && PyErr_Occurred() != nullptr) {
    return nullptr;
  }
  return launch.hand_to(passed ? launcher->original.get() : launcher->seen.get());
}

ShadowgraphMethod launcher_method{
    "run", reinterpret_cast<decltype(ShadowgraphMethod::function)>(reinterpret_cast<void*>(launched)),
    kFastCall | kKeywords,
    "Note a launch that passes unobserved, and launch."};

void end_launcher(void* capsule) {
  delete static_cast<Launcher*>(PyCapsule_GetPointer(capsule, nullptr));
}

}  // namespace rows
}  // namespace

extern "C" {

// A method of Python's that stands for the launcher `original`, or null with an exception set. `note` is a function that
// `shadowgraph_launch_rows` made. `seen` gets what does not pass, `see_grid` a kernel and a grid that was not seen before,
// and returns whether it need not be asked again; `stream` returns the current one. `passing` and `novelty` are the
// dictionaries of those modules. `compiled` for torch's compiled code, whose arguments are told otherwise.
void* shadowgraph_launcher(
    void* note, void* original, void* seen, void* see_grid, void* stream, void* passing, void* novelty, int compiled) {
  rows::Held capsule(PyObject_GetAttrString(note, "__self__"));
  void* writer = capsule.get() != nullptr ? PyCapsule_GetPointer(capsule.get(), nullptr) : nullptr;
  if (writer == nullptr) {
    return nullptr;
  }
  auto* launcher = new (std::nothrow) rows::Launcher;
  if (launcher == nullptr) {
    return PyErr_NoMemory();
  }
  launcher->writer = static_cast<rows::Writer*>(writer);
  launcher->writer_held.take(rows::shared(capsule.get()));
  launcher->original.take(rows::shared(original));
  launcher->seen.take(rows::shared(seen));
  launcher->see_grid.take(rows::shared(see_grid));
  launcher->stream.take(rows::shared(stream));
  launcher->passing.take(rows::shared(passing));
  launcher->novelty.take(rows::shared(novelty));
  launcher->compiled = compiled != 0;
  static constexpr const char* kWords[rows::kNames] = {
      "grid", "warmup", "benchmark_run", "stream", "fn", "on", "current"};
  bool named = true;
  for (size_t at = 0; at < rows::kNames; ++at) {
    launcher->names[at].take(PyUnicode_InternFromString(kWords[at]));
    named = named && launcher->names[at].get() != nullptr;
  }
  void* made = named ? PyCapsule_New(launcher, nullptr, rows::end_launcher) : nullptr;
  if (made == nullptr) {
    delete launcher;
    return nullptr;
  }
  rows::Held held(made);
  rows::Held function(PyCFunction_NewEx(&rows::launcher_method, held.get(), nullptr));
  return function.get() != nullptr ? PyInstanceMethod_New(function.get()) : nullptr;
}
}
