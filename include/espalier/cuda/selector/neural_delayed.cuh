// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/sampling_options.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/concepts/model_states.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"
#include "espalier/cuda/selector/delayed_selector.cuh"
#include "espalier/cuda/tree_policy/delayed.cuh"
#include "espalier/selector/delayed_action.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "espalier/selector/row_divergence.hpp"

namespace espalier::cuda {

namespace detail {

// The target's row and hidden state at the previous position of each text, in the memory of the device. Shapes: row
// [places][vocab], before truncation; hidden [places][size]; is_read [places]: 0 if there are none
struct previous_target {
  float* row;
  std::int32_t vocab;
  float* hidden;
  std::int32_t size;
  std::int32_t* is_read;
};

struct target_row_memory {
  team::memory team_memory;
  alignas(16) unsigned char of_sampler[16];  // [layout.bytes]
};

// Keeps the target's row and hidden state at the last node of each accepted path; a team works for a text. Shapes:
// samplings, found [places]
template <class LogitT>
ESPALIER_KERNEL void __launch_bounds__(row_threads, 1)
    keep_target_row(text_batch texts, path_view paths, target_states<LogitT> from, const sampling_options* samplings,
                    team_sampler_layout layout, fault* found, previous_target to) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& memory = *reinterpret_cast<target_row_memory*>(shared_memory());
  team::turns turns;
  const team who(memory.team_memory, turns);
  const path_view path = paths.of(here.place);
  const std::int32_t n = *path.n;
  bool is_read = n > 0;
  if (is_read) {
    const std::int32_t row = from.lanes[here.lane].row_begin + path.rows[n - 1];
    team_sampler<LogitT> sampler({.temperature = samplings[here.place].temperature}, layout, who, memory.of_sampler);
    is_read = sampler.probabilities(from.logits.at(row), to.vocab,
                                    to.row + static_cast<std::ptrdiff_t>(here.place) * to.vocab, found + here.place,
                                    row_origin(row));
    float* const hidden = to.hidden + static_cast<std::ptrdiff_t>(here.place) * to.size;
    who.each(static_cast<std::size_t>(to.size), [&](std::size_t i) { hidden[i] = from.hidden.at(row)[i]; });
  }
  if (who.rank() == 0) to.is_read[here.place] = is_read ? 1 : 0;
  who.sync();  // other blocks may still read this block's memory
}

// The arrays of root_features that weigh_rows writes. Shapes: as root_features
struct weighed_features {
  std::int32_t* known;
  float* previous_hidden;
  float* root_hidden;
  double* sums;
  std::int32_t n_blocks;
};

// The terms of the entropy of a row of probabilities, with the sign turned.
struct entropy_terms {
  const float* p;
  __device__ float operator()(std::size_t i) const { return p[i] * espalier::detail::floored_log(p[i]); }
};

// The differences of the logarithms of p and q, weighted by a row.
struct divergence_terms {
  const float *weight, *p, *q;
  __device__ float operator()(std::size_t i) const {
    return weight[i] * (espalier::detail::floored_log(p[i]) - espalier::detail::floored_log(q[i]));
  }
};

struct distance_terms {
  const float *p, *q;
  __device__ float operator()(std::size_t i) const { return ::fabsf(p[i] - q[i]); }
};

// Tells for which texts a selector may choose, keeps the draft's hidden states of these, and makes the sums over each
// block of the vocabulary: a warp works for a block.
template <class RowsT>
ESPALIER_KERNEL void weigh_rows(text_batch texts, draft_states draft, RowsT all_rows, previous_target target,
                                weighed_features to) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const node_rows<float> rows = all_rows.of(here.place);
  const bool known =
      target.is_read[here.place] != 0 && here.tree.limit() > 0 && rows.has(root_node) && rows.has(draft.previous);
  const std::size_t thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
  if (thread == 0) to.known[here.place] = known ? 1 : 0;
  if (!known) return;
  const auto size = static_cast<std::size_t>(draft.hidden.size);
  const std::int32_t last = (here.lane + 1) * draft.n_rows - 1;
  const std::size_t first = static_cast<std::size_t>(here.place) * size;
  for (std::size_t i = thread; i < size; i += threads) {
    to.previous_hidden[first + i] = draft.hidden.at(last - 1)[i];
    to.root_hidden[first + i] = draft.hidden.at(last)[i];
  }
  const float* const p = target.row + static_cast<std::ptrdiff_t>(here.place) * target.vocab;
  const float* const q = rows.at(draft.previous);
  const float* const q_root = rows.at(root_node);
  const auto vocab = static_cast<std::size_t>(target.vocab);
  for (std::size_t block = thread / 32; block < static_cast<std::size_t>(to.n_blocks); block += threads / 32) {
    const std::size_t begin = block * espalier::detail::mass_block;
    const std::size_t end = begin + espalier::detail::mass_block < vocab ? begin + espalier::detail::mass_block : vocab;
    const auto sums = one_warp()(begin, end, entropy_terms{p}, entropy_terms{q}, divergence_terms{p, p, q},
                                 divergence_terms{q, p, q}, distance_terms{p, q});
    const double root = one_warp()(begin, end, entropy_terms{q_root}).of[0];
    if (thread % 32 != 0) continue;
    double* const out =
        to.sums +
        (static_cast<std::size_t>(here.place) * static_cast<std::size_t>(to.n_blocks) + block) * root_features::n_sums;
    for (std::int32_t k = 0; k < root_features::n_sums - 1; ++k)
      out[k] = sums.of[k];
    out[root_features::n_sums - 1] = root;
  }
}

}  // namespace detail

