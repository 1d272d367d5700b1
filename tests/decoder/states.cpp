// SPDX-License-Identifier: BSL-1.0
// What a policy may look at before it grows: where the text ends, and what both models say there.
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "decoder/showing_backend.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/decoder/model_states.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;
using models::showing_backend;

namespace {

using drafter_type = autoregressive<showing_backend&, token_kv&>;
static_assert(detail::KeepsStates<drafter_type>);

// Grows delayed trees of changing sizes, and checks what it is told against the models themselves.
struct looking {
  static constexpr regime sampling = delayed::sampling;

  const text* writer = nullptr;
  showing_backend plain_target{11, {}}, plain_draft{11, {.noise = 0.3}};
  round_start start{};
  std::vector<float> logits{}, hidden{};
  delayed paths{};
  int opened = 0, known = 0, draft_known = 0;

  bool reads_states() const { return true; }
  std::int32_t max_nodes() const { return 9; }

  // The logits after a text.
  static std::vector<float> row_after(showing_backend& model, std::span<const token_id> text) {
    token_kv kv(200);
    prefill chain;
    const auto row = chain.run(model, kv, 0, text, 1, [](std::int32_t, std::int32_t) {}).row(0);
    return {row.begin(), row.end()};
  }

  void open(const round_start& now) {
    start = now;
    ++opened;
  }

  void read(std::span<const float> row, std::span<const float> state) {
    logits.assign(row.begin(), row.end());
    hidden.assign(state.begin(), state.end());
  }

  static void require_state(const model_state<float>& state, showing_backend& model, std::span<const token_id> text) {
    std::vector<float> row = row_after(model, text);
    softmax(std::span<const float>(row), 0.7F, std::span<float>(row), 0);
    REQUIRE(std::equal(row.begin(), row.end(), state.row.begin(), state.row.end()));
    const auto expected = showing_backend::state_of(showing_backend::key_of(text));
    REQUIRE(std::equal(expected.begin(), expected.end(), state.hidden.begin(), state.hidden.end()));
  }

  // The text when the round began.
  std::span<const token_id> tokens() const { return writer->tokens(); }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    REQUIRE(start.length == static_cast<std::int32_t>(tokens().size()));
    REQUIRE(start.sampling.temperature == 0.9F);
    if (start.read) {
      ++known;
      REQUIRE(logits == row_after(plain_target, tokens().first(tokens().size() - 1)));
      const auto expected = showing_backend::state_of(showing_backend::key_of(tokens().first(tokens().size() - 1)));
      REQUIRE(std::equal(expected.begin(), expected.end(), hidden.begin(), hidden.end()));
    }
    // Some rounds leave the draft unasked, some ask about every node but the last of a path, some about the root alone.
    const int kind = opened % 4;
    if (kind == 0) return {};
    paths = delayed({.paths = 2, .trunk = kind == 1 ? 0 : 1, .length = kind});
    return paths.begin(tree);
  }

  void read_draft(const model_state<float>& root, const model_state<float>& previous) {
    require_state(root, plain_draft, tokens());
    if (previous.row.empty()) return;
    ++draft_known;
    require_state(previous, plain_draft, tokens().first(tokens().size() - 1));
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    return paths.take(tree, rows, chance);
  }

  void observe(tree_view, verdict) const {}
};

struct observed {
  explicit observed(commit_mode mode) : kv(200, mode), draft_kv(200, mode) {
    decode.policy().writer = &decode.current();
  }
  token_kv kv, draft_kv;
  showing_backend target{11, {}}, draft{11, {.noise = 0.3}};
  drafter_type drafter{draft, draft_kv, {.temperature = 0.7F}};
  decoder<drafter_type&, looking, traversal, token_kv&, showing_backend&> decode = make_decoder(
      drafter, looking(), traversal(), kv, target, {.text = {.sampling = {.temperature = 0.9F}, .seed = 5}});
};

}  // namespace

TEST_CASE("a policy is told what both models say before the pending token", "[decoder]") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    observed c(mode);
    const std::vector<token_id> prompt{1, 2, 3};
    c.decode.begin(prompt, {.max_tokens = 60});
    while (c.decode.step()) {
    }
    const int rounds = c.decode.policy().opened;
    CHECK(c.decode.policy().known == rounds - 1);        // all but the first
    CHECK(c.decode.policy().draft_known >= rounds / 2);  // wherever the draft was asked, and there was room
    // More text in between: what was read is of another place.
    const std::vector<token_id> more{4, 5};
    c.decode.resume(more, {.max_tokens = 8});
    c.decode.step();
    CHECK_FALSE(c.decode.policy().start.read);
    c.decode.step();
    CHECK(c.decode.policy().start.read);
    // Nothing in between: the policy may have served another text since.
    c.decode.resume({}, {.max_tokens = 8});
    c.decode.step();
    CHECK_FALSE(c.decode.policy().start.read);
    c.decode.begin(prompt, {.max_tokens = 8});
    c.decode.step();
    CHECK_FALSE(c.decode.policy().start.read);
  }
}

TEST_CASE("a round that fails leaves a policy with what is true of the text", "[decoder]") {
  for (int fail_at = 1; fail_at < 40; ++fail_at) {
    observed c(commit_mode::compact);
    (fail_at % 2 == 0 ? c.target : c.draft).fail_at = fail_at / 2;
    c.decode.begin(std::vector<token_id>{1, 2, 3}, {.max_tokens = 30});
    int failed = 0;
    for (bool more = true; more;) {
      try {
        more = c.decode.step();
      } catch (const std::runtime_error&) {
        ++failed;
      }
    }
    CHECK(failed <= 1);
    CHECK(c.decode.policy().known > 0);
  }
}
