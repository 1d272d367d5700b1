// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/selector/delayed_action.hpp"
#include "ot_verifiers.hpp"
#include "root_paths.hpp"

namespace nde {

//! Calls f(thread, i) for i in 0 .. n - 1, distributed over all threads; an exception of one is thrown again here.
template <class FunctionT>
void share_out(espalier::thread_team& team, std::size_t n, const FunctionT& f) {
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(team.n_threads()));
  team.run([&](int thread) {
    try {
      for (std::size_t i = next++; i < n; i = next++)
        f(static_cast<std::size_t>(thread), i);
    } catch (...) {
      errors[static_cast<std::size_t>(thread)] = std::current_exception();
    }
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

//! The gain and the cost of each action at one root, means over the samples.
struct root_results {
  static constexpr auto n_actions = static_cast<std::size_t>(espalier::delayed_action::count);

  std::vector<double> efficiency;              //!< [verifiers][n_actions] tokens that a round commits on average
  std::array<double, n_actions> nodes{};       //!< drafted nodes, repeated draws counted once
  std::array<double, n_actions> draft_rows{};  //!< rows of a draft pass, on average over the passes
};

//! Computes the expected block efficiency of every action from the trees that were drawn for all of them together.
//!
//! Trees share most of their nodes with the same draws: branching probabilities are computed once for each node and
//! list of draws, and one sweep along the paths gives the efficiencies of all lengths.
//!
//! Law         equals expected_block_efficiency of each tree, up to the rounding of its sums
//! Source      Delayed tree expansion, equation 3
class root_efficiency {
  static constexpr auto n_actions = root_results::n_actions;
  static constexpr int most_paths = root_paths::most_paths;
  static constexpr int most_trunk = root_paths::most_trunk;
  static constexpr int most_length = root_paths::most_length;

 public:
  root_efficiency(std::vector<ot_verifier> verifiers, espalier::thread_team& team)
      : verifiers_(std::move(verifiers)), team_(team) {}

  const std::vector<ot_verifier>& verifiers() const { return verifiers_; }

  //! The results at one root. target(u) and draft(u) are the rows of node u of drawn.tree().
  template <class TargetT, class DraftT>
  const root_results& run(const root_paths& drawn, const TargetT& target, const DraftT& draft) {
    known_.clear();
    questions_.clear();
    for_each_branching(drawn, [&](int, int, int, int, const groups& found) {
      for (std::size_t i = 0; i < found.n; ++i)
        ask(found.of[i]);
    });
    answers_.resize(questions_.size() * verifiers_.size());
    share_out(team_, answers_.size(), [&](std::size_t, std::size_t i) {
      const group& asked = questions_[i / verifiers_.size()];
      const std::vector<double> found = verifiers_[i % verifiers_.size()].branching(
          target(asked.node), draft(asked.node), std::span(asked.list).first(asked.n));
      std::copy(found.begin(), found.end(), answers_[i].begin());
    });
    results_ = {};
    results_.efficiency.assign(verifiers_.size() * n_actions, 0.0);
    count(drawn);
    for (std::size_t v = 0; v < verifiers_.size(); ++v)
      add_up(drawn, target, draft, v);
    return results_;
  }

 private:
  // The paths that end at one node, and the tokens that they draw there.
  struct group {
    espalier::node_id node = 0;
    std::size_t n = 0;
    std::array<std::size_t, most_paths> path{};
    std::array<espalier::token_id, most_paths> list{};

    // True if path i draws a token that no path before it draws.
    bool is_first(std::size_t i) const {
      return std::find(list.begin(), list.begin() + i, list[i]) == list.begin() + i;
    }
    int different() const {
      int n_different = 0;
      for (std::size_t i = 0; i < n; ++i)
        n_different += is_first(i) ? 1 : 0;
      return n_different;
    }
  };
  struct groups {
    std::size_t n = 0;
    std::array<group, most_paths> of{};
  };
  using branching = std::array<double, most_paths>;
  using key = std::array<std::int32_t, most_paths + 2>;

  // Calls f(sample, paths, trunk, step, groups of these paths), for two paths and more.
  template <class FunctionT>
  static void for_each_branching(const root_paths& drawn, const FunctionT& f) {
    for (int sample = 0; sample < drawn.samples(); ++sample) {
      for (int paths = 2; paths <= most_paths; ++paths) {
        for (int trunk = 0; trunk <= most_trunk; ++trunk) {
          for (int step = 0; step < most_length; ++step)
            f(sample, paths, trunk, step, groups_of(drawn, sample, paths, trunk, step));
        }
      }
    }
  }

  static groups groups_of(const root_paths& drawn, int sample, int paths, int trunk, int step) {
    groups found;
    for (int path = 0; path < paths; ++path) {
      const espalier::node_id u = drawn.node(sample, trunk, path, step);
      std::size_t i = 0;
      while (i < found.n && found.of[i].node != u)
        ++i;
      if (i == found.n) found.of[found.n++].node = u;
      group& g = found.of[i];
      g.path[g.n] = static_cast<std::size_t>(path);
      g.list[g.n++] = drawn.token(sample, trunk, path, step);
    }
    return found;
  }

  static key key_of(const group& g) {
    key k{g.node, static_cast<std::int32_t>(g.n)};
    std::copy_n(g.list.begin(), g.n, k.begin() + 2);
    return k;
  }

  void ask(const group& g) {
    if (g.n > 1 && known_.emplace(key_of(g), questions_.size()).second) questions_.push_back(g);
  }

  static std::size_t number(const espalier::delayed_options& action) {
    return static_cast<std::size_t>(espalier::delayed_action::number(action));
  }

  double& efficiency(std::size_t verifier, int paths, int trunk, int length) {
    return results_.efficiency[verifier * n_actions + number({paths, trunk, length})];
  }

  void count(const root_paths& drawn) {
    const double share = 1.0 / drawn.samples();
    const auto add = [&](int paths, int trunk, int length, int nodes, int rows) {
      const std::size_t action = number({paths, trunk, length});
      results_.nodes[action] += share * nodes;
      if (trunk + length > 0) results_.draft_rows[action] += share * rows / (trunk + length);
    };
    for (int sample = 0; sample < drawn.samples(); ++sample) {
      for (int paths = 1; paths <= most_paths; ++paths) {
        for (int trunk = 0; trunk <= most_trunk; ++trunk) {
          int nodes = trunk, rows = trunk;
          add(paths, trunk, 0, nodes, rows);
          for (int step = 0; step < most_length; ++step) {
            const groups found = groups_of(drawn, sample, paths, trunk, step);
            rows += static_cast<int>(found.n);
            for (std::size_t i = 0; i < found.n; ++i)
              nodes += found.of[i].different();
            add(paths, trunk, step + 1, nodes, rows);
          }
        }
      }
    }
  }

  template <class TargetT, class DraftT>
  void add_up(const root_paths& drawn, const TargetT& target, const DraftT& draft, std::size_t verifier) {
    const double share = 1.0 / drawn.samples();
    const auto single = [&](espalier::node_id u, espalier::token_id x) {
      return verifiers_[verifier].single(target(u), draft(u), x);
    };
    // By depth of the main path: the probability to reach it, and the sum of these up to there.
    std::array<double, root_paths::deepest + 1> reached{}, total{};
    std::array<double, most_paths> at{};  // probability of the node at which each path ends
    double sum = 0;
    for (int sample = 0; sample < drawn.samples(); ++sample) {
      reached[0] = total[0] = 1;
      for (int depth = 0; depth < root_paths::deepest; ++depth) {
        const auto d = static_cast<std::size_t>(depth);
        const int trunk = std::min(depth, most_trunk);
        const espalier::node_id u = drawn.node(sample, trunk, 0, depth - trunk);
        reached[d + 1] = reached[d] * single(u, drawn.token(sample, trunk, 0, depth - trunk));
        total[d + 1] = total[d] + reached[d + 1];
      }
      for (int trunk = 0; trunk <= most_trunk; ++trunk) {
        const auto t = static_cast<std::size_t>(trunk);
        for (int length = 0; length <= most_length; ++length)
          efficiency(verifier, 1, trunk, length) += share * total[t + static_cast<std::size_t>(length)];
        for (int paths = 2; paths <= most_paths; ++paths) {
          at.fill(reached[t]);
          sum = total[t];
          efficiency(verifier, paths, trunk, 0) += share * sum;
          for (int step = 0; step < most_length; ++step) {
            const groups found = groups_of(drawn, sample, paths, trunk, step);
            for (std::size_t i = 0; i < found.n; ++i) {
              const group& g = found.of[i];
              const double here = at[g.path[0]];
              const branching probability =
                  g.n == 1 ? branching{single(g.node, g.list[0])}
                           : answers_[known_.find(key_of(g))->second * verifiers_.size() + verifier];
              for (std::size_t j = 0; j < g.n; ++j) {
                at[g.path[j]] = here * probability[j];
                if (g.is_first(j)) sum += at[g.path[j]];
              }
            }
            efficiency(verifier, paths, trunk, step + 1) += share * sum;
          }
        }
      }
    }
  }

  root_results results_;
  std::vector<ot_verifier> verifiers_;
  espalier::thread_team& team_;
  std::map<key, std::size_t> known_;  // by node, number of draws and draws: index of the answers
  std::vector<group> questions_;
  std::vector<branching> answers_;  // [questions][verifiers]
};

}  // namespace nde
