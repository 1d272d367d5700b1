// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/batch_check.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/attention.hpp"
#include "espalier/model/llama/attention_tasks.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/host_kv_store.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/rotary_table.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/parallel/agreement.hpp"
#include "espalier/model/parallel/communicator.hpp"
#include "espalier/model/parallel/parallel_options.hpp"
#include "espalier/model/parallel/rank_logits.hpp"
#include "espalier/model/parallel/rank_part.hpp"
#include "espalier/model/parallel/rank_shares.hpp"
#include "espalier/model/parallel/rank_split.hpp"
#include "espalier/model/parallel/rank_vocabulary.hpp"
#include "espalier/model/parallel/rank_weights.hpp"

namespace espalier {

//! The host transformer of llama_backend over ranks: each has its part of weights and cache, and all make the
//! same passes. Every rank runs a decoder of its own with the same parts, seed and prompt, and gets the same logits, so
//! trees, verdicts and chance agree; `agreement` checks that they do. A draft model runs whole on each rank.
//!
//! Shapes      logits [n_outputs][vocab_size] on each rank; the cache has layers() layers of cache_row() floats
//! Complexity  calls between ranks: one for the batch, one for the embedding, one for the logits, and for each layer
//!             four. Floats that a rank sends to each other one, for R ranks and n rows: n / R * (hidden + layers *
//!             (queries + 2 hidden + intermediate)), with rank_split::sums n / R * (hidden + layers * 4 hidden), and
//!             for each row asked for vocab / R, or 2 with rank_logits::maxima
//! Law         Backend's, bitwise: a row depends neither on its batch nor on slots or threads; it is the same on each
//!             rank; with rank_split::outputs it is llama_backend's, whatever the number of ranks
//! Law         with rank_logits::maxima the greatest logit of a row, ties to the lower token, is that of the whole row;
//!             all but one token of each rank's part are minus infinity: a decoder takes `greedy` alone then
//! Errors      load: model_error, option_error. forward: rank_error where a rank is dead, late, or has another batch;
//!             input_error as llama_backend's, on all ranks
//! Source      Shoeybi et al., Megatron-LM, section 3, for rank_split::sums
template <Communicator CommunicatorT>
class parallel_backend {
 public:
  static parallel_backend load(const std::string& path, CommunicatorT& ranks, const parallel_options& options = {}) {
    const model_files files = model_files::open(path);
    return parallel_backend(files.config, *files.tensors, ranks, options);
  }

  parallel_backend(const model_config& config, tensor_source& file, CommunicatorT& ranks,
                   const parallel_options& options = {})
      : config_(config),
        options_(require_options(options)),
        ranks_(&ranks),
        part_(config, ranks.rank(), ranks.size()),
        weights_(rank_weights::load(config, file, part_, options.split, options.weights)),
        agreement_(ranks),
        max_positions_(config.positions(options.max_positions)),
        rotary_(max_positions_, config.rotary_dims, config.rope_theta, config.scaling),
        local_rotary_(config.local_rope_theta > 0.0 ? max_positions_ : 0, config.rotary_dims, config.local_rope_theta),
        team_(std::make_unique<thread_team>(options.threads)),
        queries_(shares([&](const rank_part& p) { return p.queries(config_); })),
        hidden_(shares([](const rank_part& p) { return p.hidden; })),
        intermediate_(shares([](const rank_part& p) { return p.intermediate; })),
        vocabulary_(shares([](const rank_part& p) { return p.vocabulary; }), options.max_rows, ranks.size()) {
    workers_.assign(static_cast<std::size_t>(team_->n_threads()), detail::attention_worker(config_.head_dim));
    products_ = {*team_, options_.max_rows,
                 (std::max)({config_.hidden_size, config_.query_size(), config_.intermediate_size}),
                 options_.arithmetic};
    place_buffers();
    buffers_ = detail::float_block(buffers_.used(), false);
    place_buffers();
  }

  int vocab_size() const { return config_.vocab_size; }
  int max_rows() const { return options_.max_rows; }
  int max_positions() const { return max_positions_; }
  bool gives_maxima() const { return options_.logits == rank_logits::maxima; }
  const model_config& config() const { return config_; }
  const rank_part& part() const { return part_; }
  const rank_weights& weights() const { return weights_; }

  //! Layers of this rank's cache, and floats of its rows: those of the rank's key-value heads; of one head, which stays
  //! empty, where the rank has none.
  int layers() const { return config_.n_layers; }
  int cache_row() const { return (std::max)(part_.kv_size(config_), config_.head_dim); }

