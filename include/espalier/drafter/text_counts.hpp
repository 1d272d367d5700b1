// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/drafter/nodes/node_checks.hpp"

namespace espalier {

struct text_counts_options {
  std::int32_t capacity = 1 << 15;  //!< longest text, in tokens

  static constexpr void describe(auto see) {
    see(option{"capacity", &text_counts_options::capacity, "longest text, in tokens", 1, 1 << 20});
  }
};

namespace detail {

// Lengths of the contexts whose continuations are counted, in tokens. A context of 0 tokens comes before every token.
inline constexpr std::array<std::int32_t, 11> context_lengths{0, 1, 2, 3, 4, 5, 6, 8, 12, 20, 32};
inline constexpr std::int32_t longest_context = context_lengths.back();

// The hashes of the contexts that end before some place, one for each length.
class context_hashes {
 public:
  // Hashes the contexts before a place that n tokens precede. before(i) returns the token i + 1 places back.
  template <class BeforeT>
  context_hashes(std::int32_t n, const BeforeT& before) {
    std::uint64_t hash = 0x9E3779B97F4A7C15U;
    for (std::int32_t i = 0; n_ < context_lengths.size(); ++i) {
      if (i == context_lengths[n_]) of_[n_] = hash ^ hash >> 29U, ++n_;
      if (i == n) break;
      hash = (std::rotl(hash, 27) ^ static_cast<std::uint32_t>(before(i))) * 0xBF58476D1CE4E5B9U;
    }
  }

  std::size_t size() const { return n_; }
  std::uint64_t operator[](std::size_t i) const { return of_[i]; }

 private:
  std::array<std::uint64_t, context_lengths.size()> of_{};
  std::size_t n_ = 0;
};

// Counts which tokens followed which contexts. A context is known by 64 bits of its hash: two that share them are
// taken for one, which makes a draft worse and no text wrong.
//
// Complexity  find(): O(1), expected; add(): for each context O(its continuations), at most `most_kept`, expected. The
//             part of the table that is in use grows with the text, so that short texts stay in a CPU's caches. No
//             allocation after construction, which takes 570 to 750 bytes a token of the capacity
class continuation_counts {
 public:
  static constexpr std::int32_t most_kept = 48;  // continuations kept of a context; a further one replaces the last

  struct continuation {
    token_id token;
    std::int32_t count;
    std::int32_t next;  // the next one of the context, which is no more frequent; -1 after the last
  };

  struct context {
    std::uint64_t hash = 0;
    std::int32_t total = 0;   // number of tokens that were counted
    std::int32_t kinds = 0;   // number of different continuations that are kept
    std::int32_t first = -1;  // the most frequent continuation
  };

  explicit continuation_counts(std::int32_t capacity) : places_(std::bit_ceil(2 * most_contexts(capacity))) {
    continuations_.reserve(most_contexts(capacity));
    contexts_.reserve(most_contexts(capacity));
    clear();
  }

  // The context with this hash; nullptr if nothing ever followed it.
  const context* find(std::uint64_t hash) const {
    const std::int32_t at = place(hash).context;
    return at >= 0 ? &contexts_[static_cast<std::size_t>(at)] : nullptr;
  }

  const continuation& at(std::int32_t i) const { return continuations_[static_cast<std::size_t>(i)]; }

  // Counts a token after each of these contexts.
  void add(const context_hashes& contexts, token_id token) {
    for (std::size_t i = 0; i < contexts.size(); ++i)
      add(contexts[i], token);
  }

  void clear() {
    contexts_.clear();
    continuations_.clear();
    use_places((std::min)(places_.size(), std::size_t{1024}));
  }

 private:
  // A place of the table: the upper half of a hash, and the context that has it; -1 in a free place.
  struct table_place {
    std::uint32_t hash = 0;
    std::int32_t context = -1;
  };

  static std::size_t most_contexts(std::int32_t capacity) {
    return static_cast<std::size_t>(capacity) * context_lengths.size();
  }

  // Takes the first n places of the table into use, all of them free. Pre: n is a power of 2
  void use_places(std::size_t n) {
    n_places_ = n;
    std::fill_n(places_.begin(), n, table_place());
  }

