// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "cuda/support.cuh"
#include "espalier/concepts/drafter.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"

// Drafters whose rows come from a table: which row a node has depends on its whole path. Each is there twice, on the
// host and on the device, and insists on the rules of propose.
namespace espalier_test {

//! Rows of probabilities or logits.
//!
//! Shapes      numbers [n_rows][vocab]
template <class NumberT>
struct row_table {
  std::int32_t n_rows = 0;
  std::int32_t vocab = 0;
  std::vector<NumberT> numbers{};
};

//! Rows of probabilities, some of them flat, some peaked, some with zeros and ties.
inline row_table<float> random_table(std::int32_t n_rows, std::int32_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  row_table<float> table{n_rows, vocab};
  for (std::int32_t r = 0; r < n_rows; ++r) {
    std::vector<double> row(static_cast<std::size_t>(vocab));
    double sum = 0;
    for (double& x : row) {
      const double z = static_cast<double>(static_cast<std::uint32_t>(random())) / 4294967296.0;
      switch (r % 4) {
        case 0:
          x = std::exp(10 * z);
          break;  // rather flat
        case 1:
          x = std::exp(40 * z * z * z * z);
          break;  // peaked
        case 2:
          x = random() % 3 == 0 ? 0.0 : static_cast<double>(1 + static_cast<int>(random() % 4));
          break;  // ties and zeros
        default:
          x = random() % 5 == 0 ? std::exp(8 * z) : 0;
          break;  // mostly zeros
      }
      sum += x;
    }
    if (sum == 0) row[0] = sum = 1;
    if (r % 8 == 7) std::fill(row.begin(), row.end(), 0.0), row[random() % row.size()] = sum;  // one token alone
    for (const double x : row)
      table.numbers.push_back(static_cast<float>(x / sum));
  }
  return table;
}

//! The same table, but n rows from `first` on have no token.
inline row_table<float> without_rows(row_table<float> table, std::int32_t first, std::int32_t n) {
  const auto begin = table.numbers.begin() + static_cast<std::ptrdiff_t>(first) * table.vocab;
  std::fill(begin, begin + static_cast<std::ptrdiff_t>(n) * table.vocab, 0.0F);
  return table;
}

//! The row of a node, by a number that its path makes.
template <class ViewT>
ESPALIER_HOST_DEVICE std::int32_t table_row(const ViewT& tree, espalier::node_id u, std::int32_t n_rows) {
  std::uint32_t hash = 17;
  for (; u != espalier::no_node; u = tree.parent[u])
    hash = hash * 31 + static_cast<std::uint32_t>(tree.token[u]);
  return static_cast<std::int32_t>(hash % static_cast<std::uint32_t>(n_rows));
}

//! An espalier::StepDrafter.
class table_drafter {
 public:
  explicit table_drafter(const row_table<float>& table) : table_(&table) {}

  void begin(std::span<const espalier::token_id>) {}
  void commit(espalier::tree_view, espalier::verdict) {}
  void reserve(std::int32_t nodes) {
    row_of_.assign(static_cast<std::size_t>(nodes) + 1, -1);
    data_.reserve(row_of_.size() * static_cast<std::size_t>(table_->vocab));
  }
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return table_->vocab; }

  void propose(espalier::tree_view tree, std::span<const espalier::node_id> nodes) {
    const auto vocab = static_cast<std::size_t>(table_->vocab);
    if (nodes[0] == espalier::root_node) {
      std::fill(row_of_.begin(), row_of_.end(), -1);
      data_.clear();
      passes = 0;
    }
    ++passes;
    for (const espalier::node_id u : nodes) {
      row_of_[static_cast<std::size_t>(u)] = static_cast<std::int32_t>(data_.size() / vocab);
      const auto at =
          table_->numbers.begin() + static_cast<std::ptrdiff_t>(table_row(tree, u, table_->n_rows)) * table_->vocab;
      data_.insert(data_.end(), at, at + table_->vocab);
    }
  }

  espalier::node_rows<float> rows() const {
    return {{data_.data(), static_cast<std::int32_t>(data_.size()) / table_->vocab, table_->vocab}, row_of_.data()};
  }
  void renumber(std::span<const espalier::node_id> was) {
    std::vector<std::int32_t> now(row_of_.size(), -1);
    for (std::size_t u = 0; u < was.size(); ++u)
      now[u] = was[u] == espalier::no_node ? -1 : row_of_[static_cast<std::size_t>(was[u])];
    row_of_.swap(now);
  }
  const std::vector<std::int32_t>& row_of() const { return row_of_; }

