// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/decoder/round.hpp"
#include "host_model.hpp"

namespace models {
class block_model;
struct model_set;
struct price_table;
}  // namespace models

namespace generate {

//! The models on the host, with the prices of their passes.
struct priced_models {
  priced_model<espalier::llama_backend> target;
  priced_model<espalier::llama_backend> draft;
  priced_model<espalier::draft_head_model> head;
  priced_model<models::block_model> block;
  double opening = 0;  //!< seconds that a round with a draft takes beyond its passes

  //! Without a table nothing is counted.
  priced_models(models::model_set& models, const models::price_table* table);

  //! A round's record in which the seconds are the prices of the passes since the last call; without a table the record
  //! itself.
  espalier::round_record priced(const espalier::round_record& round);
};

}  // namespace generate
