// Writes rows of launches that pass unobserved into the launch log, as `graphs/launch_rows.py` does where this library is
// missing, which calls a function of the interpreter's own kind in the thread of the launch. Hooks run once a step, with
// the caches full of the program's: what counts is how much memory they touch (`tools/bench_steady_hooks.py`).
//
// The interpreter's lock is held throughout, and is all that guards what is here. A call of Python, or the end of an
// object, may let other threads run, and may come back here: nothing is pointed at across one but what is held by a
// reference. The log's memory is never unmapped (`mapped_files.py`).

#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <unordered_map>
#include <utility>

// Of the interpreter, whose headers may be missing. Python 3.10 has no `PyFrame_GetLasti`.
extern "C" {
struct ShadowgraphMethod {  // PyMethodDef
  const char* name;
  void* (*function)(void*, void* const*, intptr_t);
  int flags;
  const char* doc;
};
extern char PyLong_Type, PyTuple_Type, PyUnicode_Type, _Py_NoneStruct, _Py_FalseStruct, _Py_TrueStruct;
extern void *PyExc_Exception, *PyExc_RuntimeError, *PyExc_TypeError;
void* PyCFunction_NewEx(ShadowgraphMethod*, void*, void*);
void* PyCapsule_New(void*, const char*, void (*)(void*));
void* PyCapsule_GetPointer(void*, const char*);
void* PyDict_GetItemWithError(void*, void*);
int PyDict_Next(void*, intptr_t*, void**, void**);
intptr_t PyDict_Size(void*);
void* PyErr_NoMemory();
void* PyErr_Occurred();
int PyErr_ExceptionMatches(void*);
void PyErr_Clear();
void PyErr_Fetch(void**, void**, void**);
void PyErr_NormalizeException(void**, void**, void**);
void PyErr_SetString(void*, const char*);
void PyErr_WriteUnraisable(void*);
int PyException_SetTraceback(void*, void*);
void* PyFrame_GetBack(void*);
void* PyFrame_GetCode(void*);
int PyFrame_GetLasti(void*) __attribute__((weak));
void* PyIter_Next(void*);
void* PyList_New(intptr_t);
int PyList_Append(void*, void*);
long long PyLong_AsLongLong(void*);
void* PyLong_FromLongLong(long long);
unsigned long long PyLong_AsUnsignedLongLong(void*);
void* PyLong_FromUnsignedLongLong(unsigned long long);
void* PyObject_CallFunctionObjArgs(void*, ...);
void* PyObject_GetAttr(void*, void*);
void* PyObject_GetAttrString(void*, const char*);
void* PyThreadState_Get();
void* PyThreadState_GetFrame(void*);
unsigned long PyThread_get_thread_ident();
void* PyTuple_GetItem(void*, intptr_t);
intptr_t PyTuple_Size(void*);
const char* PyUnicode_AsUTF8AndSize(void*, intptr_t*);
void* PyUnicode_InternFromString(const char*);
void Py_IncRef(void*);
void Py_DecRef(void*);
}

namespace {
namespace rows {

constexpr int kFastCall = 0x80;      // METH_FASTCALL
constexpr long long kNotNoted = -1;   // the number of a kernel that has no rows
constexpr long long kOfLibrary = -1;  // the number of a line whose frame is not the program's

// A reference that is given up at the end.
class Held {
 public:
  explicit Held(void* object = nullptr) : object_(object) {}
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    drop(object_);
  }
  void take(void* object) {
    drop(std::exchange(object_, object));
  }
  void* get() const {
    return object_;
  }

 private:
  static void drop(void* object) {
    if (object != nullptr) {
      Py_DecRef(object);
    }
  }
  void* object_;
};

void* shared(void* object) {
  Py_IncRef(object);
  return object;
}

const void* type_of(void* object) {
  struct Object {
    intptr_t references;
    void* type;
  };
  return static_cast<Object*>(object)->type;
}

struct Key {
  void* object;
  int at;  // an instruction of code; 0 for a kernel
  bool operator==(const Key&) const = default;
};

struct Hash {
  size_t operator()(const Key& key) const {
    return ((reinterpret_cast<uintptr_t>(key.object) >> 4) + static_cast<size_t>(key.at)) * UINT64_C(0x9E3779B97F4A7C15) >> 20;
  }
};

// Numbers by object, which is held by a reference, so that its address stays its own.
class Map {
 public:
  Map() = default;
  Map(const Map&) = delete;
  Map& operator=(const Map&) = delete;
  ~Map() {
    drop(known_);
  }

