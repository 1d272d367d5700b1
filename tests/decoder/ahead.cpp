// SPDX-License-Identifier: BSL-1.0
// A round that is drafted while the last one is verified is the round that would have been drafted later.
#include "espalier/decoder/ahead.hpp"

#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/translated.hpp"
#include "espalier/registry.hpp"
#include "untyped.hpp"
#include "verifier_of.hpp"

using namespace espalier;
using models::fault;

namespace {

const std::vector<token_id> prompt{3, 1, 4, 1, 5, 9, 2, 6};

// All that a round says but how long it took, and whether it was drafted ahead.
struct round_seen {
  std::int32_t index, rows;
  std::vector<token_id> tokens, committed;
  std::vector<node_id> parents, drawn;
  std::vector<float> log_probs;
  verdict decision;
  status state;

  explicit round_seen(const round_record& r)
      : index(r.index),
        rows(r.forwarded_rows),
        tokens(r.tree.token, r.tree.token + r.tree.n_nodes),
        committed(r.committed.begin(), r.committed.end()),
        parents(r.tree.parent, r.tree.parent + r.tree.n_nodes),
        drawn(r.tree.drawn_node, r.tree.drawn_node + r.tree.n_draws),
        log_probs(r.tree.log_prob, r.tree.log_prob + r.tree.n_nodes),
        decision(r.decision),
        state(r.state) {}
  friend bool operator==(const round_seen&, const round_seen&) = default;
};

using draft_type = autoregressive<models::probe_backend&, token_kv&>;

// The parts of a decoder, which drafts ahead or does not. `rows` are those of ahead, for one that does.
template <class DrafterT, class PolicyT, class VerifierT>
struct writer {
  template <class... RowsT>
  writer(PolicyT policy, VerifierT verifier, const setting& s, RowsT... rows)
      : kv(s.context, s.target_mode),
        draft_kv(s.draft_context, s.draft_mode),
        target(s.vocab, s.target),
        draft(s.vocab, s.draft),
        drafter(draft_type(draft, draft_kv, s.draft_sampling), rows...),
        decode(drafter, std::move(policy), std::move(verifier), kv, target, s.options) {}

  bool step() {
    if (!decode.step(models::piece_of)) return false;
    ahead_rounds += decode.last_round().drafted_ahead ? 1 : 0;
    if (decode.last_round().committed.empty()) return true;
    seen.emplace_back(decode.last_round());
    was_ahead.push_back(decode.last_round().drafted_ahead);
    return true;
  }
  void run() {
    while (step()) {
    }
  }
  std::vector<token_id> text() const {
    const auto all = decode.current().tokens();
    return {all.begin(), all.end()};
  }

  token_kv kv, draft_kv;
  models::probe_backend target, draft;
  DrafterT drafter;
  decoder<DrafterT&, PolicyT, VerifierT, token_kv&, models::probe_backend&> decode;
  std::vector<round_seen> seen;
  std::vector<bool> was_ahead;  // by round
  int ahead_rounds = 0;
};

template <class PolicyT, class VerifierT>
using alone = writer<draft_type, PolicyT, VerifierT>;
template <class PolicyT, class VerifierT>
using beside = writer<ahead<draft_type>, PolicyT, VerifierT>;

struct found {
  int ahead = 0, rounds = 0;
};

// Equal rounds in a text, in what follows it, and in another text.
template <class PolicyT, class VerifierT>
void require_same(PolicyT policy, VerifierT verifier, const setting& s, int rows, const stop_conditions& stop,
                  found& all) {
  alone<PolicyT, VerifierT> expected(policy, verifier, s);
  beside<PolicyT, VerifierT> c(policy, verifier, s, rows);
  for (int turn = 0; turn < 3; ++turn) {
    const auto begin = [&](auto& w) {
      if (turn == 0) w.decode.begin(prompt, stop);
      if (turn == 1 && w.text().size() < 120) w.decode.resume(std::vector<token_id>{2, 7}, stop);
      if (turn == 2) w.decode.begin(std::vector<token_id>(70, 3), stop);
      w.run();
    };
    begin(expected);
    begin(c);
    REQUIRE(c.text() == expected.text());
    REQUIRE(c.seen.size() == expected.seen.size());
    REQUIRE((c.seen == expected.seen));
  }
  REQUIRE(expected.ahead_rounds == 0);
  all.ahead += c.ahead_rounds;
  all.rounds += static_cast<int>(c.seen.size());
}

setting drawing(double noise, commit_mode mode = commit_mode::compact) {
  return {.target = {.seed = 61},
          .draft = {.seed = 61, .noise = noise},
          .context = 160,
          .draft_context = 160,
          .target_mode = mode,
          .draft_mode = mode,
          .options = {.text = {.sampling = {.temperature = 1}, .seed = 3}}};
}

}  // namespace

