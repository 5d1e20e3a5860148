// Lookup and row-wise Adagrad on one block of a table, for XLA on the CPU. What each does stands in __init__.py.
//
// Equal calls give equal bits, on every CPU: gradients of a row are added in ascending position, squares in 16 fixed
// lanes, and build.py forbids the compiler to fuse a multiplication with an addition. No buffer grows with the table.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace {

namespace ffi = xla::ffi;
using Floats1 = ffi::Buffer<ffi::F32, 1>;
using Floats2 = ffi::Buffer<ffi::F32, 2>;
using Ids = ffi::Buffer<ffi::S32, 1>;
using Flag = ffi::Buffer<ffi::PRED, 0>;

// Rows ahead of the current one that are fetched from memory: from 8 to 32 it made no difference, 4 were too few.
constexpr int64_t kRowsAhead = 16;
constexpr int64_t kFloatsPerCacheLine = 16;
constexpr int kLanes = 16;

// A negative id is a large unsigned one, so one comparison covers both sides.
bool Owned(int32_t id, int64_t num_rows) { return static_cast<uint32_t>(id) < static_cast<uint64_t>(num_rows); }

template <bool kForWriting>
void Prefetch(const float* row, int64_t dim) {
  for (int64_t d = 0; d < dim; d += kFloatsPerCacheLine) __builtin_prefetch(row + d, kForWriting);
  __builtin_prefetch(row + dim - 1, kForWriting);  // a row need not begin with a cache line
}

ffi::Error Gather(Floats2 block, Ids ids, ffi::ResultBuffer<ffi::F32, 2> rows) {
  const int64_t num_rows = block.dimensions()[0], dim = block.dimensions()[1], n = ids.element_count();
  if (rows->dimensions()[0] != n || rows->dimensions()[1] != dim)
    return ffi::Error::InvalidArgument("gather: rows must be [ids, width of the block]");
  const float* from = block.typed_data();
  const int32_t* id = ids.typed_data();
  float* to = rows->typed_data();
  for (int64_t i = 0; i < n; ++i, to += dim) {
    if (i + kRowsAhead < n && Owned(id[i + kRowsAhead], num_rows))
      Prefetch<false>(from + id[i + kRowsAhead] * dim, dim);
    if (Owned(id[i], num_rows))
      std::memcpy(to, from + id[i] * dim, dim * sizeof(float));
    else
      std::fill_n(to, dim, 0.0f);
  }
  return ffi::Error::Success();
}

// What one call works in. It grows with the ids of a batch and is kept: fresh memory would cost a page fault a page.
struct Scratch {
  std::vector<int32_t> table;  // hash of a row -> its slot, -1: free
  std::vector<int32_t> row_of_slot;
  std::vector<float> sums;  // [slots, dim]
};

// As many scratches as calls have ever run at once; each call borrows one.
class Scratches {
 public:
  std::unique_ptr<Scratch> Borrow() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> last = std::move(free_.back());
    free_.pop_back();
    return last;
  }
  void Return(std::unique_ptr<Scratch> scratch) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

Scratches& AllScratches() {
  static auto* all = new Scratches;  // never destroyed: a thread may still compute while the process exits
  return *all;
}

// Gives every distinct row of the block a slot, in the order of first appearance, and adds the gradients of its
// positions up there, in ascending position. Returns how many slots there are.
int64_t SumDuplicates(const int32_t* id, const float* grads, int64_t n, int64_t num_rows, int64_t dim, Scratch& s) {
  int bits = 4;
  while ((int64_t{1} << bits) < 2 * n) ++bits;  // at most half full
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  s.table.assign(mask + 1, -1);
  if (static_cast<int64_t>(s.row_of_slot.size()) < n) s.row_of_slot.resize(n);
  if (static_cast<int64_t>(s.sums.size()) < n * dim) s.sums.resize(n * dim);
  int64_t slots = 0;
  for (int64_t i = 0; i < n; ++i, grads += dim) {
    if (!Owned(id[i], num_rows)) continue;
    // Fibonacci hashing: neighbours land far apart, and the upper bits of the product depend on every bit of the id.
    uint64_t h = (static_cast<uint64_t>(id[i]) * 0x9E3779B97F4A7C15u) >> (64 - bits);
    while (s.table[h] >= 0 && s.row_of_slot[s.table[h]] != id[i]) h = (h + 1) & mask;
    if (s.table[h] < 0) {
      s.table[h] = static_cast<int32_t>(slots);
      s.row_of_slot[slots] = id[i];
      std::memcpy(s.sums.data() + slots * dim, grads, dim * sizeof(float));
      ++slots;
    } else {
      float* sum = s.sums.data() + s.table[h] * dim;
      for (int64_t d = 0; d < dim; ++d) sum[d] += grads[d];
    }
  }
  return slots;
}