  const long long* find(const Key& key) const {
    auto found = known_.find(key);
    return found != known_.end() ? &found->second : nullptr;
  }

  // Full, it begins anew. Ends of objects run last: they may come back here.
  void add(const Key& key, long long number, size_t most) {
    Known old;
    if (known_.size() >= most) {
      old.swap(known_);
    }
    if (known_.try_emplace(key, number).second) {
      Py_IncRef(key.object);
    }
    drop(old);
  }

 private:
  using Known = std::unordered_map<Key, long long, Hash>;
  static void drop(Known& known) {
    Known gone;
    gone.swap(known);
    for (const auto& each : gone) {
      Py_DecRef(each.first.object);
    }
  }
  Known known_;
};

// What is known of one log.
struct Numbers {
  int users = 1;
  Held log, begun;  // `begun` holds what the following come from
  unsigned char* memory = nullptr;
  void *counter = nullptr, *name_kernel = nullptr, *name_line = nullptr, *write = nullptr;
  Map kernels, lines;
};

class Using {
 public:
  explicit Using(Numbers* numbers) : numbers_(numbers) {
    ++numbers->users;
  }
  Using(const Using&) = delete;
  Using& operator=(const Using&) = delete;
  ~Using() {
    leave(numbers_);
  }
  static void leave(Numbers* numbers) {
    if (numbers != nullptr && --numbers->users == 0) {
      delete numbers;
    }
  }

