// SPDX-License-Identifier: BSL-1.0
// Parts that fail in the middle of a round: the text goes on and writes the same text, nothing lost, nothing doubled.
#include <algorithm>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;
using models::fault;
using models::text_model;

namespace {

const std::vector<token_id> prompt{3, 1, 4, 1, 5, 9, 2, 6};

// Runs to the end through at most one failure, and says how many there were. `lost` counts the rounds that lost their
// draft.
template <class CompositionT>
int run_through(CompositionT& c, std::string& message, int& lost) {
  int failures = 0;
  for (bool more = true; more;) {
    const std::vector<token_id> before = c.copy();
    try {
      more = c.step();
      lost += more && c.decode.last_round().limited_by == tree_limit::draft_error ? 1 : 0;
    } catch (const std::runtime_error& e) {
      message = e.what();
      ++failures;
      REQUIRE(c.copy() == before);
      REQUIRE(c.decode.current().running());
      REQUIRE(c.kv.append(0, 0) == c.kv.size(0));  // no scratch is left
    }
  }
  return failures;
}

// A failure on every call there is, of the target and of the draft.
template <class PolicyT, class VerifierT>
void fail_everywhere(PolicyT policy, VerifierT verifier, setting s, fault kind) {
  const stop_conditions stop{.max_tokens = 25};
  composition<PolicyT, VerifierT> smooth(policy, s, verifier);
  smooth.decode.begin(prompt, stop);
  smooth.run();
  const std::vector<token_id> expected = smooth.copy();
  REQUIRE(smooth.consistent);
  int failures = 0, all_lost = 0;
  for (const bool target_fails : {true, false}) {
    const int calls = target_fails ? smooth.target.calls : smooth.draft.calls;
    for (int n = 0; n < calls; ++n) {
      INFO((target_fails ? "target" : "draft") << " fails on call " << n);
      composition<PolicyT, VerifierT> c(policy, s, verifier);
      models::probe_backend& faulty = target_fails ? c.target : c.draft;
      faulty.fail_at = n;
      faulty.kind = kind;
      c.decode.begin(prompt, stop);
      std::string message;
      int lost = 0;
      const int failed = run_through(c, message, lost);
      failures += failed;
      all_lost += lost;
      REQUIRE(failed <= 1);
      REQUIRE(c.copy() == expected);
      if (!target_fails && kind != fault::throws) {  // it costs the draft, and not the round
        REQUIRE(failed == 0);
        REQUIRE(lost <= 1);
        REQUIRE(c.consistent);
        continue;
      }
      REQUIRE(lost == 0);
      REQUIRE(c.decode.current().round() == smooth.decode.current().round());
      REQUIRE(c.consistent);
      if (kind == fault::throws) {
        REQUIRE(failed == 1);
        REQUIRE(message == "the backend failed");
      } else if (failed == 1) {
        REQUIRE(says(message, "the target's logit", "after node ", "of sequence 0"));
        if (kind == fault::impossible) {
          REQUIRE(says(message, "all of ", "are minus infinity"));
        } else {
          REQUIRE(says(message, "token " + std::to_string(s.vocab - 1), kind == fault::nan ? "is nan" : "is inf"));
        }
      }
    }
  }
  if (smooth.draft.calls + smooth.target.calls > 0) REQUIRE(failures > 0);
  if (policy.max_nodes() > 0 && kind != fault::throws) REQUIRE(all_lost > 0);
}

}  // namespace

TEST_CASE("a backend that throws on its n-th call does no harm, for every n, greedily") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    const setting s{.target = {.seed = 31},
                    .draft = {.seed = 31, .noise = 0.4},
                    .target_mode = mode,
                    .draft_mode = mode,
                    .options = {.order = node_order::heavy_path}};
    for_each_policy([&](auto policy, const char* name) {
      INFO(name);
      fail_everywhere(policy, greedy(), s, fault::throws);
    });
  }
}

TEST_CASE("a backend that throws on its n-th call does no harm, for every n, drawing from the target") {
  const setting s{.target = {.seed = 32},
                  .draft = {.seed = 32, .noise = 0.4},
                  .options = {.text = {.sampling = {.temperature = 1}, .seed = 9}}};
  fail_everywhere(chain(), target_only(), s, fault::throws);
  fail_everywhere(dynatree(), target_only(), s, fault::throws);
}

