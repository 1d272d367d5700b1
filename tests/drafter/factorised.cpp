// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/factorised.hpp"
#include "espalier/decoder/grow.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "drafter/conditioned_drafters.hpp"
#include "drafter/marginal_drafter.hpp"
#include "drafter/states_model.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
const std::vector<node_id> root{root_node};

// A chain of two nodes and their sibling below the root.
tree<> small_tree() {
  tree<> t(6);
  t.reset(1);
  t.append(root_node, 2, 0);
  t.append(1, 0, 0);
  t.append(root_node, 0, 0);
  return t;
}

std::vector<float> as_vector(std::span<const float> row) {
  return {row.begin(), row.end()};
}

// A model of block_diffusion that corrects its rows by the token before.
struct biased_model : states_model {
  void correct(std::int32_t, tree_view tree, node_id u, std::span<float> row) { add_bias(tree.token[u], row); }
};
// A model that could correct its rows, but says that it does not.
struct unbiased_model : biased_model {
  bool corrects() const { return false; }
};
static_assert(ConditionedBlockDrafter<biased_drafter<float>> && !ConditionedBlockDrafter<marginal_drafter<float>>);
static_assert(ConditionedBlockDrafter<block_diffusion<biased_model>> &&
              !ConditionedBlockDrafter<block_diffusion<states_model>>);

// What a world's draft says of each depth, whatever the path: minus infinity where it is 0.
template <class BlockT = marginal_drafter<double>>
BlockT block_of(const espalier::testing::tiny_model& w, std::int32_t length) {
  return {w.vocab, length, [&w](std::span<const token_id>, std::int32_t place) {
            std::vector<double> row = w.draft(std::vector<token_id>(static_cast<std::size_t>(place), 0));
            for (double& p : row)
              p = std::log(p);
            return row;
          }};
}

// How far the first n tokens are from the target's distribution when a round over the block drafter begins them.
template <class BlockT = marginal_drafter<double>, class PolicyT, class VerifierT>
double bias(const espalier::testing::tiny_model& w, PolicyT policy, VerifierT verifier, std::int32_t length,
            std::int64_t& outcomes) {
  constexpr std::size_t n = 4;
  espalier::testing::text_distribution expected, law;
  espalier::testing::continue_with(w.target, {}, 1.0, n, expected);
  factorised drafter(block_of<BlockT>(w, length));
  drafter.reserve(policy.max_nodes());
  const std::vector<token_id> text{0};
  drafter.begin(text);
  tree<> grown(policy.max_nodes());
  enumerating_chance chance;
  do {
    PolicyT fresh = policy;
    grown.reset(0);
    espalier::grow(fresh, grown, drafter, chance);
    const tree_view view = grown;
    espalier::testing::detail::target_rows<double> target;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      std::vector<token_id> path;
      for (node_id a = u; a != root_node; a = view.parent[a])
        path.insert(path.begin(), view.token[a]);
      target.rows.push_back(w.target(path));
    }
    const verdict v = verifier.verify(view, drafter.rows(), target, chance);
    std::vector<token_id> emitted{v.token};
    for (node_id a = v.accepted; a != root_node; a = view.parent[a])
      emitted.insert(emitted.begin(), view.token[a]);
    espalier::testing::continue_with(w.target, emitted, chance.probability(), n, law);
    ++outcomes;
  } while (chance.next());
  return espalier::testing::largest_difference(law, expected).size();
}

}  // namespace

TEST_CASE("Drafter laws: factorised over a block drafter, read or not") {
  const sampling_options sampling{.temperature = 0.8F, .top_k = 4};
  const states_model model{.vocab = 5, .length = 3, .law = {.seed = 64}};
  const auto expected = [&](const std::vector<token_id>& text, const std::vector<token_id>& path) {
    std::vector<float> row(5);
    const std::int32_t place = std::min(static_cast<std::int32_t>(path.size()), model.length - 1);
    sampler(sampling).probabilities(model.marginal(text, place), row, 0);
    return row;
  };
  const auto make = [&] {
    return factorised(
        marginal_drafter<float>(
            5, 3, [&](std::span<const token_id> text, std::int32_t place) { return model.marginal(text, place); }),
        sampling);
  };
  testing::check_step_drafter(make, expected);
  const auto make_reading = [&] { return factorised(block_diffusion(states_model(model)), sampling); };
  testing::check_step_drafter(make_reading, expected);
  const auto make_uncorrected = [&] { return factorised(block_diffusion(unbiased_model{{model}}), sampling); };
  testing::check_step_drafter(make_uncorrected, expected);
}