  // The place of the context with this hash, or the free place that it would get.
  const table_place& place(std::uint64_t hash) const {
    const auto upper = static_cast<std::uint32_t>(hash >> 32U);
    for (auto i = static_cast<std::size_t>(hash);; ++i) {
      const table_place& p = places_[i & (n_places_ - 1)];
      if (p.context < 0) return p;
      if (p.hash == upper && contexts_[static_cast<std::size_t>(p.context)].hash == hash) return p;
    }
  }

  void put(std::uint64_t hash, std::size_t i) {
    const_cast<table_place&>(place(hash)) = {static_cast<std::uint32_t>(hash >> 32U), static_cast<std::int32_t>(i)};
  }

  context& find_or_add(std::uint64_t hash) {
    const std::int32_t known = place(hash).context;
    if (known >= 0) return contexts_[static_cast<std::size_t>(known)];
    if (2 * contexts_.size() >= n_places_ && n_places_ < places_.size()) {
      use_places(2 * n_places_);
      for (std::size_t i = 0; i < contexts_.size(); ++i)
        put(contexts_[i].hash, i);
    }
    put(hash, contexts_.size());
    contexts_.push_back({.hash = hash});
    return contexts_.back();
  }

  void add(std::uint64_t hash, token_id token) {
    context& c = find_or_add(hash);
    ++c.total;
    // `link` leads to a continuation, `equal` to the first one with the same count: a counted continuation moves there.
    std::int32_t *link = &c.first, *equal = &c.first;
    while (*link >= 0) {
      continuation& k = continuations_[static_cast<std::size_t>(*link)];
      if (k.count < continuations_[static_cast<std::size_t>(*equal)].count) equal = link;
      if (k.token == token) {
        ++k.count;
        const std::int32_t counted = *link;
        *link = k.next;
        k.next = *equal;
        *equal = counted;
        return;
      }
      if (k.next < 0 && c.kinds == most_kept) {
        k.token = token, k.count = 1;
        return;
      }
      link = &k.next;
    }
    *link = static_cast<std::int32_t>(continuations_.size());
    continuations_.push_back({token, 1, -1});
    ++c.kinds;
  }

  std::vector<table_place> places_;  // [at least 2 for each context that may be kept] the first n_places_ are in use
  std::size_t n_places_ = 0;
  std::vector<context> contexts_;  // in the order in which they came: contexts of one place in the text are neighbours
  std::vector<continuation> continuations_;
};

// Learns how often contexts foretell the next token, as the share of the places at which a context had the token that
// came. A place does not count if a context that was asked earlier had that token. There is one share for each
// combination of a context's length, its source (0: the text, 1: a memory), the number of its occurrences, and the
// number of different tokens that followed it.
class context_trust {
 public:
  double of(std::size_t length, const continuation_counts::context& c, std::size_t source) const {
    const share& s = shares_[index(length, c, source)];
    return (s.right + weight * prior(length)) / (s.seen + weight);
  }

  void learn(std::size_t length, const continuation_counts::context& c, std::size_t source, bool is_right) {
    share& s = shares_[index(length, c, source)];
    s.right += is_right ? 1 : 0;
    if (++s.seen < most_seen) return;
    s.right /= 2;
    s.seen /= 2;
  }

 private:
  static constexpr double weight = 4, most_seen = 400;

  struct share {
    double right = 0, seen = 0;
  };

  static double prior(std::size_t length) { return (std::min)(0.95, 0.18 + 0.07 * static_cast<double>(length)); }

  static std::size_t index(std::size_t length, const continuation_counts::context& c, std::size_t source) {
    const std::size_t often = c.total < 3    ? static_cast<std::size_t>(c.total) - 1
                              : c.total < 6  ? 2
                              : c.total < 16 ? 3
                                             : 4;
    const std::size_t kinds = c.kinds < 3 ? static_cast<std::size_t>(c.kinds) - 1 : c.kinds < 6 ? 2 : 3;
    return ((source * context_lengths.size() + length) * 5 + often) * 4 + kinds;
  }

