// expect: keep_states, but its members hidden_size, root_state and previous_state cannot all be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::step_drafter {
  void keep_states();
  std::int32_t hidden_size() const;
  espalier::model_state<float> root_state() const;
#ifdef ESPALIER_VALID
  espalier::model_state<float> previous_state() const;
#else
  espalier::model_state<float> last_state() const;
#endif
};

static_assert(parts::fit<candidate>());