  template <HostKVStore KVStoreT>
  logits_view forward(KVStoreT& kv, const forward_batch_view& batch) {
    agreement_(batch);
    detail::check_store(kv, batch, layers(), cache_row());
    detail::check_batch(batch, {max_rows(), config_.vocab_size, max_positions_, kv.capacity()});
    for (detail::attention_worker& worker : workers_)
      worker.reserve(kv.capacity());
    const int n = batch.n_rows();
    embed(batch);
    for (int i = 0; i < config_.n_layers; ++i) {
      const layer_type& layer = weights_.own.layers[static_cast<std::size_t>(i)];
      const bool parallel = config_.parallel_residual;
      team_->reset_tickets();
      team_->run([&](int thread) {
        if (parallel) normalise(thread, layer.mlp_norm, n, mlp_normed_);
        normalise(thread, layer.attention_norm, n, normed_);
        multiply(thread, layer.query_key_value, normed_, n, projected_);
        team_->barrier();
        rotate(thread, layer, i, kv, batch);
        team_->barrier();
        attend(thread, i, kv, batch);
      });
      go_back(layer.attention_out, layer.attention_out_norm, queries_, n);
      team_->run([&](int thread) {
        if (!parallel) normalise(thread, layer.mlp_norm, n, normed_);
        activate(thread, layer, parallel ? mlp_normed_ : normed_, n);
      });
      go_back(layer.down, layer.mlp_out_norm, intermediate_, n);
    }
    return head(batch);
  }

 private:
  using layer_type = rank_weights::layer_type;
  using linear_type = rank_weights::linear_type;
  using norm_type = model_weights::norm_type;

  template <class RangeOfT>
  detail::rank_shares shares(const RangeOfT& range_of) const {
    std::vector<rank_part::range> ranges;
    for (int r = 0; r < ranks_->size(); ++r)
      ranges.push_back(range_of(rank_part(config_, r, ranks_->size())));
    return {std::move(ranges), ranks_->rank()};
  }

  void place_buffers() {
    const auto rows = [&](int width, bool there = true) {
      return there ? buffers_.take(static_cast<std::size_t>(options_.max_rows) * static_cast<std::size_t>(width))
                   : nullptr;
    };
    const int widest = (std::max)({config_.hidden_size, config_.query_size(), config_.intermediate_size});
    stream_ = rows(config_.hidden_size);
    normed_ = rows(config_.hidden_size);
    mlp_normed_ = rows(config_.hidden_size, config_.parallel_residual);
    projected_ = rows(own_queries() + 2 * part_.kv_size(config_));
    up_ = rows(part_.intermediate.size(), config_.gated_mlp);
    blocks_ = rows(widest);
    whole_ = rows(widest);
    parts_ = rows(part_.hidden.size() * ranks_->size(), options_.split == rank_split::sums);
    logit_blocks_ = rows(config_.vocab_size);
    logits_ = rows(config_.vocab_size);
  }

  int own_queries() const { return part_.queries(config_).size(); }
  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }

  void embed(const forward_batch_view& batch) {
    vocabulary_.embed(*ranks_, batch.tokens, config_.hidden_size, blocks_, stream_, [&](token_id own, float* to) {
      weights_.own.embed(own, to);
      if (config_.embedding_scale != 1.0F) detail::multiply_by(to, config_.hidden_size, config_.embedding_scale);
    });
  }

  void normalise(const norm_type& norm, int row, float* to) const {
    const float* from = stream_ + at(row, config_.hidden_size);
    if (norm.bias) {
      detail::layer_norm(from, config_.hidden_size, norm.scale, norm.bias, config_.norm_epsilon, to);
    } else {
      detail::rms_norm(from, config_.hidden_size, norm.scale, config_.norm_epsilon, to);
    }
  }

  void normalise(int thread, const norm_type& norm, int n, float* to) {
    const auto [first, last] = team_->share(thread, n);
    for (int row = first; row < last; ++row)
      normalise(norm, row, to + at(row, config_.hidden_size));
    team_->barrier();
  }

