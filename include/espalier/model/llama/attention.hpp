// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/llama_backend.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/model/llama/attention_rows.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/simd.hpp"
#include "espalier/model/llama/thread_team.hpp"

namespace espalier::detail {

// A worker that computes the masked attention of some query heads, all of one key-value head, for some rows of one
// sequence. It has the working memory of one thread.
//
// Keys are transposed block by block, so that a vector has the scores of several slots and many queries share each
// load. Slots behind the prefix in no row's mask are not read. Slots of the prefix before the windows of all rows are
// not read either, except the keys of fewer than score_run of them. Scores of slots that a row does not see are dropped
// before the softmax. So the terms of each sum, and their order, depend on the tokens that a row sees, not on other
// nodes of the tree nor on the slots of the tokens. (Tokens before one row's window, but within another's, have the
// weight 0 there, which only a value that is not finite shows.)
class attention_worker {
 public:
  static constexpr int max_queries = 64;

  explicit attention_worker(int head_dim) : head_dim_(head_dim) {
    const auto n = static_cast<std::size_t>(head_dim);
    keys_.resize(n * score_run);
    queries_.resize(n * max_queries);
    sums_.resize(n * max_queries);
  }

  void reserve(int slots) {
    if (slots <= slots_) return;
    slots_ = slots;
    // Scores are written in blocks of score_run. A softmax may begin at any of them, may have a sink behind the last
    // one, and writes whole vectors.
    stride_ = (slots / score_run + 2) * score_run;
    scores_.resize(static_cast<std::size_t>(stride_) * max_queries);
    rows_.reserve(slots);
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
    rows_.find(batch, sequence, t.row_begin, t.row_end, t.window);
    const std::ptrdiff_t head = static_cast<std::ptrdiff_t>(t.kv_head) * head_dim_;
    for (int place = first_place(); place < rows_.places; ++place) {
      const int slot = rows_.slot_of(place);
      rows_.keys[static_cast<std::size_t>(place)] = kv.key(t.layer, sequence.sequence, slot) + head;
      rows_.values[static_cast<std::size_t>(place)] = kv.value(t.layer, sequence.sequence, slot) + head;
    }
    attend(t, queries, query_stride, out, out_stride);
  }

 private:
  static constexpr int score_vectors = 2;                       // vectors of places in a block of scores
  static constexpr int score_run = score_vectors * simd_lanes;  // places in a block of scores
  static constexpr int score_block = simd_registers / 4;        // most queries that share one load of keys
  static constexpr int value_block = simd_registers / 8;        // most queries that share one load of values
  // Tokens of the prefix whose values are added for all queries before the next ones are read.
  static constexpr int value_run = 64;

  // Returns the first place that is scored.
  int first_place() const { return rows_.hidden - rows_.hidden % score_run; }

  float* scores_of(int query) { return scores_.data() + static_cast<std::ptrdiff_t>(query) * stride_; }

  void attend(const task& t, const float* queries, std::ptrdiff_t query_stride, float* out, std::ptrdiff_t out_stride) {
    const int heads = t.head_end - t.head_begin, n = (t.row_end - t.row_begin) * heads;
    const auto of_query = [&](std::ptrdiff_t stride, int i) {
      return (t.row_begin + i / heads) * stride + static_cast<std::ptrdiff_t>(t.head_begin + i % heads) * head_dim_;
    };
    pack_queries([&](int i) { return queries + of_query(query_stride, i); }, n);
    for (int place = first_place(); place < rows_.places; place += score_run) {
      transpose_keys(place);
      in_blocks<score_block>(0, n, [&](int first, auto width) { score(first, place, width); });
    }
    for (int row = t.row_begin; row < t.row_end; ++row) {
      const auto seen = rows_.seen(row);
      for (int i = 0; i < heads; ++i)
        weigh(t, seen, t.head_begin + i, (row - t.row_begin) * heads + i);
    }
    std::fill_n(sums_.data(), n * head_dim_, 0.0F);
    const auto of_prefix = [&](int i) { return rows_.values[static_cast<std::size_t>(i)]; };
    for (int first = rows_.hidden; first < rows_.prefix; first += value_run)
      add_values(of_prefix, first, (std::min)(first + value_run, rows_.prefix), 0, n);
    for (int row = t.row_begin; row < t.row_end; ++row) {
      const auto seen = rows_.seen(row);
      const auto of_row = [&](int i) {
        return rows_.values[static_cast<std::size_t>(seen[static_cast<std::size_t>(i - rows_.prefix)])];
      };
      add_values(of_row, rows_.prefix, rows_.prefix + static_cast<int>(seen.size()), (row - t.row_begin) * heads,
                 heads);
    }
    for (int i = 0; i < n; ++i) {
      const float factor = 1.0F / totals_[i];
      float* to = out + of_query(out_stride, i);
      const float* from = sums_.data() + i * head_dim_;
      in_lanes(head_dim_,
               [&](int d, auto many) { simd_store_run(to + d, simd_load_run(from + d, many) * factor, many); });
    }
  }

  // Calls body(first, width) for queries first to end - 1: runs of WidthT, then one run of those that are left. The
  // width is a constant.
  template <int WidthT, class BodyT>
  static void in_blocks(int first, int end, const BodyT& body) {
    for (; first + WidthT <= end; first += WidthT)
      body(first, std::integral_constant<int, WidthT>{});
    if constexpr (WidthT > 1) in_blocks<WidthT - 1>(first, end, body);
  }