  std::array<share, 2 * context_lengths.size() * 5 * 4> shares_{};
};

}  // namespace detail

//! Counts of texts that were written, or are being written. Each text_counts that is given the memory drafts also from
//! the texts that were added to it. The memory holds the tokens that were added last: at most `capacity`, and at least
//! half as many if so many were added. It also holds what the drafters have learnt about how far contexts can be
//! trusted. Only add() puts text into it: text of one user reaches another's drafts only where a program adds it.
//! Drafts never change what is written, but a text that was written before is written faster, and so who measures times
//! can learn that it was.
//!
//! Texts of one subject that are written side by side help each other if their tokens are added as they are written:
//!
//!     const auto number = memory.open();        for each text
//!     memory.add(number, text, n_added);        after each round: the tokens from number n_added on are new
//!
//! Complexity  add(): O(1) a token, expected; no allocation after construction, which takes 590 to 770 bytes a token of
//!             the capacity. texts(): O(n log n)
//! Errors      option_error for a capacity outside 2 to 2^28
class text_memory {
 public:
  explicit text_memory(std::int32_t capacity = 1 << 18) : half_(half_of(capacity)), newer_(half_), older_(half_) {}

  //! Returns the number of a text that will be added in parts.
  std::int64_t open() { return n_opened_++; }

  //! Counts the tokens of a text from token n_added on. Those before were added under the same number.
  //!
  //! Pre         tokens are of the vocabulary of the drafters that use the memory
  void add(std::int64_t number, std::span<const token_id> text, std::size_t n_added) {
    for (std::size_t n = n_added; n < text.size(); ++n) {
      if (std::ssize(newer_.tokens) == half_) {
        std::swap(newer_, older_);
        newer_.clear();
      }
      newer_.add(number, text[n]);
      newer_.counts.add({static_cast<std::int32_t>(n), [&](std::int32_t back) { return text[n - 1 - at(back)]; }},
                        text[n]);
    }
  }
  //! Counts a whole text.
  void add(std::span<const token_id> text) { add(open(), text, 0); }

  //! Returns the texts that the memory holds, in the order in which they were opened, -1 after each. If they are added
  //! to another memory, it has the same counts, but for contexts that begin in tokens that were forgotten.
  std::vector<token_id> texts() const {
    struct piece {
      std::int64_t number;
      std::span<const token_id> tokens;
    };
    std::vector<piece> pieces;
    for (const part* of : {&older_, &newer_}) {
      std::size_t begin = 0;
      for (const run& r : of->runs) {
        pieces.push_back({r.number, std::span(of->tokens).subspan(begin, at(r.n))});
        begin += at(r.n);
      }
    }
    std::stable_sort(pieces.begin(), pieces.end(), [](const piece& a, const piece& b) { return a.number < b.number; });
    std::vector<token_id> all;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      all.insert(all.end(), pieces[i].tokens.begin(), pieces[i].tokens.end());
      if (i + 1 == pieces.size() || pieces[i + 1].number != pieces[i].number) all.push_back(-1);
    }
    return all;
  }

 private:
  friend class text_counts;

  static std::int32_t half_of(std::int32_t capacity) {
    constexpr std::int32_t most = 1 << 28;
    if (capacity < 2 || capacity > most) {
      raise<option_error>("a text_memory has a capacity of ", capacity, " tokens; at least 2 are needed, and at most ",
                          most, " are possible.");
    }
    return capacity / 2;
  }

  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  // Tokens of one text that were added one after the other.
  struct run {
    std::int64_t number;  // the text's
    std::int32_t n;
  };

  // One half of the memory: tokens that were counted, and whose they are.
  struct part {
    explicit part(std::int32_t capacity) : counts(capacity) {
      tokens.reserve(at(capacity));
      runs.reserve(at(capacity));
    }

    void add(std::int64_t number, token_id t) {
      if (runs.empty() || runs.back().number != number) runs.push_back({number, 0});
      ++runs.back().n;
      tokens.push_back(t);
    }
    void clear() {
      counts.clear();
      tokens.clear();
      runs.clear();
    }

