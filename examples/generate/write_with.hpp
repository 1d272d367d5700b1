// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <span>
#include <string>

#include "arguments.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/observer.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/registry.hpp"
#include "methods.hpp"

namespace generate {

//! What to write, and with which method: the names of the parts, and what they work on.
struct assignment {
  models::model_folder& models;
  const generate::arguments& arguments;
  const std::string& method;
  const std::string& verifier;
  std::span<const espalier::token_id> prompt;
  const round_watcher& watch;
};

//! Calls f(policy, verifier) for the pair of these names.
//!
//! Pre         the verifier is lossless for the method
template <class FunctionT>
void with_parts(const arguments& arguments, const std::string& method, const std::string& verifier, FunctionT&& f) {
  espalier::for_each_compatible_pair(arguments.policies, espalier::verifiers,
                                     [&](const auto& policy_part, const auto& verifier_part) {
                                       if (policy_part.name == method && verifier_part.name == verifier)
                                         f(policy_part, verifier_part);
                                     });
}

//! Writes with a decoder of the host or of a device.
template <class DecoderT>
written_text write_by(DecoderT& decode, const assignment& work) {
  const models::model_folder& models = work.models;
  const arguments& arguments = work.arguments;
  espalier::stop_conditions stop{.max_tokens = arguments.max_tokens, .strings = arguments.stop};
  if (models.text.end_of_text() >= 0) stop.tokens.push_back(models.text.end_of_text());
  written_text result;
  const auto tokens = decode.generate(work.prompt, stop, espalier::observe_all(result.statistics, work.watch),
                                      [&](espalier::token_id token) { return models.text.piece(token); });
  result.tokens.assign(tokens.begin(), tokens.end());
  result.end = decode.current().state();
  return result;
}

template <class DrafterT, class PolicyT, class VerifierT>
written_text write_with(DrafterT&& drafter, const PolicyT& policy, const VerifierT& verifier, const assignment& work) {
  models::model_folder& models = work.models;
  espalier::contiguous_kv kv = models.make_cache(models.target, work.arguments.commit);
  auto decode =
      espalier::make_decoder(drafter, policy.make(), verifier.make(), kv, models.target, work.arguments.target);
  return write_by(decode, work);
}

//! A file each: every method over the smaller model, or none for plain decoding; over the block draft; over runs of tokens.
written_text write_from_model(const assignment& work);
written_text write_from_block(const assignment& work);
written_text write_from_runs(const assignment& work);

}  // namespace generate
