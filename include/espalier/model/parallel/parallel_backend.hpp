// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/batch_check.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/weight_storage.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/host_kv_store.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/model_weights.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/transformer_pass.hpp"
#include "espalier/model/llama/weight_matrix.hpp"
#include "espalier/model/parallel/agreement.hpp"
#include "espalier/model/parallel/communicator.hpp"
#include "espalier/model/parallel/rank_part.hpp"
#include "espalier/model/parallel/rank_rows.hpp"

namespace espalier {

//! Options of a parallel_backend.
struct parallel_options {
  int threads = 1;        //!< threads of each rank
  int max_rows = 320;     //!< most rows that the batch of a forward pass may have
  int max_positions = 0;  //!< positions that a text may have; 0: as many as the model has
  rank_split split = rank_split::outputs;
  rank_logits logits = rank_logits::rows;
  matrix_arithmetic arithmetic = matrix_arithmetic::exact;
  weight_storage weights = weight_storage::as_stored;
  std::vector<int> hidden_layers{};  //!< layers, from 0, whose output stays readable after a forward pass

  static constexpr void describe(auto see) {
    see(option{"threads", &parallel_options::threads, "threads of each rank", 1, thread_team::most_threads});
    see(option{"max_rows", &parallel_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"split", &parallel_options::split, "how matrices are divided"});
    see(option{"logits", &parallel_options::logits, "what each rank is given of the logits"});
    see(option{"arithmetic", &parallel_options::arithmetic, "products with weights"});
    see(option{"weights", &parallel_options::weights, "how matrices are held"});
  }
};

//! Loads and returns a rank's part of a transformer's weights. Norms are whole. Of every matrix a rank has the outputs
//! of its part; with rank_split::sums, of attention_out and down it has all outputs, but only the inputs of its part.
//!
//! Complexity  reads only the rank's rows of a matrix. Of a matrix that is divided by inputs, it reads of every row the
//!             blocks (of at least 32 inputs) that hold the rank's inputs, or the whole row if the rest is less than 16
//!             KiB. A part that does not begin and end with a block of the type in which it would be held is held as
//!             floats
//! Errors      as model_weights
inline model_weights load_rank_weights(const model_config& config, tensor_source& file, const rank_part& part,
                                       rank_split split, weight_storage storage = weight_storage::as_stored) {
  static_assert(rank_part::granule % weight_matrix::granule == 0, "a rank's outputs are whole granules of a matrix");
  return model_weights::load(config, file, storage, detail::rank_rows(config, part, split));
}

namespace detail {

// A division of columns over ranks, and the exchange of rows that are divided so. A buffer for an exchange has the
// blocks of all ranks, one after another; the block of a rank is [rows][its columns].
class rank_shares {
 public:
  rank_shares() = default;
  rank_shares(std::vector<rank_part::range> ranges, int rank) : ranges_(std::move(ranges)), rank_(rank) {
    counts_.resize(ranges_.size());
    own_counts_.resize(ranges_.size());
  }

  int width() const { return ranges_.empty() ? 0 : ranges_.back().end; }
  rank_part::range own() const { return ranges_[static_cast<std::size_t>(rank_)]; }

  int owner_of(int column) const {
    int r = 0;
    while (!ranges_[static_cast<std::size_t>(r)].has(column))
      ++r;
    return r;
  }

  // Returns where a rank's block of `rows` rows begins in a buffer of [rows][width()], in floats.
  std::ptrdiff_t block_at(int rank, int rows) const {
    return static_cast<std::ptrdiff_t>(rows) * ranges_[static_cast<std::size_t>(rank)].begin;
  }
  float* own_block(float* blocks, int rows) const { return blocks + block_at(rank_, rows); }

  // Fetches the blocks of the other ranks into `blocks`.
  template <Communicator CommunicatorT>
  void gather(CommunicatorT& ranks, float* blocks, int rows) {
    if (ranks.size() == 1 || rows == 0) return;
    for (std::size_t r = 0; r < ranges_.size(); ++r)
      counts_[r] = bytes(rows, ranges_[r].size());
    ranks.all_gather(reinterpret_cast<std::byte*>(blocks), counts_);
  }

  // Sends each rank its block, and writes the blocks that all ranks send to this rank to `parts`, [ranks][rows][own].
  template <Communicator CommunicatorT>
  void scatter(CommunicatorT& ranks, const float* blocks, int rows, float* parts) {
    for (std::size_t r = 0; r < ranges_.size(); ++r)
      counts_[r] = bytes(rows, ranges_[r].size()), own_counts_[r] = bytes(rows, own().size());
    ranks.all_to_all(reinterpret_cast<const std::byte*>(blocks), counts_, reinterpret_cast<std::byte*>(parts),
                     own_counts_);
  }