 private:
  Numbers* numbers_;
};

// What a function of ours was made with.
struct Writer {
  Held recording, current, tensor, parameter, address, begin, failed;
  size_t most = 0;
  size_t tensor_at = 0;        // words before the tensor in an object of Python's; 0 where torch has another layout
  Numbers* numbers = nullptr;  // of the latest log
  ~Writer() {
    Using::leave(numbers);
  }
};

struct Row {
  uint64_t addresses[kPointers];
  uint64_t count = 0;
  bool on_cuda = false;  // whether a tensor is
  uint64_t stream = 0;
  uint32_t grid[3] = {0, 0, 0};
  long long kernel = 0, line = 0;
};

// Functions that return a number or a flag return -1 or false with an exception set, unless they say otherwise.

long long answer(void* function, void* argument) {
  Held made(PyObject_CallFunctionObjArgs(function, argument, static_cast<void*>(nullptr)));
  return made.get() != nullptr ? PyLong_AsLongLong(made.get()) : -1;
}

// Begins anew for a log: that of another debugger, or of a forked child.
bool begin(Writer& writer, void* log) {
  Held facts(PyObject_CallFunctionObjArgs(writer.begin.get(), log, static_cast<void*>(nullptr)));
  if (facts.get() == nullptr) {
    return false;
  }
  auto* made = new Numbers;
  made->log.take(shared(log));
  made->begun.take(shared(facts.get()));
  void* place = PyTuple_GetItem(facts.get(), 0);
  made->memory = place != nullptr ? reinterpret_cast<unsigned char*>(PyLong_AsUnsignedLongLong(place)) : nullptr;
  made->counter = PyTuple_GetItem(facts.get(), 1);
  made->name_kernel = PyTuple_GetItem(facts.get(), 2);
  made->name_line = PyTuple_GetItem(facts.get(), 3);
  made->write = PyTuple_GetItem(facts.get(), 4);
  if (PyErr_Occurred() != nullptr) {
    Using::leave(made);
    return false;
  }
  Using::leave(std::exchange(writer.numbers, made));
  return true;
}

bool kernel_of(Numbers& numbers, void* kernel, size_t most, Row& row) {
  const long long* known = numbers.kernels.find({kernel, 0});
  if (known != nullptr) {
    row.kernel = *known;
    return true;
  }
  row.kernel = answer(numbers.name_kernel, kernel);
  if (row.kernel < 0 && PyErr_Occurred() != nullptr) {
    return false;
  }
  numbers.kernels.add({kernel, 0}, row.kernel, most);
  return true;
}

int instruction_of(void* frame) {
  if (PyFrame_GetLasti != nullptr) {
    return PyFrame_GetLasti(frame);
  }
  Held at(PyObject_GetAttrString(frame, "f_lasti"));
  return at.get() != nullptr ? static_cast<int>(PyLong_AsLongLong(at.get())) : -1;
}

// The number of the program's line that launches; 0 where all frames are of libraries.
bool line_here(Numbers& numbers, size_t most, Row& row) {
  Held frame(PyThreadState_GetFrame(PyThreadState_Get()));
  while (frame.get() != nullptr) {
    Held code(PyFrame_GetCode(frame.get()));
    Key key{code.get(), instruction_of(frame.get())};
    const long long* known = numbers.lines.find(key);
    long long number = known != nullptr ? *known : answer(numbers.name_line, frame.get());
    if (known == nullptr) {
      if (number < 0 && PyErr_Occurred() != nullptr) {
        return false;
      }
      numbers.lines.add(key, number, most);
    }
    if (number != kOfLibrary) {
      row.line = number;
      return true;
    }
    frame.take(PyFrame_GetBack(frame.get()));
  }
  return true;
}

bool is_tensor(const Writer& writer, void* value) {
  const void* type = type_of(value);
  return type == writer.tensor.get() || type == writer.parameter.get();
}

// What an object that `is_tensor` holds; null where it is not plain, or torch has another layout.
c10::TensorImpl* tensor_in(const Writer& writer, void* value) {
  auto* tensor = writer.tensor_at != 0 ? static_cast<c10::TensorImpl* const*>(value)[writer.tensor_at] : nullptr;
  return tensor != nullptr && is_plain(*tensor) ? tensor : nullptr;
}

// The address of a tensor, as its method gives it. No answer where that may raise, or ask a mode of the program's.
bool address_of(const Writer& writer, void* value, uint64_t& address, bool& on_cuda) {
  auto* tensor = at::impl::torch_function_mode_enabled() ? nullptr : tensor_in(writer, value);
  if (tensor == nullptr) {
    return false;
  }
  try {
    address = reinterpret_cast<uintptr_t>(tensor->mutable_data());
    on_cuda |= tensor->is_cuda();
    return true;
  } catch (...) {
    return false;
  }
}

bool add_address(const Writer& writer, void* value, Row& row) {
  if (!is_tensor(writer, value) || row.count == kPointers) {
    return true;
  }
  if (address_of(writer, value, row.addresses[row.count], row.on_cuda)) {
    ++row.count;
    return true;
  }
  Held keep(shared(value));  // a mode of the program's may be asked
  Held made(PyObject_CallFunctionObjArgs(writer.address.get(), value, static_cast<void*>(nullptr)));
  if (made.get() == nullptr) {
    return false;
  }
  row.addresses[row.count] = PyLong_AsUnsignedLongLong(made.get());
  return row.addresses[row.count++] != UINT64_MAX || PyErr_Occurred() == nullptr;
}

bool add_addresses(const Writer& writer, void* args, void* kwargs, Row& row) {
  intptr_t size = PyTuple_Size(args);
  for (intptr_t at = 0; at < size; ++at) {
    if (!add_address(writer, PyTuple_GetItem(args, at), row)) {
      return false;
    }
  }
  intptr_t keywords = PyDict_Size(kwargs);
  intptr_t at = 0;
  void *name = nullptr, *value = nullptr;
  while (keywords > 0 && PyDict_Next(kwargs, &at, &name, &value)) {
    if (!add_address(writer, value, row)) {
      return false;
    }
  }
  return size >= 0 && keywords >= 0;
}

// Whether an object is a number that fits; no exception remains.
bool fits(void* number, uint64_t largest, uint64_t& value) {
  if (type_of(number) != &PyLong_Type) {
    return false;
  }
  value = PyLong_AsUnsignedLongLong(number);
  if (value == UINT64_MAX && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  return value <= largest;
}

// The same for a grid; what is no tuple is left out.
bool grid_fits(void* grid, Row& row) {
  if (type_of(grid) != &PyTuple_Type) {
    return true;
  }
  intptr_t size = PyTuple_Size(grid);
  if (size < 1 || size > 3) {
    return false;
  }
  row.grid[1] = row.grid[2] = 1;
  for (intptr_t at = 0; at < size; ++at) {
    uint64_t extent = 0;
    if (!fits(PyTuple_GetItem(grid, at), UINT32_MAX, extent)) {
      return false;
    }
    row.grid[at] = static_cast<uint32_t>(extent);
  }
  return true;
}

// Has Python write a row with values that do not fit.
bool write_in_python(const Numbers& numbers, const Row& row, void* grid, void* stream) {
  Held addresses(PyList_New(0)), kernel(PyLong_FromLongLong(row.kernel)), line(PyLong_FromLongLong(row.line));
  for (uint64_t at = 0; addresses.get() != nullptr && at < row.count; ++at) {
    Held address(PyLong_FromUnsignedLongLong(row.addresses[at]));
    if (address.get() == nullptr || PyList_Append(addresses.get(), address.get()) != 0) {
      return false;
    }
  }
  if (addresses.get() == nullptr || kernel.get() == nullptr || line.get() == nullptr) {
    return false;
  }
  Held none(stream == nullptr ? PyLong_FromLongLong(0) : nullptr);
  Held done(PyObject_CallFunctionObjArgs(
      numbers.write, kernel.get(), line.get(), stream == nullptr ? none.get() : stream, grid, addresses.get(),
      static_cast<void*>(nullptr)));
  return done.get() != nullptr;
}

// Writes a row of the log at `memory`.
void put(unsigned char* memory, const RowWords& words, uint64_t number) {
  put(memory + kRowsAt, kRows, words, number);
  latest_of(memory).store(number, std::memory_order_relaxed);
}

void put_launch(unsigned char* memory, const Row& row, uint64_t number) {
  RowWords words = {};  // sizes of what is pointed at are not known
  for (size_t at = 0; at < row.count; ++at) {
    words[2 * at] = row.addresses[at];
  }
  words[kTail] = row.stream;
  words[kTail + 1] = PyThread_get_thread_ident();
  words[kTail + 2] = static_cast<uint32_t>(row.kernel) | static_cast<uint64_t>(row.line) << 32;
  words[kTail + 3] = row.grid[0] | static_cast<uint64_t>(row.grid[1]) << 32;
  words[kTail + 4] = row.grid[2] | (kLaunch | row.count << 8) << 32;
  put(memory, words, number);
}

// The next number of a counter; `UINT64_MAX` with an exception set.
uint64_t counted(void* counter) {
  Held next(PyIter_Next(counter));
  return next.get() != nullptr ? PyLong_AsUnsignedLongLong(next.get()) : UINT64_MAX;
}

bool write(const Numbers& numbers, Row& row, void* grid, void* stream) {
  if ((stream != nullptr && !fits(stream, UINT64_MAX, row.stream)) || !grid_fits(grid, row)) {
    return write_in_python(numbers, row, grid, stream);
  }
  uint64_t number = counted(numbers.counter);
  if (number == UINT64_MAX) {
    return false;
  }
  put_launch(numbers.memory, row, number);
  return true;
}

// Writes the row of a launch; `add` adds the addresses of what it is given, and may tell the stream then.
template <class Add>
bool note_row(Writer& writer, void* kernel, void* grid, void* stream, Add add) {
  void* log = PyDict_GetItemWithError(writer.recording.get(), writer.current.get());
  if (log == nullptr || log == &_Py_NoneStruct) {
    return PyErr_Occurred() == nullptr;
  }
  Held keep(shared(log));
  if ((writer.numbers == nullptr || writer.numbers->log.get() != log) && !begin(writer, log)) {
    return false;
  }
  Numbers* numbers = writer.numbers;  // by now of a later log, maybe
  Using using_numbers(numbers);
  Row row;
  if (!kernel_of(*numbers, kernel, writer.most, row)) {
    return false;
  }
  return row.kernel == kNotNoted ||
      (add(row, stream) && line_here(*numbers, writer.most, row) && write(*numbers, row, grid, stream));
}

bool note(Writer& writer, void* const* given, intptr_t count) {
  if (count < 3 || count > 5) {
    PyErr_SetString(PyExc_TypeError, "a launch has a kernel, arguments, keywords, a grid and a stream");
    return false;
  }
  return note_row(
      writer, given[0], count > 3 ? given[3] : &_Py_NoneStruct, count > 4 ? given[4] : nullptr,
      [&](Row& row, void*&) { return add_addresses(writer, given[1], given[2], row); });
}

// Reports the exception that is set. Only what is no error goes on to the program, such as a signal handler's.
bool reported(const Writer& writer) {
  if (PyErr_Occurred() == nullptr) {
    return true;
  }
  if (!PyErr_ExceptionMatches(PyExc_Exception)) {
    return false;
  }
  void *kind = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &error, &trace);
  PyErr_NormalizeException(&kind, &error, &trace);
  Held kind_held(kind), error_held(error), trace_held(trace);
  if (trace != nullptr) {
    PyException_SetTraceback(error, trace);
  }
  Held done(PyObject_CallFunctionObjArgs(writer.failed.get(), error, static_cast<void*>(nullptr)));
  if (done.get() == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
      return false;
    }
    PyErr_WriteUnraisable(writer.failed.get());
  }
  return true;
}

