// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/row_processor.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

namespace detail {

template <class ModelT, class ContextT, class BackendT>
concept ReadsStatesOf = requires(ModelT& model, ContextT& context, const BackendT& backend,
                                 std::span<const std::int32_t> rows) {
  model.read(context, backend, rows, 0);
};

template <class ModelT>
concept CorrectsRows = requires(ModelT& model, tree_view tree, std::span<float> row) {
  model.correct(std::int32_t{}, tree, root_node, row);
};

}  // namespace detail

struct block_diffusion_options {
  std::int32_t length = 0;  //!< L, tokens of a block; 0: as many as the model can give
};

//! Drafts a block of tokens at once: a model that reads the target's hidden states gives, in one pass, a row of logits
//! for each of the next L tokens. No row depends on the tokens that are chosen from the other rows, unless the model
//! corrects its rows by path.
//!
//! The model is kept by reference when given as an lvalue, by value otherwise. A model has vocab_size(),
//! block_length(), max_positions() and
//!   make_context() -> context                 makes a context: the data that the model holds of one text
//!   read(context, backend, rows, position)    adds the hidden states of these rows to a context; the first row stands
//!                                             at this position of the text, and all stand below max_positions()
//!   request_type {context*, text, place}      asks for the tokens after a text, whose last token is the pending one
//!   forward(span<const request_type>, length)  makes one pass for all requests, over `length` tokens after each text;
//!                                             may overwrite what a request's context holds from the position of the
//!                                             pending token on
//!   logits(place, length) -> vocab_rows       returns the logits for the last request with this place
//!   tokens() -> span<const token_id>          optional: the token of each column of the logits; empty: columns are
//!                                             tokens
//!   correct(place, tree, node, row)           optional: changes `row`, the logits of the node's depth for the last
//!                                             request with this place, to the logits after the node's path
//!   corrects() -> bool                        optional: false if correct() changes no row
//! Each drafter that shares the model has a context of its own. Each text that is written together with others has a
//! place of its own.
//!
//! Complexity  propose_block: one pass of the model; no allocation after reserve(), except in the first round with a
//!             processor; with a processor the block is copied
//! Law         as BlockDrafter, FeatureDrafter, SharedDrafter and ProcessingDrafter. A text of one token has no states
//!             before it: the model sees the token alone
//! Errors      input_error for an empty context, and, when a block is asked for, for a text longer than capacity() or
//!             one whose states were not all read; option_error for a length beyond the model's
//! Source      Chen et al., DFlash
template <class ModelT>
class block_diffusion {
  using model_type = std::remove_reference_t<ModelT>;
  using context_type = decltype(std::declval<model_type&>().make_context());
  using request_type = typename model_type::request_type;

 public:
  //! A pass of the model over the blocks of many texts.
  struct pass_type {
    std::vector<request_type> requests;
    std::int32_t length = 0;

    void clear() { requests.clear(); }
    std::int32_t n_outputs() const { return static_cast<std::int32_t>(requests.size()) * length; }
    std::int32_t n_rows() const { return static_cast<std::int32_t>(requests.size()) * (length + 1); }
  };

  explicit block_diffusion(ModelT&& model, block_diffusion_options options = {})
      : model_(std::forward<ModelT>(model)), context_(model_.make_context()) {
    require_option("length of a block", options.length, 0, model_.block_length());
    length_ = options.length > 0 ? options.length : model_.block_length();
  }

  //! Returns another drafter over the same model, for a text of its own, whose place is `sequence`. It uses the model
  //! by reference, so the model must outlive it.
  auto for_text(std::int32_t sequence) {
    espalier::block_diffusion<model_type&> other(model_, block_diffusion_options{.length = length_});
    other.place_ = sequence;
    return other;
  }

  std::int32_t vocab_size() const { return model_.vocab_size(); }
  std::int32_t block_length() const { return length_; }
  //! Returns the token of each column of a block; none if columns are tokens, as they are where a processor changes the
  //! block.
  std::span<const token_id> tokens() const {
    return process_ ? std::span<const token_id>() : detail::tokens_of(model_);
  }
  std::int32_t capacity() const { return model_.max_positions(); }

  void reserve(std::int32_t max_nodes) {
    text_.reserve(static_cast<std::size_t>(capacity()) + static_cast<std::size_t>(max_nodes) + 2);
    pass_.requests.reserve(1);
  }

