// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/approximate.hpp"

#include <cmath>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/approximate/deferral.hpp"
#include "espalier/verifier/approximate/threshold_acceptance.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/naive.hpp"
#include "one_node.hpp"
#include "option_ranges.hpp"
#include "raises.hpp"
#include "verifier/scene.hpp"

using namespace espalier;

namespace {

// The verdict on a scene, decided by one seed.
template <class VerifierT>
verdict judged(VerifierT verifier, scene& s, std::uint64_t seed = 0) {
  philox_chance chance(seed, 0, 0);
  return verifier.verify(s.drawn, s.q, s.p, chance);
}

}  // namespace

TEST_CASE("rules that are not lossless name no regime, and the proof refuses them with the word") {
  static_assert(!detail::NamesLossless<typical_acceptance> && !detail::NamesLossless<relaxed_acceptance> &&
                !detail::NamesLossless<deferral>);
  const sampled_chain policy({.length = 2});
  const auto told = [&](const auto& verifier) {
    return message_of<testing::law_error>([&] { testing::check_pair(policy, verifier); });
  };
  CHECK(says(told(approximate(typical_acceptance())), "not lossless"));
  CHECK(says(told(approximate(relaxed_acceptance())), "not lossless"));
  CHECK(says(told(approximate(deferral())), "not lossless"));
}

TEST_CASE("at the end of their ranges the rules are lossless, or follow the target's best token") {
  const sampled_chain policy({.length = 2});
  // The draft is never more than 1 surer than the target.
  CHECK_NOTHROW(testing::check_pair(policy, approximate(deferral({.lenience = -1}))));
  scene s;
  s.p.rows[0] = {0.1, 0.5, 0.3, 0.1};
  s.p.rows[1] = {0.1, 0.3, 0.5, 0.1};
  CHECK(judged(relaxed_acceptance({.best = 1}), s).accepted == 2);
  s.p.rows[1] = {0.5, 0.1, 0.3, 0.1};
  CHECK(judged(relaxed_acceptance({.best = 1}), s).accepted == 1);
  CHECK(judged(relaxed_acceptance({.best = 2}), s).accepted == 2);
  CHECK(judged(relaxed_acceptance({.best = 2, .below = 0.1}), s).accepted == 1);
}

TEST_CASE("typical acceptance asks for min(most, of_flat * exp(-entropy))") {
  // Over four tokens alike exp(-entropy) is 1/4.
  scene s;
  CHECK(judged(typical_acceptance({.most = 0.9, .of_flat = 0.99}), s).accepted == 2);
  s.p.rows[1] = {0.5, 0.25, 0.0, 0.25};
  CHECK(judged(typical_acceptance({.most = 0, .of_flat = 0}), s).accepted == 1);  // never a token of probability 0
  // exp(-entropy) is 0.5^0.5 * 0.25^0.5 = 0.3536.
  s.p.rows[1] = {0.5, 0.25, 0.25, 0};
  CHECK(judged(typical_acceptance({.most = 1, .of_flat = 0.7}), s).accepted == 2);
  CHECK(judged(typical_acceptance({.most = 1, .of_flat = 0.72}), s).accepted == 1);
  CHECK(judged(typical_acceptance({.most = 0.2, .of_flat = 1}), s).accepted == 2);
}

TEST_CASE("of several accepted paths the deepest wins") {
  scene s;
  s.drawn = tree<>(4);
  s.drawn.reset(0);
  s.drawn.draw(0, 0, 0);
  const node_id second = s.drawn.draw(0, 1, 0);
  const node_id below = s.drawn.draw(second, 2, 0);
  s.drawn.draw(0, 3, 0);
  s.p.rows.assign(5, std::vector<double>(4, 0.25));
  CHECK(judged(typical_acceptance(), s).accepted == below);
}

TEST_CASE("deferral takes the first draw where the draft is as sure as the target") {
  deferral verifier({.lenience = 0.1});
  const std::vector<double> p{0.5, 0.5, 0}, sure{0.05, 0, 0.95}, unsure{0.3, 0.35, 0.35};
  CHECK(one_node::output_distribution(verifier, p, sure, {2})[2] == Approx(1));
  naive exact;
  CHECK(one_node::distance(one_node::output_distribution(verifier, p, unsure, {2}),
                           one_node::output_distribution(exact, p, unsure, {2})) < 1e-12);
}

TEST_CASE("options of the rules out of range are errors") {
  const auto make = [](const auto& options) {
    using options_type = std::decay_t<decltype(options)>;
    if constexpr (std::is_same_v<options_type, deferral_options>)
      (void)deferral(options);
    else
      (void)threshold_acceptance<options_type>(options);
  };
  check_ranges(typical_acceptance_options{}, make);
  check_ranges(relaxed_acceptance_options{}, make);
  check_ranges(deferral_options{}, make);
}

TEST_CASE("a decoder takes a rule with the word for it, and at temperature 0 writes the target's text") {
  constexpr std::int32_t vocab = 8;
  const auto write = [&](auto verifier) {
    text_backend target(vocab, [](std::span<const token_id> text, std::span<float> logits) {
      for (std::size_t i = 0; i < logits.size(); ++i)
        logits[i] = static_cast<float>((static_cast<std::size_t>(text.back()) * 3 + i) % 8);
    });
    text_backend draft(vocab, [](std::span<const token_id> text, std::span<float> logits) {
      for (std::size_t i = 0; i < logits.size(); ++i)
        logits[i] = static_cast<float>((static_cast<std::size_t>(text.back()) * 3 + i + 1) % 8);
    });
    token_kv kv(256), draft_kv(256);
    autoregressive drafter(draft, draft_kv);
    auto decode = make_decoder(drafter, chain({.length = 4}), std::move(verifier), kv, target);
    decode.begin(std::vector<token_id>{1, 2}, {.max_tokens = 40});
    while (decode.step()) {
    }
    const auto written = decode.current().written();
    return std::vector<token_id>(written.begin(), written.end());
  };
  const std::vector<token_id> exact = write(greedy());
  CHECK(exact.size() == 40);
  // At temperature 0 the target's rows are sure of one token, so every threshold above 0 is the target's own choice.
  CHECK(write(approximate(typical_acceptance())) == exact);
}