    detail::continuation_counts counts;
    std::vector<token_id> tokens;
    std::vector<run> runs;
  };

  std::int32_t half_;
  std::int64_t n_opened_ = 0;
  part newer_, older_;
  detail::context_trust trust_;
};

//! Drafts from counts: the row of a node is a distribution over the tokens that followed its last tokens elsewhere in
//! the text, or in other texts. Policies that take rows grow trees from it, with no draft model at all.
//!
//! The row of a node is made from contexts, which are the last 32, 20, 12, 8, 6 to 1 and 0 tokens before the next one.
//! The longest context that occurred before comes first. It gives its tokens, in proportion to their counts, a part of
//! the probability: the share of places at which such contexts have been right so far, in this text or, with a memory,
//! in all texts that use the memory. The next shorter context does the same with the probability that is left, for
//! tokens that the contexts before it do not have. The last context gives all of the rest. So a long match outweighs
//! any frequency, and how far contexts can be trusted is measured while the text is written. A context of the text
//! comes before a context of equal length in the memory.
//!
//! If the text has a processor, tokens that it forbids are left out of a row, and a token that it prescribes comes
//! before all contexts. If it forbids every token that the contexts have, the row is made without it.
//!
//! Complexity  a row: O(contexts * continuations), at most 32 numbers of it are above 0, whatever the vocabulary;
//!             commit: as much for each token; begin: as much for each token after the old text, or for all tokens if
//!             the new text does not begin with the old one. No allocation after reserve(). The counts take 580 to 760
//!             bytes a token of the capacity, at construction; the rows take 4 bytes for each node and token of the
//!             vocabulary, of which only pages that are written cost memory
//! Law         as StepDrafter; begin() forgets the old text unless the new one begins with it. Without a memory, rows
//!             depend on nothing but the text and the node's path; with one, also on what the memory holds
//! Errors      option_error for options out of range or a vocabulary below 1; input_error for a node that may not be
//!             asked about (StepDrafter), and for a token that is not in the vocabulary
//! Source      ours: prediction by partial matching (Cleary and Witten 1984, with exclusion) whose escapes are learnt
class text_counts {
 public:
  explicit text_counts(std::int32_t vocab, text_counts_options options = {}, text_memory* memory = nullptr)
      : options_(require_options(options)), vocab_(vocab), memory_(memory), counts_(options.capacity) {
    if (vocab < 1) raise<option_error>("text_counts is given a vocabulary of ", vocab, " tokens.");
    text_.reserve(static_cast<std::size_t>(options.capacity));
    path_.reserve(static_cast<std::size_t>(options.capacity));
    seen_.resize(static_cast<std::size_t>(vocab));
  }

  //! Returns another drafter with the same vocabulary, options and memory, for a text of its own.
  text_counts for_text(std::int32_t) const { return text_counts(vocab_, options_, memory_); }

  std::int32_t vocab_size() const { return vocab_; }
  std::int32_t capacity() const { return options_.capacity; }

  void process_rows(row_processor<float> process) { process_ = process; }

  void reserve(std::int32_t max_nodes) {
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    if (nodes <= row_of_.size()) return;
    row_of_.assign(nodes, -1);
    renumbered_.assign(nodes, -1);
    written_.assign(nodes * most_tokens, 0);
    n_rows_ = 0;
    n_clean_ = 0;
    rows_.reset(new float[nodes * static_cast<std::size_t>(vocab_)]);
  }

  void begin(std::span<const token_id> context) {
    const bool goes_on = text_.size() <= context.size() && std::equal(text_.begin(), text_.end(), context.begin());
    if (!goes_on) {
      text_.clear();
      counts_.clear();
      own_trust_ = {};
    }
    for (const token_id t : context.subspan(text_.size()))
      push(t);
  }

