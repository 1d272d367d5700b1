// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/row_changes.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"

//! Data that host and device exchange for texts with processors: nodes go to the host, changes of their rows come back
//! to the device.
namespace espalier::cuda::detail {

// The question about one lane, in memory of the host that the device can reach, too.
//
// Shapes      words [lanes][4 + 3 nodes + last]: place (-1: the lane is empty), number of nodes of the tree, number of
//             tokens of the text, number of the last tokens below; tokens, parents [nodes], asked [nodes], the text's
//             last tokens [last]
struct asked_on_host {
  std::int32_t* words;
  std::int32_t nodes;
  std::int32_t last;

  ESPALIER_HOST_DEVICE std::int32_t* of(std::int32_t lane) const {
    return words + static_cast<std::ptrdiff_t>(lane) * size();
  }
  ESPALIER_HOST_DEVICE std::int32_t size() const { return 4 + 3 * nodes + last; }
  ESPALIER_HOST_DEVICE std::int32_t tokens() const { return 4; }
  ESPALIER_HOST_DEVICE std::int32_t parents() const { return 4 + nodes; }
  ESPALIER_HOST_DEVICE std::int32_t asked() const { return 4 + 2 * nodes; }
  ESPALIER_HOST_DEVICE std::int32_t last_tokens() const { return 4 + 3 * nodes; }
};

inline constexpr int bring_asked_threads = 128;

// Writes the question about each lane; one block works for a lane.
template <class UnusedT = void>
ESPALIER_KERNEL void bring_asked(asked_on_host to, text_batch texts, node_list asked) {
  const text_in_batch here = texts.here();
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  std::int32_t* const words = to.of(here.lane);
  if (here.place < 0) {
    if (thread == 0) words[0] = -1;
    return;
  }
  const std::int32_t n_nodes = here.tree.view().n_nodes, size = here.text.state->size;
  const std::int32_t n_last = size < to.last ? size : to.last;
  for (std::int32_t u = thread; u < n_nodes; u += bring_asked_threads) {
    words[to.tokens() + u] = here.tree.token[u];
    words[to.parents() + u] = here.tree.parent[u];
  }
  for (std::int32_t i = thread; i < asked.n; i += bring_asked_threads)
    words[to.asked() + i] = asked.of(here.place)[i];
  for (std::int32_t i = thread; i < n_last; i += bring_asked_threads)
    words[to.last_tokens() + i] = here.text.tokens[size - n_last + i];
  if (thread != 0) return;
  words[0] = here.place;
  words[1] = n_nodes;
  words[2] = size;
  words[3] = n_last;
}

// The host's answer about one row: steps that the text's rows share with the root's row, then the row's own steps,
// which replace the shared steps of the same tokens.
struct listed_row {
  enum class kind : std::int32_t {
    unchanged,
    changed,
    failed,
  };

  kind what = kind::unchanged;  // failed: the processor has thrown
  std::int32_t is_masked = 0;   // 1 if the row has a mask of the tokens that may follow
  std::int32_t n_shared = 0;
  std::int32_t first_own = 0, n_own = 0;
  const row_change* steps = nullptr;  // of the text, in memory of the host
};

// The arguments of change_rows.
//
// Shapes      listed, ends [places][nodes], by entry of the list; masks (the host's) and near_masks (the device's)
//             [places][nodes][words]; found [places]; row_of_node [lanes][n_rows], nullptr: row i of a lane belongs to
//             entry i of its list; lanes [lanes]: where each lane's rows begin, nullptr: one lane after the other
template <class LogitT>
struct row_change_arguments {
  text_batch texts;
  node_list asked;
  vocab_rows<LogitT> logits;
  const std::int32_t* row_of_node;
  std::int32_t n_rows;
  const batch_sequence* lanes;
  const listed_row* listed;
  const std::uint32_t* masks;
  std::uint32_t* near_masks;
  std::int32_t words;
  std::int32_t nodes;
  std::int32_t* ends;  // 1 if nothing may follow a node; nullptr: not wanted
  fault* found;
  row_origin from;
};

// Values that each block of a team copies once from the host's memory, which is slow to read.
struct change_memory {
  static constexpr std::int32_t near_tokens = 64;

  team::memory who;
  listed_row listed;
  token_id own[near_tokens];  // tokens of the row's first own steps
};

// How many numbers of a row belong to tokens that can be drawn, and how many are bad: NaN or plus infinity.
struct row_census {
  std::int32_t possible = 0, bad = 0;

  __device__ void see(float z, std::int32_t by = 1) {
    if (!(z < INFINITY))
      bad += by;
    else if (z > -INFINITY)
      possible += by;
  }
};

// Makes one row's changes, with a team.
template <class LogitT>
class row_changer {
 public:
  __device__ row_changer(LogitT* row, std::int32_t vocab, const change_memory& memory, const std::uint32_t* allowed,
                         const team& who)
      : row_(row), vocab_(vocab), memory_(memory), listed_(memory.listed), allowed_(allowed), who_(who) {}

