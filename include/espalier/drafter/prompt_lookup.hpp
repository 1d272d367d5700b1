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

struct prompt_lookup_options {
  std::int32_t max_ngram = 3;       //!< tokens at the end of the text that are looked for first
  std::int32_t min_ngram = 1;       //!< tokens that are looked for last; there is one fewer each time
  std::int32_t capacity = 1 << 16;  //!< longest text, in tokens

  static constexpr void describe(auto see) {
    using self = prompt_lookup_options;
    see(option{"max_ngram", &self::max_ngram, "last tokens that are looked for first", 1, 16});
    see(option{"min_ngram", &self::min_ngram, "and last, one fewer each time", 1, &self::max_ngram});
    see(option{"capacity", &self::capacity, "longest text, in tokens", 1, 1 << 20});
  }
};

//! Finds the longest n-gram at the end of the text that occurs earlier in it, at its latest earlier place, and drafts
//! the tokens that followed it there. If these reach the end of the text, the run goes on with its own first tokens, so
//! that a text that repeats itself is drafted to repeat itself further. The run's match (token_run::match) counts also
//! the equal tokens before the two n-grams, up to longest_match in all.
//!
//! Complexity  propose_run: O(longest_match + tokens); commit: O(max_ngram^2) a token, expected, however long the text;
//!             begin: the same for each token of the old or the new text after their common beginning. No allocation
//!             after construction, which takes 2.6 MB for the default options, in proportion to capacity
//! Law         as Drafter; begin() forgets all of the old text but the beginning that both texts share
//! Errors      option_error for options out of range. An empty text is followed; nothing is drafted for it
//! Source      Saxena, Prompt Lookup Decoding (n-grams of 3 to 1 tokens, 10 tokens a run), which takes the first place
//!             that has a whole run after it; so does transformers (n-grams of 2 by default)
class prompt_lookup {
 public:
  static constexpr std::int32_t longest_match = 32;  //!< the greatest match of a run that is counted

  explicit prompt_lookup(prompt_lookup_options options = {})
      : options_(require_options(options)),
        index_(options.max_ngram, options.capacity),
        earlier_(static_cast<std::size_t>(options.capacity) * static_cast<std::size_t>(options.max_ngram)) {}

  //! Number of bytes that the drafter takes of an arena at most, if capacity and max_ngram are the context and ngram of
  //! the argument.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return detail::ngram_index<entry>::bytes(c.ngram, c) +
           arena::bytes_of<std::int32_t>(static_cast<std::size_t>(c.context) * static_cast<std::size_t>(c.ngram));
  }

  void reserve(std::int32_t) {}
  std::int32_t capacity() const { return options_.capacity; }

  void begin(std::span<const token_id> context) {
    index_.follow(
        context, [this](std::int32_t last) { learn(last); }, [this](std::int32_t last) { forget(last); });
  }

  void commit(tree_view tree, verdict v) {
    index_.follow(tree, v, [this](std::int32_t last) { learn(last); });
  }

  //! The drafted tokens, at most max_tokens; valid until the next call or until the text changes.
  token_run propose_run(std::int32_t max_tokens) {
    const std::int32_t size = index_.size(), n = (std::min)(max_tokens, index_.room());
    if (n <= 0) return {};
    for (std::int32_t length = (std::min)(options_.max_ngram, size); length >= options_.min_ngram; --length) {
      const std::int32_t place = earlier(length, size - 1);
      if (place < 0) continue;
      for (std::int32_t i = 0; i < n; ++i)
        index_.token(size + i) = index_.token(place + 1 + i);
      return {{&index_.token(size), static_cast<std::size_t>(n)}, match_at(place, length)};
    }
    return {};
  }

 private:
  struct entry {
    std::int32_t place = -1;  // index of the last token of the latest occurrence
  };

  std::int32_t& earlier(std::int32_t length, std::int32_t last) {
    return earlier_[static_cast<std::size_t>(last) * static_cast<std::size_t>(options_.max_ngram) +
                    static_cast<std::size_t>(length - 1)];
  }

  // Number of tokens up to this earlier place that equal those at the end of the text, at most longest_match. The last
  // `known` of them are known to be equal.
  std::int32_t match_at(std::int32_t place, std::int32_t known) {
    const std::int32_t most = (std::min)(longest_match, place + 1), ahead = index_.size() - 1 - place;
    while (known < most && index_.token(place - known) == index_.token(place - known + ahead))
      ++known;
    return known;
  }

  void learn(std::int32_t last) {
    for (std::int32_t length = options_.min_ngram; length <= (std::min)(options_.max_ngram, last + 1); ++length) {
      entry& e = index_.find(length, last);
      earlier(length, last) = e.place;
      e.place = last;
    }
  }

  void forget(std::int32_t last) {
    for (std::int32_t length = options_.min_ngram; length <= (std::min)(options_.max_ngram, last + 1); ++length)
      index_.find(length, last).place = earlier(length, last);
  }

  prompt_lookup_options options_;
  detail::ngram_index<entry> index_;
  detail::list<std::int32_t> earlier_;  // [capacity][max_ngram] the n-gram's occurrence before this one, or -1
};

}  // namespace espalier
