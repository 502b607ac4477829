// Rows of operators that write tensors: for each call one or more, in a ring of its thread. `stand_ins.cpp` has them
// written, `observer.py` builds, loads and reads it.
//
// Rows are written in the program's threads, with or without the GIL, which is neither taken nor needed. Noting takes no
// lock, makes no call of a device's runtime, and allocates only at a thread's first row. Rings and operators are never
// freed: another thread may be reading them.
//
// A row is complete when its sequence number is stored, which happens last. A reader copies a row and looks at that
// number again.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/core/impl/COW.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace {

constexpr size_t kRows = 4096;     // of a ring; a power of two
constexpr size_t kPlaces = 6;      // tensors in a row
constexpr size_t kHead = 7;        // words of a row before its tensors
constexpr size_t kPlaceWords = 3;  // words of a tensor
constexpr size_t kWords = kHead + kPlaces * kPlaceWords;
constexpr size_t kParts = 64;        // rows for one call, at most
constexpr size_t kOperators = 1 << 14;
constexpr size_t kProbes = 64;
constexpr size_t kLooked = 128;  // operators looked at in one call
enum Slot : size_t { kCpu, kCuda, kBoth, kSlots };  // whose place a kernel of ours takes: of the host's, of CUDA's, of any

using Words = uint64_t[kWords];

struct Ring {
  std::atomic<uint64_t> written;  // rows so far
  std::atomic<uint64_t> lost;     // sequence number of the last row that another has replaced
  std::atomic<bool> taken;        // by a thread
  Ring* next;
  std::atomic<uint64_t> rows[kRows][kWords];
};

// An overload, recognised by the address of its name in the schema.
struct Operator {
  const char* key;
  std::string name, overload;
  uint64_t written = 0;     // a bit for each argument that it writes
  uint64_t statistics = 0;  // the same, where the argument at `training` is true
  uint32_t training = 0;
  uint32_t id = 0;
  uint32_t arguments = 0;
  uint32_t returns = 0;
  bool native = false;  // torch's own: never registered again, and writes nothing but its arguments
  bool transparent = false;  // launches nothing itself: a view, or one of torch's that consists of other operators
  bool composite = false;  // may consist of other operators, which are called one by one
  bool makes = false;  // may return tensors with memory of their own
  std::array<std::optional<c10::SafeKernelFunction>, kSlots> kernels;  // in whose place they stand
};

// Of the current thread. No constructor, so that access costs no check.
struct Thread {
  Ring* ring;
  uint32_t depth;    // operators that run now, one called by the other
  uint32_t covered;  // depth of the one whose callees need no rows, or 0
  bool over;         // the thread's end has begun
};

struct Call {
  uint64_t first;  // sequence number of its first row
  uint64_t now;
  int64_t stream;
  uint64_t members;  // tensors that did not fit into the rows
  uint32_t part;
  uint32_t count;
  uint32_t opaque;  // tensors without an address
  bool writes;      // a written tensor has an address
  Words words;
};

thread_local Thread thread;
std::atomic<Ring*> rings{nullptr};
std::atomic<uint64_t> ring_count{0};
std::atomic<Operator*> operators[kOperators];
std::atomic<bool> noting{false};

struct AtEnd {
  bool armed = false;
  ~AtEnd() {
    if (thread.ring != nullptr) {
      thread.ring->taken.store(false, std::memory_order_release);
      thread.ring = nullptr;
    }
    thread.over = true;
  }
};
thread_local AtEnd at_end;

}  // namespace

extern "C" {
std::atomic<uint64_t> shadowgraph_sequence{0};  // of the latest row
std::atomic<uint64_t> shadowgraph_failures{0};  // operators that could not be noted
}

namespace {

static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t));

Ring* free_ring() {
  for (Ring* ring = rings.load(std::memory_order_acquire); ring != nullptr; ring = ring->next) {
    bool taken = false;
    if (ring->taken.compare_exchange_strong(taken, true, std::memory_order_acquire)) {
      return ring;
    }
  }
  return nullptr;
}

Ring* new_ring() {
  // Pages of zeros that take no memory before they are written.
  void* memory = mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    return nullptr;
  }
  Ring* ring = static_cast<Ring*>(memory);
  ring->taken.store(true, std::memory_order_relaxed);
  ring->next = rings.load(std::memory_order_relaxed);
  while (!rings.compare_exchange_weak(ring->next, ring, std::memory_order_release, std::memory_order_relaxed)) {
  }
  ring_count.fetch_add(1, std::memory_order_relaxed);
  return ring;
}

