// SPDX-License-Identifier: BSL-1.0
// A draft whose numbers are none costs its drafts, not the text: rounds go on with what was drafted before, which biases
// nothing, and say why.
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "decoder/many_texts.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/decoder_laws.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;

namespace {

// The logits of a tiny model's draft, which are NaN after a drafted token 1.
struct spoilt_logits {
  testing::row_logits sound;

  void operator()(std::span<const token_id> text, std::span<double> logits) const {
    sound(text, logits);
    if (text.size() > testing::tiny_prompt.size() && text.back() == 1)
      logits[0] = std::numeric_limits<double>::quiet_NaN();
  }
};

// Every outcome of two rounds in which the draft fails after one of its tokens, and not after the others.
template <class PolicyT, class VerifierT>
void check_unbiased(const PolicyT& policy, const VerifierT& verifier) {
  testing::coverage covered;
  int n_models = 0;
  for (const testing::tiny_model& model : testing::tiny_models()) {
    if (model.name != "unlike, vocabulary 2" && model.name != "zeros in both, vocabulary 3") continue;
    token_kv kv(16), draft_kv(16);
    text_backend target(model.vocab, testing::row_logits{model.target});
    text_backend draft(model.vocab, spoilt_logits{{model.draft}});
    autoregressive drafter(draft, draft_kv);
    auto decode = make_decoder(drafter, policy, verifier, kv, target, {.text = {.sampling = {.temperature = 1}}});
    CHECK_NOTHROW(testing::check_two_rounds(decode, model, no_processor(), false, covered));
    ++n_models;
  }
  CHECK(n_models == 2);
  CHECK(covered.n_outcomes >= 4);
}

// A text_model whose logits are NaN where a text has one of these lengths.
struct failing_model {
  models::text_model sound{};
  std::size_t first = 0, last = 0;

  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    sound(text, logits);
    if (first <= text.size() && text.size() <= last) logits[0] = std::numeric_limits<float>::quiet_NaN();
  }
};

const std::vector<token_id> prompt{3, 1, 4, 1, 5};
constexpr std::int32_t vocab = 11;

template <class DecoderT>
statistics sums_of(DecoderT& decode, std::vector<token_id>& text) {
  statistics all;
  const auto written = decode.generate(prompt, {.max_tokens = 60}, all);
  text.assign(written.begin(), written.end());
  return all;
}

}  // namespace

TEST_CASE("a draft that fails after some of its tokens biases no text") {
  check_unbiased(specinfer_static({.budget = 3, .level_1 = 2, .level_2 = 1, .level_3 = 0, .level_4 = 0, .level_5 = 0}),
                 specinfer());
  check_unbiased(sampled_chain({.length = 3}), block_verification());
  check_unbiased(delayed({.paths = 2, .trunk = 1, .length = 1}), traversal());
  check_unbiased(dyspec_greedy({.budget = 3}), residual_walk());
  check_unbiased(chain({.length = 3}), target_only());
  check_unbiased(eagle2({.budget = 3}), target_only());
}

TEST_CASE("a draft that gives NaN costs its drafts and not the text, and the rounds say so") {
  const models::text_model target_model{.seed = 41}, draft_model{.seed = 41, .noise = 0.3};
  const auto write = [&](auto policy, failing_model draft_logits, std::vector<token_id>& text) {
    text_backend target(vocab, target_model);
    text_backend draft(vocab, draft_logits);
    token_kv kv(128), draft_kv(128);
    autoregressive drafter(draft, draft_kv);
    auto decode = make_decoder(drafter, policy, greedy(), kv, target);
    return sums_of(decode, text);
  };
  const auto errors = [](const statistics& s) {
    return s.limited_by[static_cast<std::size_t>(tree_limit::draft_error)];
  };
  const auto check = [&](auto policy) {
    std::vector<token_id> expected, text;
    const statistics sound = write(policy, {draft_model}, expected);
    REQUIRE(expected.size() == 60);
    CHECK(errors(sound) == 0);
    // Always: all rounds are plain, and the draft is asked ever more rarely.
    const statistics never = write(policy, {draft_model, 0, 1000}, text);
    CHECK(text == expected);
    CHECK(never.drafted == 0);
    CHECK(never.rounds == 60);
    CHECK(errors(never) >= 58);  // nothing is drafted for the last tokens
    // For a while: then it drafts again.
    const statistics once = write(policy, {draft_model, 20, 21}, text);
    CHECK(text == expected);
    CHECK(errors(once) >= 1);
    CHECK(errors(once) <= 8);
    CHECK(once.drafted > sound.drafted / 2);
  };
  check(chain({.length = 4}));
  check(dynatree({.budget = 6}));
  check(eagle2({.budget = 5}));  // builds its tree anew
}

TEST_CASE("in a batch, a draft that fails for one text costs no other text its draft") {
  const models::text_model target_model{.seed = 42};
  // NaN in texts that begin with token 7.
  struct choosy_model {
    models::text_model sound{};
    void operator()(std::span<const token_id> text, std::span<float> logits) const {
      sound(text, logits);
      if (text[0] == 7) logits[1] = std::numeric_limits<float>::quiet_NaN();
    }
  };
  text_backend target(vocab, target_model);
  text_backend draft(vocab, choosy_model{{.seed = 42, .noise = 0.3}});
  token_kv kv(96, commit_mode::compact, 4), draft_kv(96, commit_mode::compact, 4);
  autoregressive drafter(draft, draft_kv);
  const auto check = [&](auto policy, auto verifier, sampling_options sampling) {
    auto decode = make_batch_decoder(drafter, policy, verifier, kv, target, {.max_texts = 3});
    std::vector<std::vector<token_id>> prompts{{1, 2, 3}, {7, 2, 3}, {4, 5, 6}, {7, 7}};
    std::vector<statistics> sums(prompts.size());
    for (const auto& p : prompts)
      decode.add(p, {.max_tokens = 40}, {.sampling = sampling, .seed = 5});
    while (!decode.idle()) {
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.failed());
        sums[static_cast<std::size_t>(e.id)](e.round);
      }
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      INFO("text " << i);
      const auto lost = sums[i].limited_by[static_cast<std::size_t>(tree_limit::draft_error)];
      CHECK(sums[i].tokens == 40);
      if (prompts[i][0] == 7) {
        CHECK(sums[i].drafted == 0);
        CHECK(lost >= 35);
      } else {
        CHECK(sums[i].drafted > 20);
        CHECK(lost == 0);
      }
      token_kv own_kv(96), own_draft_kv(96);
      autoregressive own_drafter(draft, own_draft_kv);
      auto alone =
          make_decoder(own_drafter, policy, verifier, own_kv, target, {.text = {.sampling = sampling, .seed = 5}});
      const auto written = alone.generate(prompts[i], {.max_tokens = 40});
      const auto batched = decode.current(static_cast<text_id>(i)).written();
      CHECK(std::vector<token_id>(written.begin(), written.end()) ==
            std::vector<token_id>(batched.begin(), batched.end()));
    }
  };
  check(dynatree({.budget = 6}), greedy(), {.temperature = 0});
  check(delayed(), traversal(), {.temperature = 1});
}
