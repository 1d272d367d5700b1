// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "constraint_of.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/registry/chosen_verifier.hpp"
#include "methods.hpp"
#include "text_task.hpp"

namespace generate {

//! A text to write, and the models on the host to write it with.
struct assignment : text_task {
  models::model_set& models;
};

template <class DrafterT, class PolicyT>
written_text write_with(DrafterT&& drafter, PolicyT policy, const assignment& work) {
  models::model_set& models = work.models;
  espalier::chosen_verifier<PolicyT::sampling> verifier(work.verifier);
  espalier::recurrent_kv& kv = models.target_cache(work.arguments.commit);
  auto decode =
      espalier::make_decoder(drafter, policy, verifier, kv, models.target, work.arguments.target, constraint_of(work));
  return write_by(decode, work);
}

//! Write a text with any method over the smaller model, or without a draft for plain decoding; over the block draft;
//! over runs of tokens. Each is in a file of its own.
written_text write_from_model(const assignment& work);
written_text write_from_block(const assignment& work);
written_text write_from_runs(const assignment& work);

}  // namespace generate
