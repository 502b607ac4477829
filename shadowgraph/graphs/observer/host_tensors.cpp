// Reads integers of tensors on the host, as the functions in `graphs/host_tensors.py` do where this library is missing. In
// the thread of the caller, with the interpreter's lock.

extern "C" {
int PyBytes_AsStringAndSize(void*, char**, intptr_t*);
void* PyBytes_FromStringAndSize(const char*, intptr_t);
int PyList_SetItem(void*, intptr_t, void*);
void* PyTuple_Pack(intptr_t, ...);
extern char PyBytes_Type;
}

namespace {
namespace rows {

// What a plan is compared with: the type of what the planner is given, and where the wrapper has its own.
struct Facts {
  int64_t given_type, into_type, into_elements;
  uint64_t into;
};

// The plain tensor in any object of Python's; null for others.
const c10::TensorImpl* tensor_among(const Writer& writer, void* value) {
  return is_tensor(writer, value) ? tensor_in(writer, value) : nullptr;
}

// The bytes of contiguous integers of the host; null for other tensors. Of an empty one there is nothing to read.
const char* integers_in(const c10::TensorImpl* tensor) {
  if (tensor == nullptr || !tensor->device().is_cpu() || !tensor->is_contiguous() || tensor->is_neg()) {
    return nullptr;
  }
  auto type = c10::typeMetaToScalarType(tensor->dtype());
  if (type != c10::ScalarType::Int && type != c10::ScalarType::Long) {
    return nullptr;
  }
  if (tensor->numel() == 0) {
    return "";
  }
  const auto& storage = tensor->unsafe_storage();  // which may have let go of its memory
  auto end = static_cast<size_t>(tensor->storage_offset() + tensor->numel()) * tensor->itemsize();
  if (storage.data() == nullptr || storage.nbytes() < end) {
    return nullptr;
  }
  return static_cast<const char*>(tensor->data());
}

long long integer_at(const char* data, size_t width, int64_t at) {
  int32_t narrow = 0;
  int64_t wide = 0;
  std::memcpy(width == 4 ? static_cast<void*>(&narrow) : &wide, data + static_cast<size_t>(at) * width, width);
  return width == 4 ? narrow : wide;
}

bool facts_of(const Writer& writer, void* given, void* into, Facts& facts) {
  const auto* from = tensor_among(writer, given);
  const auto* to = tensor_among(writer, into);
  if (from == nullptr || to == nullptr) {
    return false;
  }
  facts.given_type = static_cast<int64_t>(c10::typeMetaToScalarType(from->dtype()));
  facts.into_type = static_cast<int64_t>(c10::typeMetaToScalarType(to->dtype()));
  facts.into_elements = to->numel();
  facts.into = reinterpret_cast<uintptr_t>(to->unsafe_storage().data()) +
      static_cast<uint64_t>(to->storage_offset()) * to->itemsize();
  return true;
}

// The functions below return `None` for tensors of other kinds, and null with an exception set.

void* facts(const Writer& writer, void* const* given, intptr_t count) {
  Facts found;
  if (count != 2 || !facts_of(writer, given[0], given[1], found)) {
    return shared(&_Py_NoneStruct);
  }
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&found), sizeof found);
}

void* taken(const Writer& writer, void* const* given, intptr_t count) {
  char* expected = nullptr;
  intptr_t size = 0;
  uint64_t most = 0;
  Facts found;
  if (count != 4 || type_of(given[0]) != &PyBytes_Type || PyBytes_AsStringAndSize(given[0], &expected, &size) != 0 ||
      size != sizeof found || !facts_of(writer, given[1], given[2], found) ||
      std::memcmp(expected, &found, sizeof found) != 0 || !fits(given[3], UINT32_MAX, most)) {
    return shared(&_Py_NoneStruct);
  }
  const auto* tensor = tensor_among(writer, given[1]);
  const char* data = integers_in(tensor);
  int64_t elements = tensor->numel();
  if (data == nullptr) {
    return shared(&_Py_NoneStruct);
  }
  size_t width = tensor->itemsize();
  auto kept = std::min<uint64_t>(static_cast<uint64_t>(elements) * width, most);
  Held bytes(PyBytes_FromStringAndSize(data, static_cast<intptr_t>(kept))), number(PyLong_FromLongLong(elements));
  Held last(PyLong_FromLongLong(elements != 0 ? integer_at(data, width, elements - 1) : 0));
  if (bytes.get() == nullptr || number.get() == nullptr || last.get() == nullptr) {
    return nullptr;
  }
  return PyTuple_Pack(3, bytes.get(), number.get(), last.get());
}

void* numbers(const Writer& writer, void* const* given, intptr_t count) {
  const auto* tensor = count == 2 ? tensor_among(writer, given[0]) : nullptr;
  const char* data = integers_in(tensor);
  uint64_t most = 0;
  if (data == nullptr || tensor->dim() != 1 || !fits(given[1], UINT32_MAX, most) ||
      static_cast<uint64_t>(tensor->numel()) > most) {
    return shared(&_Py_NoneStruct);
  }
  Held made(PyList_New(tensor->numel()));
  for (int64_t at = 0; made.get() != nullptr && at < tensor->numel(); ++at) {
    void* number = PyLong_FromLongLong(integer_at(data, tensor->itemsize(), at));
    if (number == nullptr || PyList_SetItem(made.get(), at, number) != 0) {
      return nullptr;
    }
  }
  return made.get() != nullptr ? shared(made.get()) : nullptr;
}

template <void* (*kFunction)(const Writer&, void* const*, intptr_t)>
void* reads(void* itself, void* const* given, intptr_t count) {
  auto* writer = static_cast<Writer*>(PyCapsule_GetPointer(itself, nullptr));
  if (writer == nullptr) {
    return nullptr;
  }
  try {
    return kFunction(*writer, given, count);
  } catch (...) {
    return shared(&_Py_NoneStruct);
  }
}

ShadowgraphMethod readers[] = {
    {"facts", reads<facts>, kFastCall, "facts(given, into, /)\n--\n\nWhat `taken` compares."},
    {"taken", reads<taken>, kFastCall, "taken(facts, given, into, most, /)\n--\n\nThe integers, if the facts hold."},
    {"numbers", reads<numbers>, kFastCall, "numbers(tensor, most, /)\n--\n\nThe integers of a short tensor."},
};

}  // namespace rows
}  // namespace

extern "C" {

// One of three functions of Python's, or null with an exception set. `note` is one that `shadowgraph_launch_rows` made.
void* shadowgraph_host_tensors(void* note, int which) {
  rows::Held capsule(PyObject_GetAttrString(note, "__self__"));
  return capsule.get() != nullptr ? PyCFunction_NewEx(&rows::readers[which], capsule.get(), nullptr) : nullptr;
}
}