float MeanOfSquares(const float* g, int64_t dim) {
  float lanes[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= dim; d += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += g[d + lane] * g[d + lane];
  for (int lane = 0; d < dim; ++d, ++lane) lanes[lane] += g[d] * g[d];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  return lanes[0] / static_cast<float>(dim);
}

// optim/rowwise.py, rowwise_adagrad, on one row.
void AdagradStep(float* row, float* accum, const float* g, int64_t dim, float learning_rate, float epsilon) {
  *accum += MeanOfSquares(g, dim);
  const float divisor = std::sqrt(*accum) + epsilon;
  for (int64_t d = 0; d < dim; ++d) row[d] -= learning_rate * g[d] / divisor;
}

void UpdateRows(float* block, float* accum, const int32_t* id, const float* grads, int64_t n, int64_t num_rows,
                int64_t dim, float learning_rate, float epsilon, Scratch& s) {
  const int64_t slots = SumDuplicates(id, grads, n, num_rows, dim, s);
  for (int64_t slot = 0; slot < slots; ++slot) {
    if (slot + kRowsAhead < slots) {
      const int64_t ahead = s.row_of_slot[slot + kRowsAhead];
      Prefetch<true>(block + ahead * dim, dim);
      __builtin_prefetch(accum + ahead, 1);
    }
    const int64_t row = s.row_of_slot[slot];
    AdagradStep(block + row * dim, accum + row, s.sums.data() + slot * dim, dim, learning_rate, epsilon);
  }
}

ffi::Error Update(Floats2 block, Floats1 accum, Ids ids, Floats2 grads, Flag applied,
                  ffi::ResultBuffer<ffi::F32, 2> new_block, ffi::ResultBuffer<ffi::F32, 1> new_accum,
                  float learning_rate, float epsilon) {
  const int64_t num_rows = block.dimensions()[0], dim = block.dimensions()[1], n = ids.element_count();
  if (accum.dimensions()[0] != num_rows || grads.dimensions()[0] != n || grads.dimensions()[1] != dim)
    return ffi::Error::InvalidArgument("update: accumulators must be [rows of the block], gradients [ids, its width]");
  // Copying here would hide that every step copies the whole table.
  if (new_block->typed_data() != block.typed_data() || new_accum->typed_data() != accum.typed_data())
    return ffi::Error::Internal("update: XLA did not alias the block and the accumulators with the results");
  if (!*applied.typed_data() || n == 0 || dim == 0) return ffi::Error::Success();
  try {
    std::unique_ptr<Scratch> scratch = AllScratches().Borrow();
    UpdateRows(new_block->typed_data(), new_accum->typed_data(), ids.typed_data(), grads.typed_data(), n, num_rows,
               dim, learning_rate, epsilon, *scratch);
    AllScratches().Return(std::move(scratch));
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted,
                      "update: no memory to sum the gradients of " + std::to_string(n) + " ids");
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(xrex_embedding_gather, Gather,
                              ffi::Ffi::Bind().Arg<Floats2>().Arg<Ids>().Ret<Floats2>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(xrex_embedding_update, Update,
                              ffi::Ffi::Bind()
                                  .Arg<Floats2>()
                                  .Arg<Floats1>()
                                  .Arg<Ids>()
                                  .Arg<Floats2>()
                                  .Arg<Flag>()
                                  .Ret<Floats2>()
                                  .Ret<Floats1>()
                                  .Attr<float>("learning_rate")
                                  .Attr<float>("epsilon"));