Ring* ring_here() {
  if (thread.ring == nullptr && !thread.over) {
    at_end.armed = true;  // makes the object, and so has it destroyed at the thread's end
    Ring* ring = free_ring();
    thread.ring = ring != nullptr ? ring : new_ring();
  }
  return thread.ring;
}

bool fits(const Operator& known, const char* key, std::string_view name, std::string_view overload) {
  return known.key == key && (known.native || (known.name == name && known.overload == overload));
}

// The kernel in what torch hands out, which it lets be called with boxed arguments only: to box and unbox the arguments of a
// copy costs more than all else here, above all with cold caches.
template <c10::KernelFunction c10::SafeKernelFunction::*kMember>
struct Reach {
  friend const c10::KernelFunction& kernel_in(const c10::SafeKernelFunction& safe) {
    return safe.*kMember;
  }
};
template struct Reach<&c10::SafeKernelFunction::kernel_>;  // names of private members are open to instantiations
const c10::KernelFunction& kernel_in(const c10::SafeKernelFunction& safe);

// Whether an operator's kernel takes boxed arguments alone, as one does whose body is in Python: that calls other operators.
bool is_boxed(const c10::OperatorHandle& handle) {
  for (auto key : {c10::DispatchKey::CUDA, c10::DispatchKey::CPU}) {
    if (handle.hasComputedKernelForDispatchKey(key)) {
      auto safe = handle.getComputedKernelForDispatchKey(key);
      const auto& kernel = kernel_in(safe);
      return kernel.isValid() && !kernel.isValidUnboxed();
    }
  }
  return false;
}

std::unique_ptr<Operator> made(const char* key, const c10::FunctionSchema& schema) {
  auto fresh = std::make_unique<Operator>();
  fresh->key = key;
  fresh->name = schema.name();
  fresh->overload = schema.overload_name();
  fresh->native = fresh->name.rfind("aten::", 0) == 0;
  bool batch_norm = fresh->name == "aten::native_batch_norm" || fresh->name == "aten::cudnn_batch_norm" ||
      fresh->name == "aten::miopen_batch_norm";
  const auto& arguments = schema.arguments();
  fresh->arguments = static_cast<uint32_t>(arguments.size());
  for (size_t at = 0; at < std::min<size_t>(arguments.size(), 64); ++at) {
    const auto* alias = arguments[at].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      fresh->written |= uint64_t{1} << at;
    }
    const auto& name = arguments[at].name();
    if (batch_norm && (name == "running_mean" || name == "running_var")) {
      fresh->statistics |= uint64_t{1} << at;
    } else if (batch_norm && name == "training") {
      fresh->training = static_cast<uint32_t>(at);
    }
  }
  fresh->returns = static_cast<uint32_t>(schema.returns().size());
  for (const auto& result : schema.returns()) {
    fresh->transparent |= fresh->written == 0 && result.alias_info() != nullptr;
    fresh->makes |= result.alias_info() == nullptr;
  }
  auto handle = c10::Dispatcher::singleton().findOp({fresh->name, fresh->overload});
  if (handle.has_value()) {
    bool consists = handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    fresh->composite = consists || (!fresh->native && is_boxed(*handle));
    fresh->transparent |= consists && fresh->native &&
        !handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA) &&
        !handle->hasKernelForDispatchKey(c10::DispatchKey::CPU);
  }
  return fresh;
}