TEST_CASE("every pair of the registry writes the rounds that it writes without drafting ahead") {
  int of_one_guess = 0;
  for (const auto& [rows, mode] : {std::pair(1, commit_mode::compact),
                                   {1, commit_mode::truncate},
                                   {5, commit_mode::compact},
                                   {5, commit_mode::truncate}}) {
    found all;
    for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
      using verifier_type = typename std::decay_t<decltype(verifier)>::type;
      INFO(policy.name << " with " << verifier.name);
      setting s = drawing(0.3, mode);
      if constexpr (ArgmaxVerifier<verifier_type>) s.options.text.sampling.temperature = 0;
      require_same(untyped(policy.make()), verifier_of(policy, verifier), s, rows, {.max_tokens = 30}, all);
    });
    CHECK(all.ahead > all.rounds / 20);
    CHECK(all.ahead < all.rounds);
    if (rows == 1) of_one_guess = all.ahead;
    if (rows > 1) CHECK(all.ahead > of_one_guess * 5 / 4);
  }
}

TEST_CASE("the next guess is taken where the best one is wrong") {
  const auto hits = [](const auto& policy, const auto& verifier, int rows) {
    const setting s = drawing(0.5);
    beside<std::decay_t<decltype(policy)>, std::decay_t<decltype(verifier)>> c(policy, verifier, s, rows);
    c.decode.begin(prompt, {.max_tokens = 140});
    c.run();
    return c.was_ahead;
  };
  const auto require_more = [&](const auto& policy, const auto& verifier) {
    std::vector<bool> before = hits(policy, verifier, 1);
    for (const int rows : {2, 10}) {
      const std::vector<bool> now = hits(policy, verifier, rows);
      REQUIRE(now.size() == before.size());
      int more = 0;
      for (std::size_t i = 0; i < now.size(); ++i) {
        INFO("round " << i << " with " << rows << " rows");
        CHECK(now[i] >= before[i]);
        more += now[i] && !before[i] ? 1 : 0;
      }
      INFO("with " << rows << " rows");
      CHECK(more > 0);
      before = now;
    }
  };
  require_more(chain({.length = 3}), target_only());
  require_more(sampled_chain({.length = 3}), naive());
}

TEST_CASE("the best guess is drafted whatever it asks about, the others as far as the rows of a pass go") {
  const setting s = drawing(0.3);
  alone<best_first, target_only> expected(best_first({.budget = 6}), target_only(), s);
  expected.decode.begin(prompt, {.max_tokens = 120});
  expected.run();
  int before = 0;
  for (const int rows : {1, 30}) {
    beside<best_first, target_only> c(best_first({.budget = 6}), target_only(), s, rows);
    c.decode.begin(prompt, {.max_tokens = 120});
    c.run();
    REQUIRE((c.seen == expected.seen));
    CHECK(c.ahead_rounds > before);
    before = c.ahead_rounds;
  }
}

