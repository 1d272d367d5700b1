// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/decoder/grow.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "archetypes/drafter.hpp"
#include "catch.hpp"
#include "drafter/fixed_drafters.hpp"
#include "drafter/lookup_decoder.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/tree_policy_laws.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/verifier/target_only.hpp"
#include "raises.hpp"

using namespace espalier;
using text_type = std::vector<token_id>;

namespace {

// Policies that keep what they are told.
struct recording_chain : chain {
  using chain::chain;
  std::vector<std::int32_t> depths{};
  int resets = 0;
  std::int32_t length = 0;
  void open(round_start start) { length = start.length; }
  void observe(tree_view tree, verdict v) { depths.push_back(tree.depth[v.accepted]); }
  void reset() { ++resets; }
};

struct counting_chain : recording_chain {
  using recording_chain::recording_chain;
  std::vector<std::int32_t> limits{};
  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    limits.push_back(tree.limit());
    return recording_chain::begin(tree);
  }
};

// Asks about the root again and again.
struct asks_again {
  static constexpr regime sampling = regime::deterministic;
  node_id root = root_node;
  std::int32_t max_nodes() const { return 4; }
  template <class TreeT>
  std::span<const node_id> begin(TreeT&) {
    return {&root, 1};
  }
  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT&, const node_rows<NumberT>&, ChanceT&) {
    return {&root, 1};
  }
  void observe(tree_view, verdict) const {}
};

// Asks about both of the root's best tokens and keeps the second alone.
struct picky {
  static constexpr regime sampling = regime::deterministic;
  std::int32_t max_nodes() const { return 1; }
  std::int32_t max_asked() const { return 2; }
  std::span<const node_id> was() const { return std::span(was_).first(n_was); }
  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    limit_seen = tree.limit();
    n_was = 0;
    wanted[0] = root_node;
    return std::span(wanted).first(1);
  }
  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>&, ChanceT&) {
    if (tree.limit() < 2) return {};
    if (tree.size() == 1) {
      wanted[0] = tree.append(root_node, 3, 0), wanted[1] = tree.append(root_node, 5, 0);
      return wanted;
    }
    tree.reset(tree.view().token[0], tree.limit());
    tree.append(root_node, 5, -1);
    n_was = 2;
    return {};
  }
  void observe(tree_view, verdict) const {}
  std::int32_t limit_seen = 0;
  node_id wanted[2] = {}, was_[2] = {root_node, 2};
  std::size_t n_was = 0;
};

// The most probable token after t is t + 1, then t + 2, and so on.
std::vector<double> rising(std::span<const token_id> path) {
  std::vector<double> row(8);
  for (std::size_t i = 0; i < 8; ++i)
    row[(static_cast<std::size_t>(path.back()) + 1 + i) % 8] = static_cast<double>(1 << (7 - i)) / 255;
  return row;
}

// A drafter of rows that can hold so many tokens.
struct short_rows : testing::row_drafter {
  using testing::row_drafter::row_drafter;
  std::int32_t most = 1 << 20;
  std::int32_t capacity() const { return most; }
};

// What a policy has learnt, as bytes.
template <class PolicyT>
std::vector<std::byte> learnt_by(PolicyT policy) {
  std::vector<std::byte> bytes;
  byte_writer archive(bytes, "a policy", 1);
  policy.serialize(archive);
  return bytes;
}

// A cascade as one policy over a drafter that is no joint, for the suite of laws.
template <class PolicyT>
struct over_one {
  static constexpr regime sampling = PolicyT::sampling;
  PolicyT policy;
  fixed_run run{};
  std::int32_t max_nodes() const { return policy.max_nodes(); }
  std::int32_t max_asked() const { return policy.max_asked(); }
  std::span<const node_id> was() const { return policy.was(0); }
  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    const std::int32_t rooms[] = {1 << 20, 1 << 20};
    policy.limit_parts(rooms);
    return policy.begin(tree);
  }
  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    auto wanted = policy.template take<0>(tree, rows, chance);
    while (!wanted.empty() && policy.part() == 1) {
      const token_run answer = run.propose_run(tree.limit());
      wanted = policy.template take<1>(tree, answer, chance);
    }
    return wanted;
  }
  void observe(tree_view tree, verdict v) { policy.observe(tree, v); }
};

static_assert(TreePolicy<cascade<chain>, joint<archetypes::sequence_drafter>, philox_chance>);
static_assert(TreePolicy<cascade<dynatree, chain>, joint<testing::row_drafter, fixed_run&>, philox_chance>);
static_assert(
    !TreePolicy<cascade<dynatree, chain>, joint<fixed_run, testing::row_drafter>, philox_chance>);  // in another order
