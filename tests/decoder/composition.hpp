// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "text_models.hpp"
#include "untyped.hpp"

// What a decoder is made of in these tests, apart from the types of its policy and verifier.
struct setting {
  std::int32_t vocab = 11;
  models::text_model target{};
  models::text_model draft{};
  std::int32_t context = 96;
  std::int32_t draft_context = 96;
  espalier::commit_mode target_mode = espalier::commit_mode::compact;
  espalier::commit_mode draft_mode = espalier::commit_mode::compact;
  espalier::sampling_options draft_sampling{.temperature = 1};
  espalier::decoder_options options{.text = {.seed = 0}};
};

// A decoder with all its parts in reach, which after each round looks whether text, caches and record agree.
template <class PolicyT, class VerifierT = espalier::greedy, class ProbeT = models::probe_backend>
struct composition {
  composition(PolicyT policy, const setting& s, ProbeT target_probe, ProbeT draft_probe, VerifierT verifier = {})
      : kv(s.context, s.target_mode),
        draft_kv(s.draft_context, s.draft_mode),
        target(std::move(target_probe)),
        draft(std::move(draft_probe)),
        drafter(draft, draft_kv, s.draft_sampling),
        decode(drafter, std::move(policy), std::move(verifier), kv, target, s.options) {}
  composition(PolicyT policy, const setting& s, VerifierT verifier = {})
      : composition(std::move(policy), s, ProbeT(s.vocab, s.target), ProbeT(s.vocab, s.draft), std::move(verifier)) {}
  composition(const composition&) = delete;

  // Steps once and checks. Whatever step throws passes through.
  bool step() {
    const std::vector<models::token_id> before(text().begin(), text().end());
    if (!decode.step(models::piece_of)) return false;
    const espalier::round_record& r = decode.last_round();
    const auto now = text();
    consistent = consistent && std::equal(before.begin(), before.end(), now.begin());
    if (r.committed.empty()) {  // a part of the prompt was read
      consistent = consistent && now.size() == before.size();
      check_caches(false);
      return true;
    }
    consistent = consistent && now.size() == before.size() + r.committed.size();
    consistent = consistent && std::equal(r.committed.begin(), r.committed.end(), now.end() - std::ssize(r.committed));
    consistent = consistent && r.accepted() == r.tree.depth[r.decision.accepted];
    consistent = consistent && r.decision.token == now.back() && r.state == decode.current().state();
    consistent = consistent && r.tree.token[0] == before.back();
    for (espalier::node_id u = r.decision.accepted; u > 0; u = r.tree.parent[u])
      consistent = consistent && now[before.size() + static_cast<std::size_t>(r.tree.depth[u]) - 1] == r.tree.token[u];
    check_caches();
    return true;
  }

  // Every committed row of a cache is the token of the text that belongs there; the last token is in none.
  void check_caches(bool read = true) {
    const auto now = text();
    for (espalier::token_kv* cache : {&kv, &draft_kv}) {
      consistent = consistent && cache->size(0) < static_cast<std::int32_t>(now.size());
      for (std::int32_t i = 0; consistent && i < cache->size(0); ++i)
        consistent = cache->token(0, i) == now[static_cast<std::size_t>(i)];
    }
    // A store that compacts, or that was given the leading rows, lacks the pending token alone.
    if (read && kv.compacts()) consistent = consistent && kv.size(0) == static_cast<std::int32_t>(now.size()) - 1;
  }

  void run() {
    while (step()) {
    }
  }

  std::span<const models::token_id> text() const { return decode.current().tokens(); }
  std::vector<models::token_id> copy() const { return {text().begin(), text().end()}; }

  espalier::token_kv kv;
  espalier::token_kv draft_kv;
  ProbeT target;
  ProbeT draft;
  espalier::autoregressive<ProbeT&, espalier::token_kv&> drafter;
  espalier::decoder<decltype(drafter)&, PolicyT, VerifierT, espalier::token_kv&, ProbeT&> decode;
  bool consistent = true;
};

inline espalier::dynatree_options first_paper(std::int32_t budget) {
  espalier::dynatree_options o = espalier::dynatree_options::first_paper();
  o.budget = budget;
  return o;
}

// Calls f with one policy after the other, and its name: policies in settings that make unlike trees.
template <class CallT>
void for_each_policy(const CallT& f) {
  f(espalier::plain(), "plain");
  f(untyped(espalier::chain()), "chain of 5");
  f(untyped(espalier::chain({.length = 1})), "chain of 1");
  f(untyped(espalier::fixed({.depth = 3, .breadth = 2, .budget = 64})), "fixed 3 x 2");
  f(untyped(espalier::fixed({.depth = 4, .breadth = 5, .budget = 23})), "fixed 4 x 5 cut at 23");
  f(untyped(espalier::dynatree()), "dynatree");
  f(untyped(espalier::dynatree({.budget = 2})), "dynatree of 2");
  f(untyped(espalier::dynatree(first_paper(40))), "dynatree, first paper");
}

// The same text whatever the draft: a good one, one that strays, one that knows nothing, one that is always wrong.
inline std::vector<models::text_model> drafts_of(const models::text_model& target) {
  models::text_model noisy = target, blind = target, adverse = target;
  noisy.noise = 0.6;
  blind.blind = true;
  adverse.scale = -target.scale;
  return {target, noisy, blind, adverse};
}