  void commit(tree_view tree, verdict v) {
    const std::size_t before = text_.size();
    const auto most = static_cast<std::size_t>(options_.capacity);
    path_.clear();
    for (node_id u = v.accepted; u != root_node; u = tree.parent[u])
      path_.push_back(tree.token[u]);
    for (std::size_t i = path_.size(); i-- > 0 && text_.size() < most;)
      push(path_[i]);
    if (text_.size() - before == path_.size()) push(v.token);
  }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    if (detail::opens_round(nodes, row_of_.size())) {
      std::fill(row_of_.begin(), row_of_.end(), -1);
      n_rows_ = 0;
    } else {
      for (const node_id u : nodes)
        detail::require_askable(tree, u, row_of_.size(), [this](node_id a) { return row_of_[at(a)] >= 0; });
    }
    for (const node_id u : nodes) {
      row_of_[at(u)] = n_rows_;
      fill(tree, u, n_rows_++);
    }
  }

  void renumber(std::span<const node_id> was) { detail::renumber(row_of_, renumbered_, was); }

  node_rows<float> rows() const {
    return {{rows_.get(), n_rows_, vocab_}, row_of_.data(), written_.data(), static_cast<std::int32_t>(most_tokens)};
  }

 private:
  using counted_context = detail::continuation_counts::context;

  static constexpr std::size_t most_tokens = 32;   // tokens of a row with a probability above 0, at most
  static constexpr double least_left = 1e-2;       // probability that is left, below which no shorter context is asked
  static constexpr double prescribed_share = 0.9;  // probability of a token that the text's processor prescribes

  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  detail::context_trust& trust() { return memory_ != nullptr ? memory_->trust_ : own_trust_; }

  // Calls f(length, counts, context, source) for each context that something followed, the longest first, until it
  // returns false. `source` is 0 for the text's own contexts, 1 for those of the memory.
  template <class FunctionT>
  void each_context(const detail::context_hashes& hashes, const FunctionT& f) const {
    const detail::continuation_counts* of[] = {&counts_, memory_ != nullptr ? &memory_->newer_.counts : nullptr,
                                               memory_ != nullptr ? &memory_->older_.counts : nullptr};
    for (std::size_t length = hashes.size(); length-- > 0;) {
      for (std::size_t i = 0; i < 3; ++i) {
        const counted_context* c = of[i] != nullptr ? of[i]->find(hashes[length]) : nullptr;
        if (c != nullptr && !f(length, *of[i], *c, i == 0 ? 0U : 1U)) return;
      }
    }
  }

  // Adds a token to the text, and learns from it how far contexts can be trusted.
  void push(token_id t) {
    if (t < 0 || t >= vocab_)
      raise<input_error>("the text has token ", t, ", but text_counts has a vocabulary of ", vocab_, " tokens.");
    if (std::ssize(text_) == options_.capacity) return;
    const detail::context_hashes hashes(static_cast<std::int32_t>(text_.size()),
                                        [this](std::int32_t back) { return text_[text_.size() - 1 - at(back)]; });
    ++round_;
    each_context(hashes, [&](std::size_t length, const auto& counts, const counted_context& c, std::size_t source) {
      bool is_new = false, is_right = false;
      for (std::int32_t i = c.first; i >= 0; i = counts.at(i).next) {
        std::uint32_t& seen = seen_[at(counts.at(i).token)];
        is_new = is_new || seen != round_;
        is_right = is_right || counts.at(i).token == t;
        seen = round_;
      }
      if (is_new) trust().learn(length, c, source, is_right);
      return !is_right;
    });
    counts_.add(hashes, t);
    text_.push_back(t);
  }

  // The tokens of a row in the order in which contexts gave them, and their probabilities.
  struct shares {
    std::array<token_id, most_tokens> token;
    std::array<float, most_tokens> probability;
    std::size_t n = 0;

    bool full() const { return n == most_tokens; }
    bool has(token_id t, std::size_t before) const {
      return std::find(token.begin(), token.begin() + before, t) != token.begin() + before;
    }
    void add(token_id t, float p) {
      token[n] = t;
      probability[n++] = p;
    }
    void scale(std::size_t begin, double by) {
      for (std::size_t i = begin; i < n; ++i)
        probability[i] = static_cast<float>(probability[i] * by);
    }
  };

  // Writes the row of a node to place r.
  void fill(tree_view tree, node_id u, std::int32_t r) {
    float* row = rows_.get() + static_cast<std::ptrdiff_t>(r) * vocab_;
    token_id* written = &written_[at(r) * most_tokens];
    if (r == n_clean_) {
      std::fill_n(row, vocab_, 0.0F);
      ++n_clean_;
    } else {
      for (std::size_t i = 0; i < most_tokens && written[i] >= 0; ++i)
        row[written[i]] = 0;
    }

    std::array<token_id, detail::longest_context> last;  // the node's own token first
    std::int32_t n_last = 0;
    for (node_id a = u; a != root_node && n_last < detail::longest_context; a = tree.parent[a])
      last[at(n_last++)] = tree.token[a];
    for (std::size_t i = text_.size(); i > 0 && n_last < detail::longest_context; --i)
      last[at(n_last++)] = text_[i - 1];

    const detail::context_hashes hashes(n_last, [&](std::int32_t back) { return last[at(back)]; });
    shares all;
    share_out(hashes, all, process_, tree, u);
    if (all.n == 0 && process_) share_out(hashes, all, {}, tree, u);
    if (all.n == 0) all.add(tree.token[u], 1);  // nothing was ever written

    std::array<std::uint64_t, most_tokens> sorted;  // token and probability
    for (std::size_t i = 0; i < all.n; ++i)
      sorted[i] = std::uint64_t{static_cast<std::uint32_t>(all.token[i])} << 32U |
                  std::bit_cast<std::uint32_t>(all.probability[i]);
    std::sort(sorted.begin(), sorted.begin() + all.n);
    for (std::size_t i = 0; i < all.n; ++i) {
      written[i] = static_cast<token_id>(sorted[i] >> 32U);
      row[written[i]] = std::bit_cast<float>(static_cast<std::uint32_t>(sorted[i]));
    }
    std::fill(written + all.n, written + most_tokens, -1);
  }

  // Adds to `all`, which is empty, the tokens that followed these contexts, and their probabilities. If there is a
  // processor, the token that it prescribes comes first, and tokens that it forbids after node u are left out.
  void share_out(const detail::context_hashes& hashes, shares& all, const row_processor<float>& process, tree_view tree,
                 node_id u) {
    double left = 1, mass = 0;
    std::size_t first = 0;  // tokens from here on have the mass that was last shared out
    const std::optional<token_id> prescribed = process ? process.prescribed(tree, u) : std::nullopt;
    if (prescribed && *prescribed >= 0 && *prescribed < vocab_) {
      mass = prescribed_share;
      all.add(*prescribed, static_cast<float>(mass));
      left -= mass;
    }
    each_context(hashes, [&](std::size_t length, const auto& counts, const counted_context& c, std::size_t source) {
      const std::size_t begin = all.n;
      double total = 0;
      for (std::int32_t i = c.first; i >= 0 && !all.full(); i = counts.at(i).next) {
        const auto& k = counts.at(i);
        if (all.has(k.token, begin) || (process && !process.allows(tree, u, k.token))) continue;
        all.add(k.token, static_cast<float>(k.count));
        total += k.count;
      }
      if (begin == all.n) return !all.full();
      first = begin;
      mass = left * trust().of(length, c, source);
      all.scale(begin, mass / total);
      left -= mass;
      return left > least_left && !all.full();
    });
    if (all.n > 0) all.scale(first, (mass + left) / mass);
  }

  text_counts_options options_;
  std::int32_t vocab_;
  text_memory* memory_;
  detail::continuation_counts counts_;
  detail::context_trust own_trust_;
  row_processor<float> process_;
  std::vector<token_id> text_, path_;
  std::vector<std::uint32_t> seen_;  // [vocab] the last round_ in which a context had the token
  std::uint32_t round_ = 0;
  std::unique_ptr<float[]> rows_;  // [nodes][vocab]
  std::int32_t n_rows_ = 0;
  std::int32_t n_clean_ = 0;       // rows that were written since reserve()
  std::vector<token_id> written_;  // [nodes][most_tokens] tokens of each row that are above 0, lowest first, then -1
  detail::list<std::int32_t> row_of_, renumbered_;  // [nodes]
};

}  // namespace espalier