  // unpack() copies blocks to rows [rows][width()], pack() copies rows to blocks.
  void unpack(const float* blocks, int rows, float* to) const {
    each_run(rows, [&](std::ptrdiff_t block, std::ptrdiff_t row, int n) { std::copy_n(blocks + block, n, to + row); });
  }
  void pack(const float* from, int rows, float* blocks) const {
    each_run(rows,
             [&](std::ptrdiff_t block, std::ptrdiff_t row, int n) { std::copy_n(from + row, n, blocks + block); });
  }

 private:
  static std::size_t bytes(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * sizeof(float);
  }
  template <class UseT>
  void each_run(int rows, const UseT& use) const {
    for (std::size_t r = 0; r < ranges_.size(); ++r) {
      const int n = ranges_[r].size();
      for (int row = 0; row < rows; ++row)
        use(block_at(static_cast<int>(r), rows) + static_cast<std::ptrdiff_t>(row) * n,
            static_cast<std::ptrdiff_t>(row) * width() + ranges_[r].begin, n);
    }
  }

  std::vector<rank_part::range> ranges_;  // ascending, without gaps
  int rank_ = 0;
  std::vector<std::size_t> counts_, own_counts_;
};

// A vocabulary divided over ranks. Each rank has the embeddings, and computes the logits, of its part.
class rank_vocabulary {
 public:
  rank_vocabulary() = default;
  rank_vocabulary(rank_shares shares, int max_rows, int n_ranks)
      : shares_(std::move(shares)),
        counts_(static_cast<std::size_t>(n_ranks)),
        starts_(counts_.size()),
        maxima_(static_cast<std::size_t>(max_rows) * counts_.size()) {}

  // Writes the embeddings of all tokens to `rows`, [tokens][width]. Each rank computes, in `blocks`, the embeddings of
  // the tokens in its part of the vocabulary, by embed(i, to), where i is the index of the token in the part.
  template <Communicator CommunicatorT, class EmbedT>
  void embed(CommunicatorT& ranks, std::span<const token_id> tokens, int width, float* blocks, float* rows,
             const EmbedT& embed) {
    const auto n = static_cast<std::size_t>(width);
    std::fill(counts_.begin(), counts_.end(), std::size_t{0});
    for (const token_id token : tokens)
      counts_[owner_of(token)] += n * sizeof(float);
    for (std::size_t r = 0, at = 0; r < counts_.size(); at += counts_[r++] / sizeof(float))
      starts_[r] = at;
    float* own = blocks + starts_[static_cast<std::size_t>(ranks.rank())];
    for (const token_id token : tokens) {
      if (!shares_.own().has(token)) continue;
      embed(token - shares_.own().begin, own);
      own += n;
    }
    if (ranks.size() > 1) ranks.all_gather(reinterpret_cast<std::byte*>(blocks), counts_);
    for (const token_id token : tokens) {
      std::size_t& from = starts_[owner_of(token)];
      std::copy_n(blocks + from, n, rows);
      rows += n, from += n;
    }
  }

  // Returns the block for the rank's logits.
  float* own_block(float* blocks, int n) const { return shares_.own_block(blocks, n); }

  // Writes whole rows of logits, made of the blocks of all ranks.
  template <Communicator CommunicatorT>
  void gather_rows(CommunicatorT& ranks, float* blocks, int n, float* logits) {
    shares_.gather(ranks, blocks, n);
    shares_.unpack(blocks, n, logits);
  }

  // Writes rows of minus infinity, except the greatest logit of each rank's part: the first of several equal ones, or
  // the first NaN.
  template <Communicator CommunicatorT>
  void gather_maxima(CommunicatorT& ranks, const float* blocks, int n, float* logits) {
    const rank_part::range part = shares_.own();
    const float* own = shares_.own_block(const_cast<float*>(blocks), n);
    const auto each = static_cast<std::size_t>(n);
    maximum* mine = maxima_.data() + each * static_cast<std::size_t>(ranks.rank());
    for (int row = 0; row < n; ++row, own += part.size()) {
      mine[row] = {-std::numeric_limits<float>::infinity(), -1};
      for (int o = 0; o < part.size() && !std::isnan(mine[row].logit); ++o) {
        if (own[o] > mine[row].logit || std::isnan(own[o])) mine[row] = {own[o], part.begin + o};
      }
    }
    std::fill(counts_.begin(), counts_.end(), each * sizeof(maximum));
    if (ranks.size() > 1 && n > 0) ranks.all_gather(reinterpret_cast<std::byte*>(maxima_.data()), counts_);
    const auto width = static_cast<std::size_t>(shares_.width());
    std::fill_n(logits, each * width, -std::numeric_limits<float>::infinity());
    for (std::size_t i = 0; i < each * counts_.size(); ++i) {
      const maximum& found = maxima_[i];
      if (found.token >= 0) logits[i % each * width + static_cast<std::size_t>(found.token)] = found.logit;
    }
  }

