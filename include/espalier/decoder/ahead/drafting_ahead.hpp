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
//     commit      the verdict is known: the drafter takes it, unless it was guessed
//     take        the next round begins: gives its tree, if it was drafted ahead
//     give_up     instead of commit, or of take: no tree is kept
//
// Guesses are verdicts (a node and a token): those that are the most probable if the target's rows equal the draft's.
// If the drafter was not asked about a node, the probability of the verdicts after it is estimated, and one pass finds
// the rows of such nodes that are among the best. Each guess has a copy of the policy, which grows the tree of the
// guess. The trees grow side by side: a pass takes what all of them ask about. To the drafter they are one tree, in
// which the root of a guess is a child of the guessed node. So the drafter's text need not change while the guesses
// are right: it takes the path when a verdict was not guessed, or when its tree has no more room. Random numbers depend
// on the text and on their keys, not on the order of calls, so a tree does not depend on when it is drawn.
//
// Complexity  beside the tree's own passes, one pass over the nodes that were not asked about; if the drafter's tree
//             has no more room, two passes that read this round's tree again; if the verifier reads the round's rows,
//             a copy of them; no allocation once warm
// Errors      none: if something fails here, no guess is kept, and the round drafts its own tree, which raises an error
//             if it fails, too
template <class DrafterT, class PolicyT>
class drafting_ahead {
  using rows_type = decltype(std::declval<DrafterT&>().rows());
  using number = std::remove_cvref_t<decltype(std::declval<rows_type&>().row(root_node)[0])>;

 public:
  drafting_ahead(const DrafterT& drafter, const PolicyT& policy, const served_sizes& sizes)
      : sizes_(sizes),
        most_rows_(drafter.spare_rows()),
        all_(most_nodes(drafter)),
        here_(at(all_.capacity()) + 1),
        row_of_(sizes.keeps_draft_rows ? at(sizes.max_nodes) + 1 : 0),
        kept_(row_of_.size() * at(sizes.vocab)) {
    guesses_.reserve(at(most_rows_));
    for (std::int32_t i = 0; i < most_rows_; ++i)
      guesses_.emplace_back(policy, sizes.max_asked);
    best_.reserve(at(most_rows_)), asked_.reserve(at(all_.capacity()));
  }

  // The number of nodes that the drafter may be asked about until it takes a verdict.
  std::int32_t n_nodes() const { return all_.capacity(); }

  void start(DrafterT& drafter, const tree<>& drafted, const PolicyT& policy, const text& written) {
    // Nothing can be gained if the drafter was not asked, or if the next round can draft nothing: this one writes at
    // least one token, and the last token of a text is never drafted.
    if (written.left() <= 2) return;
    if (!is_open_) {
      if (!drafter.rows().has(root_node)) return;
      open(drafted.view(), written.size());
      is_open_ = true, has_failed_ = false;
      keep_rows(drafter, drafted.view());
    }
    drafter_ = &drafter;
    this_round_ = drafted.view();
    if (!has_row(root_node)) return;
    runs_ = attempt([&] {
      policy_ = &policy;
      size_ = written.size(), left_ = written.left(), room_ = written.room();
      seed_ = written.seed(), options_ = &written.options();
      thread_->is_told.store(false, std::memory_order_relaxed);
      thread_->start(*this);
      return true;
    });
  }

  rows_type rows(DrafterT& drafter) { return is_open_ ? rows_ : drafter.rows(); }

  // Hands over the verdict, and returns the seconds waited. Sets `strayed` to true if the second thread has failed: the
  // drafter has to begin the text anew.
  double commit(DrafterT& drafter, tree_view tree, verdict v, bool& strayed) {
    if (!is_open_) {
      drafter.commit(tree, v);
      return 0;
    }
    stopwatch watch;
    if (runs_) finish(v);
    const double waited = watch.lap();
    for (std::size_t i = 0; i < n_guesses_; ++i) {
      if (guesses_[i].lives && guesses_[i].of == v) ready_ = &guesses_[i];
    }
    if (ready_ != nullptr) return waited;
    is_open_ = false;
    if (has_failed_)
      strayed = true;
    else
      drafter.commit(all_.view(), {here_[at(v.accepted)], v.token});
    return waited;
  }

