// expect: FollowsTokens
// SPDX-License-Identifier: BSL-1.0
#include "espalier/concepts/processor.hpp"

struct candidate {
  void begin(std::span<const espalier::token_id>);
#ifdef ESPALIER_VALID
  void commit(std::span<const espalier::token_id>);
#else
  void commit(int n_tokens);  // which ones?
#endif
  void process(std::span<const espalier::token_id>, std::span<float>);
  void process(std::span<const espalier::token_id>, std::span<double>);
};

static_assert(espalier::Processor<candidate>);
