// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"

#if !defined(__cpp_lib_atomic_wait)
#error "ahead.hpp needs threads, and this C++ library has none"
#endif

namespace espalier::detail {

// A thread that runs one task at a time, beside the thread that gives it the task.
//
// Complexity  start: no allocation after the first
class side_thread {
 public:
  side_thread() = default;
  side_thread(const side_thread&) = delete;
  side_thread& operator=(const side_thread&) = delete;
  ~side_thread() {
    if (!thread_.joinable()) return;
    wait();
    tell(state::ended);
    thread_.join();
  }

  // Makes the thread call task.run(). Errors: std::system_error if no thread can be made; then nothing has begun. Pre:
  // run() throws nothing, the task exists until wait() returns, and no task is under way.
  template <class TaskT>
  void start(TaskT& task) {
    task_ = &task;
    call_ = [](void* given) { static_cast<TaskT*>(given)->run(); };
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    tell(state::works);
  }

  // Waits until the task has returned.
  void wait() { state_.wait(state::works, std::memory_order_acquire); }

 private:
  enum class state : int { rests, works, ended };

  void tell(state now) {
    state_.store(now, std::memory_order_release);
    state_.notify_all();
  }

  void work() {
    for (;;) {
      state_.wait(state::rests, std::memory_order_acquire);
      if (state_.load(std::memory_order_acquire) == state::ended) return;
      call_(task_);
      tell(state::rests);
    }
  }

  std::atomic<state> state_{state::rests};
  void* task_ = nullptr;
  void (*call_)(void*) = nullptr;
  std::thread thread_;
};

// The next round's tree, grown by a second thread while the target's pass over this round's tree is under way.
//
//     start       this round's tree has grown; from here on only the second thread may use the drafter
//     rows        the draft's rows of this round, for the verifier
//     commit      the verdict is known: the drafter takes it, unless it has already taken a guess of it
//     take        the next round begins: gives its tree, if it was drafted ahead
//     give_up     instead of commit, or of take: no tree is kept
//
// The guess is the verdict (a node and a token) that is the most probable if the target's rows equal the draft's. If
// the drafter was not asked about the guessed node, the node's row is found by one more pass, in which the node's token
// is the last of the text. Random numbers depend on the text and on their keys, not on the order of calls, so a tree
// does not depend on when it is drawn.
//
// Complexity  beside the tree's own passes, one pass of one row at most and, if the verifier reads them, a copy of the
//             round's rows; no allocation once warm
// Errors      none: if something fails here, the tree is given up, and the round drafts its own, which raises an error
//             if it fails, too
template <class DrafterT, class PolicyT>
class drafting_ahead {
  using rows_type = decltype(std::declval<DrafterT&>().rows());
  using number = std::remove_cvref_t<decltype(std::declval<rows_type&>().row(root_node)[0])>;

 public:
  drafting_ahead(const PolicyT& policy, const served_sizes& sizes)
      : policy_(policy),
        tree_(sizes.max_asked),
        sizes_(sizes),
        row_of_(sizes.keeps_draft_rows ? static_cast<std::size_t>(sizes.max_nodes) + 1 : 0),
        kept_(row_of_.size() * static_cast<std::size_t>(sizes.vocab)),
        thread_(std::make_unique<telling_thread>()) {}

  void start(DrafterT& drafter, const tree<>& drafted, const PolicyT& policy, const text& written) {
    is_ready_ = false;
    // Nothing can be gained if the drafter was not asked, or if the next round can draft nothing: this one writes at
    // least one token, and the last token of a text is never drafted.
    if (!drafter.rows().has(root_node) || written.left() <= 2) return;
    runs_ = attempt([&] {
      drafter_ = &drafter;
      this_round_ = drafted.view();
      keep_rows();
      policy_ = policy;
      size_ = written.size(), left_ = written.left(), room_ = written.room();
      seed_ = written.seed(), options_ = &written.options();
      thread_->is_told.store(false, std::memory_order_relaxed);
      thread_->start(*this);
      return true;
    });
  }

  rows_type rows(DrafterT& drafter) { return runs_ ? rows_ : drafter.rows(); }

  // Hands over the verdict, and returns the seconds waited. Sets `strayed` to whether the drafter has to begin the text
  // anew: it has taken another verdict, or its run has failed. Without a run of the second thread `strayed` stays as it
  // is.
  double commit(DrafterT& drafter, tree_view tree, verdict v, bool& strayed) {
    if (!runs_) {
      drafter.commit(tree, v);
      return 0;
    }
    stopwatch watch;
    finish(v);
    strayed = !is_ready_;
    return watch.lap();
  }

  void give_up() {
    if (runs_) finish({no_node, 0});
    is_ready_ = false;
  }

  bool take(tree<>& next, PolicyT& policy) {
    if (!is_ready_) return false;
    std::swap(next, tree_);
    std::swap(policy, policy_);
    is_ready_ = false;
    return true;
  }

  // Grows the tree, on the second thread.
  void run() {
    is_grown_ = attempt([this] { return grow(); });
  }

