// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/llama_backend.cpp
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/attention.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/expert_mixture.hpp"
#include "espalier/model/llama/host_kv_store.hpp"
#include "espalier/model/llama/matrix_rows.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_tensors.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/recurrent_block.hpp"
#include "espalier/model/llama/rotary_table.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier::detail {

struct pass_options {
  int max_rows = 1;       // rows of one pass
  int max_positions = 1;  // positions of the rotary tables
  matrix_arithmetic arithmetic = matrix_arithmetic::exact;
  int max_inputs = 0;                       // most inputs of a product of integers
  int vocab_size = 0;                       // columns of the logits; 0: the pass has no rows for logits of its own
  bool keeps_inputs = true;                 // whether the pass has rows `mixed` and `activated` of its own; false: its
                                            // user sets them with set_rows()
  std::span<const int> hidden_layers = {};  // layers after which the stream is kept
};

template <class PlaceT>
concept MakesSteps = requires(const PlaceT& place, const model_step& step) {
  { place.makes(step) } -> std::same_as<bool>;
};

// The forward pass of a transformer on the host: carries out model_steps with the threads of a team. All code that runs
// a transformer on the host uses it. A user of the pass gives it an object of a type PlaceT, whose members are all
// optional:
//   makes(step) -> bool                   whether make() is called for the step, outside of the team's run
//   make(pass, weights, step, batch)      carries out such a step; it may exchange rows with other ranks, and throw
//   embed(pass, thread, batch)            writes the thread's part of the stream that the first layer reads, and of
//                                         the rows `paired`
//   head(pass, thread, step, batch)       writes the thread's part of the logits
//   rows_seen(layer) -> batch             the pass's batch with other sequences and masks, for a layer whose rows see
//                                         other rows
//
// Between two steps all threads wait for one another if the second step uses numbers that another thread wrote, or
// overwrites numbers that another thread reads; walk::settle knows that from how each step divides its arrays.
//
// Law: bitwise, a row depends on its token, its position and the rows that it sees, neither on the other rows of its
// batch nor on the number of threads
class transformer_pass {
 public:
  // Makes a pass. If only a part of the model runs here, the numbers of heads and the intermediate size in `config` are
  // those of that part.
  //
  // Errors: option_error for a layer in hidden_layers that the model does not have
  transformer_pass(const model_config& config, model_steps steps, thread_team& team, const pass_options& options)
      : config_(config),
        steps_(std::move(steps)),
        options_(options),
        team_(&team),
        rotary_(options.max_positions, config.rotary_dims, config.rope_theta, config.scaling),
        local_rotary_(config.local_rope_theta > 0.0 ? options.max_positions : 0, config.rotary_dims,
                      config.local_rope_theta),
        workers_(static_cast<std::size_t>(team.n_threads()), attention_worker(config.head_dim)),
        recurrent_(config.recurrence, team.n_threads(), config.norm_epsilon),
        hidden_layers_(options.hidden_layers.begin(), options.hidden_layers.end()) {
    for (const int layer : hidden_layers_)
      require_option("hidden_layers", layer, 0, config.n_layers - 1);
    const int heads = config.n_heads + 2 * config.n_kv_heads, each = heads / team.n_threads();
    whole_heads_ =
        !config.attention_gate && heads % team.n_threads() == 0 && each * config.head_dim % weight_matrix::granule == 0;
    options_.hidden_layers = {};  // the caller's list may go away
    reserve(options.max_rows);
  }

  const model_config& config() const { return config_; }
  thread_team& team() const { return *team_; }
  product_team& products() { return products_; }
  const rotary_table& rotary() const { return rotary_; }

  // Takes memory for passes of up to max_rows rows.
  void reserve(int max_rows) {
    options_.max_rows = max_rows;
    n_rows_ = 0;
    products_ = {*team_, max_rows, options_.max_inputs, options_.arithmetic};
    mixture_ = {};
    if (config_.has_mixtures()) mixture_ = {config_.mixture, config_.hidden_size, team_->n_threads(), max_rows};
    buffers_ = {};
    place_buffers();
    buffers_ = float_block(buffers_.used(), false);
    place_buffers();
  }

