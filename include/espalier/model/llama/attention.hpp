// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/llama_backend.cpp
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/simd.hpp"
#include "espalier/model/llama/thread_team.hpp"

namespace espalier::detail {

// A worker that computes the masked attention of some query heads, all of one key-value head, for some rows of one
// sequence. It has the working memory of one thread.
//
// Keys are transposed block by block, so that a vector has the scores of several slots and many queries share each
// load. Slots that are in no row's mask, or in the prefix before the windows of all rows, are neither read nor scored,
// except for fewer than simd_lanes slots right before a window. Scores of slots that a row does not see are dropped
// before the softmax. So the terms of each sum, and their order, depend on the tokens that a row sees, not on other
// nodes of the tree nor on the slots of the tokens.
class attention_worker {
 public:
  static constexpr int max_queries = 32;

  attention_worker(int head_dim) : head_dim_(head_dim) {
    const auto n = static_cast<std::size_t>(head_dim);
    keys_.resize(n * simd_lanes);
    queries_.resize(n * max_queries);
    sums_.resize(n * max_queries);
  }

  void reserve(int slots) {
    if (slots <= slots_) return;
    slots_ = slots;
    // The softmax of a window may begin at any slot, may have a sink behind the last one, and writes whole vectors.
    stride_ = (slots / simd_lanes + 2) * simd_lanes;
    scores_.resize(static_cast<std::size_t>(stride_) * max_queries);
    columns_.resize(static_cast<std::size_t>(slots));
    visible_.resize(static_cast<std::size_t>(slots));
    seen_.resize(static_cast<std::size_t>(slots) / 32 + 1);
    before_.resize(seen_.size());
  }

  struct task {
    int layer;
    int kv_head;
    int row_begin, row_end;        // batch rows
    int head_begin, head_end;      // query heads
    int window = 0;                // tokens that a row sees, its own included; 0: all
    float cap = 0.0F;              // scores become cap * tanh(score / cap); 0: they stay
    const float* sinks = nullptr;  // [n_heads] scores of a token without a value, or null
  };

  // Computes the attention of a task. It calls key() and value() of the store, as HostKVStore has them.
  //
  // Shapes: queries, out [rows][n_heads * head_dim] at their strides, in floats. The queries are already scaled.
  template <class KVStoreT>
  void attend(KVStoreT& kv, const forward_batch_view& batch, const batch_sequence& sequence, const task& t,
              const float* queries, std::ptrdiff_t query_stride, float* out, std::ptrdiff_t out_stride) {
    const int heads = t.head_end - t.head_begin;
    const int n = (t.row_end - t.row_begin) * heads;
    const auto query_of = [&](int i) {
      return (t.row_begin + i / heads) * query_stride +
             static_cast<std::ptrdiff_t>(t.head_begin + i % heads) * head_dim_;
    };
    const int columns = list_columns(batch, sequence, t);
    pack_queries(queries, query_of, n);
    const std::ptrdiff_t head = static_cast<std::ptrdiff_t>(t.kv_head) * head_dim_;
    const auto slot_of = [&](int i) {
      return i < sequence.prefix ? i : sequence.prefix + columns_[static_cast<std::size_t>(i - sequence.prefix)];
    };
    // Number of tokens of the prefix that lie before the window of every row.
    int hidden = sequence.prefix;
    for (int row = t.row_begin; row < t.row_end; ++row)
      hidden = (std::min)(hidden, before_window(t, sequence.prefix + count_bits(batch.mask_of(sequence, row))));
    score([&](int i) { return kv.key(t.layer, sequence.sequence, slot_of(i)) + head; }, hidden - hidden % simd_lanes,
          sequence.prefix + columns, n);

    for (int row = t.row_begin; row < t.row_end; ++row) {
      const int seen = list_visible(batch.mask_of(sequence, row));
      const int before = before_window(t, sequence.prefix + seen), within = sequence.prefix + seen - before;
      for (int h = 0; h < heads; ++h) {
        const int i = (row - t.row_begin) * heads + h;
        float* scores = scores_of(i);
        float* scratch = scores + sequence.prefix;
        for (int c = 0; c < seen; ++c)
          scratch[c] = scratch[visible_[static_cast<std::size_t>(c)]];
        if (t.cap > 0.0F) soft_cap(scores + before, within, t.cap);
        if (t.sinks) scores[before + within] = t.sinks[t.head_begin + h];
        totals_[i] = exponentials(scores + before, t.sinks ? within + 1 : within);
        std::fill_n(scores + hidden, before - hidden, 0.0F);
      }
    }

    const auto value_of = [&](int slot) { return kv.value(t.layer, sequence.sequence, slot) + head; };
    std::fill_n(sums_.data(), n * head_dim_, 0.0F);
    add_values([&](int i) { return value_of(hidden + i); }, sequence.prefix - hidden, scores_.data() + hidden,
               sums_.data(), n);
    for (int row = t.row_begin; row < t.row_end; ++row) {
      const int seen = list_visible(batch.mask_of(sequence, row));
      const auto scratch_of = [&](int c) {
        return value_of(slot_of(sequence.prefix + visible_[static_cast<std::size_t>(c)]));
      };
      const int i = (row - t.row_begin) * heads;
      add_values(scratch_of, seen, scores_of(i) + sequence.prefix, sums_.data() + i * head_dim_, heads);
    }
    for (int i = 0; i < n; ++i) {
      const float factor = 1.0F / totals_[i];
      float* to = out + (t.row_begin + i / heads) * out_stride +
                  static_cast<std::ptrdiff_t>(t.head_begin + i % heads) * head_dim_;
      const float* from = sums_.data() + i * head_dim_;
      in_lanes(head_dim_,
               [&](int d, auto many) { simd_store_run(to + d, simd_load_run(from + d, many) * factor, many); });
    }
  }

