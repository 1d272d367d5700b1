// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/lookup/ngram_index.hpp"

namespace espalier {

struct ngram_options {
  std::int32_t order = 4;           //!< n, the drafted token included: contexts of n - 1 tokens are tried first
  std::int32_t min_order = 2;       //!< n that is tried last; contexts get one token shorter each time
  std::int32_t capacity = 1 << 16;  //!< tokens of the text and of all texts given to learn(), at most

  static constexpr void describe(auto see) {
    using self = ngram_options;
    see(option{"order", &self::order, "tokens of an n-gram, the drafted one included, that are tried first", 2, 16});
    see(option{"min_order", &self::min_order, "and last, one fewer each time", 2, &self::order});
    see(option{"capacity", &self::capacity, "longest text, in tokens", 1, 1 << 20});
  }
};

//! Drafts one token after the other: the token that most often followed the last n - 1 tokens, or, if nothing ever
//! followed these, the last n - 2 tokens, and so on. It counts in the text that it follows and in the texts that
//! learn() was given. Of equally frequent tokens the lower one is drafted. The run's match (token_run::match) is the
//! number of tokens after which its first token was found.
//!
//! Complexity  propose_run and commit: O(order^2) a token, expected, however long the text; begin: the same for each
//!             token of the old or the new text after their common beginning. No allocation after construction, which
//!             takes 7.3 MB for the default options, in proportion to capacity; learn allocates
//! Law         as Drafter: begin() forgets the counts of the old text, except those of the beginning that both
//!             texts share; the counts of the texts that learn() was given stay
//! Errors      option_error for options out of range. An empty text is followed; nothing is drafted for it
//! Source      as in llama.cpp's lookup decoding (common/ngram-cache.h), which takes contexts of 4 tokens to 1 and
//!             wants a continuation to be frequent enough; here any will do, since a wrong one costs no more than a
//!             row of the pass
class ngram {
 public:
  explicit ngram(ngram_options options = {})
      : options_(require_options(options)),
        index_(options.order, options.capacity),
        replaced_(static_cast<std::size_t>(options.capacity) * static_cast<std::size_t>(options.order - 1)) {}

  //! Counts the n-grams of a text that is given beforehand. It may be called again with another text, but not within a
  //! round.
  //!
  //! Errors      input_error if the capacity leaves no room for a text besides it
  //! Pre         its tokens are of the target's vocabulary
  void learn(std::span<const token_id> corpus) {
    const std::int32_t left = options_.capacity - index_.first();
    if (corpus.size() >= static_cast<std::size_t>(left)) {
      raise<input_error>("a corpus of ", corpus.size(), " tokens leaves no room for a text in the ", left,
                         " that option capacity still allows.");
    }
    const token_id* text = &index_.token(0) + index_.first();
    detail::list<token_id> followed;
    followed.assign(text, text + (index_.size() - index_.first()));
    begin(corpus);
    index_.keep();
    begin(followed);
  }

  //! Number of bytes that the drafter takes of an arena at most, if capacity and order are the context and ngram of the
  //! argument.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return detail::ngram_index<entry>::bytes(c.ngram, c) +
           arena::bytes_of<std::int32_t>(static_cast<std::size_t>(c.context) * static_cast<std::size_t>(c.ngram - 1));
  }

  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return options_.capacity - index_.first(); }

  void begin(std::span<const token_id> context) {
    index_.follow(
        context, [this](std::int32_t last) { count(last); }, [this](std::int32_t last) { forget(last); });
  }

  void commit(tree_view tree, verdict v) {
    index_.follow(tree, v, [this](std::int32_t last) { count(last); });
  }

  //! The drafted tokens, at most max_tokens; valid until the next call or until the text changes.
  token_run propose_run(std::int32_t max_tokens) {
    const std::int32_t size = index_.size(), most = (std::min)(max_tokens, index_.room());
    if (most <= 0) return {};
    const std::int32_t match = propose_at(size);
    if (match == 0) return {};
    std::int32_t n = 1;
    while (n < most && propose_at(size + n) > 0)
      ++n;
    return {{&index_.token(size), static_cast<std::size_t>(n)}, match};
  }

 private:
  struct entry {
    std::int32_t place = -1;  // index of the last token of the first occurrence
    std::int32_t count = 0;
    std::int32_t best = -1;  // slot of the most frequent n-gram that begins with this one and is one token longer
  };

  // Length of the longest n-gram that ends at this token. An n-gram does not reach back beyond the token's own text.
  std::int32_t longest(std::int32_t last) const { return (std::min)(options_.order, last - index_.first() + 1); }

  std::int32_t& replaced(std::int32_t length, std::int32_t last) {
    return replaced_[static_cast<std::size_t>(last) * static_cast<std::size_t>(options_.order - 1) +
                     static_cast<std::size_t>(length - 2)];
  }

  void count(std::int32_t last) {
    for (std::int32_t length = 1; length <= longest(last); ++length) {
      const std::int32_t slot = index_.slot(length, last);
      entry& e = index_.entry(length, slot);
      if (e.place < 0) e = {.place = last};
      ++e.count;
      if (length == 1) continue;
      entry& context = index_.find(length - 1, last - 1);
      replaced(length, last) = context.best;
      if (context.best < 0 || is_better(e, index_.entry(length, context.best))) context.best = slot;
    }
  }

  bool is_better(const entry& a, const entry& b) {
    return a.count > b.count || (a.count == b.count && index_.token(a.place) < index_.token(b.place));
  }

  void forget(std::int32_t last) {
    for (std::int32_t length = longest(last); length >= 1; --length) {
      if (length > 1) index_.find(length - 1, last - 1).best = replaced(length, last);
      entry& e = index_.find(length, last);
      if (--e.count == 0) e.place = -1;
    }
  }

  // Writes the drafted token to place `end`: the most frequent token after the longest context before `end` that any
  // token has followed. Returns the length of that context; 0 if there is none.
  std::int32_t propose_at(std::int32_t end) {
    for (std::int32_t length = (std::min)(options_.order - 1, end - index_.first()); length >= options_.min_order - 1;
         --length) {
      const entry& context = index_.find(length, end - 1);
      if (context.place < 0 || context.best < 0) continue;
      index_.token(end) = index_.token(index_.entry(length + 1, context.best).place);
      return length;
    }
    return 0;
  }

  ngram_options options_;
  detail::ngram_index<entry> index_;
  detail::list<std::int32_t> replaced_;  // [capacity][order - 1] entry::best of each context before the token came
};

}  // namespace espalier
