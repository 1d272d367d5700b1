// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "espalier/concepts/drafter.hpp"

// A BlockDrafter whose logits are a given function of the text, pending token included, and of the place in the block.
template <class NumberT>
class marginal_drafter {
 public:
  using law_type = std::function<std::vector<NumberT>(std::span<const espalier::token_id> text, std::int32_t place)>;

  marginal_drafter(std::int32_t vocab, std::int32_t length, law_type law)
      : vocab_(vocab), length_(length), law_(std::move(law)) {}

  void begin(std::span<const espalier::token_id> context) { text_.assign(context.begin(), context.end()); }
  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return 1 << 20; }
  std::int32_t vocab_size() const { return vocab_; }
  std::int32_t block_length() const { return length_; }

  espalier::vocab_rows<NumberT> propose_block() {
    ++passes;
    logits_.clear();
    for (std::int32_t i = 0; i < length_; ++i) {
      const std::vector<NumberT> row = law_(text_, i);
      logits_.insert(logits_.end(), row.begin(), row.end());
    }
    return {logits_.data(), length_, vocab_};
  }

  void commit(espalier::tree_view tree, espalier::verdict v) {
    const std::size_t old = text_.size();
    for (espalier::node_id u = v.accepted; u != espalier::root_node; u = tree.parent[u])
      text_.insert(text_.begin() + static_cast<std::ptrdiff_t>(old), tree.token[u]);
    text_.push_back(v.token);
  }

  int passes = 0;

 private:
  std::int32_t vocab_;
  std::int32_t length_;
  law_type law_;
  std::vector<espalier::token_id> text_;
  std::vector<NumberT> logits_;
};

static_assert(espalier::BlockDrafter<marginal_drafter<float>>);