 private:
  // Most queries that share one load of keys, and most queries that share one load of values.
  static constexpr int score_block = 8;
  static constexpr int value_block = simd_registers / 8;

  // Returns the number of tokens before a row's window, if the row sees n tokens, its own included.
  static int before_window(const task& t, int n) { return t.window > 0 ? (std::max)(n - t.window, 0) : 0; }

  static int count_bits(std::span<const std::uint32_t> mask) {
    int n = 0;
    for (const std::uint32_t word : mask)
      n += std::popcount(word);
    return n;
  }

  // Fills columns_ with the scratch slots that some row of the task sees, counted from the end of the prefix, in
  // ascending order. Returns their number. Such a slot is called a column.
  int list_columns(const forward_batch_view& batch, const batch_sequence& sequence, const task& t) {
    // Words of a mask beyond the capacity of the cache have no bits set.
    const std::size_t words = (std::min)(static_cast<std::size_t>(sequence.mask_words), seen_.size());
    std::fill_n(seen_.begin(), words, 0U);
    for (int row = t.row_begin; row < t.row_end; ++row) {
      const auto mask = batch.mask_of(sequence, row);
      for (std::size_t w = 0; w < words; ++w)
        seen_[w] |= mask[w];
    }
    std::size_t n = 0;
    for (std::size_t w = 0; w < words; ++w) {
      before_[w] = static_cast<std::int32_t>(n);
      for (std::uint32_t rest = seen_[w]; rest != 0; rest &= rest - 1)
        columns_[n++] = static_cast<std::int32_t>(32 * w) + std::countr_zero(rest);
    }
    return static_cast<int>(n);
  }

  // Fills visible_ with the indices into columns_ of the columns whose bit is set in `mask`; returns their number.
  int list_visible(std::span<const std::uint32_t> mask) {
    std::size_t n = 0;
    for (std::size_t w = 0; w < mask.size(); ++w) {
      for (std::uint32_t rest = mask[w]; rest != 0; rest &= rest - 1) {
        const std::uint32_t below = (rest & (~rest + 1U)) - 1U;
        visible_[n++] = before_[w] + std::popcount(seen_[w] & below);
      }
    }
    return static_cast<int>(n);
  }

  float* scores_of(int query) { return scores_.data() + static_cast<std::ptrdiff_t>(query) * stride_; }

  // Calls body(first, width) for runs of WidthT queries, then of smaller powers of two, width being a constant.
  template <int WidthT, class BodyT>
  static void in_blocks(int first, int n, BodyT&& body) {
    for (; first + WidthT <= n; first += WidthT)
      body(first, std::integral_constant<int, WidthT>{});
    if constexpr (WidthT > 1) in_blocks<WidthT / 2>(first, n, body);
  }