TEST_CASE("a failure in a chunk of a long prompt does no harm") {
  const setting base{.target = {.seed = 33}, .draft = {.seed = 33, .noise = 0.3}, .context = 400, .draft_context = 400};
  std::vector<token_id> text;
  for (int i = 0; i < 300; ++i)
    text.push_back(i * 7 % 11);
  composition<chain> smooth(chain(), base);
  smooth.decode.begin(text, {.max_tokens = 8});
  smooth.run();
  for (int n = 0; n < smooth.target.calls + smooth.draft.calls; ++n) {
    composition<chain> c(chain(), base);
    (n < smooth.target.calls ? c.target : c.draft).fail_at = n < smooth.target.calls ? n : n - smooth.target.calls;
    (n < smooth.target.calls ? c.target : c.draft).kind = fault::throws;
    c.decode.begin(text, {.max_tokens = 8});
    std::string message;
    int lost = 0;
    REQUIRE(run_through(c, message, lost) == 1);
    REQUIRE(c.copy() == smooth.copy());
    REQUIRE(c.consistent);
    // Chunks that were finished are not computed again.
    REQUIRE(c.target.rows <= smooth.target.rows + prefill::default_chunk + 5);
  }
}

TEST_CASE("logits that no token may be drawn from name their row and leave the text intact") {
  const setting s{.target = {.seed = 34}, .draft = {.seed = 34, .noise = 0.4}};
  fail_everywhere(plain(), greedy(), s, fault::nan);
  fail_everywhere(fixed({.depth = 3, .breadth = 2}), greedy(), s, fault::nan);
  fail_everywhere(dynatree(), greedy(), s, fault::infinite);
  setting drawn = s;
  drawn.options.text = {.sampling = {.temperature = 1, .top_p = 0.9F}, .seed = 3};
  fail_everywhere(chain(), target_only(), drawn, fault::nan);
  fail_everywhere(plain(), greedy(), s, fault::impossible);
  fail_everywhere(dynatree(), greedy(), s, fault::impossible);
  fail_everywhere(chain(), target_only(), drawn, fault::impossible);
}

TEST_CASE("a target that always fails fails every time, and begin() recovers") {
  const setting s{.target = {.seed = 35}, .draft = {.seed = 35}};
  composition<fixed> c(fixed(), s);
  c.decode.begin(prompt, {.max_tokens = 20});
  REQUIRE(c.step());
  c.target.kind = fault::throws;
  const std::vector<token_id> before = c.copy();
  for (int i = 0; i < 5; ++i) {
    c.target.fail_at = c.target.calls;
    REQUIRE_THROWS_AS(c.step(), std::runtime_error);
    REQUIRE(c.copy() == before);
  }
  c.decode.begin(prompt, {.max_tokens = 20});
  c.run();
  CHECK(c.copy() == models::write_plain(s.target, s.vocab, prompt, 96, {.max_tokens = 20}).text);
}

TEST_CASE("a function of pieces that throws does no harm") {
  const setting s{.vocab = 8,
                  .target = {.seed = 36},
                  .draft = {.seed = 36, .noise = 0.2},
                  .options = {.text = {.sampling = {.temperature = 1}, .seed = 5}}};
  for (const stop_conditions& stop :
       {stop_conditions{.max_tokens = 25, .strings = {"abcabcabcabc"}},
        stop_conditions{.max_tokens = 60, .strings = {"cabc"}}, stop_conditions{.max_tokens = 40, .tokens = {7}}}) {
    const std::vector<token_id> start{3, 1, 4, 1, 5};
    composition<chain, target_only> smooth(chain(), s);
    smooth.decode.begin(start, stop);
    smooth.run();
    for (int n = 0; n < static_cast<int>(smooth.decode.current().written().size()); ++n) {
      composition<chain, target_only> c(chain(), s);
      c.decode.begin(start, stop);
      int calls = 0;
      int failures = 0;
      const auto piece = [&](token_id t) {
        if (calls++ == n) throw std::runtime_error("no piece");
        return models::piece_of(t);
      };
      for (bool more = true; more;) {
        try {
          more = c.decode.step(piece);
        } catch (const std::runtime_error&) {
          ++failures;
        }
      }
      REQUIRE(failures == 1);
      REQUIRE(c.copy() == smooth.copy());
      REQUIRE(c.decode.current().state() == smooth.decode.current().state());
    }
  }
}

TEST_CASE("an observer that throws does no harm: its round is committed, the next one follows") {
  const setting s{.target = {.seed = 37}, .draft = {.seed = 37, .noise = 0.4}};
  const std::vector<token_id> expected = models::write_plain(s.target, s.vocab, prompt, 96, {.max_tokens = 30}).text;
  for (int n = 0; n < 8; ++n) {
    composition<dynatree> c(dynatree(), s);
    int calls = 0;
    const auto observer = [&](const round_record&) {
      if (calls++ == n) throw std::runtime_error("no observer");
    };
    REQUIRE_THROWS_AS(c.decode.generate(prompt, {.max_tokens = 30}, observer), std::runtime_error);
    REQUIRE(c.decode.current().round() == n + 1);
    c.run();
    REQUIRE(c.copy() == expected);
    REQUIRE(c.consistent);
  }
}