 private:
  struct maximum {
    float logit;
    std::int32_t token;
  };

  std::size_t owner_of(token_id token) const { return static_cast<std::size_t>(shares_.owner_of(token)); }

  rank_shares shares_;
  std::vector<std::size_t> counts_;  // [ranks] bytes
  std::vector<std::size_t> starts_;  // [ranks] where the next row of each rank is, in floats
  std::vector<maximum> maxima_;      // [ranks][rows]
};

// The PlaceT of a transformer_pass on one rank of several. Its make() carries out the steps that need rows of other
// ranks: the embedding, and the products of attention_out and down (of experts, too), whose inputs are divided over
// ranks. Its blocks hold rows for an exchange, rank after rank.
template <Communicator CommunicatorT>
class rank_place {
 public:
  rank_place(const model_config& config, const rank_part& part, CommunicatorT& ranks, rank_split split, int max_rows)
      : config_(config),
        part_(part),
        ranks_(&ranks),
        split_(split),
        queries_(shares([&](const rank_part& p) { return p.queries(config_); })),
        hidden_(shares([](const rank_part& p) { return p.hidden; })),
        intermediate_(shares([](const rank_part& p) { return p.intermediate; })),
        expert_(shares([](const rank_part& p) { return p.expert; })),
        vocabulary_(shares([](const rank_part& p) { return p.vocabulary; }), max_rows, ranks.size()) {
    const int widest = (std::max)(
        {config.hidden_size, config.query_size(), config.intermediate_size, config.mixture.used * config.mixture.size});
    const auto place = [&] {
      const auto rows = [&](int width) {
        return buffers_.take(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(width));
      };
      blocks_ = rows(widest);
      whole_ = rows(widest);
      parts_ = rows(split == rank_split::sums ? part.hidden.size() * ranks.size() : 0);
      logit_blocks_ = rows(config.vocab_size);
      logits_ = rows(config.vocab_size);
    };
    place();
    buffers_ = float_block(buffers_.used(), false);
    place();
  }

  // Returns the config with the heads and the intermediate sizes that the rank's own steps compute with.
  static model_config own_config(model_config config, const rank_part& part) {
    config.n_heads = config.n_heads / config.n_kv_heads * part.kv_heads.size();
    config.n_kv_heads = part.kv_heads.size();
    config.intermediate_size = part.intermediate.size();
    config.mixture.size = part.expert.size();
    return config;
  }

  // Sets where in the blocks the pass writes the rows that other ranks will need.
  void begin(transformer_pass& pass, const forward_batch_view& batch) const {
    pass.set_rows(step_rows::mixed, queries_.own_block(blocks_, batch.n_rows()));
    pass.set_rows(step_rows::activated, intermediate_.own_block(blocks_, batch.n_rows()));
    pass.set_rows(step_rows::logits, vocabulary_.own_block(logit_blocks_, static_cast<int>(batch.outputs.size())));
  }

  bool makes(const model_step& step) const {
    return step.kind == step_kind::embed || step.kind == step_kind::dispatch || step.from == step_rows::mixed ||
           is_down(step);
  }

  void make(transformer_pass& pass, const model_weights& weights, const model_step& step,
            const forward_batch_view& batch) {
    if (step.kind == step_kind::embed) return embed(pass, weights, batch);
    const int n = batch.n_rows();
    const weight_matrix& next = pass.next_matrix(weights, step);
    if (step.kind == step_kind::dispatch) {
      const auto& experts = layer_at(weights, {step.part, step.layer}).experts;
      const int uses = n * config_.mixture.used;
      float* own = expert_.own_block(blocks_, uses);
      pass.team().run([&](int thread) { pass.widen_experts(thread, experts, step, n, own); });
      // Rank 0 alone adds the biases where ranks add up parts of one sum.
      return go_back(pass, step, n, nullptr, true, expert_, uses,
                     [&](int thread, const float* inputs, float* to, bool adds) {
                       pass.add_experts(thread, experts, inputs, to, adds, adds || ranks_->rank() == 0, next);
                     });
    }
    const auto& linear = linear_at(weights, {step.part, step.layer});
    go_back(pass, step, n, linear.bias, step.adds, is_down(step) ? intermediate_ : queries_, n,
            [&](int thread, const float* inputs, float* to, bool adds) {
              pass.multiply(thread, linear.matrix, inputs, n, to, adds, next);
            });
  }

