// SPDX-License-Identifier: BSL-1.0
// A text that the window of its cache slides over, by enumeration: it is distributed as plain decoding over the same
// window writes it.
#include <iostream>
#include <vector>

#include "catch.hpp"
#include "decoder/windowed_tokens.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/traversal.hpp"
#include "logits_of_rows.hpp"

using namespace espalier;
using namespace espalier::testing;

namespace {

using tokens = std::vector<token_id>;

std::int64_t outcomes = 0;

template <class PolicyT, class VerifierT>
void check(PolicyT policy, VerifierT verifier) {
  constexpr std::int32_t vocab = 2;
  constexpr std::size_t n = 4;
  const tiny_model::row_function p = irregular(100, vocab, 0, 0), q = irregular(200, vocab, 0, 0);
  text_backend target(vocab, logits_of_rows{p});
  text_backend draft(vocab, logits_of_rows{q});
  for (const tokens& prompt : {tokens{0}, tokens{0, 1, 1}}) {
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      const sink_window_options window{.sinks = 1, .window = 1, .block = 2, .scratch = 8, .commit = mode};
      const sink_window_options draft_window{.sinks = 0, .window = 2, .block = 1, .scratch = 8, .commit = mode};
      text_distribution expected, written;
      const auto row_of = [&](std::span<const token_id> path) {
        tokens text(prompt);
        text.insert(text.end(), path.begin(), path.end());
        return p(window_of(text, window));
      };
      continue_with(row_of, {}, 1.0, n, expected);
      enumerating_chance chance;
      do {
        windowed_tokens kv(window), draft_kv(draft_window);
        autoregressive drafter(draft, draft_kv);
        auto decode = make_decoder(drafter, policy, verifier, kv, target, {.text = {.sampling = {.temperature = 1}}});
        decode.begin(prompt, {.max_tokens = static_cast<std::int32_t>(n)});
        while (decode.step_with(chance)) {
        }
        const auto text = decode.current().written();
        written[tokens(text.begin(), text.end())] += chance.probability();
        ++outcomes;
      } while (chance.next());
      CHECK(written.size() == expected.size());
      CHECK(largest_difference(written, expected).size() < 1e-12);
    }
  }
}

}  // namespace

TEST_CASE("a text over a sliding window is distributed as plain decoding over it writes") {
  check(dyspec_greedy({.budget = 3}), residual_walk());
  check(delayed({.paths = 2, .trunk = 1, .length = 1}), traversal());
  check(sampled_chain({.length = 3}), block_verification());
  std::cout << "texts over a window: " << outcomes << " outcomes, 0 failing\n";
  CHECK(outcomes > 10000);
}
