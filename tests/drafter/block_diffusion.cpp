// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/block_diffusion.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "drafter/states_model.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/processor/banned_sequences.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/verifier/greedy.hpp"
#include "raises.hpp"

using namespace espalier;

static_assert(BlockDrafter<block_diffusion<states_model>>);
static_assert(BlockDrafter<block_diffusion<states_model&>>);
static_assert(FeatureDrafter<block_diffusion<states_model>, states_target>);
static_assert(ProcessingDrafter<block_diffusion<states_model>, float>);
static_assert(FeatureDrafter<factorised<block_diffusion<states_model>&>, states_target>);
static_assert(!FeatureDrafter<block_diffusion<states_model>, models::probe_backend>);
static_assert(RenumberingDrafter<factorised<block_diffusion<states_model>>>);

namespace {

const models::text_model law{.seed = 66};

using text_type = std::vector<token_id>;

template <class DrafterT>
std::vector<std::vector<float>> block_of(DrafterT& drafter) {
  std::vector<std::vector<float>> rows;
  const auto block = drafter.propose_block();
  for (std::int32_t i = 0; i < block.n_rows; ++i)
    rows.emplace_back(block.row(i).begin(), block.row(i).end());
  return rows;
}

std::vector<std::vector<float>> expected_after(const states_model& model, const text_type& text, std::int32_t length) {
  std::vector<std::vector<float>> rows;
  for (std::int32_t i = 0; i < length; ++i)
    rows.push_back(model.marginal(text, i));
  return rows;
}

// Writes a whole text with a policy over the block drafter, failing or resuming on the way; it must be that of plain
// decoding.
template <class PolicyT>
void write_with_faults(PolicyT policy, commit_mode mode, int target_fails, int model_fails) {
  const models::text_model target_law{.seed = 66, .noise = 0.2};
  const text_type prompt{3, 1, 4, 1, 5, 9, 2, 6};
  const auto plain = models::write_plain(target_law, 11, prompt, 90, {.max_tokens = 60});
  states_model model{.vocab = 11, .length = 5, .positions = 100, .law = law, .fail_at = model_fails};
  states_target target(11, target_law);
  target.fail_at = target_fails;
  target.kind = models::fault::throws;
  token_kv kv(90, mode);
  block_diffusion blocks(model);
  factorised drafter(blocks, {.temperature = 1});
  auto decode = make_decoder(drafter, std::move(policy), greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 30});
  int failures = 0, drafted = 0;
  for (int part = 0; part < 2; ++part) {
    for (bool more = true; more;) {
      try {
        more = decode.step();
        if (more) drafted += decode.last_round().accepted();
      } catch (const std::runtime_error&) {
        ++failures;
      }
    }
    if (part == 0) decode.resume({}, {.max_tokens = 30});
  }
  const auto text = decode.current().tokens();
  REQUIRE(text_type(text.begin(), text.end()) == plain.text);
  REQUIRE(failures == (target_fails >= 0 && target_fails < target.calls ? 1 : 0) +
                          (model_fails >= 0 && model_fails < model.passes ? 1 : 0));
  REQUIRE(drafted > 5);
}

}  // namespace

TEST_CASE("the block after a text is the model's, once the states before its last token were read") {
  const states_model model{.law = law};
  block_diffusion drafter(states_model{model});
  drafter.reserve(8);
  CHECK(drafter.vocab_size() == 5);
  CHECK(drafter.block_length() == 4);
  CHECK(drafter.capacity() == 100);
  const text_type text{1, 0, 2, 4, 3};
  drafter.begin(text);
  CHECK(drafter.n_read() == 0);
  espalier::testing::show_states(drafter, {1, 0, 2, 4});
  CHECK(drafter.n_read() == 4);
  CHECK(block_of(drafter) == expected_after(model, text, 4));
  CHECK(block_of(drafter) == expected_after(model, text, 4));  // a round given up leaves no trace
  CHECK(drafter.forward_seconds() > 0);
  block_diffusion shorter(states_model{model}, {.length = 2});
  CHECK(shorter.block_length() == 2);
  shorter.begin(text);
  espalier::testing::show_states(shorter, text);  // one more than it needs
  CHECK(block_of(shorter) == expected_after(model, text, 2));
  CHECK(shorter.n_read() == 4);
}

