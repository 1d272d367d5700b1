// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "espalier/tree_policy/chain.hpp"

namespace espalier::cuda {

namespace detail {

// One thread: a token of each list after the node asked about, one after the other; the last of them is asked about
// next, if all are there.
template <class TreeT>
ESPALIER_KERNEL void append_chain(TreeT tree, const node_id* asked, const token_id* tokens, const float* log_probs,
                                  std::int32_t n, node_id* next) {
  node_id u = *asked;
  for (std::int32_t i = 0; i < n && u != no_node; ++i)
    u = log_probs[i] >= -FLT_MAX ? tree.append(u, tokens[i], log_probs[i]) : no_node;
  *next = tree.full() ? no_node : u;
}

}  // namespace detail

//! espalier::chain on the device, over a StepDrafter or a BlockDrafter: the same tree from the same rows.
//!
//! Complexity  StepDrafter: for each of the K tokens a draft pass of one row, a launch that reads it, and a launch of
//!             one thread. BlockDrafter: one draft pass, one launch over its rows, one of one thread. No allocation
//!             after construction, no synchronisation
//! Errors      option_error for options out of range; a fault for a block's logits that top_tokens refuses,
//!             also in rows that a full tree does not need
//! Source      as espalier::chain
class chain {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit chain(chain_options options = {}) : options_(require_options(options)) {
    tokens_ = device_array<token_id>(static_cast<std::size_t>(options.length));
    log_probs_ = device_array<float>(static_cast<std::size_t>(options.length));
  }

  std::int32_t max_nodes() const { return options_.length; }

  node_list begin(tree_writer, cudaStream_t) {
    step_ = 0;
    return wanted();
  }

  node_list take(tree_writer tree, const node_rows<float>& rows, chance_source, cudaStream_t stream) {
    const child_lists best{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = 1};
    top_children(rows.rows.vocab).find(rows, wanted(), best, stream);
    append(tree, 1, stream);
    return wanted();
  }

  template <class NumberT>
  node_list take(tree_writer tree, block_rows<NumberT> block, chance_source, cudaStream_t stream) {
    block.logits.n_rows = (std::min)(block.logits.n_rows, options_.length);
    const token_lists lists{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = 1};
    top_tokens<NumberT>(block.logits.vocab)
        .of_logits(block.logits, 1.0F, lists, block.found, row_origin::of_block(0), stream);
    append(tree, block.logits.n_rows, stream);
    return {};
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}

 private:
  node_list wanted() const { return {step_ == 0 ? root_.data() : last_.data(), step_ < options_.length ? 1 : 0}; }

  void append(tree_writer tree, std::int32_t n, cudaStream_t stream) {
    launch("append_chain", detail::append_chain<tree_writer>, {}, stream, tree, wanted().nodes, tokens_.data(),
           log_probs_.data(), n, last_.data());
    ++step_;
  }

  chain_options options_;
  std::int32_t step_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<node_id> last_{1};  // drafted, as long as it is asked about
  device_array<token_id> tokens_;  // [length]
  device_array<float> log_probs_;  // [length]
};

}  // namespace espalier::cuda
