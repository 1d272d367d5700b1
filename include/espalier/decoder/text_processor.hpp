// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/processed.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/softmax.hpp"

namespace espalier::detail {

// The processor of a text during a round. Paths are given by the nodes of the round's tree.
//
// Complexity  process: a copy of the row, the processor's own work, and one pass that checks the row; no allocation
//             after reserve()
template <class ProcessorT>
class text_processor {
 public:
  void reserve(std::int32_t nodes, std::int32_t vocab) {
    path_.reserve(static_cast<std::size_t>(nodes) + 1);
    run_.reserve(static_cast<std::size_t>(nodes) + 1);
    vocab_ = vocab;
  }

  // Begins a round of a text. A processor that is idle counts as none.
  void open(ProcessorT& processor) {
    processor_ = is_idle(processor) ? nullptr : &processor;
    has_cut_ = false;
  }
  void close() { processor_ = nullptr; }
  // Makes a text's processor read the tokens that a verdict adds to the text.
  void commit(ProcessorT& processor, tree_view tree, verdict v) {
    path_.clear();
    append_committed(path_, tree, v);
    processor.commit(std::span<const token_id>(path_));
  }
  bool idle() const { return processor_ == nullptr; }
  // Whether a run of this round was cut before a token that is forbidden.
  bool has_cut() const { return has_cut_; }

  // Writes the processed logits that follow node u to `out`. Returns false, with the model's own logits in `out`, if
  // the processor leaves no token or writes a number that is no logit, such as NaN.
  template <class NumberT>
  bool process(tree_view tree, node_id u, std::span<const NumberT> logits, std::span<NumberT> out) {
    follow(tree, u);
    std::copy(logits.begin(), logits.end(), out.begin());
    processor_->process(std::span<const token_id>(path_), out);
    const bool is_usable = is_possible(std::span<const NumberT>(out));
    if (!is_usable) std::copy(logits.begin(), logits.end(), out.begin());
    return is_usable;
  }

  // Returns the one token that is left after node u, if the processor knows that it is the only one.
  std::optional<token_id> only(tree_view tree, node_id u) {
    follow(tree, u);
    return only_token(*processor_, std::span<const token_id>(path_));
  }

  // Returns false if the processor is known to forbid this token after node u.
  bool allows(tree_view tree, node_id u, token_id token) {
    follow(tree, u);
    return is_allowed(*processor_, std::span<const token_id>(path_), token);
  }

  // Returns the token with which the text likely goes on after node u, if the processor prescribes one.
  std::optional<token_id> prescribed(tree_view tree, node_id u) {
    follow(tree, u);
    return prescribed_token(*processor_, std::span<const token_id>(path_));
  }

  // Returns the drafter's answer. A run is cut before its first token that is forbidden. If the processor prescribes a
  // longer run, of at most `most` tokens, that run is the answer, and counts as likely as a run with a long match.
  template <class AnswerT>
  AnswerT operator()(AnswerT answer, [[maybe_unused]] std::int32_t most) {
    if constexpr (std::is_same_v<AnswerT, token_run>) {
      if (idle()) return answer;
      std::size_t n = 0;
      while (n < answer.tokens.size() && is_allowed(*processor_, answer.tokens.first(n), answer.tokens[n]))
        ++n;
      has_cut_ = has_cut_ || n < answer.tokens.size();
      answer.tokens = answer.tokens.first(n);
      if (static_cast<std::int32_t>(n) >= most) return answer;
      run_.clear();
      while (std::ssize(run_) < most) {
        const std::optional<token_id> next = prescribed_token(*processor_, std::span<const token_id>(run_));
        if (!next || *next < 0 || *next >= vocab_) break;
        run_.push_back(*next);
      }
      constexpr std::int32_t long_match = 32;
      if (run_.size() > n) return {run_, (std::max)(answer.match, long_match)};
    }
    return answer;
  }

  // Makes the rows of this drafter pass through the processor in this round (`on`), or no longer.
  template <class DrafterT>
  void attach(DrafterT& drafter, bool on) {
    if constexpr (ProcessingDrafter<DrafterT, float>) {
      drafter.process_rows(on && !idle() ? row_processor<float>(*this) : row_processor<float>());
    } else if constexpr (ProcessingDrafter<DrafterT, double>) {
      drafter.process_rows(on && !idle() ? row_processor<double>(*this) : row_processor<double>());
    } else if constexpr (HasParts<DrafterT>) {
      for_each_part(drafter, [&](auto& part, auto) { attach(part, on); });
    }
  }

 private:
  void follow(tree_view tree, node_id u) {
    path_.clear();
    for (node_id a = u; a != root_node; a = tree.parent[a])
      path_.push_back(tree.token[a]);
    std::reverse(path_.begin(), path_.end());
  }

  ProcessorT* processor_ = nullptr;
  bool has_cut_ = false;
  list<token_id> path_, run_;
  std::int32_t vocab_ = 0;
};

}  // namespace espalier::detail
