// SPDX-License-Identifier: BSL-1.0
// The code of docs/guide.md: a backend, a policy and a verifier of one's own, and decoders made of them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/constraint/regular_expression.hpp"
#include "espalier/constraint/vocabulary_trie.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/processor/constrained.hpp"
#include "espalier/processor/penalties.hpp"
#include "espalier/processor/processors.hpp"
#include "espalier/sampling/top_k.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/traversal.hpp"
#include "espalier/verifier/walk/residual.hpp"

using namespace espalier;

// [backend]
// Copies: after a token it expects what followed the same few tokens earlier in the text.
struct copying_backend {
  std::size_t memory;  // tokens that must match

  std::int32_t vocab_size() const { return 128; }

  logits_view forward(token_kv& kv, forward_batch_view batch) {
    logits.assign(batch.outputs.size() * 128, 0.0F);
    std::size_t output = 0;
    for (const batch_sequence& s : batch.sequences) {
      for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
        const auto r = static_cast<std::size_t>(row);
        kv.token(s.sequence, batch.slots[r]) = batch.tokens[r];  // "keys and values" of the row
        if (output == batch.outputs.size() || batch.outputs[output] != row) continue;
        std::vector<token_id> seen;  // the whole prefix, then what the mask shows of this round
        for (std::int32_t slot = 0; slot < s.prefix; ++slot)
          seen.push_back(kv.token(s.sequence, slot));
        const std::span<const std::uint32_t> mask = batch.mask_of(s, row);
        for (std::int32_t j = 0; j < 32 * s.mask_words; ++j) {
          if (mask[static_cast<std::size_t>(j / 32)] >> (j % 32) & 1U)
            seen.push_back(kv.token(s.sequence, s.prefix + j));
        }
        score(seen, &logits[output++ * 128]);
      }
    }
    return {logits.data(), static_cast<std::int32_t>(batch.outputs.size()), 128};
  }

  void score(std::span<const token_id> seen, float* row) const;
  std::vector<float> logits;
};
// [backend]

void copying_backend::score(std::span<const token_id> seen, float* row) const {
  for (std::size_t end = 1; end < seen.size(); ++end) {
    std::size_t match = 0;
    while (match < memory && match < end && seen[end - 1 - match] == seen[seen.size() - 1 - match])
      ++match;
    row[seen[end]] = std::max(row[seen[end]], static_cast<float>(match));
  }
}

// [policy]
// A chain of the most probable tokens; each of its nodes has one alternative, which stays a leaf.
class caterpillar {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit caterpillar(std::int32_t length) : length_(length) { require_option("length", length, 1, 64); }

  std::int32_t max_nodes() const { return 2 * length_; }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    u_ = root_node;
    return tree.full() ? std::span<const node_id>() : std::span(&u_, 1);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT&) {
    candidate<NumberT> best[2];
    const std::int32_t found = top_k(rows.row(u_), std::span(best));
    const node_id parent = u_;
    for (std::int32_t c = 0; c < found && !tree.full(); ++c) {
      const auto log_prob = static_cast<float>(std::log(best[c].probability));
      const node_id child = tree.append(parent, best[c].token, log_prob);
      if (c == 0) u_ = child;
    }
    const bool ends = found == 0 || tree.full() || tree.view().depth[u_] == length_;
    return ends ? std::span<const node_id>() : std::span(&u_, 1);
  }

  void observe(tree_view, verdict) const {}

 private:
  std::int32_t length_;
  node_id u_ = root_node;  // the end of the chain
};
// [policy]

// [verifier]
// Speculative sampling: each token of a path is accepted with min(1, p / q); in place of the first
// that is refused comes one of those that the target wants more than the draft does.
struct one_path {
  static constexpr regime lossless = regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    for (node_id u = root_node;;) {
      const auto p = target.row(u);
      const chance_key own{u, 0, purpose::residual};
      if (tree.is_leaf(u)) return {u, chance.pick(p, own)};
      const auto q = draft.row(u);
      const node_id child = *tree.draws(u).begin();
      const auto x = static_cast<std::size_t>(tree.token[child]);
      if (!chance.accept(p[x], q[x], {u, 0, purpose::accept})) {
        const token_id token = chance.pick(residual(p, q).after(1), own);
        return {u, token >= 0 ? token : chance.pick(p, own)};  // -1: nothing is left but for rounding
      }
      u = child;
    }
  }
};
// [verifier]

const std::string_view song =
    "row, row, row your boat, gently down the stream. merrily, merrily, merrily, merrily, life is but a dream. row, ";
const std::vector<token_id> prompt(song.begin(), song.end());

template <class DrafterT, class PolicyT>
std::string write(DrafterT& drafter, const PolicyT& policy, statistics& stats) {
  // [compose]
  token_kv cache(1024, commit_mode::compact);
  auto decode = make_decoder(drafter, policy, greedy(), cache, copying_backend{8, {}});
  std::string written;
  for (const token_id t : decode.generate(prompt, {.max_tokens = 100}, stats))
    written += static_cast<char>(t);
  // [compose]
  return written;
}