// An operator, or null: there are too many. `schema` is asked at its first sight, and may have none.
template <class Schema>
Operator* operator_of(const char* key, std::string_view name, std::string_view overload, const Schema& schema) {
  size_t slot = (reinterpret_cast<uintptr_t>(key) * UINT64_C(0x9E3779B97F4A7C15)) >> 50;
  std::unique_ptr<Operator> fresh;
  for (size_t probe = 0; probe < kProbes; ++probe, slot = (slot + 1) % kOperators) {
    Operator* known = operators[slot].load(std::memory_order_acquire);
    if (known == nullptr) {
      if (fresh == nullptr) {
        auto facts = schema();
        if (!facts.has_value()) {
          return nullptr;
        }
        fresh = made(key, *facts);
      }
      fresh->id = static_cast<uint32_t>(slot);
      if (operators[slot].compare_exchange_strong(known, fresh.get(), std::memory_order_acq_rel)) {
        return fresh.release();
      }
    }
    if (fits(*known, key, name, overload)) {  // also one that another thread has just put there
      return known;
    }
  }
  shadowgraph_failures.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

// The operator of a schema that the dispatcher holds.
Operator* operator_of(const c10::FunctionSchema& schema) {
  auto itself = [&schema] { return std::optional<c10::FunctionSchema>(schema); };
  return operator_of(schema.overload_name().c_str(), schema.name(), schema.overload_name(), itself);
}

uint64_t now() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

// The stream of the current thread on a device, as torch numbers it: a look at thread-local state.
int64_t stream_on(c10::Device device) {
  const auto* guard = c10::impl::device_guard_impl_registry[static_cast<size_t>(device.type())].load();
  return guard != nullptr ? guard->getStream(device).id() : 0;
}

// The launch log has the latest operators, too, for readers after the process's death. Its memory is never unmapped.
std::atomic<unsigned char*> log_memory{nullptr};   // null: none are written
std::atomic<const uint32_t*> log_names{nullptr};   // the numbers of names in the log, by operator; 0 for none
std::atomic<uint64_t> log_number{0};               // of the latest row

void put_in_log(const Operator& op, const Call& call) {
  unsigned char* log = log_memory.load(std::memory_order_acquire);
  const uint32_t* names = log_names.load(std::memory_order_acquire);
  if (log == nullptr || names == nullptr || names[op.id] == 0) {
    return;
  }
  rows::RowWords words = {};
  for (size_t at = 0; at < call.count; ++at) {
    words[2 * at] = call.words[kHead + at * kPlaceWords];
    words[2 * at + 1] = call.words[kHead + at * kPlaceWords + 1];
  }
  words[rows::kTail] = call.stream > 0 ? static_cast<uint64_t>(call.stream) : 0;
  words[rows::kTail + 1] = static_cast<uint64_t>(pthread_self());
  words[rows::kTail + 2] = names[op.id];
  words[rows::kTail + 3] = rows::latest_of(log).load(std::memory_order_relaxed);
  words[rows::kTail + 4] = (rows::kLaunch | static_cast<uint64_t>(call.count) << 8) << 32;
  rows::put(
      log + rows::kOperatorsAt, rows::kOperatorRows, words, log_number.fetch_add(1, std::memory_order_relaxed) + 1);
}

void put(Ring& ring, const Operator& op, Call& call) {
  uint64_t at = ring.written.load(std::memory_order_relaxed);
  auto& row = ring.rows[at % kRows];
  uint64_t replaced = row[0].load(std::memory_order_relaxed);
  if (replaced != 0) {
    ring.lost.store(replaced, std::memory_order_relaxed);
  }
  row[0].store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  uint64_t sequence = shadowgraph_sequence.fetch_add(1, std::memory_order_relaxed) + 1;
  if (call.part == 0) {
    call.first = sequence;
    put_in_log(op, call);
  }
  row[1].store(call.first, std::memory_order_relaxed);
  row[2].store(call.now, std::memory_order_relaxed);
  row[3].store(static_cast<uint64_t>(pthread_self()), std::memory_order_relaxed);
  row[4].store(static_cast<uint64_t>(call.stream), std::memory_order_relaxed);
  uint64_t depth = std::min<uint32_t>(thread.depth, 0xFFFF);
  row[5].store(
      op.id | depth << 32 | static_cast<uint64_t>(call.count) << 48 | static_cast<uint64_t>(call.part) << 56,
      std::memory_order_relaxed);
  row[6].store(call.members | static_cast<uint64_t>(call.opaque) << 32, std::memory_order_relaxed);
  for (size_t word = kHead; word < kHead + call.count * kPlaceWords; ++word) {
    row[word].store(call.words[word], std::memory_order_relaxed);
  }
  row[0].store(sequence, std::memory_order_release);
  ring.written.store(at + 1, std::memory_order_release);
  ++call.part;
  call.count = 0;
}

// Bytes from the first to the last element.
uint64_t reach(const c10::TensorImpl& tensor) {
  if (tensor.is_contiguous() || tensor.is_non_overlapping_and_dense()) {
    return static_cast<uint64_t>(tensor.numel()) * tensor.itemsize();
  }
  if (tensor.numel() == 0) {
    return 0;
  }
  auto sizes = tensor.sizes();
  auto strides = tensor.strides();
  int64_t last = 0;
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    last += (sizes[dim] - 1) * strides[dim];
  }
  return static_cast<uint64_t>(last + 1) * tensor.itemsize();
}