  // The rank's outputs of y = W x + bias.
  void multiply(int thread, const linear_type& linear, const float* x, int rows, float* y) {
    const int outputs = linear.matrix.outputs();
    const auto [begin, end] = products_.outputs_of(thread, linear.matrix);
    for (int row = 0; row < rows && linear.bias; ++row)
      std::copy(linear.bias + begin, linear.bias + end, y + at(row, outputs) + begin);
    products_.multiply(thread, linear.matrix, products_.prepare(thread, linear.matrix, x, rows), y,
                       linear.bias != nullptr, linear.matrix);
  }

  // Queries in place, keys and values of the rank's heads into the cache.
  template <class KVStoreT>
  void rotate(int thread, const layer_type& layer, int i, KVStoreT& kv, const forward_batch_view& batch) {
    const int own_kv = part_.kv_heads.size(), own_heads = own_queries() / config_.head_dim, dim = config_.head_dim;
    const bool local = config_.local_rope_theta > 0.0 && config_.is_windowed(i);
    const detail::rotary_table& rotary = local ? local_rotary_ : rotary_;
    const auto [first, last] = team_->share(thread, own_heads + 2 * own_kv);
    for (const batch_sequence& s : batch.sequences) {
      for (int row = s.row_begin; row < s.row_end; ++row) {
        const int position = batch.positions[static_cast<std::size_t>(row)],
                  slot = batch.slots[static_cast<std::size_t>(row)];
        for (int head = first; head < last; ++head) {
          float* x = projected_ + at(row, (own_heads + 2 * own_kv) * dim) + at(head, dim);
          const auto turn = [&](const float* norm, float factor, float* to) {
            if (norm) detail::rms_norm(x, dim, norm, config_.norm_epsilon, x);
            detail::rotate_head(x, dim, config_.rotary_dims, rotary.cosine(position), rotary.sine(position), factor,
                                to);
          };
          const int key = head - own_heads, value = key - own_kv;
          if (key < 0) {
            turn(layer.query_norm, config_.score_scale(), x);
          } else if (value < 0) {
            turn(layer.key_norm, 1.0F, kv.key(i, s.sequence, slot) + at(key, dim));
          } else {
            std::copy_n(x, dim, kv.value(i, s.sequence, slot) + at(value, dim));
          }
        }
      }
    }
  }

  template <class KVStoreT>
  void attend(int thread, int layer, KVStoreT& kv, const forward_batch_view& batch) {
    const int own_kv = part_.kv_heads.size(), width = own_queries();
    if (own_kv == 0) return;
    float* out = queries_.own_block(blocks_, batch.n_rows());
    detail::attention_worker& worker = workers_[static_cast<std::size_t>(thread)];
    detail::take_attention_tasks(*team_, layer, width / config_.head_dim, own_kv, batch,
                                 [&](const batch_sequence& sequence, detail::attention_worker::task task) {
                                   task.window = config_.window_of(layer);
                                   task.cap = config_.attention_cap;
                                   worker.attend(kv, batch, sequence, task, projected_,
                                                 width + 2 * own_kv * config_.head_dim, out, width);
                                 });
  }

  void activate(int thread, const layer_type& layer, const float* x, int n) {
    const int width = part_.intermediate.size();
    float* out = intermediate_.own_block(blocks_, n);
    float* up = config_.gated_mlp ? up_ : out;
    multiply(thread, layer.up, x, n, up);
    if (config_.gated_mlp) multiply(thread, layer.gate, x, n, out);
    const auto [begin, end] = products_.outputs_of(thread, layer.up.matrix);
    for (int row = 0; row < n; ++row) {
      const std::ptrdiff_t first = at(row, width) + begin;
      if (!config_.gated_mlp) {
        detail::gelu(out + first, end - begin);
      } else if (config_.gelu_gate) {
        detail::gelu_tanh_times(out + first, up + first, end - begin);
      } else {
        detail::silu_times(out + first, up + first, end - begin);
      }
    }
  }

  // stream += W x + bias, or its norm; x is in blocks_, each rank's own part of it.
  void go_back(const linear_type& linear, const float* norm, detail::rank_shares& inputs, int n) {
    if (options_.split == rank_split::sums) {
      add_parts(linear, norm, inputs, n);
    } else {
      inputs.gather(*ranks_, blocks_, n);
      inputs.unpack(blocks_, n, whole_);
      float* own = hidden_.own_block(blocks_, n);
      begin_sums(linear, norm, own, n);
      team_->run([&](int thread) {
        products_.multiply(thread, linear.matrix, products_.prepare(thread, linear.matrix, whole_, n), own, true,
                           linear.matrix);
      });
    }
    float* blocks = options_.split == rank_split::sums ? whole_ : blocks_;
    hidden_.gather(*ranks_, blocks, n);
    hidden_.unpack(blocks, n, norm ? normed_ : stream_);
    if (!norm) return;
    const int width = config_.hidden_size;
    for (int row = 0; row < n; ++row) {
      float *out = normed_ + at(row, width), *stream = stream_ + at(row, width);
      detail::rms_norm(out, width, norm, config_.norm_epsilon, out);
      std::transform(out, out + width, stream, stream, std::plus<>());
    }
  }

