// SPDX-License-Identifier: BSL-1.0
#include "espalier/registry.hpp"

#include <algorithm>
#include <boost/hana/type.hpp>
#include <cctype>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry/chosen_verifier.hpp"
#include "option_ranges.hpp"
#include "raises.hpp"
#include "verifier_of.hpp"

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
  int n = 0;
  OptionsT::describe([&](const auto&) { ++n; });
  return n;
}

bool is_flag_name(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return std::islower(static_cast<unsigned char>(c)) != 0 || std::isdigit(static_cast<unsigned char>(c)) != 0 ||
           c == '-';
  });
}

// Calls check(part name, options, build) for each struct whose part validates it; build(options) makes the part.
template <class CheckT>
void for_each_options_struct(const CheckT& check) {
  hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& policy) {
    if constexpr (std::is_same_v<typename PartT::options_type, espalier::no_options>) return;
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

enum class holes { none, grammar };

// Prefers a token that depends on the place and the last tokens; with a longer reach it often agrees with one of
// shorter. Tokens from n_tokens on do not exist: a vocabulary that is larger is padded. By the grammar, tokens of the
// other parity follow.
struct mixing_model {
  int reach;
  token_id n_tokens = 24;
  holes mask = holes::none;

  bool allows(token_id before, token_id next) const {
    return next < n_tokens && (mask == holes::none || (before + next) % 2 == 1);
  }
  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    fill(text, logits);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (!allows(text.back(), static_cast<token_id>(i))) logits[i] = -std::numeric_limits<float>::infinity();
    }
  }
  void fill(std::span<const token_id> text, std::span<float> logits) const {
    unsigned state = static_cast<unsigned>(text.size());
    for (const token_id t : text.last((std::min)(text.size(), static_cast<std::size_t>(reach))))
      state = state * 31U + static_cast<unsigned>(t);
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const unsigned mixed = (state + static_cast<unsigned>(i) * 40503U) * 2654435761U;
      logits[i] = static_cast<float>(mixed >> 20U) / 1024.0F;
    }
    if (reach > 2) {  // the target agrees with the draft two times in three
      if (state % 3 != 0) mixing_model{2}.fill(text, logits);
    }
  }
};

// The models of a decoder, and what its parts are told.
struct setting {
  mixing_model target{3}, draft{2};
  std::int32_t vocab = 24;
  espalier::decoder_options options{.text = {.seed = 0}};
  espalier::sampling_options drafted{.temperature = 1};
};

// What a decoder writes. Nothing is drafted that the draft rules out, nor written that the target does.
template <class PolicyT, class VerifierT>
std::vector<token_id> write(PolicyT policy, VerifierT verifier, const setting& s = {}, std::int32_t max_tokens = 100) {
  espalier::token_kv kv(256);
  espalier::token_kv draft_kv(256);
  espalier::text_backend target(s.vocab, s.target);
  espalier::text_backend draft(s.vocab, s.draft);
  espalier::autoregressive drafter(draft, draft_kv, s.drafted);
  auto decode = espalier::make_decoder(drafter, policy, verifier, kv, target, s.options);
  const std::vector<token_id> prompt{1, 2, 3};
  decode.begin(prompt, {.max_tokens = max_tokens});
  bool possible = true;
  while (decode.step()) {
    const espalier::tree_view tree = decode.last_round().tree;
    for (espalier::node_id u = 1; u < tree.n_nodes; ++u)
      possible = possible && s.draft.allows(tree.token[tree.parent[u]], tree.token[u]);
  }
  const auto text = decode.current().tokens();
  for (std::size_t i = prompt.size(); i < text.size(); ++i)
    possible = possible && s.target.allows(text[i - 1], text[i]);
  CHECK(possible);
  return {text.begin() + 3, text.end()};
}

// The greedy verifier knows no other temperature than 0.
template <class VerifierT>
constexpr float warm = espalier::ArgmaxVerifier<VerifierT> ? 0.0F : 1.0F;

// The verifier of a pair: the greedy one, for which a decoder keeps no rows of the draft, is itself; all others of a
// regime share one type.
template <class PolicyPartT, class VerifierPartT>
auto own_verifier_of([[maybe_unused]] const PolicyPartT& policy, const VerifierPartT& verifier) {
  if constexpr (espalier::ArgmaxVerifier<typename VerifierPartT::type>) {
    return verifier.make();
  } else {
    return verifier_of(policy, verifier);
  }
}

}  // namespace

TEST_CASE("every field of the options of a part is described", "[registry]") {
  for_each_options_struct([]<class OptionsT>(std::string_view part, const OptionsT&, const auto&) {
    INFO(part);
    CHECK(described<OptionsT>() == members<OptionsT>());
  });
}