TEST_CASE("Drafter laws: factorised over a block drafter that corrects its rows by path, read or not") {
  const sampling_options sampling{.temperature = 0.8F, .top_k = 4};
  const states_model model{.vocab = 5, .length = 3, .law = {.seed = 64}};
  const auto expected = [&](const std::vector<token_id>& text, const std::vector<token_id>& path) {
    std::vector<float> row(5);
    const std::int32_t place = std::min(static_cast<std::int32_t>(path.size()), model.length - 1);
    std::vector<float> logits = model.marginal(text, place);
    add_bias<float>(path.empty() ? text.back() : path.back(), logits);
    sampler(sampling).probabilities(logits, row, 0);
    return row;
  };
  const auto make = [&] {
    return factorised(
        biased_drafter<float>(
            5, 3, [&](std::span<const token_id> text, std::int32_t place) { return model.marginal(text, place); }),
        sampling);
  };
  testing::check_step_drafter(make, expected);
  const auto make_reading = [&] { return factorised(block_diffusion(biased_model{model}), sampling); };
  testing::check_step_drafter(make_reading, expected);
}

TEMPLATE_TEST_CASE(
    "one round over a block whose rows are corrected by path, or of some tokens alone, or both, writes "
    "the target's distribution to 1e-12",
    "", biased_drafter<double>, refining_drafter<double>, choosing_drafter<double>,
    narrow_drafter<marginal_drafter<double>>, narrow_drafter<biased_drafter<double>>) {
  using block = TestType;
  std::int64_t outcomes = 0;
  for (const espalier::testing::tiny_model& w : espalier::testing::tiny_models()) {
    INFO(w.name);
    // Other worlds have rows of the draft with a single possible token, which these blocks may leave out.
    const auto is = [&](const char* name) { return w.name.find(name) == 0; };
    constexpr bool in_all =
        std::is_same_v<block, biased_drafter<double>> || std::is_same_v<block, refining_drafter<double>>;
    if (!in_all && (w.vocab < 3 || !(is("unlike") || is("p = q") || is("zeros in p") || is("ties")))) continue;
    for (const std::int32_t length : {1, 3}) {
      REQUIRE(bias<block>(w, sampled_chain({.length = 3}), block_verification(), length, outcomes) < 1e-12);
      REQUIRE(bias<block>(w, iid_paths({.paths = 2, .length = 2}), specinfer(), length, outcomes) < 1e-12);
      REQUIRE(bias<block>(w, delayed({.paths = 2, .trunk = 1, .length = 1}), traversal(), length, outcomes) < 1e-12);
      REQUIRE(bias<block>(w, dyspec_greedy({.budget = 4}), residual_walk(), length, outcomes) < 1e-12);
      REQUIRE(bias<block>(w, dynatree({.budget = 6, .base_depth = 2, .max_depth = 2}), target_only(), length,
                          outcomes) < 1e-12);
      REQUIRE(bias<block>(w, best_first({.budget = 5}), target_only(), length, outcomes) < 1e-12);
    }
  }
  CHECK(outcomes > 5000);
}

