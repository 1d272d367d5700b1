// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/block_corrections.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_files.hpp"
#include "espalier/model/llama/block_draft_weights.hpp"
#include "espalier/model/llama/block_sight.hpp"
#include "espalier/model/llama/draft_target.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/rotary_table.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/transformer_pass.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

//! The memory of a block_draft_model for one text: by position, keys and values of each layer and the states that they
//! come from; and the target's hidden states that the model's next pass reads.
struct block_draft_context {
  contiguous_kv kv;
  std::vector<float> states;  //!< [max_positions][hidden_size]
  std::vector<float> unread;  //!< [rows][layers read * hidden_size], of positions from first_unread on
  int first_unread = 0;
  int n_unread = 0;
};

//! A request for a block: for the tokens after the pending token. All positions of the text before the pending token
//! must have been given to read(); if there are none, the block sees itself alone.
struct block_draft_request {
  block_draft_context* context;
  std::span<const token_id> text;  //!< 1 to max_positions() tokens, the last of which is the pending one; the one
                                   //!< before it is read by a refiner alone, and the others are not read
  int place = 0;                   //!< index of the block in logits(); the requests of one pass have different ones

  token_id pending() const { return text.back(); }
  int position() const { return static_cast<int>(text.size()) - 1; }
};

namespace detail {

// Writes the hidden states of a row of the target's last pass, [layers read][hidden_size].
template <class BackendT>
void gather_states(const block_draft_config& config, const BackendT& backend, std::int32_t row, float* to) {
  for (const int layer : config.hidden_layers) {
    const std::span<const float> state = backend.hidden(layer, row);
    if (state.size() != static_cast<std::size_t>(config.hidden_size)) {
      raise<input_error>("the target's hidden states have ", state.size(), " numbers, but the block draft reads ",
                         config.hidden_size, ".");
    }
    to = std::copy(state.begin(), state.end(), to);
  }
}

// The caches of all texts of a pass as one store: sequence i is the text of request i.
struct block_draft_caches {
  std::span<const block_draft_request> requests;
  int slots;

  float* key(int layer, int sequence, int slot) const { return of(sequence).key(layer, 0, slot); }
  float* value(int layer, int sequence, int slot) const { return of(sequence).value(layer, 0, slot); }
  int capacity() const { return slots; }

 private:
  contiguous_kv& of(int sequence) const { return requests[static_cast<std::size_t>(sequence)].context->kv; }
};

}  // namespace detail

//! A block-diffusion draft on the host: from the hidden states of chosen layers of the target at every position of the
//! text, and from the pending token, one pass gives the logits of the next positions. Rows of a block see one another
//! and the text before it, as far as the config says. The draft uses the target's embedding and output matrix, unless
//! the file has its own, and the same threads as the target. The output matrix may have rows for some tokens alone. The
//! constructor makes the target keep the states that the draft reads.
//!
//! With a Markov head (DSpark) or a refiner (XPress), correct() adds to a row what depends on the drafted tokens before
//! it. With a selector (DFlash2), it scores the row's candidates by the token before.
//!
//!     auto target = llama_backend::load("models/target");
//!     block_diffusion drafter(block_draft_model::load("models/block", target));
//!
//! Shapes      config.json and model.safetensors in the folder, in a layout of block_draft_config, or a GGUF file
//! Complexity  read: a copy, and a pass for each 64 rows of a text; forward: a pass for each 64 rows that all its texts
//!             have left unread, then one pass with at most length + 1 rows for each text; no allocation if an earlier
//!             forward, or reserve, was for as many texts, and an earlier forward had as high a place. correct: a
//!             product with the Markov head's [columns][markov_rank], or with the refiner's matrices (block_refiner);
//!             or one of selector_rank numbers for each candidate, which are found when a row is first corrected
//! Law         bitwise: no logit depends on the number of threads, on other texts, or on how many rows each read() gets
//! Errors      load: model_error for files that cannot be read, or that do not fit the target. read: input_error for
//!             states of another width. forward: input_error for a token outside the vocabulary. NaN weights give NaN
//!             logits
//! Source      Chen et al., DFlash; speculators 0.9.0, models/dspark and models/xpress; dflash 0.1.0, for DFlash2. The
//!             library's own layout adds a matrix for the pending token; its reference is examples/models/block.py
class block_draft_model {
 public:
  using context_type = block_draft_context;
  using request_type = block_draft_request;