  // Returns whether the drafter has to begin the text anew, since it has not taken the verdict.
  bool give_up() {
    if (runs_) finish({no_node, 0});
    n_guesses_ = 0;
    return std::exchange(ready_, nullptr) != nullptr;
  }

  // Begins a round. If its tree was drafted ahead, gives the tree and the policy that has grown it, and returns true.
  bool take(DrafterT& drafter, tree<>& next, PolicyT& policy) {
    is_open_ = ready_ != nullptr;
    n_guesses_ = 0;
    if (!is_open_) return false;
    guess& g = *std::exchange(ready_, nullptr);
    std::swap(next, g.next);
    std::swap(policy, g.policy);
    std::copy_n(g.node_of.begin(), next.size(), here_.begin());
    keep_rows(drafter, next.view());
    return true;
  }

  // Grows the trees, on the second thread.
  void run() {
    has_failed_ = !attempt([this] {
      grow();
      return true;
    });
    if (has_failed_) n_guesses_ = 0;
  }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

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

  // Room for this round, and for two sets of trees of as many guesses as there may be, so that two guesses in a row may
  // be right; but for no more nodes than a pass of the drafter has rows, since not every cache has room for more.
  std::int32_t most_nodes(const DrafterT& drafter) const {
    const std::int64_t most = sizes_.max_asked + std::int64_t{2} * most_rows_ * (sizes_.max_nodes + 1);
    return static_cast<std::int32_t>(
        (std::max<std::int64_t>)(sizes_.max_asked, (std::min<std::int64_t>)(most, drafter.max_rows())));
  }

  void finish(verdict v) {
    told_ = v;
    thread_->is_told.store(true, std::memory_order_release);
    thread_->wait();
    runs_ = false;
  }

  struct telling_thread : side_thread {
    std::atomic<bool> is_told{false};  // the verdict is there
  };

  // A verdict that is guessed, and the tree of the round after it. To the policy that grows the tree it is the drafter,
  // whose rows are made elsewhere.
  struct guess {
    guess(const PolicyT& p, std::int32_t max_asked)
        : policy(p), next(max_asked), node_of(at(max_asked) + 1), row_of(at(max_asked) + 1), spare(at(max_asked) + 1) {}

    void begin(std::span<const token_id>) {}
    void commit(tree_view, verdict) {}
    void reserve(std::int32_t) {}
    std::int32_t capacity() const { return drafter->capacity(); }
    std::int32_t vocab_size() const { return drafter->vocab_size(); }
    void propose(tree_view, std::span<const node_id> nodes) {
      for (const node_id u : nodes)
        row_of[at(u)] = drafter->rows().row_of[node_of[at(u)]];
    }
    rows_type rows() const {
      rows_type of_all = drafter->rows();
      of_all.row_of = row_of.data();
      return of_all;
    }
    void renumber(std::span<const node_id> was) {
      for (auto* list : {&node_of, &row_of}) {
        std::fill(spare.begin(), spare.end(), -1);
        for (std::size_t i = 0; i < was.size(); ++i)
          if (was[i] != no_node) spare[i] = (*list)[at(was[i])];
        list->swap(spare);
      }
    }

    verdict of{};
    PolicyT policy;
    tree<> next;
    growth growing;
    DrafterT* drafter = nullptr;
    // [nodes] node of the drafter's tree, and row of the drafter's rows; -1 where there is none
    detail::list<std::int32_t> node_of, row_of, spare;
    bool lives = false;  // it may be the verdict, and its tree has had room
  };

  // A verdict with its probability; `token` is -1 if the row after the node is not known.
  struct candidate {
    node_id after;
    token_id token;
    double probability;
  };

  // Lets the drafter's tree be this round's, after a text of `size` tokens.
  void open(tree_view drafted, std::int32_t size) {
    all_.reset(drafted.token[root_node]);
    here_[root_node] = root_node;
    for (node_id u = 1; u < drafted.n_nodes; ++u)
      here_[at(u)] = all_.append(drafted.parent[u], drafted.token[u], 0);
    taken_ = size;
  }

  bool has_row(node_id u) const {
    return drafter_->rows().has(here_[at(u)]);
  }