static_assert(!TreePolicy<cascade<dynatree, chain>, joint<testing::row_drafter>, philox_chance>);
// One drafter is a joint of one part.
static_assert(TreePolicy<cascade<chain>, testing::row_drafter, philox_chance>);
static_assert(TreePolicy<chain, joint<testing::row_drafter>, philox_chance>);
static_assert(!TreePolicy<chain, joint<testing::row_drafter, fixed_run>, philox_chance>);
static_assert(!TreePolicy<chain, joint<>, philox_chance>);
// parts() needs the other members of a policy of several parts.
struct parts_alone : chain {
  std::tuple<const chain&> parts() const { return {*this}; }
};
static_assert(!TreePolicy<parts_alone, testing::row_drafter, philox_chance>);

}  // namespace

TEST_CASE("a cascade joins nodes of the same path, the first policy's first") {
  testing::row_drafter rows(8, rising);
  fixed_run first{.run = {1, 2, 4, 4}};
  fixed_run second{.run = {2, 3, 4}};
  joint drafters(rows, first, second);
  drafters.begin(text_type{0});
  cascade policy(fixed({.depth = 2, .breadth = 2, .budget = 6}), chain({.length = 4}), chain({.length = 2}));
  CHECK(policy.max_nodes() == 12);
  CHECK(policy.max_asked() == 12);
  const tree<> t = grown(policy, drafters);
  // 0 -> {1 -> {2, 3}, 2 -> {3, 4}}; of 1 2 4 4 the first two are there, and of 2 3 both.
  CHECK(text_of(t) == "0>1 0>2 1>2 1>3 2>3 2>4 3>4 7>4");
  const tree_view view = t;
  CHECK(std::abs(view.log_prob[3] - std::log(128.0F / 255)) < 1e-6F);
  CHECK(view.log_prob[7] == 0.0F);
  CHECK(view.path_log_prob[8] == view.path_log_prob[3]);
  CHECK(first.reserved == 12);
  // The rows that were asked for are where their nodes are now.
  for (node_id u = 0; u < view.n_nodes; ++u) {
    REQUIRE(rows.rows().has(u) == (u <= 2));
    if (u <= 2) REQUIRE(rows.rows().row(u)[static_cast<std::size_t>((view.token[u] + 1) % 8)] == 128.0 / 255);
  }
}

TEST_CASE("a cascade tells a step drafter where its nodes went, though it was not the first to draft") {
  testing::row_drafter rows(8, rising);
  fixed_run run{.run = {2, 3, 7}};
  joint drafters(run, rows);
  drafters.begin(text_type{0});
  cascade policy(chain({.length = 3}), fixed({.depth = 2, .breadth = 2, .budget = 6}));
  const tree<> t = grown(policy, drafters);
  const tree_view view = t;
  CHECK(text_of(t) == "0>2 1>3 2>7 0>1 4>2 4>3 1>4");
  for (node_id u = 0; u < view.n_nodes; ++u) {
    const bool asked = u == 0 || u == 1 || u == 4;
    REQUIRE(rows.rows().has(u) == asked);
    if (asked) REQUIRE(rows.rows().row(u)[static_cast<std::size_t>((view.token[u] + 1) % 8)] == 128.0 / 255);
  }
  // A member that builds its tree anew itself: node 1 of it was its node 2, and is now the second.
  fixed_run seven{.run = {7}};
  joint others(seven, rows);
  others.begin(text_type{0});
  cascade anew(chain({.length = 1}), picky());
  CHECK(anew.max_nodes() == 2);
  const tree<> small = grown(anew, others);
  CHECK(text_of(small) == "0>7 0>5");
  CHECK_FALSE(rows.rows().has(1));
  CHECK(rows.rows().row(2)[6] == 128.0 / 255);
}

TEST_CASE("a cascade keeps to the tree's limit, and gives each policy its own") {
  testing::row_drafter rows(8, rising);
  fixed_run run{.run = {5, 5, 5, 5}};
  joint drafters(run, rows);
  drafters.begin(text_type{0});
  cascade two(chain({.length = 4}), fixed({.depth = 1, .breadth = 2, .budget = 2}));
  CHECK(text_of(grown(two, drafters, 6)) == "0>5 1>5 2>5 3>5 0>1 0>2");
  CHECK(text_of(grown(two, drafters, 5)) == "0>5 1>5 2>5 3>5 0>1");
  CHECK(text_of(grown(two, drafters, 3)) == "0>5 1>5 2>5");
  CHECK(text_of(grown(two, drafters, 0)).empty());
  cascade asks(chain({.length = 1}), picky());
  CHECK(asks.max_asked() == 2);
  grown(asks, drafters, 1);
  CHECK(std::get<1>(asks.parts()).limit_seen == 1);
}

