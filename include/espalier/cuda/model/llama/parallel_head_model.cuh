// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/model/attention/tree_attention.cuh"
#include "espalier/cuda/model/llama/draft_head_model.cuh"
#include "espalier/cuda/model/llama/target_states.cuh"
#include "espalier/model/llama/draft_head_config.hpp"

namespace espalier::cuda::detail {

// The rows of one pass of a P-EAGLE head: arrays of a forward_batch_view with one sequence for each lane, whose number
// is the place of its text. All lanes have the same number of rows.
//
// Shapes: tokens, reads [rows]; mask [rows][words]; outputs [lanes][length]
struct parallel_rows : state_places {
  token_id* tokens;
  std::int32_t* reads;  // the state that each row reads, as draft_batch::reads()
  std::uint32_t* mask;
  std::int32_t* outputs;
};

// The shape of a pass of a P-EAGLE head.
struct parallel_shape {
  std::int32_t n_behind;  // rows of each text that the pass makes anew, of shorter texts all
  std::int32_t length;    // rows of each block; the first is the last row of the text
  std::int32_t max_positions;
  token_id mask_token;

  ESPALIER_HOST_DEVICE std::int32_t n_rows() const { return n_behind + length - 1; }
};

inline constexpr int parallel_threads = 128;

// Writes the rows of each lane: the last ones of the text, and behind them those of mask tokens. Each row sees itself
// and all before it. Rows in front, which a short text lacks, are padding, and so are all rows of a text that is longer
// than max_positions. A thread block works on a lane.
template <class UnusedT = void>
ESPALIER_KERNEL void open_parallel_block(parallel_rows to, text_batch texts, parallel_shape shape) {
  const text_in_batch here = texts.here();
  const std::int32_t n = shape.n_rows(), words = mask_words(n), first = here.lane * n;
  const std::int32_t size = here.place < 0 ? 0 : here.text.state->size;
  const bool is_there = size > 0 && size <= shape.max_positions;
  // Row i of a text is token i + 1's; a text of one token has a row for it.
  const std::int32_t rowless = size > 1 ? 1 : 0, rows = is_there ? size - rowless : 0;
  const std::int32_t n_text = rows < shape.n_behind ? rows : shape.n_behind;
  const std::int32_t base = rows - n_text, padding = shape.n_behind - n_text;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += parallel_threads) {
    const std::int32_t row = first + i, column = i - padding;
    const bool is_row = is_there && column >= 0, is_masked = i >= shape.n_behind;
    const mask_row mask{to.mask + static_cast<std::int64_t>(row) * words, words};
    mask.clear();
    mask.include_first(is_row ? column + 1 : 0);
    to.positions[row] = is_row ? base + column : -1;
    to.sequence_of[row] = is_row ? here.lane : -1;
    to.tokens[row] = !is_row ? 0 : is_masked ? shape.mask_token : here.text.tokens[rowless + base + column];
    to.reads[row] = is_masked ? 0 : size > 1 ? -1 : -2;
  }
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < shape.length; i += parallel_threads)
    to.outputs[here.lane * shape.length + i] = first + shape.n_behind - 1 + i;
  if (threadIdx.x == 0)
    to.sequences[here.lane] = {is_there ? here.place : 0, first, first + n, base, first * words, words};
}

}  // namespace espalier::cuda::detail

namespace espalier::cuda {

//! A P-EAGLE head on the device, a model of cuda::block_diffusion. It loads the files that
//! espalier::parallel_head_model loads on the host, and is a draft_head_model whose one pass has a row for each token
//! that is to be drafted.
//!
//!     auto target = cuda::llama_backend<__half>::load("models/target", {.hidden_layers = {2, 15, 28}});
//!     cuda::block_diffusion drafter(cuda::parallel_head_model<__half>::load("models/head", target));
//!
//! Complexity  read: as draft_head_model. forward: a launch, and one pass of draft_head_model over n_behind + length -
//!             1 rows of each text: the rows of the last n_behind tokens are made anew, from the target's states. No
//!             allocation, no synchronisation: a graph can capture both. begin: as cuda::prefill
//! Law         a text's numbers do not depend on the numbers of other texts; the rows are the host's, within rounding
//! Errors      load: model_error for files that cannot be read, that do not fit the target or one another, or that
//!             hold another kind of head; those of draft_head_model. make_context: option_error for more rows than
//!             max_rows
//! Source      as espalier::parallel_head_model
template <class NumberT, class LogitT = float, class AttentionT = tree_attention<NumberT>>
class parallel_head_model {
 public:
  using number = LogitT;
  using head_type = draft_head_model<NumberT, LogitT, AttentionT>;

  //! The head's memory of each text, and the rows of a pass.
  struct context_type : head_type::context_type {
    std::int32_t n_behind = 0;  //!< rows of a text that the pass of a block makes anew
    device_array<token_id> tokens;
    device_array<std::int32_t> positions, sequence_of, reads, outputs;
    device_array<batch_sequence> sequences;
    device_array<std::uint32_t> mask;
  };

