// The layout of the launch log, as in `model/launch_log_format.py`.

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace {
namespace rows {

constexpr uint64_t kLatestAt = 64, kRowsAt = 4096, kRows = 8192, kRow = 144, kPointers = 6;
constexpr uint64_t kNumbers = 10;     // of an event
constexpr uint64_t kOperatorRows = 2048;  // of the ring of operators
constexpr uint64_t kOperatorsAt = kRowsAt + kRows * kRow + (512 << 10) + 128 * 4096;  // behind a table and the slots
constexpr uint64_t kLaunch = 1;       // the kind of a row
constexpr size_t kTail = 2 * kPointers, kNumber = kRow / 8 - 1;  // words before the stream, and before the number
static_assert(std::endian::native == std::endian::little);

using RowWords = uint64_t[kNumber];

// Writes row `number` of a ring. A reader takes a row only if its number is the same before and after.
void put(unsigned char* ring, uint64_t size, const RowWords& words, uint64_t number) {
  auto* row = reinterpret_cast<uint64_t*>(ring + number % size * kRow);
  auto word = [row](size_t at) { return std::atomic_ref<uint64_t>(row[at]); };
  word(kNumber).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t at = 0; at < kNumber; ++at) {
    word(at).store(words[at], std::memory_order_relaxed);
  }
  word(kNumber).store(number, std::memory_order_release);
}

// The number of the latest row of the log at `memory`.
std::atomic_ref<uint64_t> latest_of(unsigned char* memory) {
  return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory + kLatestAt));
}

}  // namespace rows
}  // namespace

extern "C" {

extern const uint64_t shadowgraph_launch_row[8] = {
    rows::kLatestAt, rows::kRowsAt, rows::kRows, rows::kRow, rows::kPointers, rows::kNumbers, rows::kOperatorRows, rows::kOperatorsAt};
}