  static block_draft_model load(const std::string& path, const draft_target& target) {
    const block_draft_files files = block_draft_files::open(path, target);
    return block_draft_model(files.config, block_draft_weights::load(files.config, *files.tensors), target);
  }

  block_draft_model(const block_draft_config& config, block_draft_weights weights, const draft_target& target)
      : config_(config),
        weights_(std::move(weights)),
        target_(target.weights()),
        max_positions_((std::min)(config.max_positions, target.max_positions())),
        pass_(config.without_windows(), detail::model_steps(config.without_windows(), {}, true),
              thread_team::shared(target.n_threads()),
              {.max_rows = read_rows, .max_positions = max_positions_ + config.block_length}),
        corrections_(config) {
    detail::check_block_draft_target(config, target);
    target.keep_hidden(config.hidden_layers);
    if (!config.has_head) weights_.head = target_->head;
    if (config_.head_size == 0) config_.head_size = vocab_size();
    pass_.reserve_slots(slots());
    reads_.reserve(read_rows);
    make_places(1);
    reserve(1);
  }

  //! Takes memory for passes over n_texts texts.
  void reserve(int n_texts) {
    if (n_texts <= n_texts_) return;
    n_texts_ = n_texts, buffers_ = {};
    const int rows = n_texts * (config_.block_length + 1);
    pass_.reserve((std::max)(read_rows, rows));
    place_buffers();
    buffers_ = detail::float_block(buffers_.used(), false);
    place_buffers();
    requests_.reserve(static_cast<std::size_t>(n_texts));
    for (std::vector<std::int32_t>* of_rows : {&tokens_, &positions_, &outputs_})
      of_rows->reserve(static_cast<std::size_t>(rows));
    const bool sees_slots = config_.sight(true).window > 0;
    seen_.reserve(n_texts, config_.block_length + 1, 0);
    if (config_.has_windows()) windowed_.reserve(n_texts, config_.block_length + 1, sees_slots ? slots() : 0);
  }

  int vocab_size() const { return target_->head.matrix.outputs(); }
  //! The token of each column of the logits; empty: columns are tokens.
  std::span<const token_id> tokens() const { return weights_.tokens; }
  int block_length() const { return config_.block_length; }
  int max_positions() const { return max_positions_; }
  const block_draft_config& config() const { return config_; }
  std::size_t weight_bytes() const { return weights_.bytes(); }

  context_type make_context() const {
    return {contiguous_kv(config_.n_layers, config_.kv_size(), 1, slots()),
            std::vector<float>(static_cast<std::size_t>(max_positions_) * width()),
            std::vector<float>(read_rows * static_cast<std::size_t>(features_width()))};
  }

  //! Copies the target's hidden states of `rows`, which are rows of its last pass. Their tokens are at positions
  //! position, position + 1, ... Rows at positions from max_positions() on are skipped.
  template <class BackendT>
  requires requires(const BackendT& backend) {
    { backend.hidden(0, 0) } -> std::convertible_to<std::span<const float>>;
  }
  void read(context_type& context, const BackendT& backend, std::span<const std::int32_t> rows, int position) {
    const auto wanted = static_cast<std::size_t>((std::max)(0, max_positions_ - position));
    // Rows that are read again replace the earlier ones.
    context.n_unread = std::clamp(position - context.first_unread, 0, context.n_unread);
    if (context.first_unread + context.n_unread != position) {
      take_unread(context);
      compute_reads();
      context.first_unread = position;
    }
    for (const std::int32_t row : rows.first((std::min)(rows.size(), wanted))) {
      if (context.n_unread == read_rows) take_unread(context);
      detail::gather_states(config_, backend, row, context.unread.data() + at(context.n_unread, features_width()));
      ++context.n_unread;
    }
  }

