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
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/llama/attention.hpp"
#include "espalier/model/llama/attention_tasks.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_context.hpp"
#include "espalier/model/llama/block_draft_heads.hpp"
#include "espalier/model/llama/block_draft_request.hpp"
#include "espalier/model/llama/block_draft_target.hpp"
#include "espalier/model/llama/block_draft_weights.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/matrix_arithmetic.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/rotary_table.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier {

//! A block-diffusion draft on the host: from the hidden states of chosen layers of the target at every position of the
//! text, and from the pending token, one pass gives the logits of the next positions. All rows of a block see one
//! another and the text before it. The target's embedding goes in, its output matrix comes last; both are borrowed, and
//! so are the threads.
//!
//!     auto target = llama_backend::load("models/target", {.hidden_layers = {1, 3, 5}});
//!     block_diffusion drafter(block_draft_model::load("models/block", target));
//!
//! Shapes      config.json and model.safetensors in the folder, as examples/models/train.py exports them
//! Complexity  read: a copy, and a pass for each 64 rows of a text; forward: a pass for each 64 rows that all its texts
//!             have left unread, then one of length + 1 rows for each text; no allocation
//! Law         bitwise: nothing depends on the number of threads, on other texts, or on how rows are read in parts
//! Errors      load: model_error for files that do not fit, themselves or the target; option_error for a target whose
//!             option hidden_layers lacks a layer. read and forward: input_error for states of another width, a token
//!             outside the vocabulary. NaN weights give NaN logits
//! Source      Chen et al., DFlash, with a pending token of its own matrix; examples/models/block.py is the reference
class block_draft_model {
 public:
  using context_type = block_draft_context;
  using request_type = block_draft_request;

  static block_draft_model load(const std::string& folder, const llama_backend& target) {
    const block_draft_config config = block_draft_config::load(folder);
    detail::check_block_draft_target(config, target);
    safetensors_file file(folder + "/model.safetensors");
    return block_draft_model(config, block_draft_weights::load(config, file), target);
  }

  block_draft_model(const block_draft_config& config, block_draft_weights weights, const llama_backend& target)
      : config_(config),
        weights_(std::move(weights)),
        target_(target.weights()),
        max_positions_((std::min)(config.max_positions, target.max_positions())),
        rotary_(max_positions_ + config.block_length, config.head_dim, config.rope_theta),
        team_(&thread_team::shared(target.n_threads())) {
    detail::check_block_draft_target(config, target);
    workers_.assign(static_cast<std::size_t>(team_->n_threads()), detail::attention_worker(config.head_dim));
    for (detail::attention_worker& worker : workers_)
      worker.reserve(slots());
    const auto rows = static_cast<std::size_t>(config.block_length) + 1;
    mask_.resize(rows * ((rows + 31) / 32));
    reads_.reserve(read_rows);
    logits_.resize(static_cast<std::size_t>(size_of_place()));
    reserve(1);
  }

  //! Makes room for passes over so many texts.
  void reserve(int n_texts) {
    if (n_texts <= n_texts_) return;
    n_texts_ = n_texts, buffers_ = {};
    products_ = {*team_, most_rows(), 0, matrix_arithmetic::exact};
    place_buffers();
    buffers_ = detail::float_block(buffers_.used(), false);
    place_buffers();
    requests_.reserve(static_cast<std::size_t>(n_texts));
    sequences_.reserve(static_cast<std::size_t>(n_texts));
  }

  int vocab_size() const { return target_->head.matrix.outputs(); }
  int block_length() const { return config_.block_length; }
  int max_positions() const { return max_positions_; }
  const block_draft_config& config() const { return config_; }
  std::size_t weight_bytes() const { return weights_.bytes(); }

  context_type make_context() const {
    return {contiguous_kv(config_.n_layers, config_.kv_size(), 1, slots()),
            std::vector<float>(static_cast<std::size_t>(max_positions_) * width()),
            std::vector<float>(read_rows * static_cast<std::size_t>(features_width()))};
  }