  //! Loads a head whose passes have at most max_rows rows.
  template <class TargetT>
  static parallel_head_model load(const std::string& path, const TargetT& target, std::int32_t max_rows = 257) {
    draft_head_config config = draft_head_config::load(path);
    config.require_parallel(true);
    return parallel_head_model(head_type::load(std::move(config), path, target, max_rows));
  }

  explicit parallel_head_model(head_type head) : head_(std::move(head)) {}

  int vocab_size() const { return head_.vocab_size(); }
  int block_length() const { return config().block_length; }
  //! Number of columns of the logits.
  int columns() const { return head_.columns(); }
  //! The token of each column of the logits, on the device: [columns]; null: columns are tokens.
  const token_id* tokens() const { return head_.tokens(); }
  //! Returns the number of tokens that a text may have.
  int max_positions() const { return config().positions_before_block(head_.max_positions()); }
  int max_rows() const { return head_.max_rows(); }
  const draft_head_config& config() const { return head_.config(); }
  std::size_t weight_bytes() const { return head_.weight_bytes(); }

  //! Makes a context for max_texts texts, of which nothing has been read yet, and for rounds that bring at most
  //! n_behind tokens into a text; if that is 0, as many as a block has, and one more.
  context_type make_context(std::int32_t max_texts, std::int32_t n_behind = 0) const {
    context_type context;
    context.n_behind = n_behind > 0 ? n_behind : block_length() + 1;
    const std::int32_t of_text = shape_of(context, block_length()).n_rows();
    require_option("max_rows of the draft head", max_rows(), max_texts * of_text, 1 << 30);
    static_cast<typename head_type::context_type&>(context) = head_.make_context(max_texts, 0);
    const std::size_t texts = static_cast<std::size_t>(max_texts), rows = texts * static_cast<std::size_t>(of_text);
    context.tokens = device_array<token_id>(rows);
    context.positions = device_array<std::int32_t>(rows);
    context.sequence_of = device_array<std::int32_t>(rows);
    context.reads = device_array<std::int32_t>(rows);
    context.outputs = device_array<std::int32_t>(texts * static_cast<std::size_t>(block_length()));
    context.sequences = device_array<batch_sequence>(texts);
    context.mask = device_array<std::uint32_t>(rows * static_cast<std::size_t>(mask_words(of_text)));
    return context;
  }

  //! Adds the target's states of these rows of its last pass to the context. Rows beyond the head's last position are
  //! left out.
  template <class BackendT>
  void read(context_type& context, const BackendT& backend, const state_rows& rows, cudaStream_t stream) {
    head_.read(context, backend, rows, stream);
  }

  //! Makes the rows of a text of n_tokens tokens before the last n_behind, in passes that a cuda::prefill writes. Of
  //! the rows of its first n_known tokens, the context may lack the last n_behind.
  //!
  //! Pre         the states of all tokens but the last were read
  template <class PrefillT>
  void begin(PrefillT& prefill, context_type& context, std::int32_t place, text_view text, std::int32_t n_tokens,
             std::int32_t n_known, cudaStream_t stream) {
    prefill.run_head(head_, context, place, text, n_tokens, n_known, context.n_behind, stream);
  }

  //! Returns the logits of the next `length` tokens of each text. Beyond max_positions() they mean nothing.
  //!
  //! Shapes      [lanes][length][columns], at the same address always
  //! Pre         1 <= length <= block_length(); the states of all tokens but the last were read, and the rows before
  //!             the last n_behind were made, by begin() or by earlier calls
  vocab_rows<LogitT> forward(context_type& context, const text_batch& texts, std::int32_t length, cudaStream_t stream) {
    const detail::parallel_shape shape = shape_of(context, length);
    detail::parallel_rows rows{};
    rows.positions = context.positions.data(), rows.sequence_of = context.sequence_of.data();
    rows.sequences = context.sequences.data();
    rows.tokens = context.tokens.data(), rows.reads = context.reads.data();
    rows.mask = context.mask.data(), rows.outputs = context.outputs.data();
    launch("open_parallel_block", detail::open_parallel_block<>,
           {.grid = texts.lanes(), .threads = detail::parallel_threads}, stream, rows, texts, shape);
    forward_batch_view batch =
        rows.view(texts.n, shape.n_rows(), (std::max)(1, (std::min)(texts.max_context, head_.max_positions())));
    batch.tokens = rows.tokens, batch.mask = rows.mask;
    batch.outputs = rows.outputs, batch.n_outputs = texts.n * length;
    return head_.forward(context, batch, stream, rows.reads);
  }

 private:
  detail::parallel_shape shape_of(const context_type& context, std::int32_t length) const {
    return {context.n_behind, length, max_positions(), config().mask_token};
  }

  head_type head_;
};

}  // namespace espalier::cuda