  //! Computes the requested blocks, `length` tokens each.
  //!
  //! Pre         1 <= length <= block_length(); no two requests have the same place or the same context
  void forward(std::span<const request_type> requests, int length) {
    int last_place = 0;
    for (const request_type& r : requests) {
      if (r.pending() < 0 || r.pending() >= vocab_size()) {
        raise<input_error>("the pending token is ", r.pending(), ", but the vocabulary ends at ", vocab_size() - 1,
                           ".");
      }
      last_place = (std::max)(last_place, r.place);
    }
    if (requests.empty()) return;
    reserve(static_cast<int>(requests.size()));
    make_places(last_place + 1);
    requests_.assign(requests.begin(), requests.end());
    std::sort(requests_.begin(), requests_.end(),
              [](const request_type& x, const request_type& y) { return x.place < y.place; });
    for (const request_type& r : requests_) {
      take_unread(*r.context);
      corrections_.begin(r.place, length, r.text);
    }
    compute_reads();
    detail::block_draft_caches caches{requests_, slots()};
    const forward_batch_view batch = batch_of(length);
    block_place place{*this, length, batch, {}};
    if (config_.has_windows()) {
      place.windowed = batch;
      place.windowed.sequences = windowed_.sequences, place.windowed.mask = windowed_.mask;
    }
    pass_.run(place, weights_, caches, batch);
  }

  //! Returns the first `length` rows of the last block that was computed for this place.
  //!
  //! Shapes      [length][tokens().size(), or vocab_size() if that is 0], valid until the next forward()
  vocab_rows<float> logits(int place, int length) const {
    return {logits_.data() + size_of_place() * place, length, config_.columns()};
  }

  //! Returns whether correct() changes rows: the draft has a Markov head, a selector or a refiner.
  bool corrects() const { return config_.corrects(); }

  //! Corrects a row of logits, the row of the node's depth in the last block that was computed for this place, for the
  //! tokens from the pending one to the node's. A node below the last row has the last row's state. A Markov head and a
  //! refiner add to the row; a selector gives its candidates their scores, and minus infinity to all other tokens.
  //!
  //! Shapes      row [columns]
  //! Errors      input_error for a token of the path, or one before it that a refiner reads, outside the vocabulary
  void correct(int place, tree_view tree, node_id node, std::span<float> row) {
    if (corrects()) corrections_.correct(pass_, weights_, place, logits(place, config_.block_length), tree, node, row);
  }

 private:
  static constexpr int read_rows = 64;  // most rows of a pass over unread states

  struct read_row {
    context_type* context;
    int position;
  };

  // The PlaceT of a pass over blocks: begin_rows() writes the stream before the first layer, and the logits of each
  // request go to its place in logits_.
  struct block_place {
    block_draft_model& model;
    int length;
    const forward_batch_view& seen;
    forward_batch_view windowed;  // the same rows as layers with a window see one another

    const forward_batch_view& rows_seen(int layer) const { return model.config_.is_windowed(layer) ? windowed : seen; }
    void embed(detail::transformer_pass&, int thread, const forward_batch_view&) {
      model.begin_rows(thread, model.config_.rows_of(length));
    }
    void head(detail::transformer_pass&, int thread, const detail::model_step&, const forward_batch_view&) {
      model.multiply_head(thread, length);
    }
  };

