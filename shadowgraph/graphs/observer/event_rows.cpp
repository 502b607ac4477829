// Writes rows of events into any launch log, as `model/launch_log.py` does where this library is missing, which calls it
// in the thread of the event, with the interpreter's lock.

extern "C" {
void* PyList_GetItem(void*, intptr_t);
intptr_t PyList_Size(void*);
extern char PyList_Type;
}

namespace {
namespace rows {

// The log's address, the counter of its rows, kind, graph, replay, the slot of its text or 0, and the text's numbers.
constexpr intptr_t kOfEvent = 7;

// Up to `kNumbers` numbers of a list or a tuple; how many there are, or -1.
intptr_t numbers_of(void* given, uint64_t* words) {
  bool is_list = type_of(given) == &PyList_Type;
  if (!is_list && type_of(given) != &PyTuple_Type) {
    return -1;
  }
  intptr_t count = is_list ? PyList_Size(given) : PyTuple_Size(given);
  if (count > static_cast<intptr_t>(kNumbers)) {
    return -1;
  }
  for (intptr_t at = 0; at < count; ++at) {
    if (!fits(is_list ? PyList_GetItem(given, at) : PyTuple_GetItem(given, at), INT64_MAX, words[at])) {
      return -1;
    }
  }
  return count;
}

// Whether the row was written: values that do not fit are Python's to write.
bool event(void* const* given, intptr_t count) {
  uint64_t memory = 0, kind = 0, slot = 0;
  RowWords words = {};
  if (count != kOfEvent || !fits(given[0], UINT64_MAX, memory) || !fits(given[2], UINT8_MAX, kind) ||
      !fits(given[3], UINT64_MAX, words[0]) || !fits(given[4], UINT64_MAX, words[1]) ||
      !fits(given[5], UINT32_MAX, slot)) {
    return false;
  }
  intptr_t numbers = numbers_of(given[6], words + 2);
  uint64_t number = numbers >= 0 ? counted(given[1]) : UINT64_MAX;
  if (number == UINT64_MAX) {
    return false;
  }
  words[kTail] = std::bit_cast<uint64_t>(static_cast<double>(now()) / 1e9);
  words[kTail + 1] = PyThread_get_thread_ident();
  words[kTail + 2] = slot | static_cast<uint64_t>(numbers) << 32;
  words[kTail + 4] = kind << 32;
  put(reinterpret_cast<unsigned char*>(memory), words, number);
  return true;
}

void* event_called(void*, void* const* given, intptr_t count) {
  bool done = event(given, count);
  if (!done && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
  }
  return shared(done ? &_Py_TrueStruct : &_Py_FalseStruct);
}

ShadowgraphMethod event_method{
    "put_event", event_called, kFastCall,
    "put_event(address, rows, kind, graph, number, slot, numbers, /)\n--\n\nWrite the row of an event, if it fits."};

}  // namespace rows
}  // namespace

extern "C" {

// A function of Python's that writes rows of events into any log, or null with an exception set.
void* shadowgraph_event_rows() {
  return PyCFunction_NewEx(&rows::event_method, nullptr, nullptr);
}
}
