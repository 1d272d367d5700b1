// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <memory>

#include "host_model.hpp"
#include "text_task.hpp"
#include "text_verifier.hpp"

namespace models {
struct model_set;
}

namespace generate {

//! A text to write, and the models on the host to write it with.
struct assignment : text_task {
  models::model_set& models;

  host_model target() const;
  host_model draft() const;
  host_head head() const;
  host_block block() const;
  espalier::recurrent_kv& target_cache() const;
  espalier::recurrent_kv& draft_cache() const;

  //! The verifier to write it with.
  std::unique_ptr<text_verifier> make_verifier() const;
};

}  // namespace generate
