// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/feature_steps.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "drafter/feature_model.hpp"
#include "drafter/states_model.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/processor/banned_sequences.hpp"
#include "espalier/sampling/sampler.hpp"
#include "espalier/testing/feature_step_drafter_laws.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/verifier/greedy.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

using model_type = feature_model<>;
using text_type = std::vector<token_id>;

static_assert(FeatureStepDrafter<feature_steps<model_type>, states_target>);
static_assert(FeatureStepDrafter<feature_steps<model_type&>, states_target>);
static_assert(!FeatureStepDrafter<feature_steps<model_type>, models::probe_backend>);
static_assert(RenumberingDrafter<feature_steps<model_type>>);
static_assert(SharedDrafter<feature_steps<model_type>>);
static_assert(ProcessingDrafter<feature_steps<model_type>, float>);

// The distribution of a row of logits at temperature 1.
std::vector<float> distribution(const std::vector<float>& logits) {
  std::vector<float> row(logits.size());
  sampler<float> sample({.temperature = 1.0F});
  sample.reserve(static_cast<std::int32_t>(row.size()));
  sample.probabilities(logits, row, 0);
  return row;
}

// Writes a whole text with trees over the head, failing and resuming on the way; it must be that of plain decoding.
template <class PolicyT>
void write_with_faults(PolicyT policy, commit_mode mode, int target_fails, int head_fails) {
  const models::text_model law{.seed = 66, .noise = 0.2};
  const text_type prompt{3, 1, 4, 1, 5, 9, 2, 6};
  const auto plain = models::write_plain(law, 11, prompt, 90, {.max_tokens = 60});
  model_type head{.vocab = 11, .few = {0, 2, 3, 5, 7, 8, 9}, .fail_at = head_fails, .most_rows = 3};
  states_target target(11, law);
  target.fail_at = target_fails;
  target.kind = models::fault::throws;
  token_kv kv(90, mode);
  feature_steps drafter(head);
  auto decode = make_decoder(drafter, std::move(policy), greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 30});
  int failures = 0;
  for (int part = 0; part < 2; ++part) {
    for (bool more = true; more;) {
      try {
        more = decode.step();
      } catch (const std::runtime_error&) {
        ++failures;
      }
    }
    if (part == 0) decode.resume({}, {.max_tokens = 30});
  }
  const auto text = decode.current().tokens();
  REQUIRE(text_type(text.begin(), text.end()) == plain.text);
  REQUIRE(failures == (target_fails >= 0 && target_fails < target.calls ? 1 : 0) +
                          (head_fails >= 0 && head_fails < head.passes ? 1 : 0));
}

}  // namespace

TEST_CASE("the laws of a feature step drafter: whole and reduced vocabularies, many rows a pass and few") {
  for (const int most_rows : {320, 3}) {
    for (const text_type& few : {text_type{}, text_type{0, 2, 3}, text_type{4}}) {
      const model_type model{.few = few, .most_rows = most_rows};
      espalier::testing::check_feature_step_drafter(
          [&] { return feature_steps(model_type(model)); },
          [&](std::span<const token_id> text, std::span<const float> states, std::span<const token_id> path) {
            return distribution(model.expected(text, states, path));
          });
    }
  }
}

TEST_CASE("the laws of a step drafter") {
  const model_type model{.few = {1, 2, 4}};
  espalier::testing::check_step_drafter(
      [&] { return feature_steps(model_type(model)); },
      [&](const text_type& text, const text_type& path) {
        return distribution(model.expected(text, std::vector<float>(text.begin(), text.end() - 1), path));
      });
}

TEST_CASE("a token outside the head's vocabulary has probability 0, before, while and after a processor has the rows") {
  const model_type model{.few = {1, 2, 4}};
  feature_steps drafter{model_type(model)};
  drafter.reserve(4);
  const text_type text{1, 0, 2};
  struct likes_zero {
    void process(tree_view, node_id, std::span<const float> logits, std::span<float> out) {
      std::copy(logits.begin(), logits.end(), out.begin());
      out[0] = 100, out[2] = -std::numeric_limits<float>::infinity();
    }
    std::optional<token_id> only(tree_view, node_id) { return std::nullopt; }
  } with;
  tree<> t(4);
  t.reset(2);
  for (int round = 0; round < 3; ++round) {
    drafter.begin(text);
    espalier::testing::show_states(drafter, text);
    drafter.process_rows(round == 1 ? row_processor<float>(with) : row_processor<float>());
    drafter.propose(t, std::vector<node_id>{root_node});
    const auto row = drafter.rows().row(root_node);
    CHECK(row[0] == (round == 1 ? 1.0F : 0.0F));
    CHECK(row[3] == 0.0F);
    CHECK((row[2] > 0) == (round != 1));
  }
}

TEST_CASE("whole texts of every kind of policy are those of plain decoding, whoever fails") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (int fails = -1; fails < 14; ++fails) {
      write_with_faults(chain({.length = 4}), mode, fails, 20 - fails);
      write_with_faults(best_first({.budget = 9}), mode, fails, 2 + fails);
      write_with_faults(dynatree({.budget = 9}), mode, fails, 5 + fails);
    }
  }
}

TEST_CASE("trees of many texts are drafted together, and each text is the one that it is alone") {
  const models::text_model law{.seed = 66, .noise = 0.2};
  const auto check = [&](auto policy) {
    std::vector<text_type> prompts, expected;
    for (int i = 0; i < 5; ++i) {
      text_type prompt;
      for (int j = 0; j <= 7 * i; ++j)
        prompt.push_back((i * 5 + j * 3) % 11);
      expected.push_back(models::write_plain(law, 11, prompt, 90, {.max_tokens = 25}).text);
      prompts.push_back(prompt);
    }
    model_type head{.vocab = 11, .few = {0, 2, 3, 5, 7, 8, 9}, .most_rows = 64};
    states_target target(11, law);
    token_kv kv(90, commit_mode::compact, 3);
    feature_steps drafter(head);
    auto decode = make_batch_decoder(drafter, policy, greedy(), kv, target, {.max_texts = 3});
    for (const text_type& prompt : prompts)
      decode.add(prompt, {.max_tokens = 25});
    std::size_t ended = 0;
    while (!decode.idle()) {
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        if (e.round.state == status::running) continue;
        const auto tokens = decode.current(e.id).tokens();
        CHECK(text_type(tokens.begin(), tokens.end()) == expected[static_cast<std::size_t>(e.id)]);
        ++ended;
      }
    }
    CHECK(ended == prompts.size());
  };
  check(best_first({.budget = 7}));
  check(dynatree({.budget = 7}));
}

TEST_CASE("what cannot be drafted from is refused by a sentence") {
  model_type model{.positions = 6};
  feature_steps drafter(model);
  tree<> t(4);
  t.reset(1);
  const std::vector<node_id> root{root_node};
  const auto propose = [&] { drafter.propose(t, root); };
  CHECK(says(message_of<input_error>(propose), "the drafter is asked before reserve() has made room"));
  drafter.reserve(4);
  CHECK(says(message_of<input_error>([&] { drafter.begin({}); }), "the context is empty"));
  drafter.begin(text_type{1, 2, 3});
  CHECK(says(message_of<input_error>(propose),
             "has read the target's hidden states of 0 of the 2 tokens before the pending one."));
  drafter.begin(text_type{1, 2, 3, 0, 1, 2, 3});
  espalier::testing::show_states(drafter, {1, 2, 3, 0, 1, 2});
  CHECK(says(message_of<input_error>(propose),
             "a text of 7 tokens cannot be gone on from: the draft head follows 1 to 6."));
}