  // Takes memory for attention over caches of this many slots.
  void reserve_slots(int slots) {
    for (attention_worker& worker : workers_)
      worker.reserve(slots);
  }

  // Returns the first row of an array.
  float* rows(step_rows array) const { return rows_[static_cast<std::size_t>(array)]; }
  void set_rows(step_rows array, float* to) { rows_[static_cast<std::size_t>(array)] = to; }

  // Returns the stream of a row after a layer of the last pass, [hidden_size].
  //
  // Errors: option_error if the layer is not kept; input_error if the last pass, if any, had no such row
  std::span<const float> hidden(int layer, int row) const {
    if (!keeps(layer)) raise<option_error>("option hidden_layers does not list layer ", layer, ".");
    if (row < 0 || row >= n_rows_)
      raise<input_error>("row ", row, " is none of the last pass, which had ", n_rows_, " rows.");
    return {kept(layer, row), static_cast<std::size_t>(config_.hidden_size)};
  }
  bool keeps(int layer) const {
    return std::find(hidden_layers_.begin(), hidden_layers_.end(), layer) != hidden_layers_.end();
  }

  // Runs a pass: makes all its steps.
  //
  // Pre: the batch fits the store, the model and reserve(); of the members of `place`, only make() may throw
  template <class PlaceT, class WeightsT, class KVStoreT>
  void run(PlaceT& place, const WeightsT& weights, KVStoreT& kv, const forward_batch_view& batch) {
    n_rows_ = 0;
    if constexpr (HostRecurrentStore<KVStoreT>) recurrent_.begin(kv, batch);
    reserve_slots(kv.capacity());
    const std::span<const model_step> steps = steps_.all();
    for (std::size_t begin = 0; begin < steps.size();) {
      if (is_made_by(place, steps[begin])) {
        if constexpr (MakesSteps<PlaceT>) place.make(*this, weights, steps[begin], batch);
        ++begin;
        continue;
      }
      std::size_t end = begin + 1;
      while (end < steps.size() && !is_made_by(place, steps[end]))
        ++end;
      team_->run([&](int thread) {
        walk<PlaceT, WeightsT, KVStoreT>{*this, place, weights, kv, batch, thread, {}, {}}.along(
            steps.subspan(begin, end - begin));
      });
      begin = end;
    }
    if constexpr (HostRecurrentStore<KVStoreT>) recurrent_.end(kv);
    n_rows_ = batch.n_rows();
  }

  // Writes the thread's columns of y (+)= W x. Rows of y are y_stride floats apart; 0: as many as W has outputs.
  void multiply(int thread, const weight_matrix& matrix, const float* x, int rows, float* y, bool accumulate,
                const weight_matrix& next, std::ptrdiff_t y_stride = 0) {
    products_.multiply(thread, matrix, products_.prepare(thread, matrix, x, rows), y, accumulate, next, y_stride);
  }

  // Makes the first half of a step `dispatch`, see expert_mixture::widen(), for a place that makes such steps.
  template <class ExpertsT>
  void widen_experts(int thread, const ExpertsT& experts, const model_step& step, int rows, float* activated) {
    mixture_.widen(*team_, products_, thread, experts, this->rows(step_rows::routed), normed_rows(step, thread, rows),
                   rows, activated);
  }
  // Makes the second half of a step `dispatch`, see expert_mixture::add().
  template <class ExpertsT>
  void add_experts(int thread, const ExpertsT& experts, const float* activated, float* to, bool adds, bool biased,
                   const weight_matrix& next) {
    mixture_.add(products_, thread, experts, activated, to, adds, biased, next);
  }

  // Returns the matrix of the first step after this one that has a matrix.
  template <class WeightsT>
  const weight_matrix& next_matrix(const WeightsT& weights, const model_step& step) const {
    const model_step& next = steps_[step.next];
    return linear_at(weights, {next.part, next.layer}).matrix;
  }

 private:
  template <class PlaceT>
  static bool is_made_by([[maybe_unused]] const PlaceT& place, [[maybe_unused]] const model_step& step) {
    if constexpr (MakesSteps<PlaceT>) return place.makes(step);
    return false;
  }