  int features_width() const { return weights_.features.matrix.inputs(); }
  std::size_t width() const { return static_cast<std::size_t>(config_.hidden_size); }
  std::ptrdiff_t size_of_place() const { return at(config_.block_length, config_.columns()); }
  int slots() const { return max_positions_ + config_.block_length; }
  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }
  float* stream(int row) const { return pass_.rows(detail::step_rows::stream) + at(row, config_.hidden_size); }
  float* normed(int row) const { return pass_.rows(detail::step_rows::normed) + at(row, config_.hidden_size); }

  void place_buffers() {
    const auto rows = [&](int n, int size) { return buffers_.take(static_cast<std::size_t>(at(n, size))); };
    features_ = rows(read_rows, features_width());
    pending_ = rows(n_texts_, config_.hidden_size);
    root_ = rows(n_texts_, config_.hidden_size);
    read_key_value_ = rows(read_rows * config_.n_layers, 2 * config_.kv_size());
  }

  // Makes room for the blocks of places 0 to n - 1.
  void make_places(int n) {
    if (n <= n_places_) return;
    n_places_ = n;
    logits_.resize(static_cast<std::size_t>(size_of_place() * n));
    corrections_.make_places(n);
  }

  // Makes the batch of a pass: rows for each request. The last `length` of them have logits. In the library's own
  // layout it also writes the normalised embeddings of pending tokens to pending_.
  forward_batch_view batch_of(int length) {
    const int n = config_.rows_of(length);
    seen_.clear(), windowed_.clear();
    tokens_.clear(), positions_.clear(), outputs_.clear();
    for (const request_type& r : requests_) {
      const auto i = static_cast<std::int32_t>(seen_.sequences.size()), first = i * n;
      float* pending = pending_ + at(i, config_.hidden_size);
      if (!config_.is_dflash()) {
        target_->embed(r.pending(), pending);
        detail::rms_norm(pending, config_.hidden_size, weights_.pending_norm.scale, config_.norm_epsilon, pending);
      }
      seen_.add(i, n, r.position(), config_.sight(false));
      if (config_.has_windows()) windowed_.add(i, n, r.position(), config_.sight(true));
      for (int row = 0; row < n; ++row) {
        tokens_.push_back(r.pending());
        positions_.push_back(r.position() + row);
        if (row >= n - length) outputs_.push_back(first + row);
      }
    }
    return {tokens_, positions_, positions_, seen_.sequences, seen_.mask, outputs_};
  }

  // Moves the unread rows of a text to reads_, and computes them whenever there are read_rows of them.
  void take_unread(context_type& context) {
    for (int row = 0; row < context.n_unread; ++row) {
      std::copy_n(context.unread.data() + at(row, features_width()), features_width(),
                  features_ + at(static_cast<int>(reads_.size()), features_width()));
      reads_.push_back({&context, context.first_unread + row});
      if (reads_.size() == read_rows) compute_reads();
    }
    context.first_unread += std::exchange(context.n_unread, 0);
  }

  void compute_reads() {
    if (!reads_.empty()) pass_.team().run([&](int thread) { compute_read(thread); });
    reads_.clear();
  }

  // Computes one thread's part of a pass over reads_: states, and keys and values of all layers. Between barriers,
  // threads write disjoint parts.
  void compute_read(int thread) {
    thread_team& team = pass_.team();
    const auto n = static_cast<int>(reads_.size());
    pass_.multiply(thread, weights_.features.matrix, features_, n, stream(0), false,
                   weights_.layers.front().key_value.matrix);
    team.barrier();
    const auto [first, last] = team.share(thread, n);
    for (int row = first; row < last; ++row) {
      const auto [context, position] = reads_[static_cast<std::size_t>(row)];
      detail::rms_norm(stream(row), config_.hidden_size, weights_.features_norm.scale, config_.norm_epsilon,
                       normed(row));
      std::copy_n(normed(row), width(), context->states.data() + at(position, config_.hidden_size));
    }
    team.barrier();
    const int size = 2 * config_.kv_size();
    for (int i = 0; i < config_.n_layers; ++i) {
      const auto next = static_cast<std::size_t>((i + 1) % config_.n_layers);
      pass_.multiply(thread, weights_.layers[static_cast<std::size_t>(i)].key_value.matrix, normed(0), n,
                     read_key_value_ + at(i * n, size), false, weights_.layers[next].key_value.matrix);
    }
    team.barrier();
    for (int i = 0; i < config_.n_layers; ++i) {
      for (int row = first; row < last; ++row)
        keep_key_value(i, read_key_value_ + at(i * n + row, size), reads_[static_cast<std::size_t>(row)]);
    }
  }

  // Writes the keys of a row, normalised and rotated, and its values into the cache. x: keys, then values,
  // [2 kv_size]; the keys in x may change
  void keep_key_value(int layer, float* x, const read_row& row) const {
    const detail::rotary_table& rotary = pass_.rotary();
    const float* norm = weights_.layers[static_cast<std::size_t>(layer)].key_norm;
    float* key = row.context->kv.key(layer, 0, row.position);
    for (int first = 0; first < config_.kv_size(); first += config_.head_dim) {
      if (norm) detail::rms_norm(x + first, config_.head_dim, norm, config_.norm_epsilon, x + first);
      detail::rotate_head(x + first, config_.head_dim, config_.rotary_dims, rotary.cosine(row.position),
                          rotary.sine(row.position), 1.0F, key + first);
    }
    std::copy_n(x + config_.kv_size(), config_.kv_size(), row.context->kv.value(layer, 0, row.position));
  }

  // Writes the thread's part of the logits, and of what corrections read from the rows' states. Makes one product of
  // each kind for each run of places that follow one another if blocks have their whole length, else one for each
  // place.
  void multiply_head(int thread, int length) {
    for (std::size_t i = 0, next = 0; i < requests_.size(); i = next) {
      next = i + 1;
      while (length == config_.block_length && next < requests_.size() &&
             requests_[next].place == requests_[next - 1].place + 1)
        ++next;
      const float* states = normed(static_cast<int>(i) * length);
      const int rows = static_cast<int>(next - i) * length, place = requests_[i].place;
      float* to = logits_.data() + size_of_place() * place;
      const weight_matrix& after = weights_.layers.front().query.matrix;
      pass_.multiply(thread, weights_.head.matrix, states, rows, to, false, after);
      scale_logits(thread, to, rows);
      corrections_.read_states(pass_, thread, weights_, place, states, rows, after);
    }
    const int n = config_.rows_of(length);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      corrections_.read_stream(pass_, thread, weights_, requests_[i].place, stream(static_cast<int>(i) * n),
                               weights_.layers.front().query.matrix);
    }
  }

  // Scales and caps the thread's columns of rows of logits.
  void scale_logits(int thread, float* rows, int n) {
    if (config_.output_scale == 1.0F && config_.output_cap == 0.0F) return;
    const auto [begin, end] = pass_.products().outputs_of(thread, weights_.head.matrix);
    for (int row = 0; row < n; ++row) {
      float* const first = rows + at(row, config_.columns()) + begin;
      detail::multiply_by(first, end - begin, config_.output_scale);
      if (config_.output_cap > 0.0F) detail::soft_cap(first, end - begin, config_.output_cap);
    }
  }

  // Writes the thread's columns of the stream before the first layer, n rows for each request: the sum of the pending
  // token's product and the last state of the context. Rows of tokens that are to be drafted add their row of `masked`.
  // For DFlash it writes the thread's rows: the embedding of the pending token, and the mask token's for each further
  // row.
  void begin_rows(int thread, int n) {
    if (config_.is_dflash()) {
      const auto [first, last] = pass_.team().share(thread, static_cast<int>(requests_.size()) * n);
      for (int row = first; row < last; ++row) {
        const token_id pending = requests_[static_cast<std::size_t>(row / n)].pending();
        embed(row % n == 0 ? pending : config_.mask_token, stream(row));
      }
      return;
    }
    pass_.multiply(thread, weights_.pending.matrix, pending_, static_cast<int>(requests_.size()), root_, false,
                   weights_.layers.front().query.matrix);
    const auto [begin, end] = pass_.products().outputs_of(thread, weights_.pending.matrix);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const request_type& r = requests_[i];
      float* root = root_ + at(static_cast<int>(i), config_.hidden_size);
      const float* state =
          r.position() > 0 ? r.context->states.data() + at(r.position() - 1, config_.hidden_size) : nullptr;
      for (int o = begin; state && o < end; ++o)
        root[o] += state[o];
      float* to = stream(static_cast<int>(i) * n);
      std::copy(root + begin, root + end, to + begin);
      for (int row = 1; row < n; ++row) {
        const float* masked = weights_.masked + at(row - 1, config_.hidden_size);
        to += config_.hidden_size;
        for (int o = begin; o < end; ++o)
          to[o] = root[o] + masked[o];
      }
    }
  }

  // Writes the embedding of a token, of DFlash.
  void embed(token_id token, float* to) const {
    if (weights_.embedding.rows() > 0) {
      weights_.embedding.row(token).decode(to);
    } else {
      target_->embed(token, to);
    }
    if (config_.embedding_scale != 1.0F) detail::multiply_by(to, config_.hidden_size, config_.embedding_scale);
  }

  block_draft_config config_;
  block_draft_weights weights_;
  std::shared_ptr<const model_weights> target_;
  int max_positions_;
  detail::transformer_pass pass_;
  detail::block_corrections corrections_;
  detail::block_masks seen_, windowed_;  // of the rows of the pass: in layers without a window, and with one
  int n_texts_ = 0;                      // texts that a pass has room for
  int n_places_ = 0;
  std::vector<read_row> reads_;                             // rows of a pass over unread states
  std::vector<request_type> requests_;                      // the requests of the pass, sorted by place
  std::vector<std::int32_t> tokens_, positions_, outputs_;  // of the batch; slots are positions

  detail::float_block buffers_;
  float* features_ = nullptr;        // [read_rows][layers read * hidden_size]
  float* pending_ = nullptr;         // [texts][hidden_size]
  float* root_ = nullptr;            // [texts][hidden_size]
  float* read_key_value_ = nullptr;  // [n_layers][rows of the pass, at most read_rows][2 kv_size]
  std::vector<float> logits_;        // [places][block_length][columns]
};

}  // namespace espalier