void* called(void* itself, void* const* given, intptr_t count) {
  auto* writer = static_cast<Writer*>(PyCapsule_GetPointer(itself, nullptr));
  if (writer == nullptr) {
    return nullptr;
  }
  bool done = false;
  try {
    done = note(*writer, given, count);
  } catch (...) {
    PyErr_NoMemory();
  }
  return done || reported(*writer) ? shared(&_Py_NoneStruct) : nullptr;
}

ShadowgraphMethod method{
    "note", called, kFastCall, "note(kernel, args, kwargs, grid=None, stream=0, /)\n--\n\nWrite the row of a launch."};

void end(void* capsule) {
  delete static_cast<Writer*>(PyCapsule_GetPointer(capsule, nullptr));
}

}  // namespace rows
}  // namespace

extern "C" {

// A function of Python's that writes rows into the log at `current` of a dictionary, or null with an exception set.
// `address` is the method that gives a tensor's address; `sample` is an object of type `tensor` whose `TensorImpl` is at
// `held`. `begin` returns for a log its address, the counter of its rows, and functions that number a kernel (-1 for one
// that is not noted), number the line of a frame (-1 for a library's), and write a row. `failed` is called with an error. `most` kernels and lines are
// remembered.
void* shadowgraph_launch_rows(
    void* recording, void* tensor, void* parameter, void* address, void* begin, void* failed, void* sample, uint64_t held,
    uint64_t most) {
  rows::Held one(PyLong_FromLongLong(1));
  if (one.get() == nullptr || rows::type_of(one.get()) != &PyLong_Type) {
    PyErr_SetString(PyExc_TypeError, "objects of this interpreter are laid out in another way");
    return nullptr;
  }
  auto* writer = new (std::nothrow) rows::Writer;
  if (writer == nullptr) {
    return PyErr_NoMemory();
  }
  writer->recording.take(rows::shared(recording));
  writer->current.take(PyUnicode_InternFromString("current"));
  writer->tensor.take(rows::shared(tensor));
  writer->parameter.take(rows::shared(parameter));
  writer->address.take(rows::shared(address));
  writer->begin.take(rows::shared(begin));
  writer->failed.take(rows::shared(failed));
  writer->most = most;
  for (size_t at : {2, 3}) {  // behind the head of an object, and a flag that torch may have there
    if (static_cast<const uint64_t*>(sample)[at] == held) {
      writer->tensor_at = at;
    }
  }
  void* made = writer->current.get() != nullptr ? PyCapsule_New(writer, nullptr, rows::end) : nullptr;
  if (made == nullptr) {
    delete writer;
    return nullptr;
  }
  rows::Held capsule(made);
  return PyCFunction_NewEx(&rows::method, capsule.get(), nullptr);
}
}
