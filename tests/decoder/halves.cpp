// SPDX-License-Identifier: BSL-1.0
// Steps in two halves, between which somebody else makes the passes: the target's, and the draft's.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/backend/outside.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

const std::vector<token_id> prompt{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};

setting some_setting(std::uint64_t seed = 0) {
  setting s{.target = {.seed = 7}, .draft = {.seed = 7, .noise = 0.4}};
  s.options.prefill_rows = 4;  // a prompt takes several passes
  s.options.text.seed = seed;
  return s;
}

// An engine that keeps the logits of a pass until they are fetched.
struct engine {
  std::vector<float> logits;
  std::int32_t n_rows = 0, vocab = 0;
  int passes = 0;

  template <class CompositionT>
  void compute(CompositionT& c, const outside_pass& pass) {
    const auto rows = c.target.forward(c.kv, pass.batch);
    n_rows = rows.n_rows, vocab = rows.vocab, ++passes;
    logits.assign(rows.data, rows.data + static_cast<std::size_t>(rows.n_rows) * static_cast<std::size_t>(rows.vocab));
  }
  vocab_rows<float> rows() const { return {logits.data(), n_rows, vocab}; }
};

template <class CompositionT>
std::vector<token_id> by_halves(CompositionT& c) {
  engine own;
  while (c.decode.current().running()) {
    const outside_pass pass = c.decode.begin_step();
    if (!pass) continue;
    own.compute(c, pass);
    CHECK(!c.decode.end_step(own.rows()));
    c.check_caches(false);
  }
  REQUIRE(own.passes > 3);
  return c.copy();
}

template <class PolicyT, class VerifierT>
std::vector<token_id> by_steps(PolicyT policy, VerifierT verifier, const setting& s) {
  composition<PolicyT, VerifierT> c(policy, s, verifier);
  c.decode.begin(prompt, {.max_tokens = 40});
  c.run();
  return c.copy();
}

}  // namespace

TEST_CASE("Steps in two halves write the text of whole steps, with every policy") {
  for_each_policy([](const auto& policy, const char* name) {
    INFO(name);
    composition c(policy, some_setting());
    c.decode.begin(prompt, {.max_tokens = 40});
    CHECK(by_halves(c) == by_steps(policy, greedy(), some_setting()));
    CHECK(c.consistent);
    CHECK(!c.decode.begin_step());  // the text has ended
  });
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    setting s = some_setting(seed);
    s.options.text.sampling.temperature = 1;
    const delayed policy({.paths = 2, .trunk = 2, .length = 3});
    composition<delayed, traversal> c(policy, s);
    c.decode.begin(prompt, {.max_tokens = 40});
    CHECK(by_halves(c) == by_steps(policy, traversal(), s));
  }
}

TEST_CASE("Passes of several decoders are under way at once, and end in any order") {
  std::vector<std::unique_ptr<composition<dynatree>>> all;
  std::vector<engine> engines(5);
  for (std::size_t i = 0; i < engines.size(); ++i) {
    all.push_back(std::make_unique<composition<dynatree>>(dynatree(), some_setting()));
    all.back()->decode.begin(std::span(prompt).first(2 * i + 2), {.max_tokens = 30});
  }
  const auto runs = [](const auto& c) { return c->decode.current().running(); };
  for (int turn = 0; std::any_of(all.begin(), all.end(), runs); ++turn) {
    std::vector<std::size_t> waiting;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const outside_pass pass = all[i]->decode.begin_step();
      if (!pass) continue;
      engines[i].compute(*all[i], pass);
      waiting.insert(waiting.begin() + turn % static_cast<int>(waiting.size() + 1), i);
    }
    for (const std::size_t i : waiting)
      all[i]->decode.end_step(engines[i].rows());
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    composition<dynatree> alone(dynatree(), some_setting());
    alone.decode.begin(std::span(prompt).first(2 * i + 2), {.max_tokens = 30});
    alone.run();
    CHECK(all[i]->copy() == alone.copy());
  }
}

TEST_CASE("A step that has begun may be given up: the text stands, and goes on or makes room for another") {
  const std::vector<token_id> expected = by_steps(dynatree(), greedy(), some_setting());
  composition<dynatree> c(dynatree(), some_setting());
  c.decode.begin(prompt, {.max_tokens = 40});
  for (int i = 0; c.decode.current().running(); ++i) {
    engine own;
    const std::vector<token_id> before = c.copy();
    const outside_pass pass = c.decode.begin_step();
    if (i % 2 == 0) c.decode.give_up();
    if (i % 4 == 1) c.decode.load(c.decode.save());
    CHECK(c.copy() == before);
    if (i % 4 < 3) c.step();
    if (i % 4 < 3) continue;
    own.n_rows = 100;
    CHECK(says(message_of<input_error>([&] { c.decode.end_step(own.rows()); }), "returned 100 rows of 0 logits"));
    own.compute(c, pass);  // it is still the one that was asked for
    c.decode.end_step(own.rows());
  }
  CHECK(c.copy() == expected);
  c.decode.begin(prompt, {.max_tokens = 40});
  c.step();
  (void)c.decode.begin_step();
  c.decode.begin(std::vector<token_id>{2, 7}, {.max_tokens = 9});
  c.run();
  composition<dynatree> other(dynatree(), some_setting());
  other.decode.begin(std::vector<token_id>{2, 7}, {.max_tokens = 9});
  other.run();
  CHECK(c.copy() == other.copy());
  CHECK(c.consistent);
}