  //! Takes the target's hidden states of these rows of its last pass, which stand at positions position, position + 1,
  //! ... Those beyond max_positions() are not needed.
  template <class BackendT>
  requires requires(const BackendT& backend) {
    { backend.hidden(0, 0) } -> std::convertible_to<std::span<const float>>;
  }
  void read(context_type& context, const BackendT& backend, std::span<const std::int32_t> rows, int position) {
    const auto wanted = static_cast<std::size_t>((std::max)(0, max_positions_ - position));
    // What is read again replaces what was there.
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

  //! The blocks of all that is asked for, `length` tokens each.
  //!
  //! Pre         1 <= length <= block_length()
  void forward(std::span<const request_type> requests, int length) {
    int last_place = 0;
    for (const request_type& r : requests) {
      if (r.pending < 0 || r.pending >= vocab_size()) {
        raise<input_error>("the pending token is ", r.pending, ", but the vocabulary ends at ", vocab_size() - 1, ".");
      }
      last_place = (std::max)(last_place, r.place);
    }
    reserve(static_cast<int>(requests.size()));
    logits_.resize((std::max)(logits_.size(), static_cast<std::size_t>(size_of_place() * (last_place + 1))));
    requests_.assign(requests.begin(), requests.end());
    std::sort(requests_.begin(), requests_.end(),
              [](const request_type& x, const request_type& y) { return x.place < y.place; });
    for (const request_type& r : requests_)
      take_unread(*r.context);
    compute_reads();
    const int n = length + 1, words = (n + 31) / 32;
    for (int i = 0; i < n * words; ++i) {
      const int rest = n - i % words * 32;
      mask_[static_cast<std::size_t>(i)] = rest >= 32 ? ~0U : (1U << rest) - 1U;
    }
    sequences_.clear();
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      float* pending = pending_ + at(static_cast<int>(i), config_.hidden_size);
      target_->embed(requests_[i].pending, pending);
      detail::rms_norm(pending, config_.hidden_size, weights_.pending_norm, config_.norm_epsilon, pending);
      // Each text has a cache of its own; the mask is that of all.
      const int first = static_cast<int>(i) * n;
      sequences_.push_back({0, first, first + n, requests_[i].position, 0, words});
    }
    forward_batch_view batch;
    batch.sequences = sequences_;
    batch.mask = mask_;
    team_->run([&](int thread) { compute_blocks(thread, batch, n); });
  }

  //! Of the last pass that was asked for with this place, the first rows.
  //!
  //! Shapes      [length][vocab_size], valid until the next one
  vocab_rows<float> logits(int place, int length) const {
    return {logits_.data() + size_of_place() * place, length, vocab_size()};
  }

 private:
  using layer_type = block_draft_weights::layer_type;

  static constexpr int read_rows = 64;  // of one pass

  struct read_row {
    context_type* context;
    int position;
  };

