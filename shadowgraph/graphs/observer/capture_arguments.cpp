// Reads the tensors that an operator was given or returned into words, which `recording.py` decodes: of a sparse or nested
// tensor those that it consists of.
//
// Called in the threads that run operators. Nothing here asks for the interpreter's lock, and no storage is kept alive.

#ifndef AT_PER_OPERATOR_HEADERS
#define AT_PER_OPERATOR_HEADERS  // else a header includes all operators, which takes seconds to compile
#endif
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <vector>

namespace {
namespace captures {

using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

constexpr uint64_t kResult = 1, kFresh = 2;  // flags of a tensor
// What it is of a tensor without strided memory of its own, in the bits after the flags.
constexpr uint64_t kIndices = 1 << 2, kValues = 2 << 2, kCompressed = 3 << 2, kPlain = 4 << 2, kBuffer = 5 << 2;

struct Tensors {
  std::vector<uint64_t> words;
  std::vector<Weak> storages;
  std::vector<size_t> places;  // of each tensor's words
  uint64_t opaque = 0;  // tensors without an address

  // Whether one of them has the storage at an address.
  bool has(uint64_t address) const {
    return std::any_of(places.begin(), places.end(), [&](size_t place) { return words[place + 1] == address; });
  }

  void clear() {
    words.clear();
    storages.clear();
    places.clear();
    opaque = 0;
  }
};

// Where a tensor stands among an operator's arguments or results.
struct Position {
  size_t argument, member;
  uint64_t flags;
};

class Reader {
 public:
  Reader(Tensors& all, c10::DeviceType wanted) : all_(all), wanted_(wanted) {}

  void add_all(c10::ArrayRef<const c10::IValue> values, uint64_t flags) {
    for (size_t at = 0; at < values.size(); ++at) {
      const c10::IValue& value = values[at];
      if (value.isTensor()) {
        add(value.toTensor(), {at, kAlone, flags});
      } else if (value.isList()) {
        auto members = value.toListRef();
        for (size_t member = 0; member < members.size(); ++member) {
          if (members[member].isTensor()) {
            add(members[member].toTensor(), {at, member, flags});
          }
        }
      }
    }
  }

 private:
  void add(const at::Tensor& tensor, const Position& position) {
    if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return;
    }
    const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
    if (is_plain(impl)) {
      if (impl.layout() == c10::kStrided && !impl.key_set().has(c10::DispatchKey::ZeroTensor)) {
        add_memory(impl, impl.sizes(), impl.strides(), impl.storage_offset(), position);
      }
    } else if (is_wrapper(impl)) {
      ++all_.opaque;
    } else {
      add_parts(impl, position);
    }
  }

  // Whether other tensors stand behind it, whose operators are recorded.
  static bool is_wrapper(const c10::TensorImpl& impl) {
    auto keys = impl.key_set();
    return keys.has(c10::DispatchKey::Python) || keys.has(c10::DispatchKey::Functionalize) ||
        keys.has(c10::DispatchKey::FuncTorchBatched) || keys.has(c10::DispatchKey::FuncTorchGradWrapper) ||
        !(keys.has_any(c10::sparse_ks) || keys.has_any(c10::sparse_csr_ks) || keys.has(c10::DispatchKey::NestedTensor));
  }

  void add_parts(const c10::TensorImpl& impl, const Position& at) {
    auto keys = impl.key_set();
    if (keys.has(c10::DispatchKey::NestedTensor)) {
      auto count = static_cast<int64_t>(impl.unsafe_storage().nbytes() / impl.itemsize());
      add_memory(impl, count, int64_t{1}, 0, {at.argument, at.member, at.flags | kBuffer});
    } else if (keys.has_any(c10::sparse_ks)) {
      const auto& sparse = static_cast<const at::SparseTensorImpl&>(impl);
      add(sparse.indices_, {at.argument, at.member, at.flags | kIndices});
      add(sparse.values_, {at.argument, at.member, at.flags | kValues});
    } else {
      const auto& sparse = static_cast<const at::SparseCsrTensorImpl&>(impl);
      add(sparse.compressed_indices(), {at.argument, at.member, at.flags | kCompressed});
      add(sparse.plain_indices(), {at.argument, at.member, at.flags | kPlain});
      add(sparse.values(), {at.argument, at.member, at.flags | kValues});
    }
  }

  void add_memory(
      const c10::TensorImpl& impl, c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t offset, const Position& at) {
    auto* storage = impl.unsafe_storage().unsafeGetStorageImpl();
    const c10::DataPtr& data = storage->_mutable_data_ptr_no_checks();
    if (data.device().type() != wanted_ || data.get() == nullptr || storage->nbytes() == 0 ||
        c10::impl::cow::is_cow_data_ptr(data)) {
      return;
    }
    uint64_t address = reinterpret_cast<uintptr_t>(data.get());
    uint64_t dtype = static_cast<uint8_t>(c10::typeMetaToScalarType(impl.dtype()));
    size_t dims = std::min<size_t>(sizes.size(), 255);
    all_.places.push_back(all_.words.size());
    all_.storages.push_back(impl.unsafe_storage().getWeakStorageImpl());
    all_.words.push_back(address + static_cast<uint64_t>(offset) * impl.itemsize());
    all_.words.push_back(address);
    all_.words.push_back(storage->nbytes());
    all_.words.push_back(
        at.argument | dtype << 16 | static_cast<uint64_t>(static_cast<uint8_t>(data.device().index())) << 24 |
        static_cast<uint64_t>(dims) << 32 | at.flags << 40);
    all_.words.push_back(at.member);
    for (size_t dim = 0; dim < dims; ++dim) {
      all_.words.push_back(static_cast<uint64_t>(sizes[dim]));
      all_.words.push_back(static_cast<uint64_t>(strides[dim]));
    }
  }

  Tensors& all_;
  const c10::DeviceType wanted_;
};

}  // namespace captures
}  // namespace