 private:
  // Returns work(), or false if it throws: then the round drafts its tree itself.
  template <class WorkT>
  static bool attempt(WorkT&& work) {
#if ESPALIER_EXCEPTIONS
    try {
      return work();
    } catch (...) {
      return false;
    }
#else
    return work();
#endif
  }

  void finish(verdict v) {
    told_ = v;
    thread_->is_told.store(true, std::memory_order_release);
    thread_->wait();
    runs_ = false;
    is_ready_ = is_grown_ && guess_ == v;
  }

  struct telling_thread : side_thread {
    std::atomic<bool> is_told{false};  // the verdict is there
  };

  struct choice {
    token_id token;
    double log_prob;
  };

  // Copies the drafter's rows, which are gone once it takes a verdict, for verifiers that read them.
  void keep_rows() {
    rows_ = drafter_->rows();
    if (!sizes_.keeps_draft_rows) return;
    std::int32_t n = 0;
    for (node_id u = 0; u < this_round_.n_nodes; ++u) {
      std::int32_t& row = row_of_[static_cast<std::size_t>(u)];
      row = rows_.has(u) ? n++ : -1;
      if (row >= 0) std::copy_n(rows_.row(u).data(), sizes_.vocab, kept_.begin() + std::ptrdiff_t{row} * sizes_.vocab);
    }
    rows_.rows = {kept_.data(), n, sizes_.vocab};
    rows_.row_of = row_of_.data();
  }

  bool grow() {
    node_id last = root_node;
    choice best = after(root_node);
    for (node_id u = 1; u < this_round_.n_nodes; ++u) {
      const choice now = after(u);
      if (now.log_prob > best.log_prob) last = u, best = now;
    }
    guess_ = {last, best.token};
    if (rows_.has(last))
      drafter_->commit(this_round_, guess_);
    else
      ask_after(last);
    if (is_wrong()) return false;
    policy_.observe(this_round_, guess_);
    const std::int32_t n = this_round_.depth[last] + 1, size = size_ + n;
    detail::open_tree(tree_, *drafter_, guess_.token, size, left_ - n, room_ - n);
    if constexpr (OpeningPolicy<PolicyT>) policy_.open({size, options_->sampling, false});
    philox_chance chance(seed_, options_->stream, static_cast<std::uint32_t>(size));
    for (growth_.begin(policy_, tree_, *drafter_); !growth_.wanted().empty();) {
      if (is_wrong()) return false;
      detail::grow_step(growth_, policy_, tree_, *drafter_, chance);
    }
    detail::close_tree(growth_, policy_, tree_, *drafter_, sizes_.max_nodes, sizes_.vocab);
    return true;
  }

  bool is_wrong() const {
    return thread_->is_told.load(std::memory_order_acquire) && !(told_ == guess_);
  }

  // Returns the most probable token that is no child of node u, and the log-probability that the verdict is this node
  // and this token. If the node has no row, the token is not known: returns token 0, as if its log-probability were the
  // mean of the tokens on the node's path.
  choice after(node_id u) const {
    const double path = this_round_.path_log_prob[u];
    if (!rows_.has(u)) return {0, path + path / this_round_.depth[u]};
    const auto row = rows_.row(u);
    choice best{0, -1};
    for (std::int32_t t = 0; t < sizes_.vocab; ++t) {
      const auto p = static_cast<double>(row[static_cast<std::size_t>(t)]);
      if (p > best.log_prob && this_round_.find_child(u, t) == no_node) best = {t, p};
    }
    best.log_prob = path + std::log((std::max)(best.log_prob, 0.0));
    return best;
  }

  // Guesses the token after a leaf: for one pass the leaf's token becomes the last of the text.
  void ask_after(node_id leaf) {
    drafter_->commit(this_round_, {this_round_.parent[leaf], this_round_.token[leaf]});
    alone_.reset(this_round_.token[leaf], 0);
    drafter_->propose(alone_.view(), std::span(&root_node, 1));
    const auto row = drafter_->rows().row(root_node);
    guess_.token = static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin());
    drafter_->commit(alone_.view(), {root_node, guess_.token});
  }

  PolicyT policy_;  // the policy of the next round
  tree<> tree_;
  tree<> alone_{0};
  growth growth_;
  served_sizes sizes_;
  rows_type rows_{};
  std::vector<std::int32_t> row_of_;  // [nodes] index in kept_ of each node's row, or -1; empty if rows are not kept
  std::vector<number> kept_;          // [nodes][vocab]
  std::unique_ptr<telling_thread> thread_;
  bool runs_ = false, is_ready_ = false;
  // The second thread reads these while it runs, and leaves its results in some of them.
  DrafterT* drafter_ = nullptr;
  tree_view this_round_{};
  std::int32_t size_ = 0, left_ = 0, room_ = 0;
  std::uint64_t seed_ = 0;
  const text_options* options_ = nullptr;
  verdict guess_{}, told_{};
  bool is_grown_ = false;
};

}  // namespace espalier::detail