TEST_CASE("TreePolicy laws: cascades") {
  testing::check_tree_policy(over_one<cascade<dynatree, chain>>{cascade(dynatree({.budget = 20}), chain())});
  testing::check_tree_policy(
      over_one<cascade<fixed, chain>>{cascade(fixed({.depth = 2, .breadth = 7, .budget = 33}), chain())});
}

TEST_CASE("a policy of a cascade is held to asking about the root once a round") {
  testing::row_drafter rows(8, rising);
  fixed_run run{.run = {2}};
  joint drafters(run, rows);
  drafters.begin(text_type{0});
  cascade policy(chain({.length = 1}), asks_again());
  CHECK(says(message_of<input_error>([&] { grown(policy, drafters); }), "node 0, the root, twice in one round"));
}

TEST_CASE("a cascade tells each policy where a round stands, lets it observe the merged tree, and resets it") {
  token_kv kv(60);
  text_backend backend(circling_vocab, circling_model{71, 1});
  fixed_run none;
  auto decode =
      make_decoder(joint(none, prompt_lookup()),
                   cascade(recording_chain({.length = 1}), recording_chain({.length = 3})), greedy(), kv, backend);
  std::vector<std::int32_t> depths;
  decode.begin(text_type{3, 1, 4});
  while (decode.step())
    depths.push_back(decode.last_round().accepted());
  const auto& first = std::get<0>(decode.policy().parts());
  const auto& second = std::get<1>(decode.policy().parts());
  CHECK(first.depths == depths);
  CHECK(second.depths == depths);
  CHECK(*std::max_element(depths.begin(), depths.end()) == 3);
  CHECK(first.resets == 1);
  CHECK(second.resets == 1);
  // The last round began before what it wrote.
  const auto length = static_cast<std::int32_t>(decode.current().size() - depths.back() - 1);
  CHECK(first.length == length);
  CHECK(second.length == length);
}

