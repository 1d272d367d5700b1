// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/text.cuh"

//! The first and the last launch of a round, and what it leaves for the host.
namespace espalier::cuda::detail {

// What a round tells the host, besides its tree.
struct round_outcome {
  fault found;
  verdict decision;  // what is committed; its token is -1 where nothing is
};

// One thread. The tree is its root, the last token; it may grow as far as the context goes, and not at all where one
// token is left.
template <class UnusedT = void>
ESPALIER_KERNEL void open_round(tree_writer tree, text_view text, std::int32_t max_nodes, std::int32_t longest) {
  const text_state state = *text.state;
  std::int32_t limit = 0;
  if (state.end - state.size > 1) {
    limit = longest - state.size;
    limit = limit < 0 ? 0 : (limit < max_nodes ? limit : max_nodes);
  }
  tree.reset(text.tokens[state.size - 1], limit);
}

// One thread. The accepted path and the target's own token join the text, which stops at its end.
template <class UnusedT = void>
ESPALIER_KERNEL void close_round(tree_writer tree, path_view path, text_view text, const fault* found,
                                 round_outcome* outcome) {
  text_state state = *text.state;
  const std::int32_t room = state.end - state.size;
  std::int32_t n = found->what == fault::kind::none ? *path.n : 0;
  n = n < room ? n : room;
  *outcome = {*found, {root_node, -1}};
  if (n <= 0) return;
  outcome->decision = cut(tree.view(), *path.decision, n);
  for (std::int32_t i = 0; i < n; ++i)
    text.tokens[state.size + i] = i + 1 < *path.n ? tree.token[path.nodes[i + 1]] : path.decision->token;
  state.size += n;
  *text.state = state;
}

}  // namespace espalier::cuda::detail
