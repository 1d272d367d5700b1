// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/decoder.cpp
#pragma once

#include <cstdint>

namespace espalier::detail {

// Sizes that the memory of a served_text is made for.
struct served_sizes {
  std::int32_t max_nodes;     // drafted tokens of a round
  std::int32_t max_asked;     // nodes of a tree while it grows, from which a policy may choose the drafted ones
  std::int32_t max_pending;   // tokens of the text that a round's pass takes beside the drafted ones
  std::int32_t prefill_rows;  // tokens of a prompt that a pass takes
  std::int32_t vocab;
  bool keeps_draft_rows = false;  // the verifier needs the draft's rows while the next round is drafted
};

}  // namespace espalier::detail
