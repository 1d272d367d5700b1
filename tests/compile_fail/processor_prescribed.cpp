// expect: prescribed cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/check_parts.hpp"

struct candidate : espalier::no_processor {
#ifdef ESPALIER_VALID
  std::optional<espalier::token_id> prescribed(std::span<const espalier::token_id>);
#else
  espalier::token_id prescribed(std::span<const espalier::token_id>);  // what where it is open?
#endif
};

static_assert(espalier::detail::fit<decltype(espalier::detail::processor_mistake<candidate>())::type>());