TEST_CASE("Drafter laws: factorised over a block of some tokens' columns, corrected or not") {
  const sampling_options sampling{.temperature = 0.8F, .top_k = 3};
  const states_model model{.vocab = 5, .length = 3, .law = {.seed = 64}, .few = {4, 0, 2, 3}};
  const auto expected = [&](bool corrects) {
    return [&, corrects](const std::vector<token_id>& text, const std::vector<token_id>& path) {
      const std::int32_t place = std::min(static_cast<std::int32_t>(path.size()), model.length - 1);
      const std::vector<float> all = model.marginal(text, place);
      std::vector<float> few, wide(5, minus_infinity), row(5);
      for (const token_id t : model.few)
        few.push_back(all[static_cast<std::size_t>(t)]);
      if (corrects) add_bias<float>(path.empty() ? text.back() : path.back(), few);
      for (std::size_t i = 0; i < few.size(); ++i)
        wide[static_cast<std::size_t>(model.few[i])] = few[i];
      sampler(sampling).probabilities(wide, row, 0);
      return row;
    };
  };
  const auto make = [&] { return factorised(block_diffusion(states_model(model)), sampling); };
  testing::check_step_drafter(make, expected(false));
  const auto make_corrected = [&] { return factorised(block_diffusion(biased_model{model}), sampling); };
  testing::check_step_drafter(make_corrected, expected(true));
}

TEST_CASE("a block's columns are tokens again where a processor makes the rows, and rows after it have no rest of it") {
  for (const bool corrects : {false, true}) {
    biased_model model{{.vocab = 5, .length = 2, .law = {.seed = 66}, .few = {3, 0}}};
    const std::vector<token_id> text{2};
    const tree<> t = small_tree();
    const auto check = [&](auto drafter) {
      drafter.reserve(6);
      struct {
        void process(tree_view, node_id, std::span<const float> from, std::span<float> to) const {
          for (std::size_t i = 0; i < to.size(); ++i)
            to[i] = from[i] == minus_infinity ? -1.0F : from[i];
        }
        std::optional<token_id> only(tree_view, node_id) const { return std::nullopt; }
      } rule;
      const auto row_of_root = [&] {
        drafter.begin(text);
        drafter.propose(t, root);
        return as_vector(drafter.rows().row(root_node));
      };
      const std::vector<float> before = row_of_root();
      CHECK(before[1] == 0);
      drafter.process_rows(row_processor<float>(rule));
      const std::vector<float> processed = row_of_root();
      CHECK(processed[1] > 0);
      CHECK(processed[1] == processed[2]);
      drafter.process_rows({});
      CHECK(row_of_root() == before);
    };
    if (corrects) {
      check(factorised(block_diffusion(model)));
    } else {
      check(factorised(block_diffusion(static_cast<states_model&>(model))));
    }
  }
}

TEST_CASE("chain and best_first over a block of some tokens' columns draft these tokens") {
  narrow_drafter<marginal_drafter<float>> block(4, 2, [](std::span<const token_id>, std::int32_t place) {
    return place == 0 ? std::vector<float>{1, 9, 3, 2} : std::vector<float>{5, 9, 0, 4};
  });
  const std::vector<token_id> text{0};
  block.begin(text);
  const auto tokens_of = [&](auto policy) {
    tree<> grown(policy.max_nodes());
    grown.reset(0);
    enumerating_chance chance;
    espalier::grow(policy, grown, block, chance);
    const tree_view view = grown;
    std::vector<token_id> drafted;
    for (node_id u = 1; u < view.n_nodes; ++u)
      drafted.push_back(view.token[u]);
    return drafted;
  };
  CHECK(tokens_of(chain({.length = 2})) == std::vector<token_id>{2, 0});
  CHECK(tokens_of(best_first({.budget = 3})) == std::vector<token_id>{2, 0, 3});
}

