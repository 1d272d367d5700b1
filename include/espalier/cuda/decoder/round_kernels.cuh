// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/decoder.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/text_batch.cuh"

//! The kernels that put texts in their places, and that open and close a round, and a round's outcome for the host.
namespace espalier::cuda::detail {

// Writes a text's state and clears its fault; run by one thread. The state is passed by value, so that it need not be
// copied from memory of the host.
template <class StateT>
ESPALIER_KERNEL void put_state(StateT* to, StateT state, fault* found) {
  *to = state;
  *found = {};
}

// Places of some lanes, to be passed to a kernel by value.
struct some_lanes {
  static constexpr std::int32_t max = 256;
  std::int32_t first = 0;
  std::int32_t n = 0;
  std::int32_t place[max] = {};
};

// Writes some lanes to the table of places; run by one block.
template <class UnusedT = void>
ESPALIER_KERNEL void set_lanes(std::int32_t* place_of, some_lanes some) {
  const auto i = static_cast<std::int32_t>(threadIdx.x);
  if (i < some.n) place_of[some.first + i] = some.place[i];
}

// The outcome of a round for one lane, which the host gets besides the tree.
struct round_outcome {
  fault found;
  verdict decision;        // the verdict as far as it is committed; its token is -1 if nothing is committed
  std::int32_t ends = -1;  // depth of the first node on the accepted path after which nothing may follow, or -1
  float expected = 0;      // in entry i of the array, which here has nothing to do with lane i: tokens that all texts
                           // together are expected to gain from a pass with 2^i rows for each lane
};

// Opens a round; one thread works for a lane. The tree becomes a root alone, the text's last token. Its limit is
// `longest` minus the number of tokens of the text, but at most max_nodes, and 0 if the text may get only one more
// token.
template <class UnusedT = void>
ESPALIER_KERNEL void open_round(text_batch texts, std::int32_t max_nodes, std::int32_t longest) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const text_state state = *here.text.state;
  std::int32_t limit = 0;
  if (state.end - state.size > 1) {
    limit = longest - state.size;
    limit = limit < 0 ? 0 : (limit < max_nodes ? limit : max_nodes);
  }
  here.tree.reset(here.text.tokens[state.size - 1], limit);
}

// The nodes after which nothing may follow. Shapes: `of` [places][nodes]: 1 for such a node, else 0; nullptr if no such
// node is known
struct ends_view {
  const std::int32_t* of;
  std::int32_t nodes;

  // Returns the depth of the first such node on a path of n nodes, or -1.
  __device__ std::int32_t first_on(const node_id* path, std::int32_t n, std::int32_t place) const {
    for (std::int32_t i = 0; i < n && of != nullptr; ++i) {
      if (of[static_cast<std::ptrdiff_t>(place) * nodes + path[i]] != 0) return i;
    }
    return -1;
  }
};

// Closes a round; one thread works for a lane. The accepted path and the target's own token join the text, which stops
// at its end and at the first node after which nothing may follow.
//
// Shapes      found [places]; decisions [places]: what is committed, with the token -1 if nothing is; outcomes [lanes]
template <class UnusedT = void>
ESPALIER_KERNEL void close_round(text_batch texts, path_view paths, const fault* found, ends_view all_ends,
                                 verdict* decisions, round_outcome* outcomes) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const path_view path = paths.of(here.place);
  const fault failed = found[here.place];
  verdict decision{root_node, -1};
  text_state state = *here.text.state;
  const std::int32_t room = state.end - state.size;
  std::int32_t n = failed.what == fault::kind::none ? *path.n : 0;
  const std::int32_t ends = all_ends.first_on(path.nodes, n, here.place);
  n = n < room ? n : room;
  if (ends >= 0 && ends < n) n = ends;
  if (n > 0) {
    decision = cut(here.tree.view(), *path.decision, n);
    for (std::int32_t i = 0; i < n; ++i)
      here.text.tokens[state.size + i] = i + 1 < *path.n ? here.tree.token[path.nodes[i + 1]] : path.decision->token;
    state.size += n;
    *here.text.state = state;
  }
  decisions[here.place] = decision;
  outcomes[here.lane].found = failed;
  outcomes[here.lane].decision = decision;
  outcomes[here.lane].ends = ends;
}

}  // namespace espalier::cuda::detail