TEST_CASE("good and bad guesses, full caches and stops leave the rounds as they are") {
  found all;
  for (const double noise : {0.0, 0.2, 1.0}) {
    for (const std::int32_t draft_context : {6, 20, 60, 130}) {
      setting s = drawing(noise);
      s.context = 130, s.draft_context = draft_context;
      s.options.text.sampling.temperature = 0;
      for (const stop_conditions& stop :
           {stop_conditions{}, stop_conditions{.max_tokens = 3}, stop_conditions{.max_tokens = 60, .strings = {"cabc"}},
            stop_conditions{.max_tokens = 40, .tokens = {7}}}) {
        for_each_policy([&](auto policy, const char* name) {
          INFO(name << ", noise " << noise << ", " << draft_context);
          require_same(policy, greedy(), s, 3, stop, all);
        });
      }
    }
  }
  CHECK(all.ahead > 0);
  // The verdict of a perfect draft's chain is always guessed, but of the last round.
  setting perfect = drawing(0.0);
  perfect.options.text.sampling.temperature = 0;
  perfect.draft_sampling.temperature = 0.005F;
  for (const int rows : {1, 4}) {
    beside<chain, greedy> c(chain({.length = 3}), greedy(), perfect, rows);
    c.decode.begin(prompt, {.max_tokens = 81});
    c.run();
    CHECK(c.seen.size() > 18);
    CHECK(c.ahead_rounds >= static_cast<int>(c.seen.size()) - 2);
  }
}

TEST_CASE("a text that is saved, forked or moved between rounds goes on as it would have") {
  const setting s = drawing(0.2);
  alone<dynatree, target_only> expected(dynatree(), target_only(), s);
  expected.decode.begin(prompt, {.max_tokens = 50});
  expected.run();
  for (std::size_t cut = 1; cut < expected.seen.size(); ++cut) {
    beside<dynatree, target_only> c(dynatree(), target_only(), s), other(dynatree(), target_only(), s);
    c.decode.begin(prompt, {.max_tokens = 50});
    for (std::size_t i = 0; i < cut; ++i)
      REQUIRE(c.step());
    other.decode.load(c.decode.save());
    other.run();
    REQUIRE(other.text() == expected.text());
    c.decode.policy();  // it may change now: what was drafted with it is dropped
    c.run();
    REQUIRE((c.seen == expected.seen));
  }
}

TEST_CASE("a chance of the caller's drafts nothing ahead, and takes nothing that was") {
  const setting s = drawing(0.0);
  beside<sampled_chain, naive> c(sampled_chain(), naive(), s);
  alone<sampled_chain, naive> expected(sampled_chain(), naive(), s);
  for (auto* decode : {&c.decode}) {
    decode->begin(prompt, {.max_tokens = 40});
    REQUIRE(decode->step());
  }
  expected.decode.begin(prompt, {.max_tokens = 40});
  REQUIRE(expected.decode.step());
  for (std::uint64_t round = 0; c.decode.current().running(); ++round) {
    philox_chance chance(round, 5, 9);
    c.decode.step_with(chance);
    expected.decode.step_with(chance);
    REQUIRE(!c.decode.last_round().drafted_ahead);
    REQUIRE(c.text() == expected.text());
  }
}

