// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/model/parallel/communicator.hpp"
#include "espalier/model/parallel/rank_part.hpp"
#include "espalier/model/parallel/rank_shares.hpp"

namespace espalier::detail {

// A vocabulary divided over ranks: each knows the embeddings and computes the logits of its part.
class rank_vocabulary {
 public:
  rank_vocabulary() = default;
  rank_vocabulary(rank_shares shares, int max_rows, int n_ranks)
      : shares_(std::move(shares)),
        counts_(static_cast<std::size_t>(n_ranks)),
        starts_(counts_.size()),
        maxima_(static_cast<std::size_t>(max_rows) * counts_.size()) {}

  // Writes the embeddings of all tokens to `rows`, [tokens][width]. Each rank computes, by embed(token, to), those of
  // its part, into `blocks`.
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

  // Where the rank's logits go.
  float* own_block(float* blocks, int n) const { return shares_.own_block(blocks, n); }

  // Whole rows of logits, from each rank's block.
  template <Communicator CommunicatorT>
  void gather_rows(CommunicatorT& ranks, float* blocks, int n, float* logits) {
    shares_.gather(ranks, blocks, n);
    shares_.unpack(blocks, n, logits);
  }

  // Rows of minus infinity but for the greatest logit of each rank's part, the first where several are, or one that is
  // not a number.
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
  std::vector<std::size_t> starts_;  // [ranks] where its next row is, in floats
  std::vector<maximum> maxima_;      // [ranks][rows]
};

}  // namespace espalier::detail
