// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <vector>

#include "catch.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "random_tree.hpp"
#include "text_models.hpp"

// The laws of Verifier that hold outcome by outcome (exactness/ has the law of distributions): the verdict is a node and a
// token that the target gives probability, and equal chances give equal verdicts.
template <class VerifierT>
void check_verifier_laws(VerifierT verifier, const espalier::sampling_options& sampling) {
  using namespace espalier;
  constexpr std::int32_t vocab = 5;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    const tree<> t = random_tree(1 + static_cast<int>(seed % 20), seed, vocab, 0.3);
    const tree_view view = t;
    std::vector<float> logits(static_cast<std::size_t>(view.n_nodes) * vocab);
    for (std::size_t i = 0; i < logits.size(); ++i)
      logits[i] = static_cast<float>(4 * models::unit(seed * 1000 + i));
    std::vector<std::int32_t> row_of(static_cast<std::size_t>(view.n_nodes));
    for (std::size_t i = 0; i < row_of.size(); ++i)
      row_of[i] = static_cast<std::int32_t>(i);
    lazy_rows target(sampling);
    target.reserve(view.n_nodes, vocab);
    target.open({logits.data(), view.n_nodes, vocab}, row_of);
    philox_chance chance(3, 0, seed);
    // Draft rows that gave each drawn token its probability.
    const std::vector<float> uniform(vocab, 1.0F / vocab);
    const std::vector<std::int32_t> zero(row_of.size(), 0);
    const node_rows<float> draft{{uniform.data(), 1, vocab}, zero.data()};
    const verdict v = verifier.verify(view, draft, target, chance);
    REQUIRE((v.accepted >= 0 && v.accepted < view.n_nodes));
    REQUIRE((v.token >= 0 && v.token < vocab));
    REQUIRE(target.row(v.accepted)[static_cast<std::size_t>(v.token)] > 0);
    for (const node_id u : path_to(view, v.accepted)) {
      if (u != root_node) REQUIRE(target.row(view.parent[u])[static_cast<std::size_t>(view.token[u])] > 0);
    }
    target.open({logits.data(), view.n_nodes, vocab}, row_of);
    REQUIRE(verifier.verify(view, draft, target, chance) == v);
  }
}