  // Copies the round's rows, which the drafter gives only until it is asked again, for verifiers that read them.
  void keep_rows(DrafterT& drafter, tree_view drafted) {
    rows_ = drafter.rows();
    if (!sizes_.keeps_draft_rows) return;
    std::int32_t n = 0;
    for (node_id u = 0; u < drafted.n_nodes; ++u) {
      const node_id v = here_[at(u)];
      row_of_[at(u)] = rows_.has(v) ? n++ : -1;
      if (row_of_[at(u)] >= 0)
        std::copy_n(rows_.row(v).data(), sizes_.vocab, kept_.begin() + std::ptrdiff_t{n - 1} * sizes_.vocab);
    }
    rows_.rows = {kept_.data(), n, sizes_.vocab};
    rows_.row_of = row_of_.data();
  }

  void grow() {
    const std::int32_t left = (std::min)(rows_left(), all_.capacity() + 1 - all_.size());
    if (taken_ != size_ && left < most_rows_ * (sizes_.max_nodes + 1)) read_again();
    choose(true);
    asked_.clear();
    for (const candidate& c : best_)
      if (c.token < 0) asked_.push_back(here_[at(c.after)]);
    if (!asked_.empty()) {
      if (has_room()) drafter_->propose(all_.view(), asked_);
      choose(false);
    }
    for (const candidate& c : best_)
      begin(guesses_[n_guesses_++], c);
    while (ask()) {
      for (std::size_t i = 0; i < n_guesses_; ++i) {
        guess& g = guesses_[i];
        if (!g.lives || g.growing.wanted().empty()) continue;
        philox_chance chance(seed_, options_->stream, static_cast<std::uint32_t>(size_after(g)));
        detail::grow_step(g.growing, g.policy, g.next, g, chance);
      }
    }
    for (std::size_t i = 0; i < n_guesses_; ++i)
      if (guesses_[i].lives) end(guesses_[i]);
  }

  // Finds the most probable verdicts, as many as there may be guesses, in falling order. If a node has no row, the
  // tokens after it are not known: with `estimates` it counts as one verdict, as if the log-probability of its token
  // were the mean of the tokens on the node's path; without, it is left out.
  void choose(bool estimates) {
    best_.clear();
    for (node_id u = 0; u < this_round_.n_nodes; ++u) {
      const double log_path = this_round_.path_log_prob[u], path = std::exp(log_path);
      if (!has_row(u)) {
        if (estimates) consider({u, -1, std::exp(log_path + log_path / this_round_.depth[u])});
        continue;
      }
      const auto row = drafter_->rows().row(here_[at(u)]);
      for (std::int32_t t = 0; t < sizes_.vocab; ++t)
        consider({u, t, path * static_cast<double>(row[at(t)])});
    }
  }

  void consider(const candidate& c) {
    const bool is_full = best_.size() == at(most_rows_);
    if (!(c.probability > (is_full ? best_.back().probability : 0))) return;
    if (c.token >= 0 && this_round_.find_child(c.after, c.token) != no_node) return;  // then the node is no verdict's
    if (is_full) best_.pop_back();
    const auto less = [](const candidate& a, const candidate& b) { return a.probability > b.probability; };
    best_.insert(std::upper_bound(best_.begin(), best_.end(), c, less), c);
  }

  std::int32_t written_by(const guess& g) const {
    return this_round_.depth[g.of.accepted] + 1;
  }
  std::int32_t size_after(const guess& g) const {
    return size_ + written_by(g);
  }

  void begin(guess& g, const candidate& c) {
    g.of = {c.after, c.token};
    g.drafter = drafter_;
    std::fill(g.node_of.begin(), g.node_of.end(), -1);
    std::fill(g.row_of.begin(), g.row_of.end(), -1);
    g.node_of[root_node] = child(here_[at(c.after)], c.token);
    g.lives = g.node_of[root_node] != no_node;
    if (!g.lives) return;
    g.policy = *policy_;
    g.policy.observe(this_round_, g.of);
    detail::open_tree(g.next, g, c.token, size_after(g), left_ - written_by(g), room_ - written_by(g));
    if constexpr (OpeningPolicy<PolicyT>) g.policy.open({size_after(g), options_->sampling, false});
    g.growing.begin(g.policy, g.next, g);
  }

  void end(guess& g) {
    detail::close_tree(g.growing, g.policy, g.next, g, sizes_.max_nodes, sizes_.vocab);
    g.lives = place(g);
  }

  // Returns the node of the drafter's tree that is this child; no_node if there is no room for it.
  node_id child(node_id parent, token_id token) {
    const node_id v = all_.view().find_child(parent, token);
    return v != no_node ? v : all_.append(parent, token, 0);
  }

