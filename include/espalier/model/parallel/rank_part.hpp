// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/parallel/parallel_backend.cpp
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! How matrices are divided over ranks.
enum class rank_split {
  outputs,  //!< all by outputs: every sum is made in the same order, and has the same bits, as on a single rank
  sums      //!< attention_out and down by inputs, the others by outputs: fewer bytes, sums added in the order of ranks
};
template <>
inline constexpr std::array known_values<rank_split> = {
    known_value<rank_split>{rank_split::outputs, "outputs", "all by outputs, with the bits of one rank"},
    known_value<rank_split>{rank_split::sums, "sums", "by inputs where that saves bytes"}};

//! Which logits each rank gets.
enum class rank_logits {
  rows,   //!< whole rows, for every verifier
  maxima  //!< the greatest of each rank's part of the vocabulary; all others are minus infinity: for `greedy` alone
};
template <>
inline constexpr std::array known_values<rank_logits> = {
    known_value<rank_logits>{rank_logits::rows, "rows", "whole rows"},
    known_value<rank_logits>{rank_logits::maxima, "maxima",
                             "the greatest of each rank's part, for greedy verification"}};

namespace detail {

// A division of `n` things over ranks in whole granules, as evenly as granules allow. A rank may get none.
struct rank_division {
  std::int32_t n = 0, granule = 1, ranks = 1;

  ESPALIER_HOST_DEVICE std::int32_t begin(std::int32_t rank) const {
    const std::int64_t parts = (n + granule - 1) / granule, at = parts * rank / ranks * granule;
    return static_cast<std::int32_t>(at < n ? at : n);
  }
  ESPALIER_HOST_DEVICE std::int32_t size(std::int32_t rank) const { return begin(rank + 1) - begin(rank); }
};

}  // namespace detail

//! The part of a transformer that a rank has: key-value heads with their query heads, and runs of the hidden,
//! intermediate and vocabulary sizes, in granules of 32. Parts are as equal as granules allow; one may be empty. Of a
//! mixture each rank has a part of every expert, a run of its intermediate size, and the whole router.
//!
//! Errors      model_error for a model with recurrent layers, gates behind attention or a shared expert, which are not
//!             divided, and over more than one rank for a model whose norms of queries and keys take all heads of a
//!             token together
struct rank_part {
  static constexpr int granule = 32;

  struct range {
    int begin = 0, end = 0;

    int size() const { return end - begin; }
    bool has(int i) const { return i >= begin && i < end; }
  };
  range kv_heads, hidden, intermediate, vocabulary;
  range expert;  //!< run of the intermediate size of each expert

  rank_part() = default;
  rank_part(const model_config& config, int rank, int size)
      : kv_heads(share(config.n_kv_heads, 1, rank, size)),
        hidden(share(config.hidden_size, granule, rank, size)),
        intermediate(share(config.intermediate_size, granule, rank, size)),
        vocabulary(share(config.vocab_size, granule, rank, size)),
        expert(share(config.mixture.size, granule, rank, size)) {
    if (config.is_hybrid() || config.attention_gate || config.mixture.shared_size > 0) {
      raise<model_error>("a model with ",
                         config.is_hybrid()      ? "recurrent layers"
                         : config.attention_gate ? "gates behind attention"
                                                 : "a shared expert",
                         " (", config.family, ") cannot be divided over ranks: llama_backend runs it.");
    }
    if (config.whole_query_key_norm && size > 1) {
      raise<model_error>("a model with norms over all heads of the queries and of the keys (", config.family,
                         ") cannot be divided over ranks: one rank runs it.");
    }
  }

  //! Returns the rank's columns of all queries, which are also its columns of the outputs of attention.
  range queries(const model_config& config) const {
    const int width = config.n_heads / config.n_kv_heads * config.head_dim;
    return {kv_heads.begin * width, kv_heads.end * width};
  }
  int kv_size(const model_config& config) const { return kv_heads.size() * config.head_dim; }

 private:
  static range share(int n, int together, int rank, int size) {
    const detail::rank_division division{n, together, size};
    return {division.begin(rank), division.begin(rank + 1)};
  }
};

}  // namespace espalier
