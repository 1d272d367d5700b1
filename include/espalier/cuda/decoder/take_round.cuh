// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/decoder.cu
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/status.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/text.hpp"

namespace espalier::cuda::detail {

// Commits to the host's text what a round of the device has committed, up to the text's stop condition, or up to depth
// `ends`, after which nothing may follow (-1: there is no such depth). Returns the record of the round; its views are
// those of the text and of the tree.
template <class PieceT>
round_record take_round(text& written, tree_view tree, tree_limit limited_by, verdict decision, std::int32_t ends,
                        const PieceT& piece_of) {
  if (ends == 0) {
    round_record nothing{.index = written.round(), .tree = tree, .decision = decision, .forwarded_rows = tree.n_nodes};
    nothing.limited_by = limited_by;
    written.stop(status::nothing_allowed);
    nothing.shown = written.shown();
    nothing.state = written.state();
    return nothing;
  }
  const status after = ends > 0 ? status::nothing_allowed : status::running;
  const verdict admitted = written.admit(tree, decision, piece_of, after);
  round_record record{.index = written.round(), .tree = tree, .decision = admitted, .forwarded_rows = tree.n_nodes};
  record.limited_by = limited_by;
  const std::size_t before = written.tokens().size();
  written.commit(tree, admitted);
  record.committed = written.tokens().subspan(before);
  record.shown = written.shown();
  record.state = written.state();
  return record;
}

}  // namespace espalier::cuda::detail
