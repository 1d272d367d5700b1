// SPDX-License-Identifier: BSL-1.0
// Tested by tests/drafter/prompt_lookup.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier::detail {

// Holds a text that a drafter follows, and an entry for each n-gram in it, in one hash table for each length of
// n-grams.
//
// EntryT has a member `place`: the index of the last token of some occurrence of the n-gram, -1 if there is none yet.
// Tokens are compared, so that no two n-grams are ever taken for one. The drafter must fill the entries as the text
// grows, and empty them in the reverse order as the text shrinks: only then can slots of a hash table be given up.
//
// Complexity: O(length) for an entry, expected; no allocation after construction
template <class EntryT>
class ngram_index {
 public:
  ngram_index(std::int32_t longest, std::int32_t capacity)
      : tokens_(static_cast<std::size_t>(capacity)),
        n_slots_(std::bit_ceil(2 * static_cast<std::size_t>(capacity))),
        entries_(n_slots_ * static_cast<std::size_t>(longest)) {}

  // Number of bytes that an index of n-grams of up to `longest` tokens takes of an arena.
  static constexpr std::size_t bytes(std::int32_t longest, const static_capacity& c) {
    const auto capacity = static_cast<std::size_t>(c.context);
    return arena::bytes_of<token_id>(capacity) +
           arena::bytes_of<EntryT>(std::bit_ceil(2 * capacity) * static_cast<std::size_t>(longest));
  }

  token_id& token(std::int32_t i) { return tokens_[static_cast<std::size_t>(i)]; }
  // The held tokens are number 0 to size() - 1. Those before first() were kept by keep(); the others are the text's.
  std::int32_t first() const { return first_; }
  std::int32_t size() const { return size_; }
  std::int32_t capacity() const { return static_cast<std::int32_t>(tokens_.size()); }
  // Number of tokens that may still follow the text; 0 if the text is longer than the part of it that is held.
  std::int32_t room() const { return beyond_ ? 0 : capacity() - size_; }

  // The entry of the n-gram of this length that ends at token number `last`; an empty entry, to be filled, if there is
  // none.
  EntryT& find(std::int32_t length, std::int32_t last) { return entry(length, slot(length, last)); }
  EntryT& entry(std::int32_t length, std::int32_t slot) {
    return entries_[static_cast<std::size_t>(length - 1) * n_slots_ + static_cast<std::size_t>(slot)];
  }
  std::int32_t slot(std::int32_t length, std::int32_t last) {
    const token_id* end = tokens_.data() + last + 1;
    std::uint64_t hash = 0;
    for (const token_id* t = end - length; t < end; ++t)
      hash = (std::rotl(hash, 29) ^ static_cast<std::uint32_t>(*t)) * 0x9E3779B97F4A7C15U;
    for (auto i = static_cast<std::size_t>(hash >> 32);; ++i) {
      i &= n_slots_ - 1;
      const std::int32_t place = entry(length, static_cast<std::int32_t>(i)).place;
      if (place < 0 || std::equal(end - length, end, tokens_.data() + place + 1 - length))
        return static_cast<std::int32_t>(i);
    }
  }

  // Follows another text. Calls forget(last) for each held token of the old text that the new one does not begin with,
  // from the end on; then learn(last) for each token that is added. `last` is the number of the token.
  template <class LearnT, class ForgetT>
  void follow(std::span<const token_id> text, const LearnT& learn, const ForgetT& forget) {
    const auto held = std::span<const token_id>(tokens_).subspan(static_cast<std::size_t>(first_),
                                                                 static_cast<std::size_t>(size_ - first_));
    const auto common = std::mismatch(held.begin(), held.end(), text.begin(), text.end()).first - held.begin();
    while (size_ - first_ > common) {
      forget(size_ - 1);
      --size_;
    }
    beyond_ = false;
    for (const token_id t : text.subspan(static_cast<std::size_t>(common)))
      push(t, learn);
  }

  // Adds the accepted path and the verdict's token to the text, and calls learn(last) for each token.
  template <class LearnT>
  void follow(tree_view tree, verdict v, const LearnT& learn) {
    const std::int32_t begin = size_;
    for (node_id u = v.accepted; u != root_node; u = tree.parent[u]) {
      const std::int32_t i = begin + tree.depth[u] - 1;
      if (i < capacity()) token(i) = tree.token[u];
    }
    for (std::int32_t d = 0; d < tree.depth[v.accepted] && !beyond_; ++d)
      push(size_ < capacity() ? token(size_) : v.token, learn);
    push(v.token, learn);
  }

  // Keeps the tokens and entries that are held so far for all later texts.
  void keep() { first_ = size_; }

 private:
  template <class LearnT>
  void push(token_id t, const LearnT& learn) {
    beyond_ = beyond_ || size_ == capacity();
    if (beyond_) return;
    token(size_++) = t;
    learn(size_ - 1);
  }

  list<token_id> tokens_;
  std::size_t n_slots_;
  list<EntryT> entries_;  // [longest][n_slots]
  std::int32_t first_ = 0;
  std::int32_t size_ = 0;
  bool beyond_ = false;
};

}  // namespace espalier::detail