  // What the product is added to: the bias, and the stream where no norm comes between.
  void begin_sums(const linear_type& linear, const float* norm, float* own, int n) const {
    const int width = part_.hidden.size();
    for (int row = 0; row < n; ++row) {
      for (int o = 0; o < width; ++o) {
        float sum = norm ? 0.0F : stream_[at(row, config_.hidden_size) + part_.hidden.begin + o];
        if (linear.bias) sum = norm ? linear.bias[o] : sum + linear.bias[o];
        own[at(row, width) + o] = sum;
      }
    }
  }

  // Products of the rank's inputs go to the ranks that have the outputs, which add them in the order of ranks.
  void add_parts(const linear_type& linear, const float* norm, detail::rank_shares& inputs, int n) {
    team_->run([&](int thread) {
      products_.multiply(thread, linear.matrix,
                         products_.prepare(thread, linear.matrix, inputs.own_block(blocks_, n), n), whole_, false,
                         linear.matrix);
    });
    hidden_.pack(whole_, n, blocks_);
    hidden_.scatter(*ranks_, blocks_, n, parts_);
    float* own = hidden_.own_block(whole_, n);
    begin_sums(linear, norm, own, n);
    const std::ptrdiff_t size = at(n, part_.hidden.size());
    for (int r = 0; r < ranks_->size(); ++r) {
      const float* part = parts_ + r * size;
      std::transform(part, part + size, own, own, [](float a, float b) { return b + a; });
    }
  }

  logits_view head(const forward_batch_view& batch) {
    const auto n = static_cast<int>(batch.outputs.size());
    const linear_type& head = weights_.own.head;
    const int width = part_.vocabulary.size();
    float* own = vocabulary_.own_block(logit_blocks_, n);
    team_->run([&](int thread) {
      const auto [first, last] = team_->share(thread, n);
      for (int i = first; i < last; ++i) {
        normalise(weights_.own.final_norm, batch.outputs[static_cast<std::size_t>(i)],
                  normed_ + at(i, config_.hidden_size));
      }
      team_->barrier();
      multiply(thread, head, normed_, n, own);
    });
    if (config_.logit_cap > 0.0F) detail::soft_cap(own, n * width, config_.logit_cap);
    if (options_.logits == rank_logits::maxima) {
      vocabulary_.gather_maxima(*ranks_, logit_blocks_, n, logits_);
    } else {
      vocabulary_.gather_rows(*ranks_, logit_blocks_, n, logits_);
    }
    return {logits_, n, config_.vocab_size};
  }

  model_config config_;
  parallel_options options_;
  CommunicatorT* ranks_;
  rank_part part_;
  rank_weights weights_;
  agreement<CommunicatorT> agreement_;
  int max_positions_;
  detail::rotary_table rotary_;
  detail::rotary_table local_rotary_;
  std::unique_ptr<thread_team> team_;  // of its own: ranks may be threads of one process
  detail::rank_shares queries_, hidden_, intermediate_;
  detail::rank_vocabulary vocabulary_;
  std::vector<detail::attention_worker> workers_;
  detail::product_team products_;
  detail::float_block buffers_;
  float* stream_ = nullptr;        // [max_rows][hidden]
  float* normed_ = nullptr;        // [max_rows][hidden]
  float* mlp_normed_ = nullptr;    // [max_rows][hidden], where the residual is parallel
  float* projected_ = nullptr;     // [max_rows][own queries + 2 own kv_size]
  float* up_ = nullptr;            // [max_rows][own intermediate]
  float* blocks_ = nullptr;        // what goes between ranks
  float* whole_ = nullptr;         // [max_rows][width] of all ranks
  float* parts_ = nullptr;         // [ranks][max_rows][own hidden]: what each rank's inputs add
  float* logit_blocks_ = nullptr;  // rank after rank
  float* logits_ = nullptr;        // [max_rows][vocab]
};

}  // namespace espalier