  // Copies the queries to queries_, in the blocks of in_blocks, each [head_dim][width].
  template <class QueryOfT>
  void pack_queries(const float* queries, const QueryOfT& query_of, int n) {
    in_blocks<score_block>(0, n, [&](int first, auto width) {
      for (int q = 0; q < width; ++q) {
        const float* from = queries + query_of(first + q);
        float* to = queries_.data() + first * head_dim_ + q;
        for (int d = 0; d < head_dim_; ++d)
          to[d * width] = from[d];
      }
    });
  }

  template <class KeyOfT>
  void score(const KeyOfT& key_of, int first_slot, int n_slots, int n_queries) {
    for (int slot = first_slot; slot < n_slots; slot += simd_lanes) {
      transpose_keys(key_of, slot, (std::min)(simd_lanes, n_slots - slot));
      in_blocks<score_block>(0, n_queries, [&](int first, auto width) { score_block_of(first, slot, width); });
    }
  }

  template <class KeyOfT>
  void transpose_keys(const KeyOfT& key_of, int first, int n) {
    const float* key[simd_lanes];
    for (int j = 0; j < n; ++j)
      key[j] = key_of(first + j);
    in_lanes(head_dim_, [&](int d, auto many) {
      simd_float square[simd_lanes];
#pragma GCC unroll 16
      for (int j = 0; j < simd_lanes; ++j)
        square[j] = j < n ? simd_load_run(key[j] + d, many) : simd_float{};
      simd_transpose(square);
      for (int i = 0; i < many; ++i)
        simd_store(keys_.data() + (d + i) * simd_lanes, square[i]);
    });
  }

  template <class WidthT>
  void score_block_of(int first, int slot, WidthT) {
    constexpr int width = WidthT::value;
    simd_float sum[width];
#pragma GCC unroll 8
    for (int q = 0; q < width; ++q)
      sum[q] = simd_float{};
    const float* query = queries_.data() + first * head_dim_;
    const float* key = keys_.data();
    for (int d = 0; d < head_dim_; ++d, query += width, key += simd_lanes) {
      const simd_float k = simd_load(key);
#pragma GCC unroll 8
      for (int q = 0; q < width; ++q)
        sum[q] = multiply_add(simd_broadcast(query[q]), k, sum[q]);
    }
#pragma GCC unroll 8
    for (int q = 0; q < width; ++q)
      simd_store(scores_of(first + q) + slot, sum[q]);
  }

  // sums[q] += weights[q][i] * value(i), i ascending, for each of n_queries.
  //
  // Shapes: weights [n_queries][stride_]; sums [n_queries][head_dim]
  template <class ValueOfT>
  void add_values(const ValueOfT& value_of, int n, const float* weights, float* sums, int n_queries) {
    if (n == 0) return;
    in_blocks<value_block>(0, n_queries, [&](int first, auto width) {
      const float* w = weights + static_cast<std::ptrdiff_t>(first) * stride_;
      float* s = sums + first * head_dim_;
      int d = 0;
      for (; d + 4 * simd_lanes <= head_dim_; d += 4 * simd_lanes)
        add_value_block<4>(value_of, n, w, s, d, width);
      for (; d + simd_lanes <= head_dim_; d += simd_lanes)
        add_value_block<1>(value_of, n, w, s, d, width);
      if (d < head_dim_) add_last_values(value_of, n, w, s, d, width);
    });
  }

