// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <memory>

#include "espalier/sampling/sampler.hpp"
#include "host_drafter.hpp"
#include "host_model.hpp"
#include "priced_models.hpp"
#include "text_task.hpp"
#include "text_verifier.hpp"

namespace models {
struct model_set;
}  // namespace models

namespace generate {

//! A text to write, and the models on the host to write it with.
struct assignment : text_task {
  models::model_set& models;
  priced_models& passes;

  host_model target() const;
  host_head head() const;
  host_block block() const;
  //! The drafter that the arguments name, unless it is a block: the draft model, sampled by these options, or the text.
  host_drafter drafter(const espalier::sampling_options& sampling) const;
  //! The draft model, sampled by these options, as a drafter that can draft ahead.
  //!
  //! Errors      usage_error if the draft's text is cut again: then it cannot
  host_path_drafter path_drafter(const espalier::sampling_options& sampling) const;
  //! The drafter that drafts what followed the last tokens earlier in the text.
  host_drafter text_drafter() const;
  //! The policy that drafts from the text beside the drafter; null if none does.
  std::shared_ptr<const chosen_policy> text_policy() const;
  espalier::recurrent_kv& target_cache() const;

  //! The verifier to write it with.
  std::unique_ptr<text_verifier> make_verifier() const;
};

}  // namespace generate