TEST_CASE("the first row of a block passes through the processor, which knows what may follow the text") {
  struct forbids_two {
    void process(tree_view, node_id u, std::span<const float> logits, std::span<float> out) const {
      REQUIRE(u == root_node);
      std::copy(logits.begin(), logits.end(), out.begin());
      out[2] = -std::numeric_limits<float>::infinity();
    }
    std::optional<token_id> only(tree_view, node_id) const { return std::nullopt; }
  };
  const states_model model{.law = law};
  block_diffusion drafter(states_model{model});
  drafter.reserve(8);
  const text_type text{1, 0, 2};
  drafter.begin(text);
  espalier::testing::show_states(drafter, {1, 0});
  auto expected = expected_after(model, text, 4);
  forbids_two rule;
  drafter.process_rows(row_processor<float>(rule));
  expected[0][2] = -std::numeric_limits<float>::infinity();
  CHECK(block_of(drafter) == expected);
  drafter.process_rows({});
  CHECK(block_of(drafter) == expected_after(model, text, 4));

  // After a row of one token, what may follow it is known, too.
  struct leaves_three_then_not_two {
    void process(tree_view tree, node_id u, std::span<const float> logits, std::span<float> out) const {
      const float never = -std::numeric_limits<float>::infinity();
      std::copy(logits.begin(), logits.end(), out.begin());
      if (only(tree, u))
        std::fill(out.begin(), out.end(), never), out[3] = logits[3];
      else
        out[2] = never;
    }
    std::optional<token_id> only(tree_view tree, node_id u) const {
      REQUIRE((u == root_node || tree.token[u] == 3));
      if (tree.depth[u] < 2) return 3;
      return std::nullopt;
    }
  };
  leaves_three_then_not_two forced;
  expected = expected_after(model, text, 4);
  for (const std::size_t row : {0U, 1U}) {
    const float logit = expected[row][3];
    std::fill(expected[row].begin(), expected[row].end(), -std::numeric_limits<float>::infinity());
    expected[row][3] = logit;
  }
  expected[2][2] = -std::numeric_limits<float>::infinity();
  drafter.process_rows(row_processor<float>(forced));
  CHECK(block_of(drafter) == expected);
  CHECK(block_of(drafter) == expected);

  // In rounds: what the text may not go on with is no node of the tree, and takes no row of the target.
  const models::text_model target_law{.seed = 66, .noise = 0.2};
  states_target target(5, target_law);
  token_kv kv(90);
  block_diffusion blocks(states_model{.length = 4, .positions = 100, .law = law});
  const auto bans = banned_sequences({{0}, {3}, {4}}, 5);
  auto decode = make_decoder(blocks, best_first({.budget = 6, .max_depth = 1}), greedy(), kv, target, {}, bans);
  decode.begin(text_type{1, 2, 1}, {.max_tokens = 30});
  int drafted = 0;
  while (decode.step()) {
    const tree_view tree = decode.last_round().tree;
    for (node_id u = 1; u < tree.n_nodes; ++u, ++drafted)
      CHECK((tree.token[u] == 1 || tree.token[u] == 2));
  }
  CHECK(drafted > 20);
}

TEST_CASE("a new text keeps what was read of the beginning that it has in common") {
  const states_model model{.law = law};
  block_diffusion drafter(states_model{model});
  drafter.reserve(8);
  const text_type text{1, 0, 2, 4, 3, 3};
  drafter.begin(text);
  espalier::testing::show_states(drafter, {1, 0, 2, 4, 3});
  block_of(drafter);
  for (const auto& [next, common] : std::vector<std::pair<text_type, std::int32_t>>{{{1, 0, 2, 4, 3, 3, 1, 1}, 5},
                                                                                    {{1, 0, 2, 4, 3, 2}, 5},
                                                                                    {{1, 0, 2}, 3},
                                                                                    {{1, 0, 4, 4}, 2},
                                                                                    {{2, 0, 4, 4}, 0},
                                                                                    {{4}, 0}}) {
    drafter.begin(next);
    REQUIRE(drafter.n_read() == common);
    espalier::testing::show_states(drafter, {next.begin(), next.end() - 1});
    REQUIRE(block_of(drafter) == expected_after(model, next, 4));
  }
}

TEST_CASE("states of a round that came to nothing are forgotten") {
  const states_model model{.law = law};
  block_diffusion drafter(states_model{model});
  drafter.reserve(8);
  const text_type text{1, 0, 2, 4};
  drafter.begin(text);
  espalier::testing::show_states(drafter, {1, 0, 2});
  block_of(drafter);
  espalier::testing::show_states(drafter, {1, 0, 2, 4, 3, 3});  // accepted, and then the round failed
  CHECK(block_of(drafter) == expected_after(model, text, 4));
  CHECK(drafter.n_read() == 3);
  espalier::testing::show_states(drafter, {1, 0, 2, 4, 3, 3});
  drafter.begin(text_type{1, 0, 2, 4, 2, 2});
  CHECK(drafter.n_read() == 4);  // of what it knows to be text
}

TEST_CASE("drafters that share a model have a context each") {
  states_model model{.law = law};
  block_diffusion one(model), two(model);
  one.reserve(8), two.reserve(8);
  const text_type a{1, 0, 2, 4}, b{2, 2, 0};
  one.begin(a), two.begin(b);
  espalier::testing::show_states(one, {1, 0, 2});
  espalier::testing::show_states(two, {2, 2});
  CHECK(block_of(one) == expected_after(model, a, 4));
  CHECK(block_of(two) == expected_after(model, b, 4));
  CHECK(block_of(one) == expected_after(model, a, 4));
}

