// Runs the functions of `graphs/triton/cuda.py` that stand for launchers of Triton and of torch's compiled code: notes a
// launch that passes unobserved, and hands every other one to Python. The methods with which torch calls operators are run
// here, too, for those of libraries, whose kernels are left alone (`stand_ins.cpp`). All stay functions of Python's, with
// all that a program may ask of one; their calls come here, in the launching thread, with the interpreter's lock. Arguments
// go on as they came, so that nothing is packed twice.

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <unordered_set>
#include <vector>

extern "C" {
using ShadowgraphCall = void* (*)(void*, void* const*, size_t, void*);  // vectorcallfunc
void PyFunction_SetVectorcall(void*, ShadowgraphCall) __attribute__((weak));
int PyObject_IsTrue(void*);
int PyObject_SetAttrString(void*, const char*, void*);
void* PyObject_Vectorcall(void*, void* const*, size_t, void*);
int PyUnicode_Compare(void*, void*);
ShadowgraphCall PyVectorcall_Function(void*);
extern char PyFunction_Type;
}

namespace {
namespace rows {

constexpr size_t kOffset = size_t{1} << (8 * sizeof(size_t) - 1);  // PY_VECTORCALL_ARGUMENTS_OFFSET

struct Grid {
  const void* kernel;
  intptr_t rank;
  std::array<uint32_t, 3> extents;
  bool operator==(const Grid&) const = default;
};

struct GridHash {
  size_t operator()(const Grid& grid) const {
    size_t found = (reinterpret_cast<uintptr_t>(grid.kernel) >> 4) + static_cast<size_t>(grid.rank);
    for (uint32_t extent : grid.extents) {
      found = (found ^ extent) * UINT64_C(0x9E3779B97F4A7C15);
    }
    return found >> 16;
  }
};

enum Name : size_t { kGrid, kWarmup, kBenchmark, kStream, kFunction, kOn, kSizes, kNames };

enum class Kind { kTriton, kCompiled, kOperator };

// What a function was taken over with, and the grids that were judged not to be larger than all before.
struct Launcher {
  Held writer_held;  // the capsule of `writer`
  Writer* writer = nullptr;
  Held original, seen, see_grid, stream, passing, novelty;  // functions, and the dictionaries of two modules
  std::array<Held, kNames> names;
  Kind kind = Kind::kTriton;
  Held sizes;  // of which the grids are
  std::unordered_set<Grid, GridHash> judged;
};

// A call as it came.
struct Launch {
  void* const* args;
  size_t count;
  void* keywords;  // a tuple of names, or null; their values follow the others