TEST_CASE("a block of another shape than its drafter says is an error, whoever asks for it") {
  struct wrong_block : marginal_drafter<float> {
    using marginal_drafter<float>::marginal_drafter;
    vocab_rows<float> shape{};
    vocab_rows<float> propose_block() { return shape; }
  };
  const std::vector<float> numbers(12, 0.0F);
  wrong_block block(3, 2, [](std::span<const token_id>, std::int32_t) { return std::vector<float>(3); });
  const tree<> t = small_tree();
  for (const vocab_rows<float> wrong :
       {vocab_rows<float>{numbers.data(), 3, 3}, {numbers.data(), -1, 3}, {numbers.data(), 2, 4}}) {
    block.shape = wrong;
    const std::string expected =
        "proposes " + std::to_string(wrong.n_rows) + " rows of " + std::to_string(wrong.vocab) + " logits";
    CHECK(says(message_of<input_error>([&] { ask(block, t, root, 6); }), expected, "0 to 2 rows of 3"));
    factorised reading{wrong_block(block)};
    reading.reserve(6);
    CHECK(says(message_of<input_error>([&] { reading.propose(t, root); }), expected, "1 to 2 rows of 3"));
  }
  block.shape = {numbers.data(), 0, 3};
  CHECK(ask(block, t, root, 6).logits.n_rows == 0);
  factorised nothing{wrong_block(block)};
  nothing.reserve(6);
  CHECK(says(message_of<input_error>([&] { nothing.propose(t, root); }), "proposes 0 rows of 3 logits"));
}

TEST_CASE("a round makes one block, and a row a depth whoever asks for it") {
  marginal_drafter<float> block(3, 2, [](std::span<const token_id> text, std::int32_t place) {
    const auto x = static_cast<float>(text.size());
    return std::vector<float>{x, static_cast<float>(place), 0};
  });
  factorised drafter(block);
  drafter.reserve(6);
  CHECK(drafter.vocab_size() == 3);
  CHECK(drafter.capacity() == block.capacity());
  const std::vector<token_id> text{2, 1};
  drafter.begin(text);
  const tree<> t = small_tree();
  drafter.propose(t, root);
  const std::vector<node_id> layer{1, 3}, deepest{2};
  drafter.propose(t, layer);
  CHECK(drafter.rows().row(1).data() == drafter.rows().row(3).data());
  // Below the block its last marginal is repeated.
  drafter.propose(t, deepest);
  CHECK(drafter.rows().row(2).data() == drafter.rows().row(1).data());
  CHECK(block.passes == 1);
  CHECK(drafter.rows().has(3));
  std::vector<float> expected(3);
  softmax(std::vector<float>{2, 1, 0}, 1.0F, expected, 0);
  CHECK(as_vector(drafter.rows().row(1)) == expected);
  softmax(std::vector<float>{2, 0, 0}, 1.0F, expected, 0);
  CHECK(as_vector(drafter.rows().row(root_node)) == expected);
  drafter.commit(t, {2, 1});
  CHECK_FALSE(drafter.rows().has(root_node));
  drafter.propose(t, root);
  CHECK(block.passes == 2);
  softmax(std::vector<float>{5, 0, 0}, 1.0F, expected, 0);
  CHECK(as_vector(drafter.rows().row(root_node)) == expected);
}

TEST_CASE("rows follow the nodes of a tree that is built anew") {
  factorised drafter(marginal_drafter<float>(3, 3, [](std::span<const token_id>, std::int32_t place) {
    return std::vector<float>{0, 1, static_cast<float>(place)};
  }));
  drafter.reserve(6);
  const std::vector<token_id> text{1};
  drafter.begin(text);
  const tree<> t = small_tree();
  drafter.propose(t, root);
  const std::vector<node_id> asked{1, 2};
  drafter.propose(t, asked);
  const std::vector<float> first = as_vector(drafter.rows().row(1)), second = as_vector(drafter.rows().row(2));
  REQUIRE(first != second);
  drafter.renumber(std::vector<node_id>{0, no_node, 1, 2});
  const auto rows = drafter.rows();
  CHECK(rows.has(0));
  CHECK_FALSE(rows.has(1));
  CHECK(as_vector(rows.row(2)) == first);
  CHECK(as_vector(rows.row(3)) == second);
  CHECK_FALSE(rows.has(4));
}