  // Writes the queries to queries_, one block for each call of in_blocks, [head_dim][width].
  template <class QueryOfT>
  void pack_queries(const QueryOfT& query_of, int n) {
    in_blocks<score_block>(0, n, [&](int first, auto width) {
      for (int q = 0; q < width; ++q) {
        const float* from = query_of(first + q);
        float* to = queries_.data() + first * head_dim_ + q;
        for (int d = 0; d < head_dim_; ++d)
          to[d * width] = from[d];
      }
    });
  }

  // Writes the keys of score_run places to keys_, transposed; zeros stand for places behind the last one.
  void transpose_keys(int place) {
    for (int first = 0; first < score_run; first += simd_lanes) {
      const int n = rows_.places - place - first;
      in_lanes(head_dim_, [&](int d, auto many) {
        simd_float square[simd_lanes];
#pragma GCC unroll 16
        for (int j = 0; j < simd_lanes; ++j)
          square[j] =
              j < n ? simd_load_run(rows_.keys[static_cast<std::size_t>(place + first + j)] + d, many) : simd_float{};
        simd_transpose(square);
        for (int i = 0; i < many; ++i)
          simd_store(keys_.data() + (d + i) * score_run + first, square[i]);
      });
    }
  }

  // Writes the scores of queries first, first + 1, ... for the places whose keys are in keys_.
  template <class WidthT>
  void score(int first, int place, WidthT) {
    constexpr int width = WidthT::value;
    simd_float sum[width][score_vectors] = {};
    const float* query = queries_.data() + first * head_dim_;
    const float* key = keys_.data();
    for (int d = 0; d < head_dim_; ++d, query += width, key += score_run) {
      simd_float k[score_vectors];
#pragma GCC unroll 2
      for (int v = 0; v < score_vectors; ++v)
        k[v] = simd_load(key + v * simd_lanes);
#pragma GCC unroll 8
      for (int q = 0; q < width; ++q) {
        const simd_float by = simd_broadcast(query[q]);
#pragma GCC unroll 2
        for (int v = 0; v < score_vectors; ++v)
          sum[q][v] = multiply_add(by, k[v], sum[q][v]);
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < width; ++q) {
#pragma GCC unroll 2
      for (int v = 0; v < score_vectors; ++v)
        simd_store(scores_of(first + q) + place + v * simd_lanes, sum[q][v]);
    }
  }

  // Writes the weights of a row's tokens over the scores of a query, 0 for tokens before the window, and their sum to
  // totals_. `seen` has the places behind the prefix that the row sees.
  void weigh(const task& t, std::span<const std::int32_t> seen, int head, int query) {
    const int tokens = rows_.prefix + static_cast<int>(seen.size());
    const int before = rows_.first_token(tokens), within = tokens - before;
    float* scores = scores_of(query);
    float* behind = scores + rows_.prefix;
    for (const std::int32_t place : seen)
      *behind++ = scores[place];
    if (t.cap > 0.0F) soft_cap(scores + before, within, t.cap);
    if (t.sinks) scores[before + within] = t.sinks[head];
    totals_[query] = exponentials(scores + before, t.sinks ? within + 1 : within);
    std::fill_n(scores + rows_.hidden, before - rows_.hidden, 0.0F);
  }

  // Adds weight i * value_of(i) to the sums of n queries from first_query on, for i from begin to end - 1, ascending.
  template <class ValueOfT>
  void add_values(const ValueOfT& value_of, int begin, int end, int first_query, int n) {
    if (begin == end) return;
    in_blocks<value_block>(first_query, first_query + n, [&](int first, auto width) {
      int d = 0;
      for (; d + 4 * simd_lanes <= head_dim_; d += 4 * simd_lanes)
        add_value_block<4>(value_of, begin, end, first, d, width);
      for (; d + simd_lanes <= head_dim_; d += simd_lanes)
        add_value_block<1>(value_of, begin, end, first, d, width);
      if (d < head_dim_) add_last_values(value_of, begin, end, first, d, width);
    });
  }

  template <int VectorsT, class ValueOfT, class WidthT>
  void add_value_block(const ValueOfT& value_of, int begin, int end, int first, int d, WidthT) {
    constexpr int width = WidthT::value;
    float* sums = sums_.data() + first * head_dim_ + d;
    const float* weights = scores_of(first);
    simd_float sum[width][VectorsT];
#pragma GCC unroll 4
    for (int q = 0; q < width; ++q) {
#pragma GCC unroll 4
      for (int v = 0; v < VectorsT; ++v)
        sum[q][v] = simd_load(sums + q * head_dim_ + v * simd_lanes);
    }
    for (int i = begin; i < end; ++i) {
      const float* from = value_of(i) + d;
      const float* ahead = value_of((std::min)(i + 16, end - 1)) + d;
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
        simd_store(sums + q * head_dim_ + v * simd_lanes, sum[q][v]);
    }
  }

  template <class ValueOfT, class WidthT>
  void add_last_values(const ValueOfT& value_of, int begin, int end, int first, int d, WidthT) {
    const int many = head_dim_ - d;
    for (int q = first; q < first + WidthT::value; ++q) {
      float* sums = sums_.data() + q * head_dim_ + d;
      simd_float sum = simd_load_first(sums, many);
      for (int i = begin; i < end; ++i)
        sum = multiply_add(simd_broadcast(scores_of(q)[i]), simd_load_first(value_of(i) + d, many), sum);
      simd_store_first(sums, sum, many);
    }
  }

  int head_dim_;
  int slots_ = 0;
  int stride_ = 0;
  attention_rows rows_;
  std::vector<float> keys_;     // [head_dim][score_run]
  std::vector<float> queries_;  // [max_queries][head_dim], in blocks
  std::vector<float> scores_;   // [max_queries][stride]
  std::vector<float> sums_;     // [max_queries][head_dim]
  float totals_[max_queries] = {};
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
