// SPDX-License-Identifier: BSL-1.0
// Every decoder of the program is compiled here, from the registry: a method that is added there is there for all.
#include "methods.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <type_traits>

#include "draft_sampling.hpp"
#include "espalier/backend/prefill.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/observer.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/registry.hpp"

namespace generate {

namespace {

namespace hana = boost::hana;

// Calls f(policy, verifier) for the pair of these names.
//
// Pre: the verifier is lossless for the method.
template <class FunctionT>
void with_parts(const arguments& arguments, const std::string& method, const std::string& verifier, FunctionT&& f) {
  espalier::for_each_compatible_pair(arguments.policies, espalier::verifiers,
                                     [&](const auto& policy_part, const auto& verifier_part) {
                                       if (policy_part.name == method && verifier_part.name == verifier)
                                         f(policy_part, verifier_part);
                                     });
}

template <class DrafterT, class PolicyT, class VerifierT>
written_text write_with(DrafterT& drafter, PolicyT policy, VerifierT verifier, models::model_folder& models,
                        const arguments& arguments, std::span<const espalier::token_id> prompt,
                        const round_watcher& watch) {
  espalier::contiguous_kv kv = models.make_cache(models.target, arguments.commit);
  auto decode = espalier::make_decoder(drafter, policy, verifier, kv, models.target, arguments.target);
  espalier::stop_conditions stop{.max_tokens = arguments.max_tokens, .strings = arguments.stop};
  if (models.text.end_of_text() >= 0) stop.tokens.push_back(models.text.end_of_text());
  written_text result;
  const auto tokens = decode.generate(prompt, stop, espalier::observe_all(result.statistics, watch),
                                      [&](espalier::token_id token) { return models.text.piece(token); });
  result.tokens.assign(tokens.begin(), tokens.end());
  result.end = decode.current().state();
  return result;
}

}  // namespace

void check_method(const arguments& arguments, const std::string& method, const std::string& verifier) {
  with_parts(arguments, method, verifier, [&]<class VerifierT>(const auto& policy, const VerifierT& part) {
    try {
      (void)policy.make();
      (void)part.make();
    } catch (const espalier::option_error& error) {
      throw usage_error(fmt::format("--method {}: {}", method, error.what()));
    }
    if (espalier::is_argmax_only<typename VerifierT::type> && arguments.target.sampling.temperature > 0.0F) {
      throw usage_error(
          fmt::format("--verifier {} writes the most probable token: it goes with --temperature 0 only.", part.name));
    }
  });
}

std::int32_t longest_pass(const arguments& arguments, const std::string& method) {
  std::int32_t rows = 0;
  hana::for_each(arguments.policies, [&](const auto& policy) {
    if (policy.name == method) rows = policy.make().max_nodes() + espalier::prefill::chunk;
  });
  return rows;
}

written_text write(models::model_folder& models, const arguments& arguments, const std::string& method,
                   const std::string& verifier, std::span<const espalier::token_id> prompt,
                   const round_watcher& watch) {
  written_text result;
  with_parts(arguments, method, verifier, [&]<class PolicyT>(const PolicyT& policy, const auto& part) {
    if constexpr (espalier::drafts<typename PolicyT::type>) {
      espalier::contiguous_kv kv = models.make_cache(models.draft, arguments.commit);
      espalier::autoregressive drafter(models.draft, kv, draft_sampling(arguments, method));
      result = write_with(drafter, policy.make(), part.make(), models, arguments, prompt, watch);
    } else {
      espalier::no_drafter drafter;
      result = write_with(drafter, policy.make(), part.make(), models, arguments, prompt, watch);
    }
  });
  return result;
}

}  // namespace generate