TEST_CASE("whatever fails beside the target's pass, or in it, the text is the same") {
  const stop_conditions stop{.max_tokens = 25};
  const auto fail_everywhere = [&](auto policy, auto verifier, const setting& s) {
    using policy_type = decltype(policy);
    using verifier_type = decltype(verifier);
    beside<policy_type, verifier_type> smooth(policy, verifier, s);
    smooth.decode.begin(prompt, stop);
    smooth.run();
    int failed_ahead = 0;
    for (const bool target_fails : {true, false}) {
      for (const fault kind : {fault::throws, fault::nan}) {
        const int calls = target_fails ? smooth.target.calls : smooth.draft.calls;
        for (int n = 0; n < calls; ++n) {
          INFO((target_fails ? "target" : "draft") << " fails on call " << n);
          beside<policy_type, verifier_type> c(policy, verifier, s);
          (target_fails ? c.target : c.draft).fail_at = n;
          (target_fails ? c.target : c.draft).kind = kind;
          c.decode.begin(prompt, stop);
          int failures = 0;
          for (bool more = true; more;) {
            const std::vector<token_id> before = c.text();
            try {
              more = c.step();
            } catch (const std::runtime_error&) {
              ++failures;
              REQUIRE(c.text() == before);
              REQUIRE(c.kv.append(0, 0) == c.kv.size(0));
            }
          }
          REQUIRE(failures <= 1);
          if (target_fails && kind == fault::throws) REQUIRE(failures == 1);
          if (!target_fails && failures == 0) ++failed_ahead;
          if (!target_fails && kind == fault::nan) {
            // A draft that is lost makes another round, whose text is another of the same distribution: lost_drafts.cpp.
            // Greedily there is one text.
            REQUIRE(c.text().size() == smooth.text().size());
            if (s.options.text.sampling.temperature == 0) REQUIRE(c.text() == smooth.text());
            continue;
          }
          REQUIRE(c.text() == smooth.text());
          REQUIRE((c.seen == smooth.seen));
        }
      }
    }
    CHECK(failed_ahead > 0);
  };
  setting s = drawing(0.2);
  fail_everywhere(dynatree(), target_only(), s);
  fail_everywhere(sampled_chain(), naive(), s);
  s.options.text.sampling.temperature = 0;
  s.target_mode = s.draft_mode = commit_mode::truncate;
  fail_everywhere(chain(), greedy(), s);
  fail_everywhere(best_first({.budget = 6}), greedy(), s);
}

TEST_CASE("a draft that always fails beside the target loses nothing but time") {
  setting s = drawing(0.0);
  s.options.text.sampling.temperature = 0;
  alone<chain, greedy> expected(chain(), greedy(), s);
  expected.decode.begin(prompt, {.max_tokens = 30});
  expected.run();
  beside<chain, greedy> c(chain(), greedy(), s);
  c.decode.begin(prompt, {.max_tokens = 30});
  c.draft.kind = fault::throws;
  for (int n = 0; c.decode.current().running(); ++n) {
    REQUIRE(n < 100);
    c.draft.fail_at = c.draft.calls + n % 8;
    try {
      c.step();
    } catch (const std::runtime_error&) {
    }
  }
  CHECK(c.text() == expected.text());
}

TEST_CASE("a round that is drafted ahead allocates nothing once its policies are warm") {
  setting s = drawing(0.2);
  s.context = s.draft_context = 300;
  beside<dynatree, target_only> c(dynatree(), target_only(), s);
  int rounds = 0, taken = 0;
  for (const bool is_warm : {false, true}) {
    c.decode.begin(prompt);
    allocation_count count;
    for (rounds = 0; c.decode.step(); ++rounds)
      taken += c.decode.last_round().drafted_ahead ? 1 : 0;
    const std::int64_t allocations = count.so_far();
    if (is_warm) CHECK(allocations == 0);
  }
  CHECK(rounds > 40);
  CHECK(taken > 0);
}

namespace {

// Changes nothing before the text has this many tokens; then it forbids every token but two.
struct late_rule {
  std::size_t from = 0, size = 0;

  bool idle() const { return size < from; }
  void begin(std::span<const token_id> context) { size = context.size(); }
  void commit(std::span<const token_id> tokens) { size += tokens.size(); }
  template <class NumberT>
  void process(std::span<const token_id>, std::span<NumberT> logits) const {
    if (idle()) return;
    for (std::size_t t = 0; t < logits.size(); ++t)
      if (t != 1 && t != 2) logits[t] = -std::numeric_limits<NumberT>::infinity();
  }
};

}  // namespace

