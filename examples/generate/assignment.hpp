// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <memory>

#include "espalier/sampling/sampler.hpp"
#include "host_drafter.hpp"
#include "host_model.hpp"
#include "text_task.hpp"
#include "text_verifier.hpp"

namespace models {
struct model_set;
struct price_table;
}  // namespace models

namespace generate {

//! The models on the host, with the prices of their passes.
struct priced_models {
  priced_model<espalier::llama_backend> target;
  priced_model<espalier::llama_backend> draft;
  priced_model<espalier::draft_head_model> head;
  priced_model<espalier::block_draft_model> block;
  double opening = 0;  //!< seconds that a round with a draft takes beyond its passes

  //! Without a table nothing is counted.
  priced_models(models::model_set& models, const models::price_table* table);

  //! A round's record in which the seconds are the prices of the passes since the last call.
  espalier::round_record priced(const espalier::round_record& round);
};

//! A text to write, and the models on the host to write it with.
struct assignment : text_task {
  models::model_set& models;
  priced_models& passes;

  host_model target() const;
  host_head head() const;
  host_block block() const;
  //! The drafter that the arguments name, unless it is a block: the draft model, sampled by these options, or the text.
  host_drafter drafter(const espalier::sampling_options& sampling) const;
  espalier::recurrent_kv& target_cache() const;

  //! The verifier to write it with.
  std::unique_ptr<text_verifier> make_verifier() const;
};

}  // namespace generate