TEST_CASE("a block drafter says what it cannot do") {
  CHECK(says(message_of<option_error>([] { block_diffusion d(states_model{}, {.length = 5}); }), "length", "is 5",
             "0 and 4"));
  CHECK(says(message_of<option_error>([] { block_diffusion d(states_model{}, {.length = -1}); }), "is -1"));
  states_model model{.positions = 4, .law = law};
  block_diffusion drafter(model);
  drafter.reserve(8);
  CHECK(says(message_of<input_error>([&] { drafter.propose_block(); }), "a text of 0 tokens"));
  CHECK(says(message_of<input_error>([&] { drafter.begin({}); }), "context is empty"));
  drafter.begin(text_type{1, 0, 2, 4});
  espalier::testing::show_states(drafter, {1, 0});
  CHECK(says(message_of<input_error>([&] { drafter.propose_block(); }), "2 of the 3 tokens"));
  espalier::testing::show_states(drafter, {1, 0, 2});
  CHECK(block_of(drafter) == expected_after(model, {1, 0, 2, 4}, 4));
  // What is beyond its capacity it counts, and does not draft for.
  drafter.begin(text_type{1, 0, 2, 4, 1});
  espalier::testing::show_states(drafter, {1, 0, 2, 4, 1});
  CHECK(drafter.n_read() == 5);
  CHECK(says(message_of<input_error>([&] { drafter.propose_block(); }), "a text of 5 tokens", "1 to 4"));
  tree<> t(0);
  t.reset(1);
  drafter.commit(t, {root_node, 3});
  CHECK(says(message_of<input_error>([&] { drafter.propose_block(); }), "has no next block"));
  drafter.begin(text_type{1, 0, 3});
  CHECK(block_of(drafter) == expected_after(model, {1, 0, 3}, 4));
}

TEST_CASE("a decoder over a block drafter writes the text of plain decoding, whatever fails on the way") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (int n = -1; n < 12; ++n) {
      INFO("fails on call " << n);
      write_with_faults(chain({.length = 6}), mode, n, -1);
      write_with_faults(chain({.length = 6}), mode, -1, n);
      write_with_faults(dynatree({.budget = 20}), mode, n, n / 2);
    }
  }
}

TEST_CASE("a decoder whose text outgrows the block drafter goes on without it") {
  const models::text_model target_law{.seed = 66, .noise = 0.2};
  const text_type prompt{3, 1, 4};
  const auto plain = models::write_plain(target_law, 11, prompt, 70);
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    states_model model{.vocab = 11, .length = 5, .positions = 40, .law = law};
    states_target target(11, target_law);
    token_kv kv(70, mode);
    auto decode = make_decoder(factorised(block_diffusion(model)), chain(), greedy(), kv, target);
    decode.begin(prompt);
    while (decode.step()) {
    }
    const auto text = decode.current().tokens();
    REQUIRE(text_type(text.begin(), text.end()) == plain.text);
    CHECK(model.passes < 40);
    // Nothing is read twice.
    CHECK(target.rows < 40 * 6 + 2 * 70);
  }
}

TEST_CASE("blocks of many texts are drafted in one pass a round, and each text is the one that it is alone") {
  const models::text_model target_law{.seed = 66, .noise = 0.2};
  const auto check = [&](auto policy, auto make_drafter) {
    std::vector<text_type> prompts, expected;
    for (int i = 0; i < 5; ++i) {
      text_type prompt;
      for (int j = 0; j <= 7 * i; ++j)
        prompt.push_back((i * 5 + j * 3) % 11);
      expected.push_back(models::write_plain(target_law, 11, prompt, 90, {.max_tokens = 25}).text);
      prompts.push_back(prompt);
    }
    states_model model{.vocab = 11, .length = 5, .positions = 100, .law = law};
    states_target target(11, target_law);
    token_kv kv(90, commit_mode::compact, 3);
    auto drafter = make_drafter(model);
    auto decode = make_batch_decoder(drafter, policy, greedy(), kv, target, {.max_texts = 3});
    for (const text_type& prompt : prompts)
      decode.add(prompt, {.max_tokens = 25});
    std::size_t ended = 0;
    while (!decode.idle()) {
      const int before = model.passes;
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        if (e.round.state == status::running) continue;
        const auto tokens = decode.current(e.id).tokens();
        CHECK(text_type(tokens.begin(), tokens.end()) == expected[static_cast<std::size_t>(e.id)]);
        ++ended;
      }
      CHECK(model.passes <= before + 1);
    }
    CHECK(ended == prompts.size());
  };
  check(best_first(), [](states_model& model) { return block_diffusion<states_model&>(model); });
  check(dynatree(), [](states_model& model) { return factorised(block_diffusion<states_model&>(model)); });
}
