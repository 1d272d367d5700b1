// SPDX-License-Identifier: BSL-1.0
#include "assignment.hpp"

#include "../models/model_set.hpp"

namespace generate {

host_model assignment::target() const {
  return host_model(models.target);
}

host_model assignment::draft() const {
  return host_model(models.draft_model());
}

host_head assignment::head() const {
  return host_head(*models.head);
}

host_block assignment::block() const {
  return host_block(*models.block);
}

espalier::recurrent_kv& assignment::target_cache() const {
  return models.target_cache(arguments.commit);
}

espalier::recurrent_kv& assignment::draft_cache() const {
  return models.draft_cache(arguments.commit);
}

std::unique_ptr<text_verifier> assignment::make_verifier() const {
  return arguments.parts.verifiers.find(verifier)->make();
}

}  // namespace generate
