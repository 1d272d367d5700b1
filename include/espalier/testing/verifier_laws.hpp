// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/concepts/verifier.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/random_tree.hpp"
#include "espalier/testing/tiny_model.hpp"

namespace espalier::testing {

//! Checks the laws of Verifier that hold for each outcome, on 60 random trees: the target gives a probability above 0
//! to each token that the verdict commits, and equal chances give equal verdicts. Laws that need every outcome are
//! checked by check_lossless() and check_chance_keys().
//!
//! Pre         the verifier takes trees, not only paths
//! Errors      law_error with what is wrong
template <class VerifierT>
void check_verifier(VerifierT verifier, const sampling_options& sampling) {
  constexpr std::int32_t vocab = 5;
  reserve_verifier(verifier, 20, vocab);
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const tree<> t = random_tree(1 + static_cast<std::int32_t>(seed % 20), seed, vocab, 0.3);
    const tree_view view = t;
    std::vector<float> logits(static_cast<std::size_t>(view.n_nodes) * vocab);
    for (std::size_t i = 0; i < logits.size(); ++i)
      logits[i] = static_cast<float>(4 * mixed_unit(seed * 1000 + i));
    std::vector<std::int32_t> row_of(static_cast<std::size_t>(view.n_nodes));
    for (std::size_t i = 0; i < row_of.size(); ++i)
      row_of[i] = static_cast<std::int32_t>(i);
    lazy_rows target(sampling);
    target.reserve(view.n_nodes, vocab);
    target.open({logits.data(), view.n_nodes, vocab}, row_of, 0);
    philox_chance chance(3, 0, seed);
    // The draft's row, from which each drawn token could come.
    const std::vector<float> uniform(vocab, 1.0F / vocab);
    const std::vector<std::int32_t> zero(row_of.size(), 0);
    const node_rows<float> draft{{uniform.data(), 1, vocab}, zero.data()};
    const verdict v = verifier.verify(view, draft, target, chance);
    require_law(v.accepted >= 0 && v.accepted < view.n_nodes, "the verifier accepts node ", v.accepted,
                " of a tree of ", view.n_nodes, " nodes.");
    require_law(v.token >= 0 && v.token < vocab, "the verifier adds token ", v.token, " of a vocabulary of ", vocab,
                ".");
    const auto probability = [&](node_id u, token_id token) { return target.row(u)[static_cast<std::size_t>(token)]; };
    require_law(probability(v.accepted, v.token) > 0, "the verifier adds token ", v.token, " after node ", v.accepted,
                ", which the target gives probability 0.");
    for (const node_id u : path_to(view, v.accepted)) {
      if (u == root_node) continue;
      require_law(probability(view.parent[u], view.token[u]) > 0, "the verifier accepts node ", u, ", whose token ",
                  view.token[u], " the target gives probability 0.");
    }
    target.open({logits.data(), view.n_nodes, vocab}, row_of, 0);
    require_law(verifier.verify(view, draft, target, chance) == v,
                "the verifier says another thing when it is asked again with equal chances.");
  }
}

}  // namespace espalier::testing