  int features_width() const { return weights_.features.inputs(); }
  std::size_t width() const { return static_cast<std::size_t>(config_.hidden_size); }
  std::ptrdiff_t size_of_place() const { return at(config_.block_length, vocab_size()); }
  int slots() const { return max_positions_ + config_.block_length; }
  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }

  int most_rows() const { return (std::max)(read_rows, n_texts_ * (config_.block_length + 1)); }

  void place_buffers() {
    const int most = most_rows();
    const auto rows = [&](int n, int size) { return buffers_.take(static_cast<std::size_t>(at(n, size))); };
    features_ = rows(read_rows, features_width());
    pending_ = rows(n_texts_, config_.hidden_size);
    root_ = rows(n_texts_, config_.hidden_size);
    stream_ = rows(most, config_.hidden_size);
    normed_ = rows(most, config_.hidden_size);
    query_ = rows(most, config_.query_size());
    key_value_ = rows(most * config_.n_layers, 2 * config_.kv_size());
    attended_ = rows(most, config_.query_size());
    gate_ = rows(most, config_.intermediate_size);
    up_ = rows(most, config_.intermediate_size);
  }

  // Takes what a text has left unread into the next pass.
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
    if (!reads_.empty()) team_->run([&](int thread) { compute_read(thread); });
    reads_.clear();
  }

  // reads_, as one thread sees it. Between barriers, threads write disjoint parts.
  void compute_read(int thread) {
    const auto n = static_cast<int>(reads_.size());
    multiply(thread, weights_.features, features_, n, stream_, false, weights_.layers.front().key_value);
    team_->barrier();
    const auto [first, last] = team_->share(thread, n);
    for (int row = first; row < last; ++row) {
      const auto [context, position] = reads_[static_cast<std::size_t>(row)];
      normalise(weights_.features_norm, row, normed_);
      std::copy_n(normed_ + at(row, config_.hidden_size), width(),
                  context->states.data() + at(position, config_.hidden_size));
    }
    team_->barrier();
    const int size = 2 * config_.kv_size();
    for (int i = 0; i < config_.n_layers; ++i) {
      const layer_type& next = weights_.layers[static_cast<std::size_t>((i + 1) % config_.n_layers)];
      multiply(thread, weights_.layers[static_cast<std::size_t>(i)].key_value, normed_, n, key_value_ + at(i * n, size),
               false, next.key_value);
    }
    team_->barrier();
    for (int i = 0; i < config_.n_layers; ++i) {
      for (int row = first; row < last; ++row) {
        const auto [context, position] = reads_[static_cast<std::size_t>(row)];
        detail::keep_key_value(config_, rotary_, *context, i, key_value_ + at(i * n + row, size), position);
      }
    }
  }

  // n rows for each request.
  void compute_blocks(int thread, const forward_batch_view& batch, int n) {
    const int n_rows = n * static_cast<int>(requests_.size());
    const auto request_of = [&](int row) -> const request_type& {
      return requests_[static_cast<std::size_t>(row / n)];
    };
    begin_rows(thread, n);
    team_->barrier();
    const auto [first, last] = team_->share(thread, n_rows);
    for (int i = 0; i < config_.n_layers; ++i) {
      const layer_type& layer = weights_.layers[static_cast<std::size_t>(i)];
      if (thread == 0) team_->reset_tickets();
      for (int row = first; row < last; ++row)
        normalise(layer.attention_norm, row, normed_);
      team_->barrier();
      multiply(thread, layer.query, normed_, n_rows, query_, false, layer.key_value);
      multiply(thread, layer.key_value, normed_, n_rows, key_value_, false, layer.attention_out);
      team_->barrier();
      for (int row = first; row < last; ++row) {
        const int position = request_of(row).position + row % n;
        detail::rotate_queries(config_, rotary_, query_ + at(row, config_.query_size()), position);
        detail::keep_key_value(config_, rotary_, *request_of(row).context, i,
                               key_value_ + at(row, 2 * config_.kv_size()), position);
      }
      team_->barrier();
      attend(thread, i, batch);
      team_->barrier();
      multiply(thread, layer.attention_out, attended_, n_rows, stream_, true, layer.up);
      team_->barrier();
      for (int row = first; row < last; ++row)
        normalise(layer.mlp_norm, row, normed_);
      team_->barrier();
      activate(thread, layer, n_rows);
      team_->barrier();
      const bool is_last = i + 1 == config_.n_layers;
      multiply(thread, layer.down, gate_, n_rows, stream_, true,
               is_last ? target_->head.matrix : weights_.layers[static_cast<std::size_t>(i) + 1].query);
      team_->barrier();
    }
    // The pending token's own row has no logits: those of the others stand one after the other.
    for (int row = first; row < last; ++row) {
      if (row % n > 0) normalise(weights_.final_norm, row, normed_, row / n * (n - 1) + row % n - 1);
    }
    team_->barrier();
    multiply_head(thread, n - 1);
  }

  // One product for each run of places that follow one another, where each has a whole block.
  void multiply_head(int thread, int length) {
    for (std::size_t i = 0, next = 0; i < requests_.size(); i = next) {
      next = i + 1;
      while (length == config_.block_length && next < requests_.size() &&
             requests_[next].place == requests_[next - 1].place + 1)
        ++next;
      multiply(thread, target_->head.matrix, normed_ + at(static_cast<int>(i) * length, config_.hidden_size),
               static_cast<int>(next - i) * length, logits_.data() + size_of_place() * requests_[i].place, false,
               weights_.pending);
    }
  }

  // Every row is the pending token beside the last state of the context; those to be written add what tells them apart.
  void begin_rows(int thread, int n) {
    multiply(thread, weights_.pending, pending_, static_cast<int>(requests_.size()), root_, false,
             weights_.layers.front().query);
    const auto [begin, end] = products_.outputs_of(thread, weights_.pending);
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const request_type& r = requests_[i];
      float* root = root_ + at(static_cast<int>(i), config_.hidden_size);
      const float* state =
          r.position > 0 ? r.context->states.data() + at(r.position - 1, config_.hidden_size) : nullptr;
      for (int o = begin; state && o < end; ++o)
        root[o] += state[o];
      float* to = stream_ + at(static_cast<int>(i) * n, config_.hidden_size);
      std::copy(root + begin, root + end, to + begin);
      for (int row = 1; row < n; ++row) {
        const float* masked = weights_.masked + at(row - 1, config_.hidden_size);
        to += config_.hidden_size;
        for (int o = begin; o < end; ++o)
          to[o] = root[o] + masked[o];
      }
    }
  }

  void normalise(const float* norm, int row, float* to) const { normalise(norm, row, to, row); }
  void normalise(const float* norm, int row, float* to, int to_row) const {
    detail::rms_norm(stream_ + at(row, config_.hidden_size), config_.hidden_size, norm, config_.norm_epsilon,
                     to + at(to_row, config_.hidden_size));
  }

  void multiply(int thread, const weight_matrix& matrix, const float* x, int rows, float* y, bool accumulate,
                const weight_matrix& next) {
    products_.multiply(thread, matrix, products_.prepare(thread, matrix, x, rows), y, accumulate, next);
  }

  void attend(int thread, int layer, const forward_batch_view& batch) {
    detail::attention_worker& worker = workers_[static_cast<std::size_t>(thread)];
    detail::take_attention_tasks(*team_, layer, config_.n_heads, config_.n_kv_heads, batch,
                                 [&](const batch_sequence& sequence, const detail::attention_worker::task& task) {
                                   const auto i = static_cast<std::size_t>(&sequence - batch.sequences.data());
                                   worker.attend(requests_[i].context->kv, batch, sequence, task, query_,
                                                 config_.query_size(), attended_, config_.query_size());
                                 });
  }

  // A thread's columns of gate and up are the same, so it needs no other's.
  void activate(int thread, const layer_type& layer, int n) {
    multiply(thread, layer.up, normed_, n, up_, false, layer.gate);
    multiply(thread, layer.gate, normed_, n, gate_, false, layer.down);
    const auto [begin, end] = products_.outputs_of(thread, layer.up);
    for (int row = 0; row < n; ++row) {
      const std::ptrdiff_t first = at(row, config_.intermediate_size) + begin;
      detail::silu_times(gate_ + first, up_ + first, end - begin);
    }
  }

  block_draft_config config_;
  block_draft_weights weights_;
  std::shared_ptr<const model_weights> target_;
  int max_positions_;
  detail::rotary_table rotary_;
  thread_team* team_;
  std::vector<detail::attention_worker> workers_;
  detail::product_team products_;
  std::vector<std::uint32_t> mask_;     // [block_length + 1][words], all rows of a block see all
  int n_texts_ = 0;                     // of a pass
  std::vector<read_row> reads_;         // of a pass over what is unread
  std::vector<request_type> requests_;  // of the pass, by place
  std::vector<batch_sequence> sequences_;

  detail::float_block buffers_;
  float* features_ = nullptr;   // [read_rows][layers read * hidden_size]
  float* pending_ = nullptr;    // [texts][hidden_size]
  float* root_ = nullptr;       // [texts][hidden_size]
  float* stream_ = nullptr;     // [rows][hidden_size]; rows: of all blocks, or read at once
  float* normed_ = nullptr;     // [rows][hidden_size]
  float* query_ = nullptr;      // [rows][query_size]
  float* key_value_ = nullptr;  // [n_layers][rows][2 kv_size]
  float* attended_ = nullptr;   // [rows][query_size]
  float* gate_ = nullptr;       // [rows][intermediate_size]
  float* up_ = nullptr;         // [rows][intermediate_size]
  std::vector<float> logits_;   // [places][block_length][vocab_size]
};

}  // namespace espalier