  int passes = 0;

 private:
  const row_table<float>* table_;
  std::vector<std::int32_t> row_of_;
  std::vector<float> data_;
};
static_assert(espalier::StepDrafter<table_drafter> && espalier::RenumberingDrafter<table_drafter>);

//! What a drafter of the device has seen of a round.
struct asked_so_far {
  std::int32_t passes;  // with a node to ask about
  std::int32_t unlawful;
};

//! One block a lane, a warp or more.
template <class ElementT>
__global__ void propose_rows(espalier::cuda::text_batch texts, espalier::cuda::node_list nodes, const ElementT* table,
                             std::int32_t n_rows, std::int32_t vocab, std::int32_t n_nodes, ElementT* rows,
                             std::int32_t* row_of, asked_so_far* asked) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x), threads = static_cast<std::int32_t>(blockDim.x);
  const espalier::cuda::text_in_batch here = texts.here();
  if (here.place < 0) return;
  const espalier::tree_writer tree = here.tree;
  const std::int32_t first = here.place * n_nodes;
  row_of += first;
  asked += here.place;
  const espalier::node_id* const wanted = nodes.of(here.place);
  const bool opens = wanted[0] == espalier::root_node;
  if (opens) {
    for (std::int32_t u = thread; u < n_nodes; u += threads)
      row_of[u] = -1;
    if (thread == 0) *asked = {0, nodes.n == 1 ? 0 : 1};
  }
  __syncthreads();
  bool any = false;
  for (std::int32_t i = 0; i < nodes.n; ++i) {
    const espalier::node_id u = wanted[i];
    if (u == espalier::no_node) continue;
    any = true;
    if (thread == 0) {
      const bool is_there =
          u >= 0 && u < tree.size->n_nodes && row_of[u] < 0 && (u == 0 || row_of[tree.parent[u]] >= 0);
      if (!is_there) ++asked->unlawful;
      row_of[u] = first + u;
    }
    const ElementT* from = table + static_cast<std::ptrdiff_t>(table_row(tree, u, n_rows)) * vocab;
    for (std::int32_t t = thread; t < vocab; t += threads)
      rows[static_cast<std::ptrdiff_t>(first + u) * vocab + t] = from[t];
  }
  if (thread == 0 && any) ++asked->passes;
}

//! One thread a lane. Shapes: row_of, spare [places][n_nodes]
template <class NodesT>
__global__ void move_rows(espalier::cuda::text_batch texts, NodesT moved, std::int32_t* row_of, std::int32_t* spare,
                          std::int32_t n_nodes) {
  const espalier::cuda::text_in_batch here = texts.here();
  if (here.place < 0) return;
  row_of += here.place * n_nodes;
  spare += here.place * n_nodes;
  const std::int32_t n = here.tree.size->n_nodes;
  for (std::int32_t u = 0; u < n; ++u) {
    const espalier::node_id was = moved.of(here.place)[u];
    spare[u] = was == espalier::no_node ? -1 : row_of[was];
  }
  for (std::int32_t u = 0; u < n; ++u)
    row_of[u] = spare[u];
}

//! An espalier::cuda::StepDrafter of the same table.
class device_table_drafter {
 public:
  explicit device_table_drafter(const row_table<float>& table)
      : n_rows_(table.n_rows), vocab_(table.vocab), table_(to_device(table.numbers)) {}