//! espalier::neural_delayed on the device: a selector chooses a delayed tree for each text in each round, by rows and
//! hidden states that never go to the host.
//!
//!     cuda::neural_delayed policy({}, load_selector("specinfer.safetensors").selector, load_costs("costs.json"));
//!
//! Since the host does not know which trees were chosen, launches are made for the largest that may be: a round has a
//! draft pass for the root, and one of as many rows for each text as the largest tree has paths for each further token
//! of its longest path. `most` bounds the trees that the selector chooses, and so these passes; the options' own tree
//! may be larger.
//!
//! Complexity  as delayed, with the paths and lengths of the largest tree; and a launch that reads a row of the target,
//!             one that reads that row and two of the draft, and delayed_selector's. No synchronisation, no allocation
//!             after reserve
//! Law         as delayed; with the default of `most` the trees are those of espalier::neural_delayed, given the same
//!             rows and states
//! Errors      option_error for options out of range, if there is a selector but the drafter keeps no states, and for a
//!             `most` beyond the largest delayed_action; input_error if the models' hidden states are not those that
//!             the selector was made for, when the decoder is made
//! Source      as espalier::neural_delayed
class neural_delayed {
 public:
  static constexpr regime sampling = regime::iid;
  static constexpr delayed_options largest{delayed_action::most_paths, delayed_action::most_trunk,
                                           delayed_action::most_length};

  //! Makes a policy without a selector: every round has the tree of the options.
  explicit neural_delayed(neural_delayed_options options = {})
      : shapes_{.all = fixed_shape(options)}, growth_(shapes_.paths) {}

  //! Makes a policy with a selector, which learns from `costs` how many seconds passes of one row take.
  neural_delayed(neural_delayed_options options, const espalier::delayed_selector& selector, cost_model costs,
                 delayed_options most = largest)
      : shapes_{.all = fixed_shape(options),
                .paths = (std::max)(options.paths, most.paths),
                .levels = (std::max)(options.trunk + options.length, most.trunk + most.length)},
        growth_(shapes_.paths),
        most_(most) {
    require_option("most paths", most.paths, 1, largest.paths);
    require_option("most tokens of the trunk", most.trunk, 0, largest.trunk);
    require_option("most tokens of a path", most.length, 0, largest.length);
    selector_.emplace(selector);
    costs_ = std::move(costs);
  }

  std::int32_t max_nodes() const {
    return selector_ ? (std::max)(shapes_.all.max_nodes(), most_.max_nodes()) : shapes_.all.max_nodes();
  }

  void reserve(std::int32_t max_texts) { growth_.reserve(max_texts); }

  bool reads_states() const { return selector_.has_value(); }

  void reserve_states(const detail::state_sizes& sizes) {
    check("target", sizes.target_hidden, selector_->target_hidden_size());
    check("draft", sizes.draft_hidden, selector_->draft_hidden_size());
    selector_->reserve(sizes.max_texts);
    sizes_ = sizes;
    const auto texts = static_cast<std::size_t>(sizes.max_texts), vocab = static_cast<std::size_t>(sizes.vocab);
    const auto target = static_cast<std::size_t>(sizes.target_hidden),
               draft = static_cast<std::size_t>(sizes.draft_hidden);
    tuning_ = detail::row_tuning_here(sizes.vocab);
    layout_ = team_sampler_layout::of({.temperature = 1}, sizes.vocab, tuning_.blocks);
    target_row_ = device_array<float>(texts * vocab);
    target_hidden_ = device_array<float>(texts * target);
    previous_hidden_ = device_array<float>(texts * draft);
    root_hidden_ = device_array<float>(texts * draft);
    n_blocks_ = (vocab + espalier::detail::mass_block - 1) / espalier::detail::mass_block;
    sums_ = device_array<double>(texts * n_blocks_ * root_features::n_sums);
    is_read_ = device_array<std::int32_t>(std::span<const std::int32_t>(std::vector<std::int32_t>(texts, 0)));
    known_ = device_array<std::int32_t>(texts);
    samplings_ =
        device_array<sampling_options>(std::span<const sampling_options>(std::vector<sampling_options>(texts)));
    chosen_ = device_array<delayed_options>(texts);
    shapes_.own = chosen_.data();
    std::vector<float> seconds;
    for (std::int32_t length = 0; length <= sizes.context; ++length) {
      seconds.push_back(static_cast<float>(costs_.draft_pass(1, length)));
      seconds.push_back(static_cast<float>(costs_.target_pass(1, length)));
    }
    seconds_ = device_array<float>(std::span<const float>(seconds));
  }