  // Returns the logits of a pass, [n][vocab_size], made of the blocks of all ranks.
  const float* logits(rank_logits form, int n) {
    if (form == rank_logits::maxima) {
      vocabulary_.gather_maxima(*ranks_, logit_blocks_, n, logits_);
    } else {
      vocabulary_.gather_rows(*ranks_, logit_blocks_, n, logits_);
    }
    return logits_;
  }

 private:
  static bool is_down(const model_step& step) {
    return step.kind == step_kind::multiply && step.from == step_rows::activated;
  }

  template <class RangeOfT>
  rank_shares shares(const RangeOfT& range_of) const {
    std::vector<rank_part::range> ranges;
    for (int r = 0; r < ranks_->size(); ++r)
      ranges.push_back(range_of(rank_part(config_, r, ranks_->size())));
    return {std::move(ranges), ranks_->rank()};
  }

  // Carries out a product whose inputs, n_inputs rows in the blocks, are divided over ranks. Writes the n rows of the
  // result, plus the bias if there is one, to step.to, or adds them to the rows there. sum(thread, inputs, to, adds)
  // writes the thread's columns of a product of `inputs`, or adds them.
  template <class SumT>
  void go_back(transformer_pass& pass, const model_step& step, int n, const float* bias, bool adds, rank_shares& inputs,
               int n_inputs, const SumT& sum) {
    const float* sums = adds ? pass.rows(step.to) : nullptr;
    float* blocks = split_ == rank_split::sums ? whole_ : blocks_;
    if (split_ == rank_split::sums) {
      // Each rank sums over its own inputs, for all outputs, and sends each sum to the rank that has the output. That
      // rank adds up the sums of all ranks, in the order of ranks.
      const float* own_inputs = inputs.own_block(blocks_, n_inputs);
      pass.team().run([&](int thread) { sum(thread, own_inputs, whole_, false); });
      hidden_.pack(whole_, n, blocks_);
      hidden_.scatter(*ranks_, blocks_, n, parts_);
      float* own = begin_sums(bias, sums, blocks, n);
      const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(n) * part_.hidden.size();
      for (int r = 0; r < ranks_->size(); ++r)
        std::transform(own, own + size, parts_ + r * size, own, std::plus<>());
    } else {
      inputs.gather(*ranks_, blocks_, n_inputs);
      inputs.unpack(blocks_, n_inputs, whole_);
      float* own = begin_sums(bias, sums, blocks, n);
      pass.team().run([&](int thread) { sum(thread, whole_, own, true); });
    }
    hidden_.gather(*ranks_, blocks, n);
    hidden_.unpack(blocks, n, pass.rows(step.to));
  }

  void embed(transformer_pass& pass, const model_weights& weights, const forward_batch_view& batch) {
    const int width = config_.hidden_size;
    vocabulary_.embed(*ranks_, batch.tokens, width, blocks_, pass.rows(step_rows::stream),
                      [&](token_id own, float* to) {
                        weights.embed(own, to);
                        if (config_.embedding_scale != 1.0F) multiply_by(to, width, config_.embedding_scale);
                      });
  }

  // Writes into the rank's block the numbers to which a product is added, the rank's columns of `sums` plus the bias,
  // and returns the block. `bias` and `sums` may be null, which means 0.
  float* begin_sums(const float* bias, const float* sums, float* blocks, int n) const {
    float* own = hidden_.own_block(blocks, n);
    const int width = part_.hidden.size();
    for (int row = 0; row < n; ++row) {
      const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row) * config_.hidden_size + part_.hidden.begin;
      for (int o = 0; o < width; ++o) {
        float sum = sums ? sums[first + o] : 0.0F;
        if (bias) sum = sums ? sum + bias[o] : bias[o];
        own[static_cast<std::ptrdiff_t>(row) * width + o] = sum;
      }
    }
    return own;
  }

  model_config config_;
  rank_part part_;
  CommunicatorT* ranks_;
  rank_split split_;
  rank_shares queries_, hidden_, intermediate_, expert_;
  rank_vocabulary vocabulary_;
  float_block buffers_;
  float* blocks_ = nullptr;        // [max_rows][width of the widest rows that are exchanged]
  float* whole_ = nullptr;         // as large as blocks_: rows with the columns of all ranks
  float* parts_ = nullptr;         // [ranks][max_rows][own hidden]: the products with each rank's inputs
  float* logit_blocks_ = nullptr;  // [max_rows][vocab_size]
  float* logits_ = nullptr;        // [max_rows][vocab_size]
};

}  // namespace detail