TEST_CASE("rounds are drafted ahead as long as no processor changes rows") {
  const setting s = drawing(0.1);
  const auto write = [&](auto drafter, int& drafted_ahead) {
    token_kv kv(s.context, s.target_mode);
    models::probe_backend target(s.vocab, s.target);
    auto decode = make_decoder(drafter, sampled_chain({.length = 2}), naive(), kv, target, s.options, late_rule{40});
    decode.begin(prompt, {.max_tokens = 60});
    std::vector<std::vector<token_id>> rounds;
    while (decode.step(models::piece_of)) {
      const round_record& r = decode.last_round();
      const std::size_t before = decode.current().tokens().size() - r.committed.size();
      if (r.drafted_ahead) ++drafted_ahead;
      if (before >= 40) CHECK_FALSE(r.drafted_ahead);
      rounds.emplace_back(r.tree.token, r.tree.token + r.tree.n_nodes);
      rounds.emplace_back(r.committed.begin(), r.committed.end());
    }
    return rounds;
  };
  token_kv draft_kv(s.draft_context, s.draft_mode);
  models::probe_backend draft(s.vocab, s.draft);
  int none = 0, some = 0;
  const auto expected = write(draft_type(draft, draft_kv, s.draft_sampling), none);
  CHECK(write(ahead(draft_type(draft, draft_kv, s.draft_sampling)), some) == expected);
  CHECK(none == 0);
  CHECK(some > 0);
}

TEST_CASE("a draft of another vocabulary drafts ahead") {
  const std::vector<std::string> of_target{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"},
      of_draft{"a", "b", "c", "x", "e", "f", "g", "y", "i", "j", "k"};
  const vocabulary_map map(of_target, of_draft);
  const setting s = drawing(0.1);
  int taken = 0;
  const auto write = [&](auto drafter) {
    token_kv kv(s.context, s.target_mode);
    models::probe_backend target(s.vocab, s.target);
    auto decode = make_decoder(drafter, chain({.length = 2}), target_only(), kv, target, s.options);
    std::vector<round_seen> seen;
    decode.begin(prompt, {.max_tokens = 120});
    while (decode.step()) {
      seen.emplace_back(decode.last_round());
      taken += decode.last_round().drafted_ahead ? 1 : 0;
    }
    return seen;
  };
  token_kv draft_kv(s.draft_context, s.draft_mode);
  models::probe_backend draft(s.vocab, s.draft);
  const auto expected = write(translated(draft_type(draft, draft_kv, s.draft_sampling), map));
  CHECK(taken == 0);
  CHECK((write(ahead(translated(draft_type(draft, draft_kv, s.draft_sampling), map))) == expected));
  CHECK(taken > 0);
}

TEST_CASE("a batch takes such a drafter for what it was") {
  const setting s = drawing(0.2);
  const auto write = [&](auto drafter, models::probe_backend& target, token_kv& kv) {
    auto decode = make_batch_decoder(drafter, chain(), target_only(), kv, target, {.max_texts = 2});
    std::vector<text_id> ids;
    for (const std::uint64_t seed : {1U, 2U})
      ids.push_back(decode.add(prompt, {.max_tokens = 20}, {.sampling = {.temperature = 1}, .seed = seed}));
    while (!decode.idle())
      for (const text_event& e : decode.step())
        CHECK(!e.round.drafted_ahead);
    std::vector<std::vector<token_id>> texts;
    for (const text_id id : ids) {
      const auto written = decode.current(id).written();
      texts.emplace_back(written.begin(), written.end());
    }
    return texts;
  };
  token_kv kv(160, commit_mode::compact, 2), draft_kv(160, commit_mode::compact, 2);
  models::probe_backend target(s.vocab, s.target), draft(s.vocab, s.draft);
  const auto expected = write(draft_type(draft, draft_kv, s.draft_sampling), target, kv);
  CHECK(write(ahead(draft_type(draft, draft_kv, s.draft_sampling)), target, kv) == expected);
}