TEST_CASE("minus infinity is a token of probability 0, for every way of sampling") {
  const std::vector<float> logits{1, minus_infinity, 0, minus_infinity};
  for (const sampling_options& sampling :
       {sampling_options{.temperature = 1}, sampling_options{.temperature = 100}, sampling_options{.temperature = 0},
        sampling_options{.temperature = 1, .top_k = 3}, sampling_options{.temperature = 1, .top_p = 0.9999F},
        sampling_options{.temperature = 1, .min_p = 0.01F}}) {
    factorised drafter(marginal_drafter<float>(4, 1, [&](std::span<const token_id>, std::int32_t) { return logits; }),
                       sampling);
    drafter.reserve(1);
    const std::vector<token_id> text{1};
    drafter.begin(text);
    tree<> t(1);
    t.reset(1);
    drafter.propose(t, root);
    const auto row = drafter.rows().row(root_node);
    CHECK(row[0] > 0);
    CHECK((row[2] > 0) == (sampling.temperature > 0));
    CHECK(row[1] == 0);
    CHECK(row[3] == 0);
    CHECK(std::abs(row[0] + row[2] - 1) < 1e-6F);
  }
}

TEST_CASE("a marginal that is no distribution is an error of its round, when it is asked for") {
  std::vector<float> last;
  factorised drafter(marginal_drafter<float>(3, 2, [&](std::span<const token_id>, std::int32_t place) {
    return place == 0 ? std::vector<float>{0, 0, 0} : last;
  }));
  drafter.reserve(6);
  const std::vector<token_id> text{1};
  const tree<> t = small_tree();
  const std::vector<node_id> child{1};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    last = {0, bad, 0};
    drafter.begin(text);
    drafter.propose(t, root);
    CHECK(says(message_of<numeric_error>([&] { drafter.propose(t, child); }),
               "the draft's logit of token 1 in row 1 of the block"));
  }
  last = {minus_infinity, minus_infinity, minus_infinity};
  drafter.begin(text);
  drafter.propose(t, root);
  CHECK(says(message_of<numeric_error>([&] { drafter.propose(t, child); }),
             "all of the draft's logits in row 1 of the block are minus infinity"));
  last = {0, 0, 0};
  drafter.begin(text);
  drafter.propose(t, root);
  drafter.propose(t, child);
  CHECK(drafter.rows().row(1)[0] > 0.3F);
}

TEST_CASE(
    "one round over a block drafter writes the target's distribution to 1e-12: sampled policies with their verifiers") {
  std::int64_t outcomes = 0;
  for (const espalier::testing::tiny_model& w : espalier::testing::tiny_models()) {
    INFO(w.name);
    for (const std::int32_t length : {1, 3}) {
      REQUIRE(bias(w, sampled_chain({.length = 3}), block_verification(), length, outcomes) < 1e-12);
      REQUIRE(bias(w, iid_paths({.paths = 2, .length = 2}), spectr(), length, outcomes) < 1e-12);
      REQUIRE(bias(w, delayed({.paths = 2, .trunk = 1, .length = 1}), traversal(), length, outcomes) < 1e-12);
      REQUIRE(bias(w, dyspec_greedy({.budget = 4}), residual_walk(), length, outcomes) < 1e-12);
      REQUIRE(bias(w, dyspec_threshold({.budget = 4, .max_depth = 3, .threshold = 0.1, .adapt = false}),
                   traversal_without_replacement(), length, outcomes) < 1e-12);
      REQUIRE(bias(w, dynatree({.budget = 6, .base_depth = 2, .max_depth = 2}), target_only(), length, outcomes) <
              1e-12);
    }
  }
  CHECK(outcomes > 10000);
}

