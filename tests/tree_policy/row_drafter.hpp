// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "espalier/concepts/drafter.hpp"

// A StepDrafter whose rows are a given function of the last token (Markov) or of the path, in double. It insists on the
// rules of propose: the root alone and first, parents before children, nobody twice.
class row_drafter {
 public:
  using law_type = std::function<std::vector<double>(std::span<const espalier::token_id> path)>;

  row_drafter(std::int32_t vocab, law_type law) : vocab_(vocab), law_(std::move(law)) {}

  void begin(std::span<const espalier::token_id>) {}
  void commit(espalier::tree_view, espalier::verdict) {}
  void reserve(std::int32_t nodes) { row_of_.assign(static_cast<std::size_t>(nodes) + 1, -1); }
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return vocab_; }

  espalier::vocab_rows<double> propose(espalier::tree_view tree, std::span<const espalier::node_id> nodes) {
    ++passes;
    if (nodes.size() == 1 && nodes[0] == espalier::root_node) {
      data_.clear();
      std::fill(row_of_.begin(), row_of_.end(), -1);
    }
    const auto first = static_cast<std::ptrdiff_t>(data_.size());
    data_.reserve((row_of_.size() + 1) * static_cast<std::size_t>(vocab_));
    for (const espalier::node_id u : nodes) {
      const auto i = static_cast<std::size_t>(u);
      lawful = lawful && u < tree.n_nodes && row_of_[i] < 0 &&
               (u == 0 || row_of_[static_cast<std::size_t>(tree.parent[u])] >= 0);
      row_of_[i] = static_cast<std::int32_t>(data_.size()) / vocab_;
      std::vector<espalier::token_id> path;
      for (espalier::node_id a = u; a != espalier::no_node; a = tree.parent[a])
        path.insert(path.begin(), tree.token[a]);
      const std::vector<double> row = law_(path);
      data_.insert(data_.end(), row.begin(), row.end());
    }
    return {data_.data() + first, static_cast<std::int32_t>(nodes.size()), vocab_};
  }

  void renumber(std::span<const espalier::node_id> was) {
    std::vector<std::int32_t> now(row_of_.size(), -1);
    for (std::size_t i = 0; i < was.size(); ++i) {
      if (was[i] >= 0) now[i] = row_of_[static_cast<std::size_t>(was[i])];
    }
    row_of_ = now;
  }

  espalier::node_rows<double> rows() const {
    return {{data_.data(), static_cast<std::int32_t>(data_.size()) / vocab_, vocab_}, row_of_.data()};
  }

  int passes = 0;
  bool lawful = true;

 private:
  std::int32_t vocab_;
  law_type law_;
  std::vector<double> data_;
  std::vector<std::int32_t> row_of_;
};

static_assert(espalier::RenumberingDrafter<row_drafter>);