  void begin(std::span<const token_id> context) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    const auto common = std::mismatch(text_.begin(), text_.end(), context.begin(), context.end()).first - text_.begin();
    keep_read(static_cast<std::size_t>(common));
    text_.assign(context.begin(), context.end());
  }

  std::int32_t n_read() const { return n_read_; }

  template <class BackendT>
  requires detail::ReadsStatesOf<model_type, context_type, BackendT>
  void read(const BackendT& backend, std::span<const std::int32_t> rows) {
    stopwatch watch;
    // A committed path may end beyond what the model can hold.
    const auto room = static_cast<std::size_t>((std::max)(std::int32_t{0}, capacity() - n_read_));
    model_.read(context_, backend, rows.first((std::min)(rows.size(), room)), n_read_);
    n_read_ += static_cast<std::int32_t>(rows.size());
    forward_seconds_ += watch.lap();
  }

  auto propose_block() {
    want_block();
    pass_.clear();
    add_rows(pass_, block_length() + 1);
    forward(pass_);
    return processed(model_.logits(place_, length_));
  }

  //! Sets the text's processor, or none. A block has no paths, so the processor sees only the rows before which there
  //! is one path alone: the first row, and each next row as long as the processor has left a single token of every row
  //! before it. The other rows stay the model's. In factorised all rows pass through the processor.
  void process_rows(row_processor<float> process) {
    process_ = process;
    if (process_ && path_.capacity() < length_) path_ = tree<>(length_);
  }

  //! Corrects a row of the last block for a node's path, if the model does: see ConditionedBlockDrafter.
  void correct(tree_view tree, node_id node, std::span<float> row) requires detail::CorrectsRows<model_type> {
    model_.correct(place_, tree, node, row);
  }

  bool corrects() const requires detail::CorrectsRows<model_type> {
    if constexpr (requires { model_.corrects(); }) return model_.corrects();
    return true;
  }

  void want(tree_view, std::span<const node_id>) { want_block(); }
  bool want_prompt(std::int32_t) { return false; }
  std::int32_t n_wanted() const { return wants_ ? length_ + 1 : 0; }
  std::int32_t max_rows() const { return (std::numeric_limits<std::int32_t>::max)(); }
  std::int32_t add_rows(pass_type& pass, std::int32_t most) {
    if (!wants_ || most < length_ + 1) return 0;
    wants_ = false;
    pass.length = length_;
    pass.requests.push_back({&context_, text_, place_});
    return length_ + 1;
  }
  int forward(const pass_type& pass) {
    stopwatch watch;
    model_.forward(pass.requests, pass.length);
    forward_seconds_ += watch.lap();
    return 0;  // the model keeps the logits
  }
  void take(int, std::int32_t, std::int32_t) {}
  auto answer() { return block_rows{processed(model_.logits(place_, length_)), tokens()}; }

  void commit(tree_view tree, verdict v) {
    // Past the end there is nothing to follow: no round can open until begin() gives a shorter text.
    if (text_.size() <= static_cast<std::size_t>(capacity())) append_committed(text_, tree, v);
  }

  //! Seconds spent in the model since construction.
  double forward_seconds() const { return forward_seconds_; }

 private:
  template <class OtherT>
  friend class block_diffusion;

  void want_block() {
    const auto position = static_cast<std::int32_t>(text_.size()) - 1;
    if (position < 0 || position >= capacity()) {
      raise<input_error>("a text of ", text_.size(), " tokens has no next block: the block draft follows 1 to ",
                         capacity(), ".");
    }
    if (n_read_ < position) {
      raise<input_error>("the block draft has read the target's hidden states of ", n_read_, " of the ", position,
                         " tokens before the pending one.");
    }
    // A round that was given up may have read more.
    keep_read(static_cast<std::size_t>(position));
    wants_ = true;
  }

  // Returns the block after the text's processor: see process_rows(). Valid until the next call.
  vocab_rows<float> processed(vocab_rows<float> block) {
    if (!process_ || block.n_rows == 0) return block;
    const vocab_rows<float> wide = widened(block);
    processed_.assign(wide.data, wide.at(wide.n_rows));
    path_.reset(text_.back());
    node_id u = root_node;
    for (std::int32_t row = 0; row < wide.n_rows; ++row) {
      const std::span<float> out(processed_.data() + (wide.at(row) - wide.data), static_cast<std::size_t>(wide.vocab));
      process_(path_.view(), u, wide.row(row), out);
      const std::optional<token_id> only = process_.only(path_.view(), u);
      if (!only || *only < 0 || *only >= wide.vocab) break;
      u = path_.append(u, *only, 0);
    }
    return {processed_.data(), wide.n_rows, wide.vocab};
  }

  // Returns a block of the model over the whole vocabulary. Valid until the next call.
  vocab_rows<float> widened(vocab_rows<float> block) {
    const std::span<const token_id> columns = detail::tokens_of(model_);
    if (columns.empty()) return block;
    wide_.assign(static_cast<std::size_t>(block.n_rows) * static_cast<std::size_t>(vocab_size()),
                 -std::numeric_limits<float>::infinity());
    const vocab_rows<float> wide{wide_.data(), block.n_rows, vocab_size()};
    for (std::int32_t row = 0; row < block.n_rows; ++row) {
      for (std::int32_t i = 0; i < block.vocab; ++i)
        wide_[static_cast<std::size_t>(wide.at(row) - wide.data) +
              static_cast<std::size_t>(columns[static_cast<std::size_t>(i)])] = block.at(row)[i];
    }
    return wide;
  }

  void keep_read(std::size_t n) { n_read_ = (std::min)(n_read_, static_cast<std::int32_t>(n)); }

  ModelT model_;
  context_type context_;
  std::int32_t length_ = 0;
  std::int32_t place_ = 0;
  std::int32_t n_read_ = 0;
  bool wants_ = false;
  pass_type pass_;
  row_processor<float> process_;
  std::vector<float> processed_;  // the processed block, if the text has a processor
  std::vector<float> wide_;       // the model's block over the whole vocabulary, if there is a processor and the model
                                  // has columns for some tokens alone
  tree<> path_{0};                // this round's path of tokens, each the only one that the processor has left
  std::vector<token_id> text_;    // committed; the last token is pending
  double forward_seconds_ = 0;
};

template <class ModelT>
block_diffusion(ModelT&&) -> block_diffusion<ModelT>;
template <class ModelT>
block_diffusion(ModelT&&, block_diffusion_options) -> block_diffusion<ModelT>;

}  // namespace espalier
