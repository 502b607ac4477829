// The interpreter, as threads of C++ ask it for the stack of an operator.
//
// A thread asks only if it has run Python before, and while the interpreter is not about to end: a thread that waits for
// the interpreter's lock then never gets it, and is ended in the middle of torch. `shadowgraph_captures_over` is called
// before that, and waits for the threads counted here: a thread counts itself, and then looks whether the end has begun.
//
// No lock of this library is held while a thread waits for the interpreter's: the thread that has that one may be
// waiting for ours.

#include <atomic>
#include <cstdint>

// Of the interpreter, whose headers may be missing. All but the last two are part of its stable interface; of those, a
// version has one.
extern "C" {
int Py_IsInitialized();
void* PyGILState_GetThisThreadState();
int PyGILState_Ensure();
void PyGILState_Release(int);
void* PyObject_CallFunctionObjArgs(void*, ...);
void* PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(void*);
void Py_IncRef(void*);
void Py_DecRef(void*);
void PyErr_Fetch(void**, void**, void**);
void PyErr_Restore(void*, void*, void*);
void PyErr_WriteUnraisable(void*);
int Py_IsFinalizing() __attribute__((weak));
int _Py_IsFinalizing() __attribute__((weak));
}

namespace {
namespace captures {

std::atomic<int64_t> asking{0};  // threads that are in the interpreter, or wait for its lock

std::atomic<bool> ending{false};  // the interpreter is about to end

// A thread that is about to ask.
class Asking {
 public:
  Asking() {
    asking.fetch_add(1);
  }
  ~Asking() {
    asking.fetch_sub(1);
  }
  Asking(const Asking&) = delete;
  Asking& operator=(const Asking&) = delete;
};

// Whether this thread may ask for the interpreter's lock. A thread that has never run Python has no stack to ask for.
bool may_ask() {
  if (ending.load() || !Py_IsInitialized() || PyGILState_GetThisThreadState() == nullptr) {
    return false;
  }
  if (Py_IsFinalizing != nullptr) {
    return !Py_IsFinalizing();
  }
  return _Py_IsFinalizing == nullptr || !_Py_IsFinalizing();
}

// The interpreter's lock, and the exception that was on its way in this thread.
class Interpreter {
 public:
  Interpreter() {
    state_ = PyGILState_Ensure();
    PyErr_Fetch(&kind_, &error_, &trace_);
  }
  ~Interpreter() {
    PyErr_Restore(kind_, error_, trace_);
    PyGILState_Release(state_);
  }
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

 private:
  int state_ = 0;
  void *kind_ = nullptr, *error_ = nullptr, *trace_ = nullptr;
};

// Calls a Python function with a number; its result, or -1. Torch drops what a callback throws, so that an exception
// goes to `sys.unraisablehook`, which raises a signal handler's in the program once more.
long long answer_of(void* function, long long number) {
  long long value = -1;
  void* argument = PyLong_FromLongLong(number);
  void* made = argument != nullptr ? PyObject_CallFunctionObjArgs(function, argument, static_cast<void*>(nullptr)) : nullptr;
  if (made != nullptr) {
    value = PyLong_AsLongLong(made);
    Py_DecRef(made);
  } else {
    PyErr_WriteUnraisable(function);
  }
  if (argument != nullptr) {
    Py_DecRef(argument);
  }
  return value;
}

}  // namespace captures
}  // namespace
