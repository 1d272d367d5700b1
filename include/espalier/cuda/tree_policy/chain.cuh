// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "espalier/tree_policy/chain.hpp"

namespace espalier::cuda {

namespace detail {

template <class TreeT>
ESPALIER_KERNEL void start_chain(TreeT tree, node_id* asked) {
  *asked = tree.full() ? no_node : root_node;
}

// One thread: the most probable token after the node asked about, which is asked about next.
template <class ListsT>
ESPALIER_KERNEL void append_best(tree_writer tree, ListsT best, node_id* asked) {
  const node_id u = *asked;
  if (u == no_node) return;
  const bool is_there = *best.tokens >= 0;
  if (is_there) tree.append(u, *best.tokens, *best.log_probs);
  *asked = is_there && !tree.full() ? tree.size->n_nodes - 1 : no_node;
}

// One thread: a token of each row, one after the other.
template <class ListsT>
ESPALIER_KERNEL void append_chain(tree_writer tree, ListsT lists, std::int32_t n_rows) {
  node_id u = root_node;
  for (std::int32_t i = 0; i < n_rows && !tree.full() && lists.log_probs[i] >= -FLT_MAX; ++i)
    u = tree.append(u, lists.tokens[i], lists.log_probs[i]);
}

}  // namespace detail

//! espalier::chain on the device, over a StepDrafter or a BlockDrafter: the same tree from the same rows.
//!
//! Complexity  StepDrafter: for each of the K tokens a draft pass of one row, a launch that reads it, and a launch of one thread.
//!             BlockDrafter: one draft pass, one launch over its rows, one of one thread. No allocation after construction, no
//!             synchronisation
//! Errors      option_error for a length outside 1 to 1024; what is not finite in a block's logits is a fault
//! Source      as espalier::chain
class chain {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit chain(chain_options options = {}) : options_(options), asked_(1) {
    require_option("length", options.length, 1, 1024);
    tokens_ = device_array<token_id>(static_cast<std::size_t>(options.length));
    log_probs_ = device_array<float>(static_cast<std::size_t>(options.length));
  }

  std::int32_t max_nodes() const { return options_.length; }

  template <StepDrafter DrafterT>
  void grow(tree_writer tree, DrafterT& drafter, chance_source, cudaStream_t stream) const {
    const node_list asked{asked_.data(), 1};
    const child_lists best{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = 1};
    const top_children find_best(drafter.vocab_size());
    launch("start_chain", detail::start_chain<tree_writer>, {}, stream, tree, asked_.data());
    for (std::int32_t i = 0; i < options_.length; ++i) {
      drafter.propose(tree, asked, stream);
      find_best.find(drafter.rows(), asked, best, stream);
      launch("append_best", detail::append_best<child_lists>, {}, stream, tree, best, asked_.data());
    }
  }

  template <BlockDrafter DrafterT>
  void grow(tree_writer tree, DrafterT& drafter, chance_source, cudaStream_t stream) const {
    auto logits = drafter.propose_block(stream);
    using number = std::remove_cvref_t<decltype(logits.data[0])>;
    logits.n_rows = logits.n_rows < options_.length ? logits.n_rows : options_.length;
    if (logits.n_rows <= 0) return;
    const token_lists lists{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = 1};
    top_tokens<number>(logits.vocab).of_logits(logits, 1.0F, lists, drafter.found(), fault::kind::draft_logit, stream);
    launch("append_chain", detail::append_chain<token_lists>, {}, stream, tree, lists, logits.n_rows);
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}

 private:
  chain_options options_;
  device_array<node_id> asked_;
  device_array<token_id> tokens_;  // [length]
  device_array<float> log_probs_;  // [length]
};

}  // namespace espalier::cuda