TEST_CASE("options have names, ranges and help", "[registry]") {
  for_each_options_struct([](std::string_view part, auto options, const auto&) {
    std::set<std::string_view> names;
    std::set<const void*> places;
    espalier::for_each_option(options, [&]<class ValueT>(const auto& option, const ValueT& value) {
      INFO(part << "." << option.name);
      CHECK((option.high_name().empty() || names.count(option.high_name()) == 1));
      CHECK(names.insert(option.name).second);
      CHECK(places.insert(&value).second);
      if constexpr (std::is_arithmetic_v<ValueT>) CHECK(option.low < option.high());
      CHECK_FALSE(option.help.empty());
      CHECK(option.help.back() != '.');
    });
    CHECK_NOTHROW(espalier::require_options(options));
  });
}

TEST_CASE("parts take their options at both ends of their ranges, and refuse what lies beyond", "[registry]") {
  for_each_options_struct([](std::string_view part, const auto& defaults, const auto& build) {
    INFO(part);
    check_ranges(defaults, build);
  });
  check_ranges(espalier::decoder_options{}, [](const espalier::decoder_options& options) {
    (void)write(espalier::plain(), espalier::greedy(), {.options = options}, 1);
  });
  check_ranges(espalier::stop_conditions{}, [](const espalier::stop_conditions& stop) {
    (void)write(espalier::plain(), espalier::greedy(), {}, stop.max_tokens);
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
  CHECK(espalier::ArgmaxVerifier<espalier::greedy>);
  CHECK_FALSE(espalier::ArgmaxVerifier<espalier::target_only>);
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
      CHECK(write(policy.make(), own_verifier_of(policy, verifier), {.options = {.order = order.value}}) == expected);
    }
    ++pairs;
  });
  // docs/pairs.md lists them, and is compared with the registry.
  CHECK(pairs >= 94);
}

TEST_CASE("a padded vocabulary changes no text of any pair", "[registry]") {
  const std::vector<token_id> expected = write(espalier::plain(), espalier::greedy());
  espalier::for_each_compatible_pair([&]<class VerifierT>(const auto& policy, const VerifierT& verifier) {
    INFO(policy.name << " with " << verifier.name);
    for (const espalier::sampling_options& sampling :
         {espalier::sampling_options{.temperature = 1},
          {.temperature = 1, .top_k = 30, .top_p = 0.9F, .min_p = 0.02F}}) {
      setting s{.drafted = sampling};
      CHECK(write(policy.make(), own_verifier_of(policy, verifier), {.vocab = 40, .drafted = sampling}) == expected);
      s.options.text = {.sampling = sampling, .seed = 0};
      s.options.text.sampling.temperature = warm<typename VerifierT::type>;
      const std::vector<token_id> drawn = write(policy.make(), own_verifier_of(policy, verifier), s);
      s.vocab = 40;
      CHECK(write(policy.make(), own_verifier_of(policy, verifier), s) == drawn);
    }
  });
}

TEST_CASE("where a grammar masks half of the tokens, every pair writes what it allows", "[registry]") {
  for (const holes of_draft : {holes::none, holes::grammar}) {
    setting s{.target{3, 20, holes::grammar}, .draft{2, 22, of_draft}, .vocab = 30};
    const std::vector<token_id> expected = write(espalier::plain(), espalier::greedy(), s);
    REQUIRE(std::set<token_id>(expected.begin(), expected.end()).size() > 8);
    espalier::for_each_compatible_pair([&]<class VerifierT>(const auto& policy, const VerifierT& verifier) {
      INFO(policy.name << " with " << verifier.name);
      s.options.text = {};
      s.drafted = {.temperature = 1};
      CHECK(write(policy.make(), own_verifier_of(policy, verifier), s) == expected);
      for (const espalier::sampling_options& sampling : {espalier::sampling_options{.temperature = 1},
                                                         {.temperature = 1, .top_k = 25},
                                                         {.temperature = 1, .top_p = 0.9F}}) {
        s.drafted = sampling;
        s.options.text = {.sampling = sampling, .seed = 0};
        s.options.text.sampling.temperature = warm<typename VerifierT::type>;
        CHECK(write(policy.make(), own_verifier_of(policy, verifier), s).size() == 100);
      }
    });
  }
}

TEST_CASE("a verifier is chosen by its name, and a misspelt name has a nearest one") {
  using espalier::chosen_verifier, espalier::option_error, espalier::regime;
  const auto refusal = [](const char* name) {
    return message_of<option_error>([&] { chosen_verifier<regime::iid> verifier(name); });
  };
  CHECK(refusal("spectr").empty());
  CHECK(refusal("spectre") == "there is no verifier spectre; the nearest name is spectr.");
  CHECK(refusal("wish") == "there is no verifier wish.");
  CHECK(refusal("naive") == "the verifier naive is not lossless for the policy's trees.");
}