  // Gives a node of a guess its node of the drafter's tree, and returns false if there is no room for it. Pre: the
  // node's parent has one.
  bool place(guess& g, node_id u) {
    node_id& v = g.node_of[at(u)];
    const tree_view next = g.next.view();
    if (v == no_node) v = child(g.node_of[at(next.parent[u])], next.token[u]);
    return v != no_node;
  }
  bool place(guess& g) {
    for (node_id u = 1; u < g.next.size(); ++u)
      if (!place(g, u)) return false;
    return true;
  }

  // Makes the rows that the guesses want, in one pass, and returns whether any did. Guesses that the verdict has shown
  // to be wrong are dropped. So is a guess whose nodes find no room in the drafter's tree or cache; and, unless it is
  // the best one left, a guess whose nodes would make the pass longer than most_rows_.
  bool ask() {
    const bool is_told = thread_->is_told.load(std::memory_order_acquire);
    bool wants = false;
    asked_.clear();
    for (std::size_t i = 0; i < n_guesses_; ++i) {
      guess& g = guesses_[i];
      if (is_told && !(told_ == g.of)) g.lives = false;
      if (!g.lives || g.growing.wanted().empty()) continue;
      const std::size_t before = asked_.size();
      for (const node_id u : g.growing.wanted()) {
        g.lives = g.lives && place(g, u);
        if (g.lives && !drafter_->rows().has(g.node_of[at(u)])) asked_.push_back(g.node_of[at(u)]);
      }
      g.lives = g.lives && has_room() && (before == 0 || asked_.size() <= at(most_rows_));
      if (!g.lives) asked_.resize(before);
      wants = wants || g.lives;
    }
    if (!asked_.empty()) drafter_->propose(all_.view(), asked_);
    return wants;
  }

  // The number of rows that the drafter may still make before it takes a verdict.
  std::int32_t rows_left() const {
    const std::int32_t n = drafter_->rows().rows.n_rows;
    return (std::min)(all_.capacity() + 1 - n, drafter_->capacity() - taken_ - (n - 1));
  }
  bool has_room() const {
    return asked_.size() <= at((std::max)(rows_left(), std::int32_t{0}));
  }

  // Makes the drafter take the path of the guesses that were right, and read this round's tree again.
  void read_again() {
    asked_.clear();
    for (node_id u = 1; u < this_round_.n_nodes; ++u)
      if (has_row(u)) asked_.push_back(u);
    const node_id root = here_[root_node];
    drafter_->commit(all_.view(), {all_.view().parent[root], all_.view().token[root]});
    open(this_round_, size_);
    drafter_->propose(all_.view(), std::span(&root_node, 1));
    if (!asked_.empty()) drafter_->propose(all_.view(), asked_);
  }

  served_sizes sizes_;
  std::int32_t most_rows_;
  tree<> all_;                        // the drafter's tree: this round's, and below it the trees of the guesses
  detail::list<node_id> here_;        // [nodes of this round] node of all_
  rows_type rows_{};                  // of this round
  std::vector<std::int32_t> row_of_;  // [nodes] index in kept_ of each node's row, or -1; empty if rows are not kept
  std::vector<number> kept_;          // [nodes][vocab]
  // Whether all_ is the drafter's tree. The drafter then has taken a text of taken_ tokens, after which the root of
  // all_ stands.
  bool is_open_ = false;
  std::int32_t taken_ = 0;
  bool runs_ = false;
  guess* ready_ = nullptr;  // the guess that was right, until its tree is taken
  // The second thread reads these while it runs, and leaves its results in some of them.
  std::vector<guess> guesses_;
  std::size_t n_guesses_ = 0;
  std::vector<candidate> best_;
  std::vector<node_id> asked_;
  DrafterT* drafter_ = nullptr;
  const PolicyT* policy_ = nullptr;
  tree_view this_round_{};
  std::int32_t size_ = 0, left_ = 0, room_ = 0;
  std::uint64_t seed_ = 0;
  const text_options* options_ = nullptr;
  verdict told_{};
  bool has_failed_ = false;
  // The last member: it waits for the second thread before the others go.
  std::unique_ptr<telling_thread> thread_ = std::make_unique<telling_thread>();
};

}  // namespace espalier::detail
