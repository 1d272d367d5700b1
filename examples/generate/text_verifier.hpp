// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "constraint_of.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/processed_rows.hpp"

namespace generate {

//! A verifier in a decoder of this program, without its type. All these decoders have rows of the same types, so that a
//! verifier is compiled once, and not with each method.
class text_verifier {
 public:
  using draft_rows = espalier::node_rows<float>;
  using target_rows = espalier::detail::target_rows<float, text_constraint>;

  virtual ~text_verifier() = default;
  virtual void reserve(std::int32_t max_nodes, std::int32_t vocab) = 0;
  virtual espalier::verdict verify(espalier::tree_view tree, const draft_rows& draft, target_rows& target,
                                   espalier::philox_chance& chance) = 0;
};

//! The Verifier that a decoder holds for the trees of one regime: any that is lossless for them.
template <espalier::regime Sampling>
class held_verifier {
 public:
  static constexpr espalier::regime lossless = Sampling;
  //! Verifiers for trees that are chosen read no row of the draft: verifier_of sees to that.
  static constexpr bool target_alone = Sampling == espalier::regime::deterministic;

  explicit held_verifier(std::unique_ptr<text_verifier> verifier) : verifier_(std::move(verifier)) {}

  void reserve(std::int32_t max_nodes, std::int32_t vocab) { verifier_->reserve(max_nodes, vocab); }

  template <class DraftRowsT, class TargetRowsT>
  espalier::verdict verify(espalier::tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                           espalier::philox_chance& chance) {
    return verifier_->verify(tree, draft, target, chance);
  }

 private:
  std::unique_ptr<text_verifier> verifier_;
};

}  // namespace generate
