// SPDX-License-Identifier: BSL-1.0
#include "espalier/registry.hpp"

#include <algorithm>
#include <boost/hana/size.hpp>
#include <boost/hana/type.hpp>
#include <cctype>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"

namespace {

namespace hana = boost::hana;
using espalier::token_id;

struct anything {
  template <class T>
  operator T() const;
};

// Members of an aggregate: the most initialisers it takes.
template <class AggregateT, class... AnythingT>
constexpr int members() {
  if constexpr (requires { AggregateT{AnythingT{}..., anything{}}; }) {
    return members<AggregateT, AnythingT..., anything>();
  } else {
    return static_cast<int>(sizeof...(AnythingT));
  }
}

template <class OptionsT>
constexpr int described() {
  return static_cast<int>(decltype(hana::size(espalier::options_of<OptionsT>))::value);
}

bool is_flag_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return std::islower(static_cast<unsigned char>(c)) != 0 || std::isdigit(static_cast<unsigned char>(c)) != 0 ||
           c == '-';
  });
}

// The value next to a bound, on the side that is not allowed.
template <class ValueT>
ValueT beyond(double bound, double direction) {
  if constexpr (std::is_integral_v<ValueT>) {
    return static_cast<ValueT>(bound + direction);
  } else {
    return std::nextafter(static_cast<ValueT>(bound), static_cast<ValueT>(direction * 1e9));
  }
}

// Calls check(part name, options, build) for each struct whose part validates it; build(options) makes the part.
template <class CheckT>
void for_each_options_struct(const CheckT& check) {
  hana::for_each(espalier::tree_policies, [&](const auto& policy) {
    check(policy.name, policy.options, [&](const auto& options) {
      auto changed = policy;
      changed.options = options;
      (void)changed.make();
    });
  });
  check(std::string_view("khisti"), espalier::khisti_options{},
        [](const auto& options) { (void)espalier::khisti(options); });
  check(std::string_view("prompt-lookup"), espalier::prompt_lookup_options{},
        [](const auto& options) { (void)espalier::prompt_lookup(options); });
  check(std::string_view("ngram"), espalier::ngram_options{},
        [](const auto& options) { (void)espalier::ngram(options); });
  check(std::string_view("sampling"), espalier::sampling_options{},
        [](const auto& options) { (void)espalier::sampler(options); });
}

// Prefers a token that depends on the place and the last tokens; with a longer reach it often agrees with one of shorter.
struct mixing_model {
  int reach;
  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    unsigned state = static_cast<unsigned>(text.size());
    for (const token_id t : text.last((std::min)(text.size(), static_cast<std::size_t>(reach))))
      state = state * 31U + static_cast<unsigned>(t);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const unsigned mixed = (state + static_cast<unsigned>(i) * 40503U) * 2654435761U;
      logits[i] = static_cast<float>(mixed >> 20U) / 1024.0F;
    }
    if (reach > 2) {  // the target agrees with the draft two times in three
      if (state % 3 != 0) mixing_model{2}(text, logits);
    }
  }
};

template <class PolicyT, class VerifierT>
std::vector<token_id> write(PolicyT policy, VerifierT verifier, espalier::decoder_options options = {}) {
  espalier::token_kv kv(256);
  espalier::token_kv draft_kv(256);
  espalier::text_backend target(24, mixing_model{3});
  espalier::text_backend draft(24, mixing_model{2});
  espalier::autoregressive drafter(draft, draft_kv);
  auto decode = espalier::make_decoder(drafter, policy, verifier, kv, target, options);
  const std::vector<token_id> prompt{1, 2, 3};
  const auto written = decode.generate(prompt, {.max_tokens = 100});
  return {written.begin(), written.end()};
}

}  // namespace

TEST_CASE("every field of the options of a part is described, in its place", "[registry]") {
  CHECK(described<espalier::chain_options>() == members<espalier::chain_options>());
  CHECK(described<espalier::fixed_options>() == members<espalier::fixed_options>());
  CHECK(described<espalier::dynatree_options>() == members<espalier::dynatree_options>());
  CHECK(described<espalier::sampled_chain_options>() == members<espalier::sampled_chain_options>());
  CHECK(described<espalier::iid_paths_options>() == members<espalier::iid_paths_options>());
  CHECK(described<espalier::khisti_options>() == members<espalier::khisti_options>());
  CHECK(described<espalier::dyspec_greedy_options>() == members<espalier::dyspec_greedy_options>());
  CHECK(described<espalier::dyspec_threshold_options>() == members<espalier::dyspec_threshold_options>());
  CHECK(described<espalier::adaptive_chain_options>() == members<espalier::adaptive_chain_options>());
  CHECK(described<espalier::best_first_options>() == members<espalier::best_first_options>());
  CHECK(described<espalier::eagle2_options>() == members<espalier::eagle2_options>());
  CHECK(described<espalier::sequoia_options>() == members<espalier::sequoia_options>());
  CHECK(described<espalier::specinfer_static_options>() == members<espalier::specinfer_static_options>());
  CHECK(described<espalier::delayed_options>() == members<espalier::delayed_options>());
  CHECK(described<espalier::cost_aware_options>() == members<espalier::cost_aware_options>());
  CHECK(described<espalier::neural_delayed_options>() == members<espalier::neural_delayed_options>());
  CHECK(described<espalier::prompt_lookup_options>() == members<espalier::prompt_lookup_options>());
  CHECK(described<espalier::ngram_options>() == members<espalier::ngram_options>());
  CHECK(described<espalier::sampling_options>() == members<espalier::sampling_options>());
}

