// expect: policy's members reads_states, read and read_draft cannot all be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : parts::policy {
  bool reads_states() const;
  void read_draft(espalier::model_state<float>, espalier::model_state<float>);
#ifdef ESPALIER_VALID
  void read(std::span<const float> logits, std::span<const float> hidden);
#else
  void read(std::span<const float> logits);
#endif
};

static_assert(parts::fit<parts::drafter, candidate>());