std::string write_with_two() {
  // [cascade]
  joint drafters(autoregressive(copying_backend{3, {}}, token_kv(1024)), prompt_lookup({.max_ngram = 5}));
  token_kv cache(1024);
  auto decode = make_decoder(drafters, cascade(eagle2({.budget = 12}), chain({.length = 10})), greedy(), cache,
                             copying_backend{8, {}});
  // [cascade]
  const auto tokens = decode.generate(prompt, {.max_tokens = 100});
  return {tokens.begin(), tokens.end()};
}

std::string sample(std::uint64_t seed, statistics& stats) {
  // [sampling]
  const sampling_options sampling{.temperature = 0.6F, .top_p = 0.95F};
  autoregressive drafter(copying_backend{3, {}}, token_kv(1024), sampling);
  token_kv cache(1024);
  auto decode = make_decoder(drafter, iid_paths({.paths = 2, .length = 4}), traversal(), cache, copying_backend{8, {}},
                             {.text = {.sampling = sampling, .seed = seed}});
  // [sampling]
  const auto tokens = decode.generate(prompt, {.max_tokens = 100}, stats);
  return {tokens.begin(), tokens.end()};
}

std::string write_a_date() {
  autoregressive drafter(copying_backend{3, {}}, token_kv(1024));
  token_kv cache(1024);
  // [constrain]
  std::vector<std::string> pieces(128);  // the bytes of each token; here it is one, but for 0, which ends texts
  for (std::size_t token = 1; token < 128; ++token)
    pieces[token] = static_cast<char>(token);
  const vocabulary_trie vocabulary(pieces, {0});
  processors process(penalties({.presence = 0.5}),
                     constrained(regular_expression("(Mon|Tue|Wed)day, \\d{1,2} May", vocabulary)));
  auto decode = make_decoder(drafter, caterpillar(6), greedy(), cache, copying_backend{8, {}}, {}, process);
  decode.begin(prompt, {.max_tokens = 100, .tokens = {0}});
  while (decode.step()) {
  }
  // [constrain]
  const auto written = decode.current().written();
  return {written.begin(), written.end() - 1};
}

std::string sample_one_path() {
  // [prove]
  std::cout << testing::check_lossless(sampled_chain({.length = 3}), one_path());
  // [prove]
  // [check]
  std::cout << testing::check_verifier(one_path());
  std::cout << testing::check_tree_policy(caterpillar(6));
  // [check]
  autoregressive drafter(copying_backend{3, {}}, token_kv(1024), {.temperature = 0.6F});
  token_kv cache(1024);
  auto decode = make_decoder(drafter, sampled_chain(), one_path(), cache, copying_backend{8, {}},
                             {.text = {.sampling = {.temperature = 0.6F}}});
  const auto tokens = decode.generate(prompt, {.max_tokens = 100});
  return {tokens.begin(), tokens.end()};
}

std::string write_by_costs() {
  // [costs]
  autoregressive drafter(copying_backend{3, {}}, token_kv(1024));
  copying_backend target{8, {}};
  token_kv cache(1024);
  const cost_model costs = measure_costs(drafter, target, cache, {.target = "long memory", .draft = "short memory"});
  auto decode = make_decoder(drafter, cost_aware({.budget = 24}, costs), greedy(), cache, target);
  // [costs]
  const auto tokens = decode.generate(prompt, {.max_tokens = 100});
  return {tokens.begin(), tokens.end()};
}

std::string write_runs_by_costs() {
  copying_backend target{8, {}};
  token_kv cache(1024);
  // [runs]
  const cost_model target_alone = measure_costs(target, cache);
  auto look_up = make_decoder(prompt_lookup(), cost_aware({}, target_alone), greedy(), cache, target);
  // [runs]
  const auto tokens = look_up.generate(prompt, {.max_tokens = 100});
  return {tokens.begin(), tokens.end()};
}

int main() {
  no_drafter none;
  autoregressive drafter(copying_backend{3, {}}, token_kv(1024));
  statistics plainly, speculating, sampling;
  const std::string expected = write(none, plain(), plainly);
  const std::string written = write(drafter, caterpillar(6), speculating);
  std::printf("%s\n%.2f tokens a target pass, plain decoding %.2f\n", written.c_str(), speculating.tokens_per_round(),
              plainly.tokens_per_round());
  const std::string sampled = sample(7, sampling);
  std::printf("\n%s\n%.2f tokens a target pass\n\n%s\n", sampled.c_str(), sampling.tokens_per_round(),
              sample_one_path().c_str());
  const std::string date = write_a_date();
  std::printf("\n%s\n", date.c_str());
  return written == expected && date.find("day, ") == 3 && date.substr(date.size() - 4) == " May" &&
                 write_with_two() == expected && write_by_costs() == expected && write_runs_by_costs() == expected &&
                 sample(7, sampling) == sampled
             ? 0
             : 1;
}