  // Up to this many rows, it is faster that every thread computes all norms than that the threads wait for one another.
  static constexpr int alone_rows = 8;
  static constexpr std::size_t n_arrays = 11;

  // Returns whether each thread computes the norms of this many rows, into memory of its own.
  bool computes_alone(step_rows normed, int n) const {
    return n <= alone_rows && config_.conv_taps == 0 &&
           (normed == step_rows::normed || normed == step_rows::mlp_normed);
  }
  float* own_rows(step_rows normed, int thread) const {
    const int first = (normed == step_rows::normed ? 0 : team_->n_threads()) + thread;
    return own_normed_ + at(first * alone_rows, config_.hidden_size);
  }
  // Returns the n normalised rows that a thread reads in a step.
  const float* normed_rows(const model_step& step, int thread, int n) const {
    return computes_alone(step.from, n) ? own_rows(step.from, thread) : rows(step.from);
  }

  float* kept(int layer, int row) const {
    const auto i = std::find(hidden_layers_.begin(), hidden_layers_.end(), layer) - hidden_layers_.begin();
    return hidden_ + at(static_cast<int>(i) * options_.max_rows + row, config_.hidden_size);
  }

  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }

  void place_buffers() {
    const auto take = [&](step_rows array, int width, bool there = true) {
      if (there) set_rows(array, buffers_.take(static_cast<std::size_t>(at(options_.max_rows, width))));
    };
    const int hidden = config_.hidden_size;
    take(step_rows::stream, hidden);
    take(step_rows::normed, hidden);
    take(step_rows::mlp_normed, hidden, config_.parallel_residual);
    take(step_rows::paired, 2 * hidden, config_.paired_input);
    take(step_rows::routed, config_.mixture.routed_size(), config_.has_mixtures());
    take(step_rows::factors, config_.conv_factors(), config_.conv_taps > 0);
    own_normed_ = buffers_.take(
        static_cast<std::size_t>(at((config_.parallel_residual ? 2 : 1) * alone_rows * team_->n_threads(), hidden)));
    hidden_ = buffers_.take(static_cast<std::size_t>(at(options_.max_rows, hidden)) * hidden_layers_.size());
    // Logits are written after the last use of the arrays below, into the same memory.
    const std::size_t layers_begin = buffers_.used();
    take(step_rows::projected, (std::max)(config_.projected_size(), config_.recurrence.projected()));
    take(step_rows::mixed, config_.mixed_size(), options_.keeps_inputs);
    take(step_rows::activated, config_.activated_size(), options_.keeps_inputs);
    take(step_rows::widened, config_.activated_size(), config_.gated_mlp);
    if (options_.vocab_size == 0) return;
    set_rows(step_rows::logits, rows(step_rows::projected));
    const std::size_t logits_end = layers_begin + static_cast<std::size_t>(at(options_.max_rows, options_.vocab_size));
    if (logits_end > buffers_.used()) buffers_.take(logits_end - buffers_.used());
  }

  // The way in which threads divide an array in a step. Between two steps that divide it in the same way threads need
  // not wait for one another, except with `all`: a thread may use any part of the array.
  enum class division : std::uint8_t { none, rows, columns, heads, all };

  // One thread's walk along some steps.
  template <class PlaceT, class WeightsT, class KVStoreT>
  struct walk {
    transformer_pass& pass;
    PlaceT& place;
    const WeightsT& weights;
    KVStoreT& kv;
    const forward_batch_view& batch;
    int thread;
    // The use of each array since all threads last waited for one another.
    std::array<division, n_arrays> written, read;

    struct use {
      step_rows array;
      division how;
      bool writes = false;
    };

    void along(std::span<const model_step> steps) {
      for (const model_step& step : steps)
        make(step);
    }

    void make(const model_step& step) {
      switch (step.kind) {
        case step_kind::embed:
          return embed();
        case step_kind::normalise:
          return normalise(step);
        case step_kind::multiply:
          return multiply(step);
        case step_kind::norm_heads:
          return norm_heads(step);
        case step_kind::rotate:
          return rotate(step);
        case step_kind::attend:
          return attend(step);
        case step_kind::gate:
          return gate(step);
        case step_kind::recur:
          return recur(step);
        case step_kind::activate:
          return activate(step);
        case step_kind::dispatch:
          return dispatch(step);
        case step_kind::add_norm:
          return add_norm(step);
        case step_kind::add_scaled:
          return add_scaled(step);
        case step_kind::convolve:
          return convolve(step);
        case step_kind::keep:
          return keep(step);
        case step_kind::cap:
          return cap(step);
      }
    }

    // Waits for the other threads if a use clashes with an earlier one.
    void settle(std::initializer_list<use> uses) {
      const auto clashes = [](division before, division now) {
        return before != division::none && (before != now || now == division::all);
      };
      bool waits = false;
      for (const use& u : uses) {
        const auto i = static_cast<std::size_t>(u.array);
        waits = waits || clashes(written[i], u.how) || (u.writes && clashes(read[i], u.how));
      }
      if (waits) {
        pass.team_->barrier();
        written = read = {};
      }
      for (const use& u : uses) {
        division& all = (u.writes ? written : read)[static_cast<std::size_t>(u.array)];
        all = all == division::none || all == u.how ? u.how : division::all;
      }
    }

    const auto& linear(model_part part, int layer) const { return linear_at(weights, {part, layer}); }
    int n_rows(const model_step& step) const {
      return step.outputs_only ? static_cast<int>(batch.outputs.size()) : batch.n_rows();
    }
    bool is_alone(const model_step& step, step_rows normed) const {
      return !step.outputs_only && pass.computes_alone(normed, batch.n_rows());
    }
    float* own_rows(step_rows normed) const { return pass.own_rows(normed, thread); }

    void embed() {
      if constexpr (requires { place.embed(pass, thread, batch); }) {
        settle({{step_rows::stream, division::all, true}, {step_rows::paired, division::all, true}});
        place.embed(pass, thread, batch);
      } else if constexpr (requires { weights.embed(0, nullptr); }) {
        settle({{step_rows::stream, division::rows, true}});
        const int width = pass.config_.hidden_size;
        const auto [first, last] = pass.team_->share(thread, batch.n_rows());
        for (int row = first; row < last; ++row) {
          float* to = pass.rows(step_rows::stream) + at(row, width);
          weights.embed(batch.tokens[static_cast<std::size_t>(row)], to);
          if (pass.config_.embedding_scale != 1.0F) multiply_by(to, width, pass.config_.embedding_scale);
        }
      }
    }

    void normalise(const model_step& step) {
      const int width = pass.config_.hidden_size, n = n_rows(step);
      const bool alone = is_alone(step, step.to);
      float* to = alone ? own_rows(step.to) : pass.rows(step.to);
      if (alone) {
        settle({{step.from, division::all}});
      } else {
        settle({{step.from, step.outputs_only ? division::all : division::rows}, {step.to, division::rows, true}});
      }
      const auto& norm = norm_at(weights, {step.part, step.layer});
      const float epsilon = pass.config_.norm_epsilon;
      const auto [first, last] = alone ? std::pair(0, n) : pass.team_->share(thread, n);
      for (int i = first; i < last; ++i) {
        const int row = step.outputs_only ? batch.outputs[static_cast<std::size_t>(i)] : i;
        const float* from = pass.rows(step.from) + at(row, width);
        if (step.as_is) {
          std::copy_n(from, width, to + at(i, width));
        } else if (norm.bias) {
          layer_norm(from, width, norm.scale, norm.bias, epsilon, to + at(i, width));
        } else {
          rms_norm(from, width, norm.scale, epsilon, to + at(i, width));
        }
      }
    }

    void multiply(const model_step& step) {
      const bool alone = is_alone(step, step.from);
      const float* from = alone ? own_rows(step.from) : pass.rows(step.from);
      if (!alone) settle({{step.from, division::all}});
      if constexpr (requires { place.head(pass, thread, step, batch); }) {
        if (step.to == step_rows::logits) return place.head(pass, thread, step, batch);
      }
      if (step.to == step_rows::widened) return widen(step, from);
      const model_config& c = pass.config_;
      const auto& part = linear(step.part, step.layer);
      const bool is_whole =
          pass.whole_heads_ && step.part == model_part::query_key_value && !c.is_recurrent(step.layer);
      settle({{step.to, is_whole ? division::heads : division::columns, true}});
      const bool partial = step.to == step_rows::projected && !c.is_recurrent(step.layer);
      pass.products_.multiply(thread, part, pass.products_.prepare(thread, part.matrix, from, n_rows(step)),
                              pass.rows(step.to) + step.column, step.adds, pass.next_matrix(weights, step),
                              partial ? c.projected_size() : part.matrix.outputs());
    }

    // Writes the products of the matrix `up` and, if the step is gated, of `gate`: a thread's columns of each.
    void widen(const model_step& step, const float* from) {
      const auto &up = linear(model_part::up, step.layer), &gate = linear(model_part::gate, step.layer);
      settle({{step_rows::widened, division::columns, true}, {step_rows::activated, division::columns, true}});
      const matrix_rows x =
          pass.products_.prepare(thread, gate.matrix.has_bytes() ? gate.matrix : up.matrix, from, batch.n_rows());
      const weight_matrix& next = pass.next_matrix(weights, step);
      const int width = up.matrix.outputs();
      pass.products_.multiply(thread, up, x, pass.rows(step.gated ? step_rows::widened : step_rows::activated), false,
                              step.gated ? gate.matrix : next, width);
      if (step.gated) pass.products_.multiply(thread, gate, x, pass.rows(step_rows::activated), false, next, width);
    }

    void norm_heads(const model_step& step) {
      settle({{step.to, division::rows, true}});
      const model_config& c = pass.config_;
      const float* queries = scale_at(weights, {model_part::query_norm, step.layer});
      const float* keys = scale_at(weights, {model_part::key_norm, step.layer});
      const auto [first, last] = pass.team_->share(thread, batch.n_rows());
      for (int row = first; row < last; ++row) {
        float* x = pass.rows(step.to) + at(row, c.projected_size());
        rms_norm(x, c.query_size(), queries, c.norm_epsilon, x);
        rms_norm(x + c.query_size(), c.kv_size(), keys, c.norm_epsilon, x + c.query_size());
      }
    }

    // Rotates queries in place and keys into the cache, and copies values into the cache.
    void rotate(const model_step& step) {
      settle({{step.from, division::heads}, {step.to, division::heads, true}});
      // attend() hands out its tasks by tickets. All threads have waited for one another since the last attend(), and
      // do so again before the next.
      if (thread == 0) pass.team_->reset_tickets();
      const auto [first, last] = pass.team_->share(thread, pass.config_.n_heads + 2 * pass.config_.n_kv_heads);
      for (const batch_sequence& s : batch.sequences) {
        for (int row = s.row_begin; row < s.row_end; ++row) {
          for (int head = first; head < last; ++head)
            rotate(step, s.sequence, row, head);
        }
      }
    }

    void rotate(const model_step& step, int sequence, int row, int head) {
      const model_config& c = pass.config_;
      const int position = batch.positions[static_cast<std::size_t>(row)],
                slot = batch.slots[static_cast<std::size_t>(row)];
      float* x = pass.rows(step.from) + at(row, c.projected_size()) + at(head, c.head_dim);
      const rotary_table& rotary = step.local_rotary ? pass.local_rotary_ : pass.rotary_;
      const int rotated = step.unrotated ? 0 : c.rotary_dims;
      const auto turn = [&](const float* norm, float factor, float* to) {
        if (norm && !c.whole_query_key_norm) rms_norm(x, c.head_dim, norm, c.norm_epsilon, x);
        rotate_head(x, c.head_dim, rotated, rotary.cosine(position), rotary.sine(position), factor, to);
      };
      const int key = head - c.n_heads, value = key - c.n_kv_heads;
      if (key < 0) {
        turn(scale_at(weights, {model_part::query_norm, step.layer}), c.score_scale(), x);
      } else if (value < 0) {
        turn(scale_at(weights, {model_part::key_norm, step.layer}), 1.0F,
             kv.key(step.cache_layer, sequence, slot) + at(key, c.head_dim));
      } else {
        std::copy_n(x, c.head_dim, kv.value(step.cache_layer, sequence, slot) + at(value, c.head_dim));
      }
    }

    void attend(const model_step& step) {
      const model_config& c = pass.config_;
      settle({{step.from, division::all}, {step.to, division::all, true}});
      if (c.n_kv_heads == 0) return;
      const forward_batch_view& seen = rows_seen(step);
      attention_worker& worker = pass.workers_[static_cast<std::size_t>(thread)];
      const float* sinks = c.attention_sinks ? scale_at(weights, {model_part::sinks, step.layer}) : nullptr;
      take_attention_tasks(*pass.team_, step.cache_layer, c.n_heads, c.n_kv_heads, seen,
                           [&](const batch_sequence& sequence, attention_worker::task task) {
                             task.window = step.window;
                             task.cap = step.limit;
                             task.sinks = sinks;
                             worker.attend(kv, seen, sequence, task, pass.rows(step.from), c.projected_size(),
                                           pass.rows(step.to), c.query_size());
                           });
    }

    // Returns the batch whose sequences and masks say what its rows see in a layer: place.rows_seen(layer), if the
    // place has it, or the batch of the pass.
    const forward_batch_view& rows_seen([[maybe_unused]] const model_step& step) const {
      if constexpr (requires { place.rows_seen(0); }) return place.rows_seen(step.layer);
      return batch;
    }

    void gate(const model_step& step) {
      settle({{step.from, division::rows}, {step.to, division::rows, true}});
      const model_config& c = pass.config_;
      const auto [first, last] = pass.team_->share(thread, batch.n_rows());
      for (int row = first; row < last; ++row) {
        times_sigmoid(pass.rows(step.to) + at(row, c.query_size()),
                      pass.rows(step.from) + at(row, c.projected_size()) + step.column, c.query_size());
      }
    }

    void recur([[maybe_unused]] const model_step& step) {
      settle({{step.from, division::all}, {step.to, division::all, true}});
      if constexpr (HostRecurrentStore<KVStoreT>) {
        pass.recurrent_.run(*pass.team_, thread, layer_at(weights, {step.part, step.layer}).recurrence,
                            step.cache_layer, kv, batch, pass.rows(step.from), pass.rows(step.to));
      }
    }

    void activate(const model_step& step) {
      settle({{step.from, division::columns}, {step.to, division::columns, true}});
      if (step.shared) settle({{step_rows::routed, division::all}});
      const mixture_shape& mixture = pass.config_.mixture;
      const weight_matrix& matrix = linear(model_part::up, step.layer).matrix;
      const int width = matrix.outputs();
      const auto [begin, end] = pass.products_.outputs_of(thread, matrix);
      for (int row = 0; row < batch.n_rows(); ++row) {
        const float* up = step.gated ? pass.rows(step.from) + at(row, width) + begin : nullptr;
        float* to = pass.rows(step.to) + at(row, width) + begin;
        switch (step.activation) {
          case activation_kind::gelu:
            gelu(to, end - begin);
            break;
          case activation_kind::silu_gate:
            silu_times(to, up, end - begin);
            break;
          case activation_kind::gelu_tanh_gate:
            gelu_tanh_times(to, up, end - begin);
            break;
        }
        if (step.shared)
          multiply_by(to, end - begin,
                      sigmoid(pass.rows(step_rows::routed)[at(row, mixture.routed_size()) + mixture.experts]));
      }
    }

    void dispatch(const model_step& step) {
      settle({{step_rows::routed, division::all}, {step.from, division::all}, {step.to, division::columns, true}});
      if constexpr (requires { layer_at(weights, {step.part, step.layer}).experts; }) {
        pass.mixture_.run(*pass.team_, pass.products_, thread, layer_at(weights, {step.part, step.layer}).experts,
                          pass.rows(step_rows::routed), pass.normed_rows(step, thread, batch.n_rows()), batch.n_rows(),
                          pass.rows(step.to), pass.next_matrix(weights, step));
      }
    }

    void add_norm(const model_step& step) {
      settle({{step.from, division::rows, true}, {step.to, division::rows, true}});
      const int width = pass.config_.hidden_size;
      const float* norm = scale_at(weights, {step.part, step.layer});
      const auto [first, last] = pass.team_->share(thread, batch.n_rows());
      for (int row = first; row < last; ++row) {
        float *from = pass.rows(step.from) + at(row, width), *to = pass.rows(step.to) + at(row, width);
        rms_norm(from, width, norm, pass.config_.norm_epsilon, from);
        std::transform(from, from + width, to, to, std::plus<>());
      }
    }

    void add_scaled(const model_step& step) {
      settle({{step.from, division::rows}, {step.to, division::rows, true}});
      const int width = pass.config_.hidden_size;
      const auto [first, last] = pass.team_->share(thread, batch.n_rows());
      for (int row = first; row < last; ++row)
        add_multiple(pass.rows(step.from) + at(row, width), width, step.factor, pass.rows(step.to) + at(row, width));
    }

    void convolve(const model_step& step) {
      const model_config& c = pass.config_;
      settle({{step_rows::factors, division::all}, {step.from, division::columns, true}});
      if (step.adds) settle({{step.to, division::columns, true}});
      const int width = c.hidden_size, groups = width / c.conv_group, side = step.adds ? 1 : 0;
      const float* taps = scale_at(weights, {step.part, step.layer}) + at(side * c.conv_taps, width);
      const auto [first, last] = pass.products_.outputs_of(thread, linear(model_part::down, step.layer).matrix);
      for (const batch_sequence& s : batch.sequences) {
        // The last row comes first: when a row is changed, the rows before it are as they were.
        for (int row = s.row_end - 1; row >= s.row_begin; --row) {
          float* from = pass.rows(step.from) + at(row, width);
          float* to = step.adds ? pass.rows(step.to) + at(row, width) : from;
          const float* factors =
              pass.rows(step_rows::factors) + at(row, c.conv_factors()) + at(side * c.conv_taps, groups);
          const int n = (std::min)(c.conv_taps, row - s.row_begin + 1);
          for (int i = first; i < last; ++i) {
            float sum = 0.0F;
            for (int tap = 0; tap < n; ++tap)
              sum +=
                  from[i - at(tap, width)] * (taps[at(tap, width) + i] + factors[at(tap, groups) + i / c.conv_group]);
            to[i] = step.adds ? to[i] + sum : sum;
          }
        }
      }
    }

    void keep(const model_step& step) {
      settle({{step.from, division::rows}});
      const auto [first, last] = pass.team_->share(thread, batch.n_rows());
      const int width = pass.config_.hidden_size;
      std::copy(pass.rows(step.from) + at(first, width), pass.rows(step.from) + at(last, width),
                pass.kept(step.layer, first));
    }

    void cap(const model_step& step) {
      settle({{step.to, division::columns, true}});
      const weight_matrix& head = linear(model_part::head, -1).matrix;
      const auto [begin, end] = pass.products_.outputs_of(thread, head);
      for (int i = 0; i < n_rows(step); ++i)
        soft_cap(pass.rows(step.to) + at(i, head.outputs()) + begin, end - begin, step.limit);
    }
  };

  model_config config_;
  model_steps steps_;
  pass_options options_;
  thread_team* team_;
  rotary_table rotary_;
  rotary_table local_rotary_;  // for layers with a window; empty if they use rotary_
  bool whole_heads_ = false;   // each thread's outputs of query_key_value are whole heads: the heads that it rotates
  std::vector<attention_worker> workers_;
  recurrent_block recurrent_;
  expert_mixture mixture_;
  product_team products_;
  std::vector<int> hidden_layers_;
  float_block buffers_;
  std::array<float*, n_arrays> rows_{};
  float* own_normed_ = nullptr;  // [normed, mlp_normed][n_threads][alone_rows][hidden_size]
  std::int32_t n_rows_ = 0;      // rows of the last pass; 0 while one is under way
  float* hidden_ = nullptr;      // [hidden_layers][max_rows][hidden_size]
};

}  // namespace espalier::detail