TEST_CASE(
    "two rounds of a decoder over a block drafter write the target's distribution to 1e-12, both ways of committing") {
  const std::vector<token_id> prompt{0, 0, 0};
  constexpr std::size_t n = 3;
  std::int64_t outcomes = 0;
  for (const espalier::testing::tiny_model& w : espalier::testing::tiny_models()) {
    if (w.vocab > 2) continue;
    espalier::testing::text_distribution expected;
    espalier::testing::continue_with(w.target, {}, 1.0, n, expected);
    const auto check = [&](auto policy, auto verifier, commit_mode mode) {
      // Each text has marginals of its own.
      marginal_drafter<double> marginals(w.vocab, 2, [&](std::span<const token_id> text, std::int32_t place) {
        std::vector<token_id> path(text.begin() + 2, text.end());
        path.insert(path.end(), static_cast<std::size_t>(place), 1);
        std::vector<double> row = w.draft(path);
        for (double& p : row)
          p = std::log(p);
        return row;
      });
      text_backend target(w.vocab, [&](std::span<const token_id> text, std::span<double> logits) {
        const std::vector<double> row = w.target(text.subspan(prompt.size()));
        for (std::size_t t = 0; t < row.size(); ++t)
          logits[t] = std::log(row[t]);
      });
      auto decode = make_decoder(factorised(marginals), policy, verifier, token_kv(16, mode), target,
                                 {.text = {.sampling = {.temperature = 1}}});
      espalier::testing::text_distribution law;
      enumerating_chance chance;
      do {
        decode.begin(prompt, {.max_tokens = 5});
        decode.step_with(chance);
        decode.step_with(chance);
        const auto written = decode.current().written();
        espalier::testing::continue_with(w.target, {written.begin(), written.end()}, chance.probability(), n, law);
        ++outcomes;
      } while (chance.next());
      REQUIRE(espalier::testing::largest_difference(law, expected).size() < 1e-12);
    };
    INFO(w.name);
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      check(sampled_chain({.length = 3}), block_verification(), mode);
      check(delayed({.paths = 2, .trunk = 1, .length = 1}), spectr(), mode);
      check(dyspec_greedy({.budget = 3}), residual_walk(), mode);
    }
  }
  CHECK(outcomes > 3000);
}

TEST_CASE("no round over a block drafter allocates, from the first on, also where the text outgrows it") {
  const models::text_model law{.seed = 65};
  states_model model{.vocab = 11, .length = 6, .positions = 200, .law = law};
  states_target target(11, law);
  token_kv kv(330);
  block_diffusion blocks(model);
  factorised drafter(blocks, {.temperature = 1, .top_k = 5});
  auto decode = make_decoder(drafter, dynatree({.budget = 40}), greedy(), kv, target);
  // Model and target of this test take memory when they first see a large batch.
  forward_batch largest;
  largest.begin_sequence(0, 0, 320);
  for (std::int32_t i = 0; i < 320; ++i)
    largest.add_row(0, i, i, true);
  target.forward(kv, largest.view());
  model.blocks.emplace_back().reserve(11 * 6);
  model.text.reserve(330);
  const std::vector<token_id> prompt{3, 1, 4, 1, 5};
  decode.begin(prompt, {});
  int rounds = 0;
  allocation_count count;
  while (decode.step())
    ++rounds;
  const std::int64_t allocations = count.so_far();
  CHECK(rounds > 10);
  CHECK(allocations == 0);
}

TEST_CASE("factorised is asked about nodes that there is room for, each once and after its parent") {
  factorised drafter(marginal_drafter<float>(
      3, 2, [](std::span<const token_id>, std::int32_t) { return std::vector<float>(3, 0.0F); }));
  const tree<> t = small_tree();
  const auto said = [&](std::vector<node_id> nodes) {
    return message_of<input_error>([&] { drafter.propose(t, nodes); });
  };
  CHECK(says(said({0}), "reserve()"));
  drafter.reserve(2);
  drafter.begin(std::vector<token_id>{2, 1});
  CHECK(says(said({1}), "node 1 before its parent, node 0"));
  CHECK(said({0}).empty());
  CHECK(says(said({-1}), "node -1", "nodes 0 to 3"));
  CHECK(says(said({4}), "node 4", "nodes 0 to 3"));
  CHECK(says(said({3}), "node 3", "room for the nodes 0 to 2"));
  CHECK(says(said({1, 0}), "the root", "alone"));
  CHECK(said({0}).empty());
  CHECK(says(said({2}), "node 2 before its parent, node 1"));
  CHECK(says(said({1, 1}), "node 1 twice"));
  CHECK(said({0}).empty());
  CHECK(said({1, 2}).empty());
}
