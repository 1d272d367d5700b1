// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "cuda/support.cuh"
#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "model/llama/batch_writer.hpp"

//! Ways to run a backend on the device that tests compare with the host's.
namespace llama_driver {

namespace cuda = espalier::cuda;
using row_type = std::vector<float>;

//! A cache in pages that lie about in any order; one page a sequence where it is contiguous. Starts as NaN.
template <class NumberT>
class device_kv {
 public:
  using number = NumberT;

  device_kv(int n_layers, int row_size, int n_sequences, int capacity, int page_size = 0)
      : n_sequences_(n_sequences), capacity_(capacity) {
    view_.page_size = page_size > 0 ? page_size : capacity;
    view_.max_pages = (capacity + view_.page_size - 1) / view_.page_size;
    view_.row_size = row_size;
    view_.n_layers = n_layers;
    const int n_pages = view_.max_pages * n_sequences;
    view_.layer_stride = std::int64_t{2} * n_pages * view_.page_size * row_size;
    data_ = espalier_test::to_device(
        std::vector<NumberT>(static_cast<std::size_t>(view_.layer_stride * n_layers), NumberT(NAN)));
    view_.data = data_.data();
    if (page_size == 0) return;
    std::vector<std::int32_t> pages(static_cast<std::size_t>(n_pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::mt19937 random(9);
    std::shuffle(pages.begin(), pages.end(), random);
    pages_ = espalier_test::to_device(pages);
    view_.pages = pages_.data();
  }

  int capacity() const { return capacity_; }
  int n_sequences() const { return n_sequences_; }
  cuda::kv_view<NumberT> view() const { return view_; }
  void ensure(int, int, cudaStream_t) {}
  void commit(const espalier::cuda::text_batch&, const espalier::cuda::kept_rows&, cudaStream_t) {}
  std::vector<NumberT> contents() const { return espalier_test::to_host(data_); }

 private:
  int n_sequences_, capacity_;
  cuda::device_array<NumberT> data_;
  cuda::device_array<std::int32_t> pages_;
  cuda::kv_view<NumberT> view_;
};

//! A host batch on the device, with room for more rows of padding and, in `update`, for another batch of as many.
class device_batch {
 public:
  explicit device_batch(espalier::forward_batch_view batch, int padding = 0)
      : n_rows_(batch.n_rows() + padding), mask_size_(batch.mask.size() + 64) {
    const auto n = static_cast<std::size_t>(n_rows_);
    tokens_ = cuda::device_array<std::int32_t>(n), positions_ = cuda::device_array<std::int32_t>(n);
    slots_ = cuda::device_array<std::int32_t>(n), sequence_of_ = cuda::device_array<std::int32_t>(n);
    outputs_ = cuda::device_array<std::int32_t>(n);
    sequences_ = cuda::device_array<espalier::batch_sequence>(batch.sequences.size());
    mask_ = cuda::device_array<std::uint32_t>(mask_size_);
    n_outputs_ = static_cast<int>(batch.outputs.size());
    update(batch);
  }

  void update(espalier::forward_batch_view batch) {
    std::vector<std::int32_t> sequence_of(batch.tokens.size(), -1);
    max_context_ = 0;
    for (std::size_t s = 0; s < batch.sequences.size(); ++s) {
      const espalier::batch_sequence& q = batch.sequences[s];
      std::fill(sequence_of.begin() + q.row_begin, sequence_of.begin() + q.row_end, static_cast<std::int32_t>(s));
      max_context_ = std::max(max_context_, q.prefix + 32 * q.mask_words + 1);
    }
    upload(tokens_, batch.tokens, 0), upload(positions_, batch.positions, 0), upload(slots_, batch.slots, -1);
    upload(sequence_of_, std::span<const std::int32_t>(sequence_of), -1);
    upload(outputs_, batch.outputs, -1);
    std::vector<std::uint32_t> mask(batch.mask.begin(), batch.mask.end());
    mask.resize(mask_size_, 0xFFFFFFFFU);  // nobody may look there
    mask_.upload(mask, nullptr);
    sequences_.upload(batch.sequences, nullptr);
    cuda::require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  cuda::forward_batch_view view(bool all_rows = false) const {
    cuda::forward_batch_view v;
    v.n_rows = n_rows_;
    v.n_sequences = static_cast<std::int32_t>(sequences_.size());
    v.n_outputs = all_rows ? n_rows_ : n_outputs_;
    v.max_context = max_context_;
    v.tokens = tokens_.data(), v.positions = positions_.data(), v.slots = slots_.data();
    v.sequence_of = sequence_of_.data(), v.sequences = sequences_.data(), v.mask = mask_.data();
    v.outputs = all_rows ? nullptr : outputs_.data();
    return v;
  }

 private:
  void upload(const cuda::device_array<std::int32_t>& to, std::span<const std::int32_t> from, std::int32_t rest) const {
    std::vector<std::int32_t> all(from.begin(), from.end());
    all.resize(to.size(), rest);
    if (rest == 0) std::fill(all.begin() + static_cast<std::ptrdiff_t>(from.size()), all.end(), 0);
    to.upload(all, nullptr);
    cuda::require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
  }

  int n_rows_, n_outputs_ = 0, max_context_ = 0;
  std::size_t mask_size_;
  cuda::device_array<std::int32_t> tokens_, positions_, slots_, sequence_of_, outputs_;
  cuda::device_array<espalier::batch_sequence> sequences_;
  cuda::device_array<std::uint32_t> mask_;
};

//! Attention by its definition: a thread a head of a row, scores in ascending slots.
template <class NumberT>
struct plain_attention {
  struct job {
    cuda::attention_shape shape;
    const NumberT* queries;
    std::int32_t layer;
    cuda::attention_scores scores;
    NumberT* out;
  };

  explicit plain_attention(const cuda::attention_shape& s) : shape(s) {}

  void run(const NumberT* queries, const cuda::kv_view<NumberT>& kv, std::int32_t layer,
           const cuda::forward_batch_view& batch, const cuda::attention_scores& scores, NumberT* out,
           cudaStream_t stream) const;

  cuda::attention_shape shape;
};

template <class NumberT>
__global__ void attend_plainly(typename plain_attention<NumberT>::job job, cuda::kv_view<NumberT> kv,
                               cuda::forward_batch_view batch) {
  const auto row = static_cast<std::int32_t>(blockIdx.x), head = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t s = batch.sequence_of[row], dim = job.shape.head_dim;
  NumberT* out = job.out + (row * job.shape.n_heads + head) * dim;
  for (std::int32_t i = 0; i < dim; ++i)
    out[i] = NumberT(0.0F);
  if (s < 0) return;
  const espalier::batch_sequence q = batch.sequences[s];
  const std::uint32_t* mask = batch.mask + q.mask_begin + (row - q.row_begin) * q.mask_words;
  const NumberT* query = job.queries + row * job.shape.query_stride + head * dim;
  const std::int32_t kv_at = head / (job.shape.n_heads / job.shape.n_kv_heads) * dim;
  const std::int32_t end = q.prefix + 32 * q.mask_words;
  const auto shows = [&](std::int32_t slot) {
    const std::int32_t column = slot - q.prefix;
    return column < 0 || (mask[column / 32] >> (column % 32) & 1U) != 0;
  };
  // The window is counted back from the row's last key.
  std::int32_t begin = end;
  const std::int32_t window = job.scores.windows != nullptr ? job.scores.windows[row] : job.scores.window;
  for (std::int32_t left = window > 0 ? window : end; begin > 0 && left > 0; --begin)
    left -= shows(begin - 1) ? 1 : 0;
  const auto sees = [&](std::int32_t slot) { return slot >= begin && shows(slot); };
  const auto score = [&](std::int32_t slot) {
    const NumberT* key = kv.key(job.layer, q.sequence, slot) + kv_at;
    float sum = 0.0F;
    for (std::int32_t i = 0; i < dim; ++i)
      sum += static_cast<float>(query[i]) * static_cast<float>(key[i]);
    sum *= job.scores.scale;
    return job.scores.cap > 0.0F ? job.scores.cap * tanhf(sum / job.scores.cap) : sum;
  };
  float greatest = -INFINITY, total = 0.0F;
  for (std::int32_t slot = 0; slot < end; ++slot) {
    if (sees(slot)) greatest = fmaxf(greatest, score(slot));
  }
  for (std::int32_t slot = 0; slot < end; ++slot) {
    if (sees(slot)) total += expf(score(slot) - greatest);
  }
  if (job.scores.sinks != nullptr) total += expf(job.scores.sinks[head] - greatest);
  for (std::int32_t i = 0; i < dim; ++i) {
    float sum = 0.0F;
    for (std::int32_t slot = 0; slot < end; ++slot) {
      if (!sees(slot)) continue;
      const NumberT* value = kv.value(job.layer, q.sequence, slot) + kv_at;
      sum += expf(score(slot) - greatest) * static_cast<float>(value[i]);
    }
    out[i] = NumberT(sum / total);
  }
}

template <class NumberT>
void plain_attention<NumberT>::run(const NumberT* queries, const cuda::kv_view<NumberT>& kv, std::int32_t layer,
                                   const cuda::forward_batch_view& batch, const cuda::attention_scores& scores,
                                   NumberT* out, cudaStream_t stream) const {
  cuda::launch("attend_plainly", attend_plainly<NumberT>,
               {.grid = static_cast<unsigned>(batch.n_rows), .threads = static_cast<unsigned>(shape.n_heads)}, stream,
               job{shape, queries, layer, scores, out}, kv, batch);
}

//! Rows of the device on the host.
template <class NumberT>
std::vector<row_type> device_rows(espalier::vocab_rows<NumberT> logits) {
  const auto vocab = static_cast<std::size_t>(logits.vocab);
  const auto all = espalier_test::to_host(logits.data, static_cast<std::size_t>(logits.n_rows) * vocab);
  std::vector<row_type> rows;
  for (std::size_t r = 0; r < static_cast<std::size_t>(logits.n_rows); ++r)
    rows.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(r * vocab),
                      all.begin() + static_cast<std::ptrdiff_t>((r + 1) * vocab));
  return rows;
}

//! Number of rows in which a number differs by more than this share of the largest expected number, or is not finite.
inline std::size_t rows_beyond(double share, const std::vector<row_type>& found,
                               const std::vector<row_type>& expected) {
  if (found.size() != expected.size()) return found.size() + expected.size();
  double largest = 1e-30;
  for (const row_type& row : expected) {
    for (const float x : row)
      largest = std::max(largest, std::abs(static_cast<double>(x)));
  }
  std::size_t n = 0;
  for (std::size_t r = 0; r < found.size(); ++r) {
    bool beyond = found[r].size() != expected[r].size();
    for (std::size_t i = 0; !beyond && i < found[r].size(); ++i)
      beyond = !(std::abs(static_cast<double>(found[r][i]) - static_cast<double>(expected[r][i])) < share * largest);
    n += beyond ? 1 : 0;
  }
  return n;
}

//! Largest difference as a share of the largest expected number; infinite where a number is not finite.
inline double difference(const std::vector<row_type>& found, const std::vector<row_type>& expected) {
  if (found.size() != expected.size()) return INFINITY;
  double most = 0.0, largest = 1e-30;
  for (std::size_t r = 0; r < found.size(); ++r) {
    if (found[r].size() != expected[r].size()) return INFINITY;
    for (std::size_t i = 0; i < found[r].size(); ++i) {
      if (!std::isfinite(found[r][i])) return INFINITY;
      most = std::max(most, std::abs(static_cast<double>(found[r][i]) - static_cast<double>(expected[r][i])));
      largest = std::max(largest, std::abs(static_cast<double>(expected[r][i])));
    }
  }
  return most / largest;
}

}  // namespace llama_driver
