// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/model/llama/attention.hpp"
#include "espalier/model/llama/thread_team.hpp"

namespace espalier::detail {

// Divides the attention of a layer among the threads of a team: each calls this, and attend(sequence, task) for what
// falls to it. Tasks are a key-value head, with its query heads, for a run of rows; whoever is free takes the next.
// There are as many for each thread where the rows allow it.
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
