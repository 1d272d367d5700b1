// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <tuple>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/verifier/khisti/pair_select.hpp"
#include "espalier/verifier/khisti/pair_select_view.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! The options of khisti.
struct khisti_options {
  std::int32_t window = 5;  //!< number of tokens, in each stage, whose pairs are shared to cover most of the target

  static constexpr void describe(auto see) {
    see(option{"window", &khisti_options::window, "tokens among which pairs are shared to the best effect", 0,
               detail::window_flow::max_size});
  }
};

//! Lets the draws of a node compete: the winner so far against the next draw, again and again. Winners are chosen so
//! that their distribution comes close to the target's. The last winner is tested as naive_tree tests a draw, with the
//! winner's distribution in place of the draft's.
//!
//! Complexity  a node: for each draw after the first, one pass over p, q and the winner's distribution, one over the
//!             latter two, and one that writes the next distribution; one over p and the distribution if the last
//!             winner fails. No allocation after reserve()
//! Law         lossless for independent draws; with one draw it is naive_tree
//! Errors      option_error for options out of range; numeric_error for rows that are no distributions; input_error for
//!             draft rows that are missing or of another length than the target's, and for a tree that these rows could
//!             not have given
//! Source      Khisti et al., Multi-draft speculative sampling, section 4 and appendix I; Delayed tree expansion,
//!             Algorithm 5. Above 1024 tokens the ranks are rounded instead of sorted (docs/algorithms/verifiers.md)
class khisti {
 public:
  static constexpr regime lossless = regime::iid | regime::single_path;

  //! The memory in which stages keep distributions, for rows of this number type.
  template <class NumberT>
  using stage_memory = detail::pair_select_memory<NumberT>;

  explicit khisti(khisti_options options = {}) : options_(require_options(options)) {}

  //! Takes the memory for rows of `vocab` tokens, float or double.
  void reserve(std::int32_t, std::int32_t vocab) {
    std::get<0>(stages_).reserve(static_cast<std::size_t>(vocab));
    std::get<1>(stages_).reserve(static_cast<std::size_t>(vocab));
  }

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) {
    using number = detail::term_type<decltype(detail::known_row(draft, root_node))>;
    return verify(tree, draft, target, chance, options_, std::get<detail::pair_select<number>>(stages_));
  }

  //! Verifies with memory that the caller provides: a stage_memory.
  template <class DraftRowsT, class TargetRowsT, class ChanceT, class StagesT>
  ESPALIER_HOST_DEVICE static verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                             ChanceT& chance, const khisti_options& options, StagesT&& stages) {
    return detail::walk_rows(tree, draft, target, chance, [&](node_id u, auto p, auto q) {
      return choose(tree, u, p, q, chance, options, memory_of(stages, p.size()));
    });
  }

  const khisti_options& options() const { return options_; }

 private:
  // The memory for rows of `vocab` tokens: on the host it grows if need be; on the device it was made for this length.
  ESPALIER_EXEC_CHECK_DISABLE
  template <class StagesT>
  ESPALIER_HOST_DEVICE static auto memory_of(StagesT& stages, std::size_t vocab) {
    if constexpr (requires { stages.memory(vocab); }) {
      return stages.memory(vocab);
    } else {
      return stages;
    }
  }

  template <class TargetRowT, class DraftRowT, class ChanceT, class NumberT>
  ESPALIER_HOST_DEVICE static token_id choose(tree_view tree, node_id u, const TargetRowT& p, const DraftRowT& q,
                                              ChanceT& chance, const khisti_options& options,
                                              const detail::pair_select_memory<NumberT>& memory) {
    detail::pair_select_view stage(memory);
    auto draw = tree.draws(u).begin();
    std::size_t winner = detail::drawn_token(tree, *draw, q);
    DraftRowT of_winner = q;
    std::int32_t turn = 0;
    while (++draw != tree.draws(u).end()) {
      const std::size_t next = detail::drawn_token(tree, *draw, q);
      of_winner = DraftRowT(stage.solve(p, of_winner, q, options.window, turn), q.size(), q.team());
      if (next != winner) {
        const auto shares = stage.shares(winner, next);
        if (!chance.accept(shares.x, shares.x + shares.y, {u, turn, purpose::select})) winner = next;
      }
      ++turn;
    }
    const auto pw = static_cast<double>(p[winner]);
    if (chance.accept(pw, static_cast<double>(of_winner[winner]), {u, 0, purpose::accept}))
      return static_cast<token_id>(winner);
    return detail::pick_left(residual(p, of_winner).after(1), p, u, chance);
  }

  khisti_options options_;
  std::tuple<detail::pair_select<float>, detail::pair_select<double>> stages_;
};

}  // namespace espalier