  void reserve(std::int32_t max_nodes, std::int32_t max_texts, espalier::cuda::fault*) {
    n_nodes_ = max_nodes + 1;
    const auto texts = static_cast<std::size_t>(max_texts);
    const std::size_t nodes = texts * static_cast<std::size_t>(n_nodes_);
    asked_ = espalier::cuda::device_array<asked_so_far>(texts);
    asked_.fill_bytes(0, nullptr);
    rows_ = espalier::cuda::device_array<float>(nodes * static_cast<std::size_t>(vocab_));
    row_of_ = espalier::cuda::device_array<std::int32_t>(nodes);
    row_of_.fill_bytes(0xFF, nullptr);
    spare_ = espalier::cuda::device_array<std::int32_t>(nodes);
  }
  void begin(std::int32_t, espalier::cuda::text_view, std::span<const espalier::token_id>, std::int32_t, cudaStream_t) {
  }
  void ensure(std::int32_t, std::int32_t, cudaStream_t) {}
  void commit(const espalier::cuda::text_batch&, espalier::cuda::path_view, cudaStream_t) {}
  void renumber(const espalier::cuda::text_batch& texts, espalier::cuda::moved_nodes moved, cudaStream_t stream) const {
    espalier::cuda::launch("move_rows", move_rows<espalier::cuda::moved_nodes>, {.grid = texts.lanes()}, stream, texts,
                           moved, row_of_.data(), spare_.data(), n_nodes_);
  }
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return vocab_; }

  void propose(const espalier::cuda::text_batch& texts, espalier::cuda::node_list nodes, cudaStream_t stream) {
    ++launched_passes;
    espalier::cuda::launch("propose_rows", propose_rows<float>, {.grid = texts.lanes(), .threads = 64}, stream, texts,
                           nodes, table_.data(), n_rows_, vocab_, n_nodes_, rows_.data(), row_of_.data(),
                           asked_.data());
  }
  espalier::cuda::text_rows rows() const {
    return {{rows_.data(), static_cast<std::int32_t>(row_of_.size()), vocab_}, row_of_.data(), n_nodes_};
  }

  //! Wait for the device. By place, and of all places.
  asked_so_far asked(std::int32_t place) const { return to_host(asked_)[static_cast<std::size_t>(place)]; }
  std::vector<std::int32_t> row_of(std::int32_t place) const {
    return to_host(row_of_.data() + place * n_nodes_, static_cast<std::size_t>(n_nodes_));
  }

  int launched_passes = 0;

 private:
  std::int32_t n_rows_, vocab_, n_nodes_ = 0;
  espalier::cuda::device_array<float> table_;
  espalier::cuda::device_array<float> rows_;  // [places][max_nodes + 1][vocab]
  espalier::cuda::device_array<std::int32_t> row_of_;
  espalier::cuda::device_array<std::int32_t> spare_;
  espalier::cuda::device_array<asked_so_far> asked_;
};
static_assert(espalier::cuda::RenumberingDrafter<device_table_drafter>);

//! An espalier::BlockDrafter of a table of logits.
class table_block {
 public:
  explicit table_block(const row_table<float>& table) : table_(&table) {}
  void begin(std::span<const espalier::token_id>) {}
  void commit(espalier::tree_view, espalier::verdict) {}
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return table_->vocab; }
  std::int32_t block_length() const { return table_->n_rows; }
  espalier::vocab_rows<float> propose_block() const { return {table_->numbers.data(), table_->n_rows, table_->vocab}; }

 private:
  const row_table<float>* table_;
};
static_assert(espalier::BlockDrafter<table_block>);

//! An espalier::cuda::BlockDrafter of the same table, of any numbers.
template <class NumberT>
class device_table_block {
 public:
  explicit device_table_block(const row_table<NumberT>& table)
      : n_rows_(table.n_rows), vocab_(table.vocab), table_(to_device(table.numbers)), found_(1) {
    found_.fill_bytes(0, nullptr);
  }
  void reserve(std::int32_t, std::int32_t, espalier::cuda::fault*) {}
  void begin(std::int32_t, espalier::cuda::text_view, std::span<const espalier::token_id>, std::int32_t, cudaStream_t) {
  }
  void ensure(std::int32_t, std::int32_t, cudaStream_t) {}
  void commit(const espalier::cuda::text_batch&, espalier::cuda::path_view, cudaStream_t) {}
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return vocab_; }
  std::int32_t block_length() const { return n_rows_; }
  espalier::vocab_rows<NumberT> propose_block(const espalier::cuda::text_batch&, cudaStream_t) const {
    return {table_.data(), n_rows_, vocab_};
  }
  espalier::cuda::fault* found() const { return found_.data(); }

  //! Waits for the device.
  espalier::cuda::fault what_was_found() const { return to_host(found_)[0]; }

 private:
  std::int32_t n_rows_, vocab_;
  espalier::cuda::device_array<NumberT> table_;
  espalier::cuda::device_array<espalier::cuda::fault> found_;
};
static_assert(espalier::cuda::BlockDrafter<device_table_block<float>>);

}  // namespace espalier_test
