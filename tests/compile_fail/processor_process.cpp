// expect: ProcessesRows
// SPDX-License-Identifier: BSL-1.0
#include "espalier/concepts/processor.hpp"

struct candidate {
  void begin(std::span<const espalier::token_id>);
  void commit(std::span<const espalier::token_id>);
#ifdef ESPALIER_VALID
  void process(std::span<const espalier::token_id>, std::span<float>);
  void process(std::span<const espalier::token_id>, std::span<double>);
#else
  void process(std::span<float>);  // after which path?
#endif
};

static_assert(espalier::Processor<candidate>);