  // True if, once the row has changed, a token can be drawn from it and no number is bad. All threads have read the row
  // when it returns.
  __device__ bool is_possible() const {
    row_census census;
    for (std::int32_t t = rank(); t < vocab_; t += size()) {
      if (is_allowed(t)) census.see(number(t));
    }
    each_token([&](token_id t, std::int32_t first) {
      census.see(number(t), -1);
      census.see(changed(t, first));
    });
    const auto sum = [](std::int32_t a, std::int32_t b) { return a + b; };
    const std::int32_t possible = who_.reduce(census.possible, sum), bad = who_.reduce(census.bad, sum);
    return possible > 0 && bad == 0;
  }

  // Writes the changed numbers, and minus infinity for the tokens that may not follow.
  __device__ void change() const {
    each_token([&](token_id t, std::int32_t first) { row_[t] = LogitT(changed(t, first)); });
    if (listed_.is_masked == 0) return;
    for (std::int32_t t = rank(); t < vocab_; t += size()) {
      if (!is_allowed(t)) row_[t] = LogitT(-INFINITY);
    }
  }

 private:
  __device__ std::int32_t rank() const { return static_cast<std::int32_t>(who_.rank()); }
  __device__ std::int32_t size() const { return static_cast<std::int32_t>(who_.size()); }
  __device__ float number(token_id t) const { return number_in(row_, static_cast<std::size_t>(t)); }
  __device__ bool is_allowed(token_id t) const {
    return listed_.is_masked == 0 || (allowed_[t / 32] >> t % 32 & 1U) != 0;
  }
  __device__ float changed(token_id t, std::int32_t first) const {
    float z = number(t);
    for (std::int32_t i = first; i >= 0; i = listed_.steps[i].next)
      z = listed_.steps[i].applied(z);
    return z;
  }

  // Calls f(token, its first step) for each token that has steps and may follow.
  template <class FunctionT>
  __device__ void each_token(const FunctionT& f) const {
    for (std::int32_t i = rank(); i < listed_.n_shared + listed_.n_own; i += size()) {
      const bool is_own = i >= listed_.n_shared;
      const std::int32_t at = is_own ? listed_.first_own + i - listed_.n_shared : i;
      const row_change& step = listed_.steps[at];
      if (step.is_first == 0 || !is_allowed(step.token) || (!is_own && is_replaced(step.token))) continue;
      f(step.token, at);
    }
  }
  __device__ bool is_replaced(token_id t) const {
    for (std::int32_t i = 0; i < listed_.n_own; ++i) {
      const bool is_near = i < change_memory::near_tokens;
      if ((is_near ? memory_.own[i] : listed_.steps[listed_.first_own + i].token) == t) return true;
    }
    return false;
  }

  LogitT* row_;
  std::int32_t vocab_;
  const change_memory& memory_;
  const listed_row& listed_;
  const std::uint32_t* allowed_;
  const team& who_;
};

// Changes rows: grid column x is a team for entry x of the list, grid row y is lane y. The mask is read once from the
// host's memory. A row that would have no token left, or a bad number, stays as it is, and `ends` is set for its node.
template <class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads, 1) void change_rows(const row_change_arguments<LogitT> in) {
  const text_in_batch here = in.texts.here();
  if (here.place < 0) return;
  const std::int32_t entry = team::number();
  const node_id u = in.asked.of(here.place)[entry];
  if (u < 0 || u >= here.tree.view().n_nodes) return;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(here.place) * in.nodes + entry;
  const std::int32_t row_in_lane =
      in.row_of_node == nullptr ? entry : in.row_of_node[static_cast<std::ptrdiff_t>(here.lane) * in.n_rows + u];
  auto& memory = *reinterpret_cast<change_memory*>(shared_memory());
  const listed_row& listed = memory.listed;
  if (threadIdx.x == 0) memory.listed = in.listed[at];
  __syncthreads();
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < ::min(listed.n_own, change_memory::near_tokens);
       i += static_cast<std::int32_t>(blockDim.x))
    memory.own[i] = listed.steps[listed.first_own + i].token;
  __syncthreads();
  team::turns turns;
  const team who(memory.who, turns);
  const bool is_there = row_in_lane >= 0;
  if (in.ends != nullptr && who.rank() == 0) in.ends[at] = 0;
  if (is_there && listed.what == listed_row::kind::failed && who.rank() == 0)
    report(in.found + here.place, {fault::kind::bad_logit, in.from.numbered(u), 0, NAN});
  if (is_there && listed.what == listed_row::kind::changed) {
    std::uint32_t* const allowed = in.near_masks + at * in.words;
    if (listed.is_masked != 0) {
      for (auto w = static_cast<std::int32_t>(who.rank()); w < in.words; w += static_cast<std::int32_t>(who.size()))
        allowed[w] = in.masks[at * in.words + w];
      who.sync();
    }
    const std::int32_t lane_begin = in.lanes == nullptr ? here.lane * in.n_rows : in.lanes[here.lane].row_begin;
    // A backend lets those who read its logits change them: see Backend.
    auto* const row = const_cast<LogitT*>(in.logits.at(lane_begin + row_in_lane));
    const row_changer<LogitT> changer(row, in.logits.vocab, memory, allowed, who);
    if (changer.is_possible())
      changer.change();
    else if (in.ends != nullptr && who.rank() == 0)
      in.ends[at] = 1;
  }
  who.sync();  // no block ends while another one reads its shared memory
}

}  // namespace espalier::cuda::detail