TEST_CASE("options have names, ranges and help", "[registry]") {
  for_each_options_struct([](std::string_view part, auto options, const auto&) {
    std::set<std::string_view> names;
    std::set<const void*> places;
    espalier::for_each_option(options, [&](const auto& option, const auto& value) {
      INFO(part << "." << option.name);
      CHECK(names.insert(option.name).second);
      CHECK(places.insert(&value).second);
      CHECK(option.low < option.high);
      CHECK_FALSE(option.help.empty());
      CHECK(option.help.back() != '.');
      CHECK(static_cast<double>(value) >= option.low);
      CHECK(static_cast<double>(value) <= option.high);
    });
  });
}

TEST_CASE("the ranges are those that the parts check", "[registry]") {
  for_each_options_struct([](std::string_view part, const auto& defaults, const auto& build) {
    auto lowest = defaults;
    auto highest = defaults;
    espalier::for_each_option(lowest, [](const auto& option, auto& value) {
      value = static_cast<std::remove_reference_t<decltype(value)>>(option.low);
    });
    espalier::for_each_option(highest, [](const auto& option, auto& value) {
      value = static_cast<std::remove_reference_t<decltype(value)>>(option.high);
    });
    INFO(part);
    CHECK_NOTHROW(build(lowest));
    CHECK_NOTHROW(build(highest));

    auto options = defaults;
    espalier::for_each_option(options, [&](const auto& option, auto& value) {
      using value_type = std::remove_reference_t<decltype(value)>;
      if constexpr (!std::is_same_v<value_type, bool>) {
        INFO(part << "." << option.name);
        const value_type before = value;
        value = beyond<value_type>(option.low, -1);
        CHECK_THROWS_AS(build(options), espalier::option_error);
        value = beyond<value_type>(option.high, 1);
        CHECK_THROWS_AS(build(options), espalier::option_error);
        value = before;
      }
    });
  });
}

TEST_CASE("parts have names of their own", "[registry]") {
  std::set<std::string_view> policies;
  std::set<std::string_view> verifiers;
  hana::for_each(espalier::tree_policies, [&](const auto& part) {
    CHECK(is_flag_name(part.name));
    CHECK(policies.insert(part.name).second);
  });
  hana::for_each(espalier::verifiers, [&](const auto& part) {
    CHECK(is_flag_name(part.name));
    CHECK(verifiers.insert(part.name).second);
  });
  CHECK(policies.count("plain") == 1);
  CHECK(policies.count("dynatree") == 1);
}

TEST_CASE("only plain decoding needs no drafter", "[registry]") {
  hana::for_each(espalier::tree_policies, [](const auto& part) {
    using policy_type = typename std::decay_t<decltype(part)>::type;
    CHECK(espalier::drafts<policy_type> == (part.name != "plain"));
  });
  CHECK(espalier::is_argmax_only<espalier::greedy>);
  CHECK_FALSE(espalier::is_argmax_only<espalier::target_only>);
}

TEST_CASE("values of enumerations have names, the default first", "[registry]") {
  CHECK(espalier::known_values<espalier::node_order>.front().value == espalier::decoder_options{}.order);
  CHECK(espalier::name_of(espalier::node_order::heavy_path) == "heavy-path");
  CHECK(espalier::name_of(espalier::commit_mode::truncate) == "truncate");
  std::set<std::string_view> names;
  for (const auto& known : espalier::known_values<espalier::node_order>) {
    CHECK(is_flag_name(known.name));
    CHECK(names.insert(known.name).second);
    CHECK(espalier::name_of(known.value) == known.name);
  }
  CHECK(espalier::name_of(static_cast<espalier::node_order>(99)) == "unknown");
}

TEST_CASE("every pair of known parts writes what plain decoding writes", "[registry]") {
  const std::vector<token_id> expected = write(espalier::plain(), espalier::greedy());
  REQUIRE(expected.size() == 100);
  REQUIRE(std::set<token_id>(expected.begin(), expected.end()).size() > 8);
  int pairs = 0;
  espalier::for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
    for (const auto& order : espalier::known_values<espalier::node_order>) {
      INFO(policy.name << " with " << verifier.name << ", " << order.name);
      CHECK(write(policy.make(), verifier.make(), {.order = order.value}) == expected);
    }
    ++pairs;
  });
  // Plain decoding and a single sampled path go with every verifier, deterministic trees with the two that ask the target
  // alone, independent paths with all but those for a single path, draws without replacement with four.
  CHECK(pairs == 11 + 11 + 8 * 2 + 4 * 9 + 5 * 4);
}
