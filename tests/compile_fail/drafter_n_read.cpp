// expect: drafter's member n_read cannot be called as n_read\(\) -> int: see FeatureDrafter
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::step_drafter {
#ifdef ESPALIER_VALID
  std::int32_t n_read() const;
#else
  std::int32_t n_read();
#endif
  template <class BackendT>
  void read(const BackendT&, std::span<const std::int32_t>);
};

static_assert(parts::fit<candidate>());