  template <int VectorsT, class ValueOfT, class WidthT>
  void add_value_block(const ValueOfT& value_of, int n, const float* weights, float* sums, int d, WidthT) {
    constexpr int width = WidthT::value;
    simd_float sum[width][VectorsT];
#pragma GCC unroll 4
    for (int q = 0; q < width; ++q) {
#pragma GCC unroll 4
      for (int v = 0; v < VectorsT; ++v)
        sum[q][v] = simd_load(sums + q * head_dim_ + d + v * simd_lanes);
    }
    for (int i = 0; i < n; ++i) {
      const float* from = value_of(i) + d;
      const float* ahead = value_of((std::min)(i + 16, n - 1)) + d;
      simd_float value[VectorsT];
#pragma GCC unroll 4
      for (int v = 0; v < VectorsT; ++v)
        __builtin_prefetch(ahead + v * simd_lanes, 0, 3);
#pragma GCC unroll 4
      for (int v = 0; v < VectorsT; ++v)
        value[v] = simd_load(from + v * simd_lanes);
#pragma GCC unroll 4
      for (int q = 0; q < width; ++q) {
        const simd_float weight = simd_broadcast(weights[q * stride_ + i]);
#pragma GCC unroll 4
        for (int v = 0; v < VectorsT; ++v)
          sum[q][v] = multiply_add(weight, value[v], sum[q][v]);
      }
    }
#pragma GCC unroll 4
    for (int q = 0; q < width; ++q) {
#pragma GCC unroll 4
      for (int v = 0; v < VectorsT; ++v)
        simd_store(sums + q * head_dim_ + d + v * simd_lanes, sum[q][v]);
    }
  }

  template <class ValueOfT, class WidthT>
  void add_last_values(const ValueOfT& value_of, int n, const float* weights, float* sums, int d, WidthT) {
    const int many = head_dim_ - d;
    for (int q = 0; q < WidthT::value; ++q) {
      simd_float sum = simd_load_first(sums + q * head_dim_ + d, many);
      for (int i = 0; i < n; ++i) {
        sum = multiply_add(simd_broadcast(weights[q * stride_ + i]), simd_load_first(value_of(i) + d, many), sum);
      }
      simd_store_first(sums + q * head_dim_ + d, sum, many);
    }
  }

  int head_dim_;
  int slots_ = 0;
  int stride_ = 0;
  std::vector<float> keys_;     // [head_dim][simd_lanes]
  std::vector<float> queries_;  // [max_queries][head_dim], in blocks
  std::vector<float> scores_;   // [max_queries][stride]
  std::vector<float> sums_;     // [max_queries][head_dim]
  float totals_[max_queries] = {};
  std::vector<std::uint32_t> seen_;    // [mask words] the bits of all columns
  std::vector<std::int32_t> before_;   // [mask words] number of columns in the earlier words
  std::vector<std::int32_t> columns_;  // the columns that some row of the task sees, ascending
  std::vector<std::int32_t> visible_;  // the columns that one row sees, as indices into columns_
};

// Divides the attention of a layer among the threads of a team. Each thread calls this function, which calls
// attend(sequence, task) for the tasks that fall to the thread. A task is a key-value head, with up to max_queries of
// its query heads, for a run of rows of one sequence; a thread that is free takes the next task. If a sequence has
// enough rows, the number of its tasks is a multiple of the number of threads.
//
// Pre: the team's tickets were reset before its last barrier.
template <class AttendT>
void take_attention_tasks(thread_team& team, int layer, int n_heads, int n_kv_heads, const forward_batch_view& batch,
                          const AttendT& attend) {
  const int group = n_heads / n_kv_heads;
  const int heads = (std::min)(group, attention_worker::max_queries);
  const int head_runs = (group + heads - 1) / heads;
  const int most_rows = attention_worker::max_queries / heads;
  int before = 0;
  int ticket = team.next_ticket();
  for (const batch_sequence& s : batch.sequences) {
    const int n = s.row_end - s.row_begin, per_row_run = n_kv_heads * head_runs;
    int row_runs = (n + most_rows - 1) / most_rows;
    while (row_runs * per_row_run % team.n_threads() != 0 && 2 * (row_runs + 1) <= n)
      ++row_runs;
    const int n_tasks = row_runs * per_row_run;
    for (; ticket < before + n_tasks; ticket = team.next_ticket()) {
      const int part = ticket - before, row_run = part / per_row_run;
      const int kv_head = part % n_kv_heads, head_run = part / n_kv_heads % head_runs;
      const int head = kv_head * group + head_run * heads;
      attend(s, attention_worker::task{.layer = layer,
                                       .kv_head = kv_head,
                                       .row_begin = s.row_begin + n * row_run / row_runs,
                                       .row_end = s.row_begin + n * (row_run + 1) / row_runs,
                                       .head_begin = head,
                                       .head_end = (std::min)((kv_head + 1) * group, head + heads)});
    }
    before += n_tasks;
  }
}

}  // namespace espalier::detail
