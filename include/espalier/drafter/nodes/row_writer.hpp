// SPDX-License-Identifier: BSL-1.0
// Tested by tests/drafter/factorised.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier::detail {

// A maker of rows of probabilities over a vocabulary from rows of a model's logits, which may have columns for some
// tokens alone.
template <class NumberT>
class row_writer {
 public:
  // Makes room for rows of a model whose column i is of token tokens[i]; with no tokens, columns are tokens.
  // `processes`: from now on rows may have a processor, and numbers at tokens without a column.
  void reserve(std::int32_t vocab, std::span<const token_id> tokens, bool processes) {
    few_.resize(tokens.size());
    if (processes && !tokens.empty()) wide_.resize(static_cast<std::size_t>(vocab));
    clears_ = clears_ || processes;
  }

  // Writes the distribution that a sampler makes of logits; if there is a processor, it changes the logits first, as it
  // does after the path of `u`. As long as no row has had a processor, only the tokens that have a column are written:
  // the other numbers of `out` must be 0.
  //
  // Shapes      logits [columns]; out [vocab]
  void write(tree_view tree, node_id u, std::span<const NumberT> logits, std::span<const token_id> tokens,
             row_processor<NumberT> process, sampler<NumberT>& sampler, row_origin from, std::span<NumberT> out) {
    if (process) {
      if (!tokens.empty()) logits = widened(logits, tokens);
      process(tree, u, logits, out);
      sampler.probabilities(out, out, from);
    } else if (tokens.empty()) {
      sampler.probabilities(logits, out, from);
    } else {
      sampler.probabilities(logits, few_, from);
      if (clears_) std::fill(out.begin(), out.end(), NumberT{0});
      spread(few_, tokens, out);
    }
  }

 private:
  static void spread(std::span<const NumberT> values, std::span<const token_id> tokens, std::span<NumberT> to) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
      to[static_cast<std::size_t>(tokens[i])] = values[i];
  }

  std::span<const NumberT> widened(std::span<const NumberT> logits, std::span<const token_id> tokens) {
    std::fill(wide_.begin(), wide_.end(), -std::numeric_limits<NumberT>::infinity());
    spread(logits, tokens, wide_);
    return wide_;
  }

  list<NumberT> few_;   // [columns], if columns are not tokens
  list<NumberT> wide_;  // [vocab], if a processor changes these rows, too
  bool clears_ = false;
};

}  // namespace espalier::detail