// Whether a tensor has strided memory of its own that an address describes. Asks nothing that Python may have to answer.
bool is_plain(const c10::TensorImpl& tensor) {
  auto keys = tensor.key_set();
  return !keys.has(c10::DispatchKey::Python) && !keys.has(c10::DispatchKey::NestedTensor) &&
      !keys.has(c10::DispatchKey::Functionalize) && tensor.has_storage() && !tensor.has_symbolic_sizes_strides();
}

void add(Ring& ring, const Operator& op, Call& call, const at::Tensor& tensor, size_t argument, size_t member, bool writes) {
  if (!tensor.defined()) {
    return;
  }
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  if (!is_plain(impl)) {
    ++call.opaque;
    return;
  }
  auto* storage = impl.unsafe_storage().unsafeGetStorageImpl();
  const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
  c10::Device device = data.device();
  if (data.get() == nullptr || !(device.is_cpu() || device.is_cuda()) || c10::impl::cow::is_cow_data_ptr(data)) {
    call.opaque += impl.numel() != 0;
    return;
  }
  uint64_t bytes = reach(impl);
  if (bytes == 0) {
    return;
  }
  if (call.count == kPlaces) {
    if (call.part + 1 == kParts) {
      ++call.members;
      return;
    }
    put(ring, op, call);
  }
  if (device.is_cuda() && call.stream == -1) {
    call.stream = stream_on(device);
  }
  uint64_t* place = call.words + kHead + call.count * kPlaceWords;
  place[0] = reinterpret_cast<uintptr_t>(data.get()) + static_cast<uint64_t>(impl.storage_offset()) * impl.itemsize();
  place[1] = bytes;
  uint8_t device_index = device.is_cpu() ? 0xFF : static_cast<uint8_t>(device.index());
  place[2] = argument | static_cast<uint64_t>(writes) << 8 |
      static_cast<uint64_t>(static_cast<uint8_t>(c10::typeMetaToScalarType(impl.dtype()))) << 16 |
      static_cast<uint64_t>(device_index) << 24 | static_cast<uint64_t>(member) << 32;
  ++call.count;
  call.writes |= writes;
}

constexpr size_t kAlone = 0xFFFFFFFF;  // an argument that is no list

// Adds the tensors among the arguments of a call that it writes, or the others.
class Adder {
 public:
  Adder(Ring& ring, const Operator& op, Call& call, uint64_t written, bool writes)
      : ring_(ring), op_(op), call_(call), written_(written), writes_(writes) {}

  void operator()(size_t at, const at::Tensor& tensor) {
    if (wanted(at)) {
      add(ring_, op_, call_, tensor, at, kAlone, writes_);
    }
  }

  void operator()(size_t at, at::TensorList tensors) {
    for (size_t member = 0; wanted(at) && member < tensors.size(); ++member) {
      add(ring_, op_, call_, tensors[member], at, member, writes_);
    }
  }

  void operator()(size_t at, const c10::IValue& value) {
    if (!wanted(at)) {
    } else if (value.isTensor()) {
      add(ring_, op_, call_, value.toTensor(), at, kAlone, writes_);
    } else if (value.isList()) {
      members(at, value.toListRef());
    }
  }

  void operator()(size_t at, const c10::List<std::optional<at::Tensor>>& tensors) {
    for (size_t member = 0; wanted(at) && member < tensors.size(); ++member) {
      std::optional<at::Tensor> tensor = tensors.get(member);
      if (tensor.has_value()) {
        add(ring_, op_, call_, *tensor, at, member, writes_);
      }
    }
  }

  template <class NoTensor>
  void operator()(size_t, const NoTensor&) {}

 private:
  bool wanted(size_t at) const {
    return at < 64 && ((written_ >> at) & 1) == static_cast<uint64_t>(writes_);
  }

  void members(size_t at, c10::ArrayRef<c10::IValue> values) {
    for (size_t member = 0; member < values.size(); ++member) {
      if (values[member].isTensor()) {
        add(ring_, op_, call_, values[member].toTensor(), at, member, writes_);
      }
    }
  }

