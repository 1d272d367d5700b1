// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <torch/script.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/batch_check.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/interop/sequence_mask.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/torch/torch_module.hpp"
#include "espalier/model/torch/torch_options.hpp"

namespace espalier {

//! The passes of a model of PyTorch on the host, as target or as draft, over the library's own cache.
//!
//!     torch_backend target(torch_module::load("smollm2.pt"));
//!     const torch_shape& shape = target.module().shape();
//!     contiguous_kv cache(shape.n_layers, shape.row_size, 1, 2048);
//!     auto decode = make_decoder(prompt_lookup(), chain(), greedy(), cache, target);
//!
//! Shapes      logits [n_outputs][vocab_size]
//! Complexity  one call of the module for each sequence of the batch; masks take O(rows * slots) more; the module sees
//!             the cache itself, not a copy
//! Errors      constructor: option_error for options out of range, or a module that is not on the CPU. forward:
//!             input_error for more than max_rows() rows, a token outside the vocabulary, a position from
//!             max_positions() on, a cache of another shape, or a batch that contradicts itself; torch_error if the
//!             module fails
//! Pre         one forward at a time
class torch_backend {
 public:
  explicit torch_backend(torch_module module, const torch_options& options = {})
      : module_(std::move(module)), limits_(detail::limited(options, module_.shape())) {
    if (!module_.device().is_cpu()) {
      raise<option_error>("this backend is the host's, but the module of PyTorch is on ", module_.device().str(), ".");
    }
  }

  std::int32_t vocab_size() const { return module_.shape().vocab_size; }
  std::int32_t max_rows() const { return limits_.max_rows; }
  std::int32_t max_positions() const { return limits_.max_positions; }
  const torch_module& module() const { return module_; }

  //! Checks that the module gives the states after these layers, from 0, as a draft head asks for: see draft_target.
  //!
  //! Errors      option_error for a layer that it does not give
  void keep_hidden(std::span<const int> layers) const {
    for (const int layer : layers)
      (void)place_of(layer);
  }

  //! Returns the residual stream of a row of the last batch after `layer`.
  //!
  //! Shapes      [width], valid until the next forward
  //! Errors      option_error for a layer whose states the module does not give; input_error for a row that the last
  //!             batch did not have
  std::span<const float> hidden(int layer, int row) const {
    const std::int64_t place = place_of(layer), n_rows = states_.size(1), width = states_.size(2);
    if (row < 0 || row >= n_rows) raise<input_error>("the last pass had ", n_rows, " rows, and no row ", row, ".");
    return {states_.data_ptr<float>() + (place * n_rows + row) * width, static_cast<std::size_t>(width)};
  }

  logits_view forward(contiguous_kv& kv, const forward_batch_view& batch) {
    const torch_shape& shape = module_.shape();
    detail::check_batch(batch, {max_rows(), vocab_size(), max_positions(), kv.capacity()});
    detail::check_store(kv, batch, shape.n_layers, shape.row_size);
    detail::asking_torch(batch.n_rows(), [&] {
      const c10::InferenceMode no_gradients;
      std::vector<at::Tensor> parts, states;
      std::span<const std::int32_t> outputs = batch.outputs;
      for (const batch_sequence& s : batch.sequences) {
        const auto n = static_cast<std::size_t>(std::ranges::lower_bound(outputs, s.row_end) - outputs.begin());
        const torch_module::rows_type rows = pass(kv, batch, s, outputs.first(n));
        parts.push_back(rows.logits);
        if (rows.states.defined()) states.push_back(rows.states);
        outputs = outputs.subspan(n);
      }
      if (!parts.empty()) logits_ = parts.size() == 1 ? parts[0] : at::cat(parts);
      logits_ = logits_.to(at::kFloat).contiguous();
      if (!states.empty()) states_ = at::cat(states, 1).to(at::kFloat).contiguous();
    });
    return {logits_.data_ptr<float>(), static_cast<std::int32_t>(batch.outputs.size()), shape.vocab_size};
  }

 private:
  std::int64_t place_of(int layer) const {
    const std::vector<std::int32_t>& given = module_.shape().hidden_layers;
    const auto at = std::ranges::find(given, layer);
    if (at != given.end()) return at - given.begin();
    raise<option_error>("the module of PyTorch does not give the states after layer ", layer,
                        ": export.py --hidden-layers writes a module that does.");
  }

  torch_module::rows_type pass(contiguous_kv& kv, const forward_batch_view& batch, const batch_sequence& s,
                               std::span<const std::int32_t> outputs) {
    const auto first = static_cast<std::size_t>(s.row_begin), n = static_cast<std::size_t>(s.row_end - s.row_begin);
    return module_(indices(batch.tokens.subspan(first, n)), indices(batch.positions.subspan(first, n)),
                   indices(batch.slots.subspan(first, n)), seen(batch, s), indices(outputs) - s.row_begin,
                   rows_of(kv, &contiguous_kv::key, s.sequence), rows_of(kv, &contiguous_kv::value, s.sequence));
  }

  static at::Tensor indices(std::span<const std::int32_t> numbers) {
    const auto n = static_cast<std::int64_t>(numbers.size());
    return at::from_blob(const_cast<std::int32_t*>(numbers.data()), {n}, at::kInt).to(at::kLong);
  }

  // Returns whether each row sees each slot, up to the last slot that any row sees: [rows][columns].
  static at::Tensor seen(const forward_batch_view& batch, const batch_sequence& s) {
    const interop::sequence_mask mask(s, batch.mask.data());
    std::int32_t columns = 0;
    for (std::int32_t row = 0; row < mask.n_rows; ++row)
      columns = (std::max)(columns, s.prefix + mask.n_columns(row));
    const at::Tensor seen = at::empty({mask.n_rows, columns}, at::kBool);
    bool* to = seen.data_ptr<bool>();
    for (std::int32_t row = 0; row < mask.n_rows; ++row) {
      for (std::int32_t slot = 0; slot < columns; ++slot)
        *to++ = mask.sees(row, slot);
    }
    return seen;
  }

  // The keys or values of a sequence, as a view of the cache's memory: [layers][capacity][row_size].
  static at::Tensor rows_of(contiguous_kv& kv, float* (contiguous_kv::*row)(int, int, int), int sequence) {
    float* const data = (kv.*row)(0, sequence, 0);
    const std::int64_t next_layer = kv.n_layers() > 1 ? (kv.*row)(1, sequence, 0) - data : 0;
    return at::from_blob(data, {kv.n_layers(), kv.capacity(), kv.row_size()}, {next_layer, kv.row_size(), 1},
                         at::kFloat);
  }

  torch_module module_;
  torch_options limits_;
  at::Tensor logits_ = at::empty({0, 0});     // the last pass's logits, kept until the next pass
  at::Tensor states_ = at::empty({0, 0, 0});  // the last pass's states [layers][rows][width]
};

static_assert(Backend<torch_backend, contiguous_kv>);

}  // namespace espalier