TEST_CASE("a drafter whose commit throws loses no token") {
  struct fragile_drafter : no_drafter {
    int commits = 0;
    int begins = 0;
    void begin(std::span<const token_id>) { ++begins; }
    void commit(tree_view, verdict) {
      if (++commits == 3) throw std::runtime_error("no commit");
    }
  };
  fragile_drafter drafter;
  const text_model model{.seed = 38};
  auto decode = make_decoder(drafter, plain(), greedy(), token_kv(50), text_backend(11, model));
  decode.begin(prompt, {.max_tokens = 12});
  std::vector<token_id> streamed;
  int failures = 0;
  for (bool more = true; more;) {
    try {
      more = decode.step();
      if (more)
        streamed.insert(streamed.end(), decode.last_round().committed.begin(), decode.last_round().committed.end());
    } catch (const std::runtime_error&) {
      ++failures;
    }
  }
  CHECK(failures == 1);
  CHECK(drafter.begins == 2);
  std::vector<token_id> text = prompt;
  text.insert(text.end(), streamed.begin(), streamed.end());
  CHECK(text == models::write_plain(model, 11, prompt, 50, {.max_tokens = 12}).text);
}

namespace {

// A processor that forbids the two tokens that the text wrote last. The n-th call of commit() fails in all its copies,
// after it has read a part.
struct failing_processor {
  std::vector<token_id> last{};
  int* calls = nullptr;
  int fails_at = -1;

  void begin(std::span<const token_id>) { last.clear(); }
  void commit(std::span<const token_id> tokens) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      last.push_back(tokens[i]);
      if (i + 1 == tokens.size() && (*calls)++ == fails_at) throw std::runtime_error("no commit");
    }
  }
  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) const {
    std::vector<token_id> all = last;
    all.insert(all.end(), path.begin(), path.end());
    for (std::size_t i = all.size() - (std::min)(all.size(), std::size_t{2}); i < all.size(); ++i)
      logits[static_cast<std::size_t>(all[i])] = -std::numeric_limits<NumberT>::infinity();
  }
};

}  // namespace

TEST_CASE("a processor whose commit throws loses no token, and forbids what it would have forbidden") {
  const text_model target{.seed = 39};
  const auto write = [&](int fails_at, std::vector<token_id>& streamed, bool in_batch) {
    int calls = 0, failures = 0;
    text_backend model(11, target), draft(11, text_model{.seed = 39, .noise = 0.4});
    token_kv kv(120), draft_kv(120);
    autoregressive drafter(draft, draft_kv);
    const failing_processor processor{.calls = &calls, .fails_at = fails_at};
    const text_options options{.sampling = {.temperature = 1}, .seed = 6};
    const auto take = [&](const round_record& r) {
      streamed.insert(streamed.end(), r.committed.begin(), r.committed.end());
    };
    if (in_batch) {
      auto decode = make_batch_decoder(drafter, delayed(), traversal(), kv, model, {.max_texts = 1}, processor);
      decode.add(prompt, {.max_tokens = 60}, options);
      while (!decode.idle()) {
        for (const text_event& e : decode.step()) {
          take(e.round);
          failures += e.failed() ? 1 : 0;
          if (e.failed()) decode.resume(e.id);
        }
      }
    } else {
      auto decode = make_decoder(drafter, delayed(), traversal(), kv, model, {.text = options}, processor);
      decode.begin(prompt, {.max_tokens = 60});
      for (bool more = true; more;) {
        try {
          more = decode.step();
          if (more) take(decode.last_round());
        } catch (const std::runtime_error&) {
          ++failures;
        }
      }
    }
    CHECK(failures == (fails_at < 0 ? 0 : 1));
    return calls;
  };
  for (const bool in_batch : {false, true}) {
    std::vector<token_id> expected;
    const int calls = write(-1, expected, in_batch);
    CHECK(expected.size() == 60);
    for (std::size_t i = 0; i < expected.size(); ++i)
      CHECK(((i < 1 || expected[i] != expected[i - 1]) && (i < 2 || expected[i] != expected[i - 2])));
    REQUIRE(calls > 8);
    for (int n = 0; n < calls; ++n) {
      INFO((in_batch ? "in a batch" : "alone") << ", the commit " << n << " fails");
      std::vector<token_id> streamed;
      (void)write(n, streamed, in_batch);
      REQUIRE(streamed == expected);
    }
  }
}