TEST_CASE("greedy text with cascades equals plain decoding: drafters x commit modes x orders x models") {
  const text_type prompt{3, 1, 4, 1, 5};
  for (const circling_model target : {circling_model{71, 1}, circling_model{72, 2}, circling_model{73, 100}}) {
    const text_type expected = write_alone(target, prompt, 96);
    const circling_model stranger{target.seed + 9, target.order};
    for (const circling_model& drafting : {target, stranger}) {
      for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
        for (const commit_mode draft_mode : {commit_mode::compact, commit_mode::truncate}) {
          for (const node_order order : {node_order::insertion, node_order::heavy_path}) {
            for (const std::int32_t draft_context : {1, 6, 40, 96}) {
              text_backend draft(circling_vocab, drafting), other(circling_vocab, stranger);
              token_kv draft_kv(draft_context, draft_mode), other_kv(96, draft_mode);
              autoregressive model(draft, draft_kv), second(other, other_kv);
              const auto check = [&](auto drafters, auto policy) {
                const auto written = write_over(drafters, policy, target, prompt, 96, mode, order);
                REQUIRE(written.text == expected);
                // What the draft's cache holds is the text.
                for (std::int32_t i = 0; i < draft_kv.size(0); ++i)
                  REQUIRE(draft_kv.token(0, i) == expected[static_cast<std::size_t>(i)]);
                for (std::int32_t i = 0; i < other_kv.size(0); ++i)
                  REQUIRE(other_kv.token(0, i) == expected[static_cast<std::size_t>(i)]);
                // The lookup goes on where the draft model's cache has ended.
                if (target.order == 1) REQUIRE(written.accepted > 50);
              };
              check(joint(model, prompt_lookup()), cascade(dynatree({.budget = 30}), chain()));
              check(joint(prompt_lookup(), model), cascade(chain({.length = 8}), fixed({.depth = 2, .breadth = 3})));
              check(joint(second, ngram(), model), cascade(dynatree({.budget = 12}), chain(), chain({.length = 3})));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("a cascade asks its draft model for no row more than the model's policy alone would") {
  const circling_model target{72, 100};
  const text_type prompt{3, 1, 4, 1, 5};
  const auto rows_of = [&](auto make_drafters, auto policy) {
    models::probe_backend draft(circling_vocab, {.seed = 5});
    token_kv draft_kv(96);
    autoregressive model(draft, draft_kv);
    auto&& drafters = make_drafters(model);
    write_over(drafters, policy, target, prompt, 96);
    return std::pair(draft.rows, draft.calls);
  };
  const fixed_run none;
  const auto alone = rows_of([](auto& model) { return joint(model); }, cascade(dynatree({.budget = 20})));
  CHECK(rows_of([&](auto& model) { return joint(fixed_run(none), model); },
                cascade(chain(), dynatree({.budget = 20}))) == alone);
  CHECK(rows_of(
            [](auto& model) -> auto& { return model; }, dynatree({.budget = 20})) == alone);
}

TEST_CASE("a cascade writes the target's text by sampling, too, whoever drafts") {
  const text_type prompt{3, 1, 4, 1, 5};
  const auto write = [&](auto drafter, auto policy) {
    token_kv kv(96);
    text_backend backend(circling_vocab, circling_model{71, 1});
    auto decode = make_decoder(drafter, policy, target_only(), kv, backend,
                               {.text = {.sampling = {.temperature = 0.05F, .top_k = 1}, .seed = 4}});
    const auto text = decode.generate(prompt);
    return text_type(text.begin(), text.end());
  };
  const text_type expected = write_alone({71, 1}, prompt, 96);
  CHECK(write(joint(prompt_lookup(), ngram()), cascade(chain(), chain())) ==
        text_type(expected.begin() + std::ssize(prompt), expected.end()));
}

TEST_CASE("a cascade goes on after a draft model or target that fails") {
  const text_type prompt{3, 1, 4, 1, 5};
  const models::text_model target{.seed = 71};
  const text_type expected = models::write_plain(target, 11, prompt, 60).text;
  for (int fail_at = 0; fail_at < 12; ++fail_at) {
    for (const bool draft_fails : {false, true}) {
      token_kv kv(60), draft_kv(60);
      models::probe_backend backend(11, target), draft(11, {.seed = 71, .noise = 0.3});
      models::probe_backend& failing = draft_fails ? draft : backend;
      failing.fail_at = fail_at, failing.kind = models::fault::throws;
      auto decode = make_decoder(joint(prompt_lookup(), autoregressive(draft, draft_kv)),
                                 cascade(chain(), dynatree({.budget = 20})), greedy(), kv, backend);
      decode.begin(prompt);
      REQUIRE(written_past_one_failure(decode) == expected);
    }
  }
}

TEST_CASE("joints and cascades that cannot be are errors") {
  testing::row_drafter eight(8, rising), nine(9, rising);
  CHECK(says(message_of<input_error>([&] { joint drafters(eight, prompt_lookup(), nine); }), "8 tokens", "9"));
  CHECK(joint(eight, prompt_lookup()).vocab_size() == 8);
  struct endless : chain {
    std::int32_t max_nodes() const { return 1 << 24; }
  };
  CHECK(says(message_of<option_error>([&] {
               cascade policy{endless(), chain()};
             }),
             "nodes of the cascade is 16777221"));
}

TEST_CASE("no round of a cascade allocates") {
  const text_type prompt{3, 1, 4, 1, 5};
  token_kv kv(200), draft_kv(150);
  models::probe_backend backend(11, {.seed = 51}), draft(11, {.seed = 51, .noise = 0.4});
  // These backends take memory when they first see a large batch.
  forward_batch batch;
  batch.begin_sequence(0, 0, 150);
  for (std::int32_t i = 0; i < 150; ++i)
    batch.add_row(0, i, i, true);
  backend.inner.forward(kv, batch.view());
  draft.inner.forward(draft_kv, batch.view());
  auto decode = make_decoder(joint(autoregressive(draft, draft_kv), prompt_lookup(), ngram()),
                             cascade(dynatree({.budget = 30}), chain(), chain({.length = 9})), greedy(), kv, backend);
  decode.begin(prompt);
  int rounds = 0;
  const allocation_count count;
  while (decode.step())
    ++rounds;
  CHECK(count.so_far() == 0);
  CHECK(rounds > 10);
}

TEST_CASE("a chain in a cascade is as long as lately accepted of what it drafted itself", "[cascade]") {
  testing::row_drafter flat(4, [](std::span<const token_id>) { return std::vector<double>(4, 0.25); });
  fixed_run run{.run = {3, 3, 3, 3, 3, 3}};
  joint drafters(flat, run);
  cascade both(adaptive_chain({.length = 3, .max_length = 9, .confidence = 0}), chain());
  philox_chance chance(1, 0, 0);
  tree<> t(both.max_nodes());
  drafters.reserve(both.max_nodes());
  const token_id text[] = {0};
  drafters.begin(text);
  for (const int length : {3, 5, 7}) {
    t.reset(0);
    espalier::grow(both, t, drafters, chance);
    REQUIRE(std::get<0>(both.parts()).length() == length);
    REQUIRE(t.size() > length + 1);
    node_id end = root_node;
    for (int i = 0; i < length; ++i)
      end = t.view().find_child(end, 0);
    both.observe(t, {end, 1});
  }
  t.reset(0);
  espalier::grow(both, t, drafters, chance);
  both.observe(t, {root_node, 1});
  CHECK(std::get<0>(both.parts()).length() == 8);
}

TEST_CASE("what another policy of a cascade adds does not count as cost_aware's own drafts") {
  cost_aware alone;
  cascade together(cost_aware(), chain({.length = 2}));
  testing::row_drafter rows(8, rising);
  joint drafters(testing::row_drafter(8, rising), fixed_run{.run = {6, 6}});
  std::size_t deepest = 0;
  for (int round = 0; round < 60; ++round) {
    // The root is token 0: the model's tokens 1, 2, .. are right, those of the run never.
    const tree<> own = grown(alone, rows), merged = grown(together, drafters);
    REQUIRE(merged.size() == own.size() + 2);
    node_id end = root_node;
    for (node_id next; (next = own.view().find_child(end, own.view().depth[end] + 1)) != no_node;)
      end = next;
    deepest = (std::max)(deepest, static_cast<std::size_t>(own.view().depth[end]));
    alone.observe(own, {end, 0});
    together.observe(merged, {end, 0});
  }
  CHECK(deepest >= 3);
}

TEST_CASE(
    "a policy of a cascade begins each round that it observes, with a tree without room if its drafter has none") {
  short_rows rows(8, rising);
  fixed_run run{.run = {6, 6}};
  joint drafters(rows, run);
  drafters.begin(text_type{0});
  cascade both(counting_chain({.length = 3}), counting_chain({.length = 2}));
  const auto round = [&](std::int32_t limit) {
    const tree<> t = grown(both, drafters, limit);
    both.observe(t, {root_node, 1});
    return text_of(t);
  };
  CHECK(round(9) == "0>1 1>2 2>3 0>6 4>6");
  rows.most = 0;
  CHECK(round(9) == "0>6 1>6");
  CHECK(round(0).empty());
  CHECK(rows.passes == 3);
  CHECK(run.asked == 2);
  CHECK(std::get<0>(both.parts()).limits == std::vector<std::int32_t>{3, 0, 0});
  CHECK(std::get<1>(both.parts()).limits == std::vector<std::int32_t>{2, 2, 0});
  CHECK(std::get<0>(both.parts()).depths.size() == 3);
  CHECK(std::get<1>(both.parts()).depths.size() == 3);
}

TEST_CASE("a chain in a cascade keeps its length while its drafter has no room", "[cascade]") {
  short_rows rows(8, rising);
  fixed_run run{.run = {3, 3, 3, 3, 3, 3}};
  joint drafters(rows, run);
  drafters.begin(text_type{0});
  cascade both(adaptive_chain({.length = 3, .max_length = 9, .confidence = 0}), chain());
  const auto length_after = [&](node_id accepted) {
    both.observe(grown(both, drafters), {accepted, 1});
    return std::get<0>(both.parts()).length();
  };
  CHECK(length_after(3) == 5);
  rows.most = 0;
  CHECK(length_after(6) == 5);
  CHECK(length_after(root_node) == 5);
  rows.most = 1 << 20;
  CHECK(length_after(5) == 7);
}

TEST_CASE("cost_aware in a cascade learns from a round without room as it does alone") {
  cost_aware alone;
  cascade together(cost_aware(), chain({.length = 2}));
  short_rows rows(8, rising), own_rows(8, rising);
  fixed_run run;
  joint drafters(rows, run);
  drafters.begin(text_type{0});
  for (int round = 0; round < 40; ++round) {
    const bool has_room = round % 10 < 5;
    rows.most = has_room ? 1 << 20 : 0;
    run.run.assign(has_room ? 0 : 2, 6);
    const tree<> own = grown(alone, own_rows, has_room ? 1 << 20 : 0), merged = grown(together, drafters);
    REQUIRE(own.size() == (has_room ? merged.size() : 1));
    REQUIRE(merged.size() > 1);
    const verdict v{round % 3 == 0 ? root_node : 1, 7};
    together.observe(merged, v);
    alone.observe(merged, v);
    REQUIRE(std::get<0>(together.parts()).tokens_per_second() == alone.tokens_per_second());
    REQUIRE(learnt_by(std::get<0>(together.parts())) == learnt_by(alone));
    // The lookup ended the tree, not the price of the model's tokens.
    if (!has_room) REQUIRE(together.limited_by() == tree_limit::policy);
  }
}