//! The host transformer of llama_backend over ranks: each rank has its part of the weights and of the cache, and all
//! make the same passes. Every rank runs a decoder of its own with the same parts, seed and prompt, and gets the same
//! logits, so trees, verdicts and random numbers agree; `agreement` checks that they do. A draft model runs whole on
//! each rank. The communicator is kept by reference.
//!
//! Shapes      logits [n_outputs][vocab_size] on each rank; the cache has layers() layers of cache_row() floats
//! Complexity  calls between ranks: one for the batch, one for the embedding, one for the logits, and for each layer
//!             four. Floats that a rank sends to each other one, for R ranks and n rows: n / R * (hidden + layers *
//!             (queries + 2 hidden + intermediate)), with rank_split::sums n / R * (hidden + layers * 4 hidden), and
//!             for each row asked for vocab / R, or 2 with rank_logits::maxima. In a mixture `intermediate` is that
//!             of all experts that a row uses
//! Law         Backend's, bitwise: a row depends on its path and the text, not on the rest of the batch, slots or
//!             threads; it is the same on each rank; with rank_split::outputs it is llama_backend's, whatever the
//!             number of ranks
//! Law         with rank_logits::maxima the greatest logit of a row, ties to the lower token, is that of the whole row;
//!             all but one token of each rank's part are minus infinity: a decoder takes `greedy` alone then
//! Errors      load: model_error for files that do not fit or a model that rank_part refuses, option_error. forward:
//!             rank_error if a rank is dead, late, or has another batch; input_error as llama_backend's, on all ranks
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
        part_(config, ranks.rank(), ranks.size()),
        weights_(
            load_rank_weights(config, file, part_, options.split, storage_for(options.arithmetic, options.weights))),
        agreement_(ranks),
        max_positions_(config.positions(options.max_positions)),
        team_(std::make_unique<thread_team>(options.threads)),
        place_(config, part_, ranks, options.split, options.max_rows),
        pass_(detail::rank_place<CommunicatorT>::own_config(config, part_),
              detail::model_steps(config, options.hidden_layers), *team_,
              {.max_rows = options.max_rows,
               .max_positions = max_positions_,
               .arithmetic = options.arithmetic,
               .max_inputs =
                   (std::max)({config.hidden_size, config.query_size(), config.intermediate_size, config.mixture.size}),
               .keeps_inputs = false,
               .hidden_layers = options.hidden_layers}) {}

  int vocab_size() const { return config_.vocab_size; }
  int max_rows() const { return options_.max_rows; }
  int max_positions() const { return max_positions_; }
  bool gives_maxima() const { return options_.logits == rank_logits::maxima; }
  const model_config& config() const { return config_; }
  const rank_part& part() const { return part_; }
  const model_weights& weights() const { return weights_; }

  //! The number of layers of this rank's cache, and the number of floats that the keys of a slot, and also its values,
  //! take in a layer: those of the rank's key-value heads, or of one unused head if the rank has none.
  int layers() const { return config_.n_layers; }
  int cache_row() const { return (std::max)(part_.kv_size(config_), config_.head_dim); }

  //! The next four functions are as llama_backend's: each rank has all hidden states, in full width.
  const std::vector<int>& hidden_layers() const { return options_.hidden_layers; }
  int hidden_size() const { return pass_.keeps(config_.n_layers - 1) ? config_.hidden_size : 0; }
  std::span<const float> hidden_state(int row) const { return hidden(config_.n_layers - 1, row); }
  std::span<const float> hidden(int layer, int row) const { return pass_.hidden(layer, row); }

  template <HostKVStore KVStoreT>
  logits_view forward(KVStoreT& kv, const forward_batch_view& batch) {
    agreement_(batch);
    detail::check_store(kv, batch, layers(), cache_row());
    detail::check_batch(batch, {max_rows(), config_.vocab_size, max_positions_, kv.capacity()});
    place_.begin(pass_, batch);
    pass_.run(place_, weights_, kv, batch);
    const auto n = static_cast<std::int32_t>(batch.outputs.size());
    return {place_.logits(options_.logits, n), n, config_.vocab_size};
  }

 private:
  model_config config_;
  parallel_options options_;
  rank_part part_;
  model_weights weights_;
  agreement<CommunicatorT> agreement_;
  int max_positions_;
  std::unique_ptr<thread_team> team_;  // the backend's own team: ranks may be threads of one process
  detail::rank_place<CommunicatorT> place_;
  detail::transformer_pass pass_;
};

}  // namespace espalier