TEST_CASE("Halves in the wrong order are errors that say what comes next") {
  composition<dynatree> c(dynatree(), some_setting());
  engine own;
  const auto message_of_end = [&] { return message_of<input_error>([&] { c.decode.end_step(own.rows()); }); };
  CHECK(!c.decode.begin_step());
  CHECK(message_of_end() == "no pass is under way: begin_step() comes first.");
  c.decode.begin(prompt, {.max_tokens = 40});
  own.compute(c, c.decode.begin_step());
  const std::string_view begun =
      "a pass is under way: end_step() or give_up() comes before another step of this decoder.";
  CHECK(message_of<input_error>([&] { (void)c.decode.begin_step(); }) == begun);
  CHECK(message_of<input_error>([&] { (void)c.decode.step(); }) == begun);
  c.decode.end_step(own.rows());  // the pass is still the one that was asked for
  CHECK(message_of_end() == "no pass is under way: begin_step() comes first.");
  CHECK(by_halves(c) == by_steps(dynatree(), greedy(), some_setting()));
}

TEST_CASE("A mistake between the halves leaves the pass under way") {
  composition<dynatree> c(dynatree(), some_setting());
  c.decode.begin(prompt, {.max_tokens = 40});
  while (c.decode.current().written().empty())
    c.step();
  engine own;
  const outside_pass pass = c.decode.begin_step();
  own.compute(c, pass);
  const std::vector<token_id> none, beyond{3, 70'000}, fits{2, 7};
  const auto input = [](const auto& call) { return message_of<input_error>(call); };
  CHECK(says(input([&] { c.decode.begin(none, {.max_tokens = 9}); }), "the prompt is empty"));
  CHECK(says(input([&] { c.decode.begin(beyond, {.max_tokens = 9}); }), "token 1 of the prompt is 70000"));
  CHECK(says(input([&] { c.decode.resume(beyond); }), "token 1 of the prompt is 70000"));
  CHECK(says(input([&] { c.decode.resume(std::vector<token_id>(1000, 1)); }), "leaves no room to write"));
  CHECK(says(input([&] { c.decode.begin(fits, {.tokens = {-1}}); }), "token 0 of the stop tokens is -1"));
  CHECK(says(message_of<option_error>([&] { c.decode.begin(fits, {.max_tokens = -2}); }), "max_tokens"));
  CHECK(says(message_of<option_error>([&] { c.decode.begin(fits, {}, {.log_probs = -7}); }), "log_probs"));
  CHECK(says(input([&] { c.decode.end_step({nullptr, own.n_rows, own.vocab}); }), "a null pointer"));
  c.decode.end_step(own.rows());
  CHECK(by_halves(c) == by_steps(dynatree(), greedy(), some_setting()));
}

TEST_CASE("A decoder without a backend of its own writes by halves alone") {
  static_assert(Backend<outside_backend<>, token_kv>);
  static_assert(Backend<outside_backend<double>, token_kv>);
  models::probe_backend target(11, {.seed = 7});
  token_kv kv(96), other_kv(96);
  auto decode = make_decoder(prompt_lookup(), chain(), greedy(), kv, outside_backend(11));
  auto alone = make_decoder(prompt_lookup(), chain(), greedy(), other_kv, target);
  decode.begin(prompt, {.max_tokens = 40});
  CHECK(says(message_of<input_error>([&] { decode.step(); }), "call begin_step() and end_step(), not step()"));
  while (decode.current().running()) {
    const outside_pass pass = decode.begin_step();
    if (pass) decode.end_step(target.forward(kv, pass.batch));
  }
  const auto written = decode.current().written(), expected = alone.generate(prompt, {.max_tokens = 40});
  CHECK(std::equal(written.begin(), written.end(), expected.begin(), expected.end()));
  CHECK(says(message_of<option_error>([] { outside_backend(0); }), "vocabulary size"));
  CHECK(says(message_of<option_error>([] { outside_backend(5, 0); }), "max_rows"));
}

namespace {

// A decoder of these parts whose passes, the draft's too, are made by these models, and the texts that it writes.
struct both_outside {
  models::probe_backend target{11, some_setting().target}, draft{11, some_setting().draft};
  token_kv kv{96}, draft_kv{96};
  int draft_passes = 0;

  auto drafter() { return autoregressive(outside_backend(11), draft_kv); }

  template <class DecoderT>
  std::vector<token_id> write(DecoderT& decode) {
    while (decode.current().running()) {
      for (outside_pass pass = decode.begin_step(); pass;) {
        draft_passes += pass.is_draft() ? 1 : 0;
        pass = decode.end_step(pass.is_draft() ? draft.forward(draft_kv, pass.batch) : target.forward(kv, pass.batch));
      }
    }
    return {decode.current().tokens().begin(), decode.current().tokens().end()};
  }
};

}  // namespace

TEST_CASE("An engine makes the draft's passes, too, and the text is the same, with every policy") {
  for_each_policy([](const auto& policy, const char* name) {
    INFO(name);
    both_outside own;
    auto decode = make_decoder(own.drafter(), policy, greedy(), own.kv, outside_backend(11), some_setting().options);
    decode.begin(prompt, {.max_tokens = 40});
    CHECK(own.write(decode) == by_steps(policy, greedy(), some_setting()));
    CHECK((own.draft_passes > 3) == (std::string_view(name) != "plain"));
    composition c(policy, some_setting());
    c.decode.begin(prompt, {.max_tokens = 40});
    c.run();
    CHECK(own.draft_passes == c.draft.calls);
  });
  setting s = some_setting(3);
  s.options.text.sampling.temperature = 1;
  const delayed policy({.paths = 2, .trunk = 2, .length = 3});
  both_outside own;
  auto decode = make_decoder(own.drafter(), policy, traversal(), own.kv, outside_backend(11), s.options);
  decode.begin(prompt, {.max_tokens = 40});
  CHECK(own.write(decode) == by_steps(policy, traversal(), s));
  // The draft's alone.
  both_outside other;
  auto draft_alone = make_decoder(other.drafter(), policy, traversal(), other.kv, other.target, s.options);
  draft_alone.begin(prompt, {.max_tokens = 40});
  CHECK(other.write(draft_alone) == by_steps(policy, traversal(), s));
  draft_alone.begin(prompt, {.max_tokens = 40});
  CHECK(says(message_of<input_error>([&] { draft_alone.step(); }), "call begin_step() and end_step(), not step()"));
  CHECK(other.write(draft_alone) == by_steps(policy, traversal(), s));
}

TEST_CASE("A part of a cascade may be outside") {
  both_outside own;
  auto decode = make_decoder(joint(prompt_lookup(), own.drafter()), cascade(chain(), dynatree()), greedy(), own.kv,
                             outside_backend(11), some_setting().options);
  decode.begin(prompt, {.max_tokens = 40});
  CHECK(own.write(decode) == by_steps(dynatree(), greedy(), some_setting()));
  CHECK(own.draft_passes > 3);
}

TEST_CASE("A step may be given up at any pass of draft or target") {
  const std::vector<token_id> expected = by_steps(dynatree(), greedy(), some_setting());
  for (int n = 0; n < 30; ++n) {
    both_outside own;
    auto decode =
        make_decoder(own.drafter(), dynatree(), greedy(), own.kv, outside_backend(11), some_setting().options);
    decode.begin(prompt, {.max_tokens = 40});
    for (int number = 0; number <= n;) {
      for (outside_pass pass = decode.begin_step(); pass;) {
        if (number++ == n) break;
        pass = decode.end_step(pass.is_draft() ? own.draft.forward(own.draft_kv, pass.batch)
                                               : own.target.forward(own.kv, pass.batch));
      }
    }
    decode.give_up();
    CHECK(own.write(decode) == expected);
  }
}

TEST_CASE("Halves of a step allocate nothing, whoever makes the draft's passes") {
  both_outside own;
  auto decode = make_decoder(own.drafter(), dynatree(), greedy(), own.kv, outside_backend(11), some_setting().options);
  decode.begin(prompt, {.max_tokens = 60});
  while (decode.current().running()) {
    for (outside_pass pass = decode.begin_step(); pass;)
      pass = decode.end_step(pass.is_draft() ? own.draft.forward(own.draft_kv, pass.batch)
                                             : own.target.forward(own.kv, pass.batch));
  }
  decode.begin(prompt, {.max_tokens = 60});
  const allocation_count own_count;
  while (decode.current().running()) {
    for (outside_pass pass = decode.begin_step(); pass;)
      pass = decode.end_step(pass.is_draft() ? own.draft.forward(own.draft_kv, pass.batch)
                                             : own.target.forward(own.kv, pass.batch));
  }
  CHECK(own_count.so_far() == 0);
  composition<dynatree> c(dynatree(), some_setting());
  c.decode.begin(prompt, {.max_tokens = 60});
  c.run();  // the backends of these tests take memory when they first see a large batch
  c.decode.begin(prompt, {.max_tokens = 60});
  int passes = 0;
  const allocation_count count;
  while (c.decode.current().running()) {
    const outside_pass pass = c.decode.begin_step();
    if (pass) c.decode.end_step(c.target.forward(c.kv, pass.batch)), ++passes;
  }
  const std::int64_t allocations = count.so_far();
  CHECK(passes > 12);
  CHECK(allocations == 0);
}