  // The value of a keyword, or null. Names that are written at a call are interned.
  void* keyword(void* name) const {
    intptr_t size = keywords != nullptr ? PyTuple_Size(keywords) : 0;
    for (bool same : {true, false}) {
      for (intptr_t at = 0; at < size; ++at) {
        void* given = PyTuple_GetItem(keywords, at);
        if (same ? given == name : PyUnicode_Compare(given, name) == 0) {
          return args[count + static_cast<size_t>(at)];
        }
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

// As Python has it; null is false.
bool is_true(void* value) {
  if (value == nullptr || value == &_Py_FalseStruct || value == &_Py_NoneStruct) {
    return false;
  }
  return value == &_Py_TrueStruct || PyObject_IsTrue(value) != 0;  // also with an exception set, which goes on
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
  Grid grid{kernel, PyTuple_Size(given), {}};
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

bool note_launch(const Launcher& launcher, const Launch& launch, void* grid) {
  void* kernel = launch.args[0];
  Held function;
  if (launcher.kind != Kind::kOperator) {
    function.take(PyObject_GetAttr(kernel, launcher.names[kFunction].get()));  // which rows keep alive: the rest is large
  }
  if (function.get() == nullptr) {
    PyErr_Clear();
    function.take(shared(kernel));
  }
  bool compiled = launcher.kind == Kind::kCompiled;
  void* told = compiled ? launch.keyword(launcher.names[kStream].get()) : nullptr;
  Held here;
  size_t given = launch.count;
  if (!compiled && launch.keywords != nullptr) {
    given += static_cast<size_t>(PyTuple_Size(launch.keywords));
  }
  return note_row(*launcher.writer, function.get(), grid, told, [&](Row& row, void*& stream) {
    for (size_t at = 1; at < given; ++at) {
      if (!add_address(*launcher.writer, launch.args[at], row)) {
        return false;
      }
    }
    if (compiled || !row.on_cuda) {
      return true;
    }
    bool known = stream_here(launcher, here);
    stream = here.get();
    return known;
  });
}

bool noted(const Launcher& launcher, const Launch& launch, void* grid) {
  try {
    return note_launch(launcher, launch, grid);
  } catch (const std::exception& error) {  // of torch, which is asked for the stream
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return false;
  }
}

// Whether a launch passes unobserved, and has been noted. With an exception set, it is to go on to the program.
bool passes(Launcher& launcher, const Launch& launch) {
  bool compiled = launcher.kind == Kind::kCompiled;
  bool other = is_true(launch.keyword(launcher.names[compiled ? kBenchmark : kWarmup].get()));
  if (other || launch.count == 0) {
    return false;
  }
  void* grid = compiled ? nullptr : launch.keyword(launcher.names[kGrid].get());
  if (!see(launcher, launch.args[0], grid) && !reported(*launcher.writer)) {  // first: it may end the passing
    return false;
  }
  if (!is_true(looked_up(launcher.passing, launcher.names[kOn]))) {
    return false;
  }
  return noted(launcher, launch, grid != nullptr ? grid : &_Py_NoneStruct) || reported(*launcher.writer);
}

// Notes a call of a library's operator that passes unobserved; false with an exception set that is to go on.
bool operator_noted(const Launcher& launcher, const Launch& launch) {
  bool passes = launch.count != 0 && is_true(looked_up(launcher.passing, launcher.names[kOn]));
  return !passes || noted(launcher, launch, &_Py_NoneStruct) || reported(*launcher.writer);
}

struct Quickened {
  const void* function;
  void* launcher;  // in its capsule, which the function's dictionary has
};
std::vector<Quickened> quickened;  // a few; guarded by the interpreter's lock
ShadowgraphCall as_python = nullptr;  // how Python calls a function of its own

void* launched(void* function, void* const* args, size_t given, void* keywords) {
  for (const Quickened& each : quickened) {
    if (each.function != function) {
      continue;
    }
    auto* launcher = static_cast<Launcher*>(PyCapsule_GetPointer(each.launcher, nullptr));
    Held keep(shared(each.launcher)), keep_function(shared(function));  // Python may let go of both meanwhile
    Launch launch{args, given & ~kOffset, keywords};
    if (launcher->kind == Kind::kOperator) {
      return operator_noted(*launcher, launch) ? as_python(function, args, given, keywords) : nullptr;
    }
    bool passed = false;
    try {
      passed = passes(*launcher, launch);
    } catch (...) {
      PyErr_NoMemory();
      reported(*launcher->writer);
    }
    if (PyErr_Occurred() != nullptr) {
      return nullptr;
    }
    return launch.hand_to(passed ? launcher->original.get() : launcher->seen.get());
  }
  return as_python(function, args, given, keywords);
}

// Has a function of Python's called another way. Python 3.11 has the field, and no function that sets it; calls that it
// inlines run the function itself.
bool set_call(void* function) {
  ShadowgraphCall before = PyVectorcall_Function(function);
  if (before == launched) {
    return true;
  }
  if (type_of(function) != &PyFunction_Type || before == nullptr || (as_python != nullptr && before != as_python)) {
    return false;
  }
  if (PyFunction_SetVectorcall != nullptr) {
    as_python = before;
    PyFunction_SetVectorcall(function, launched);
    return true;
  }
  constexpr size_t kFields = 17;  // words of a function; the first two are the head of any object
  auto* fields = static_cast<ShadowgraphCall*>(function);
  for (size_t at = 2; at < kFields; ++at) {
    if (fields[at] == before) {
      as_python = before;
      fields[at] = launched;
      return true;
    }
  }
  return false;
}

void end_launcher(void* capsule) {
  std::erase_if(quickened, [capsule](const Quickened& each) { return each.launcher == capsule; });
  delete static_cast<Launcher*>(PyCapsule_GetPointer(capsule, nullptr));
}

}  // namespace rows
}  // namespace

extern "C" {

// Has calls of `run`, a function of Python's that stands for the launcher `original`, come here: 1, or 0 where they cannot,
// or -1 with an exception set. `note` is a function that `shadowgraph_launch_rows` made. `seen` gets what does not pass,
// `see_grid` a kernel and a grid that was not seen before, and returns whether it need not be asked again; `stream` returns
// the current one. `passing` and `novelty` are the dictionaries of those modules. `kind` is 0 for Triton, 1 for torch's
// compiled code, whose arguments are told otherwise, and 2 for a method of torch's that calls an operator.
int shadowgraph_quicken(
    void* note, void* run, void* original, void* seen, void* see_grid, void* stream, void* passing, void* novelty,
    int kind) {
  rows::Held capsule(PyObject_GetAttrString(note, "__self__"));
  void* writer = capsule.get() != nullptr ? PyCapsule_GetPointer(capsule.get(), nullptr) : nullptr;
  if (writer == nullptr) {
    return -1;
  }
  auto* launcher = new (std::nothrow) rows::Launcher;
  if (launcher == nullptr) {
    PyErr_NoMemory();
    return -1;
  }
  launcher->writer = static_cast<rows::Writer*>(writer);
  launcher->writer_held.take(rows::shared(capsule.get()));
  launcher->original.take(rows::shared(original));
  launcher->seen.take(rows::shared(seen));
  launcher->see_grid.take(rows::shared(see_grid));
  launcher->stream.take(rows::shared(stream));
  launcher->passing.take(rows::shared(passing));
  launcher->novelty.take(rows::shared(novelty));
  launcher->kind = static_cast<rows::Kind>(kind);
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
    return -1;
  }
  rows::Held held(made);
  if (launcher->kind == rows::Kind::kOperator) {
    rows::shared(made);  // for the life of the process, as torch's methods are there
  } else if (PyObject_SetAttrString(run, "_launcher", made) != 0) {
    return -1;
  }
  std::erase_if(rows::quickened, [run](const rows::Quickened& each) { return each.function == run; });
  rows::quickened.push_back({run, made});
  return rows::set_call(run) ? 1 : 0;
}
}