  void sample(std::int32_t place, const sampling_options& options, cudaStream_t stream) const {
    samplings_.upload(std::span(&options, 1), stream, static_cast<std::size_t>(place));
  }
  void forget_states(std::int32_t place, cudaStream_t stream) const {
    require(cudaMemsetAsync(is_read_.data() + place, 0, sizeof(std::int32_t), stream), "cudaMemsetAsync");
  }

  template <class LogitT>
  void read(const text_batch& texts, const path_view& paths, const detail::target_states<LogitT>& target, fault* found,
            cudaStream_t stream) const {
    const std::size_t bytes = offsetof(detail::target_row_memory, of_sampler) + layout_.bytes;
    launch("keep_target_row", detail::keep_target_row<LogitT>, tuning_.shape(1, bytes, texts.n), stream, texts, paths,
           target, samplings_.data(), layout_, found, kept());
  }

  void read_draft(const text_batch& texts, const detail::draft_states& draft, cudaStream_t stream) const {
    const launch_shape shape{.grid = texts.lanes(static_cast<std::int32_t>(detail::blocks_for_rows(n_blocks_))),
                             .threads = detail::selector_threads};
    launch("weigh_rows", detail::weigh_rows<text_rows>, shape, stream, texts, draft, draft.rows, kept(),
           {known_.data(), previous_hidden_.data(), root_hidden_.data(), sums_.data(),
            static_cast<std::int32_t>(n_blocks_)});
    const root_features features{.known = known_.data(),
                                 .hidden = {target_hidden_.data(), previous_hidden_.data(), root_hidden_.data()},
                                 .sums = sums_.data(),
                                 .n_blocks = static_cast<std::int32_t>(n_blocks_),
                                 .seconds = seconds_.data(),
                                 .samplings = samplings_.data()};
    selector_->choose(texts, features, most_, shapes_.all, chosen_.data(), stream);
  }

  //! The trees of the last round that drafted, by place: [places], in the memory of the device; nullptr without a
  //! selector.
  const delayed_options* actions() const { return chosen_.data(); }

  node_list begin(const text_batch&, cudaStream_t) { return growth_.begin(shapes_); }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    return growth_.take(texts, rows, shapes_, stream);
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  static delayed_options fixed_shape(const neural_delayed_options& options) {
    require_options(options);
    return {options.paths, options.trunk, options.length};
  }

  static void check(const char* model, std::int32_t size, std::int32_t expected) {
    if (size == expected) return;
    raise<input_error>("the ", model, "'s hidden state has ", size, " numbers, but the selector was made for ",
                       expected, size == 0 ? "; this model keeps none (hidden_layers must list its last layer)." : ".");
  }

  detail::previous_target kept() const {
    return {target_row_.data(), sizes_.vocab, target_hidden_.data(), sizes_.target_hidden, is_read_.data()};
  }

  detail::delayed_shapes shapes_;
  detail::delayed_growth growth_;
  delayed_options most_{};
  std::optional<delayed_selector> selector_;
  cost_model costs_{{}, {}, {}, cost_curve::linear(0, 0), cost_curve::linear(0, 0)};
  detail::state_sizes sizes_;
  detail::row_tuning tuning_{detail::row_threads, 1};
  team_sampler_layout layout_{};
  std::size_t n_blocks_ = 0;                  // blocks of the vocabulary
  device_array<float> target_row_;            // [texts][vocab], as in previous_target
  device_array<float> target_hidden_;         // [texts][target hidden]
  device_array<float> previous_hidden_;       // [texts][draft hidden]
  device_array<float> root_hidden_;           // [texts][draft hidden]
  device_array<double> sums_;                 // [texts][n_blocks_][root_features::n_sums]
  device_array<std::int32_t> is_read_;        // [texts]
  device_array<std::int32_t> known_;          // [texts]
  device_array<sampling_options> samplings_;  // [texts]
  device_array<delayed_options> chosen_;      // [texts]
  device_array<float> seconds_;               // [contexts][2]
};

}  // namespace espalier::cuda
