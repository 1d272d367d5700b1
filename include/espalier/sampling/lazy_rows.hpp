// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/unset_numbers.hpp"
#include "espalier/core/token.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/sampling/softmax.hpp"

namespace espalier {

//! The target's rows of one round, found by node. Each is made from its logits when a verifier first asks for it.
//!
//! NumberT is the type of the logits, float or double.
//!
//! Complexity  row: as sampler, once for each node; argmax: as espalier::argmax; no allocation but in reserve() and
//!             sample()
//! Errors      row, argmax: as max_logit, for the row that is asked for; constructor, sample: option_error for options
//!             out of range; open: input_error for more nodes or tokens than reserve() made room for, and for a node
//!             whose row number is not among the rows of the logits
template <class NumberT = float>
class lazy_rows {
 public:
  static constexpr bool are_distributions = true;  //!< true by construction: verifiers need not check the rows

  explicit lazy_rows(sampling_options options = {}) : sampler_(options) {}

  //! Makes room for rounds of this many nodes, root included. Where the operating system provides pages on first write,
  //! a row costs memory only once it is made; an arena gives room for all rows at once.
  void reserve(std::int32_t nodes, std::int32_t vocab) {
    sampler_.reserve(vocab);
    vocab_ = vocab;
    made_.resize(static_cast<std::size_t>(nodes));
    rows_.resize(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(vocab));
  }

  //! Number of bytes that reserve() and sample() take of an arena.
  static constexpr std::size_t bytes(const sampling_options& options, std::int32_t nodes, std::int32_t vocab) {
    return sampler<NumberT>::bytes(options, vocab) + arena::bytes_of<char>(static_cast<std::size_t>(nodes)) +
           arena::bytes_of<NumberT>(static_cast<std::size_t>(nodes) * static_cast<std::size_t>(vocab));
  }

  //! Sets the options by which rows are made from now on.
  void sample(const sampling_options& options, std::int32_t vocab) {
    sampler_.set(options);
    sampler_.reserve(vocab);
  }

  //! Opens a round of this sequence. Both arrays must live until the next round is opened.
  //!
  //! Shapes      row_of [n_nodes]: the row of each node in `logits`; n_nodes and logits.vocab are at most what
  //!             reserve() made room for
  //! Complexity  O(n_nodes)
  void open(vocab_rows<NumberT> logits, std::span<const std::int32_t> row_of, std::int32_t sequence) {
    if (row_of.size() > made_.size() || logits.vocab > vocab_) {
      raise<input_error>("there is room for rows of ", made_.size(), " nodes over ", vocab_,
                         " tokens, but this round has ", row_of.size(), " nodes over ", logits.vocab,
                         " tokens: call reserve() with the most that a round may have.");
    }
    for (std::size_t u = 0; u < row_of.size(); ++u) {
      if (row_of[u] < 0 || row_of[u] >= logits.n_rows) {
        raise<input_error>("node ", u, " is said to have row ", row_of[u], " of the target's logits, which are ",
                           logits.n_rows, " rows.");
      }
    }
    logits_ = logits;
    row_of_ = row_of;
    sequence_ = sequence;
    std::fill_n(made_.begin(), row_of.size(), char{0});
  }

  //! The most probable token after node u under the target; ties go to the lower id.
  token_id argmax(node_id u) const { return espalier::argmax(logits(u), origin(u)); }

  //! The distribution of the token after node u; valid until the next round is opened.
  std::span<const NumberT> row(node_id u) {
    const auto i = static_cast<std::size_t>(u);
    const auto vocab = static_cast<std::size_t>(logits_.vocab);
    const std::span<NumberT> out{rows_.get() + i * vocab, vocab};
    if (made_[i] == 0) {
      sampler_.probabilities(logits(u), out, origin(u));
      made_[i] = 1;
    }
    return out;
  }

  //! The logits after node u.
  std::span<const NumberT> logits(node_id u) const { return logits_.row(row_of_[static_cast<std::size_t>(u)]); }

  const sampling_options& options() const { return sampler_.options(); }

 private:
  row_origin origin(node_id u) const { return row_origin::after_node(row_origin::model::target, sequence_, u); }

  sampler<NumberT> sampler_;
  vocab_rows<NumberT> logits_;
  std::span<const std::int32_t> row_of_;
  std::int32_t sequence_ = 0;
  std::int32_t vocab_ = 0;  // tokens that there is room for
  detail::list<char> made_;
  detail::unset_numbers<NumberT> rows_;
};

}  // namespace espalier