  Ring& ring_;
  const Operator& op_;
  Call& call_;
  uint64_t written_;
  bool writes_;
};

// Notes a call that writes the arguments of `written`; `give` gives an `Adder` each argument with its place.
template <class Give>
void note(const Operator& op, uint64_t written, Give give) {
  if (written == 0) {
    return;
  }
  Ring* ring = ring_here();
  if (ring == nullptr) {
    shadowgraph_failures.fetch_add(!thread.over, std::memory_order_relaxed);
    return;
  }
  Call call;
  call.now = now();
  call.stream = -1;
  call.members = call.part = call.count = call.opaque = 0;
  call.writes = false;
  give(Adder(*ring, op, call, written, true));
  if (!call.writes) {  // nothing with an address
    return;
  }
  give(Adder(*ring, op, call, written, false));
  put(*ring, op, call);
  // A kernel in Python, or a dispatch mode of the program's, may write what is not among the arguments.
  if (op.native && !c10::impl::TorchDispatchModeTLS::any_modes_set()) {
    thread.covered = thread.depth;
  }
}

}  // namespace

extern "C" {

// 0 notes no later operators.
void shadowgraph_note(int on) {
  noting.store(on != 0);
}

uint64_t shadowgraph_row_words() {
  return kWords;
}

// An upper bound for the number of rows that can be read.
uint64_t shadowgraph_rows() {
  return ring_count.load(std::memory_order_relaxed) * kRows;
}

// The largest sequence number among the rows that others have replaced.
uint64_t shadowgraph_lost() {
  uint64_t lost = 0;
  for (Ring* ring = rings.load(std::memory_order_acquire); ring != nullptr; ring = ring->next) {
    lost = std::max(lost, ring->lost.load(std::memory_order_relaxed));
  }
  return lost;
}

// Copies the rows after one sequence number and up to another, in no order of threads; returns how many.
uint64_t shadowgraph_read(uint64_t after, uint64_t until, uint64_t* rows, uint64_t room) {
  uint64_t count = 0;
  for (Ring* ring = rings.load(std::memory_order_acquire); ring != nullptr; ring = ring->next) {
    uint64_t end = ring->written.load(std::memory_order_acquire);
    uint64_t begin = end > kRows ? end - kRows : 0;
    for (uint64_t at = end; at > begin && count < room; --at) {
      auto& row = ring->rows[(at - 1) % kRows];
      uint64_t sequence = row[0].load(std::memory_order_acquire);
      if (sequence == 0 || sequence > until) {
        continue;  // being replaced, or newer
      }
      if (sequence <= after) {
        break;  // as are all before it
      }
      uint64_t* copy = rows + count * kWords;
      for (size_t word = 1; word < kWords; ++word) {
        copy[word] = row[word].load(std::memory_order_relaxed);
      }
      std::atomic_thread_fence(std::memory_order_acquire);
      if (row[0].load(std::memory_order_relaxed) == sequence) {
        copy[0] = sequence;
        ++count;
      }
    }
  }
  return count;
}

// Has operators written into the launch log at `log` as well, from now on; into none for null. `names` has a number for
// each operator, and stays.
void shadowgraph_log(unsigned char* log, const uint32_t* names) {
  log_names.store(names, std::memory_order_release);
  log_memory.store(log, std::memory_order_release);
}

// The operators that are noted, at most `room` of them; returns how many.
uint64_t shadowgraph_noted(uint32_t* ids, uint64_t room) {
  uint64_t count = 0;
  for (size_t id = 0; id < kOperators && count < room; ++id) {
    const Operator* known = operators[id].load(std::memory_order_acquire);
    if (known != nullptr && (known->written | known->statistics) != 0) {
      ids[count++] = static_cast<uint32_t>(id);
    }
  }
  return count;
}

// Name and overload of an operator, or null pointers; they stay valid.
const char* shadowgraph_operator(uint32_t id) {
  const Operator* known = id < kOperators ? operators[id].load(std::memory_order_acquire) : nullptr;
  return known != nullptr ? known->name.c_str() : nullptr;
}

const char* shadowgraph_overload(uint32_t id) {
  const Operator* known = id < kOperators ? operators[id].load(std::memory_order_acquire) : nullptr;
  return known != nullptr ? known->overload.c_str() : nullptr;
}
}
