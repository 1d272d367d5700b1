// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/decoder/round.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/target_only.hpp"
#include "text_writer.hpp"

namespace bench {

//! A drafter, a policy and a verifier, for whole texts.
struct block_method {
  std::string settings;
  std::function<espalier::statistics(text_writer&, std::span<const espalier::token_id>, const text_options&,
                                     const round_watcher&)>
      write;
};

//! The method of these parts. make_drafter(writer, options) gives a new drafter for each text. At temperature 0 the
//! verifier is the greedy one.
template <class MakeDrafterT, class PolicyT, class VerifierT>
block_method block_method_of(std::string settings, MakeDrafterT make_drafter, PolicyT policy, VerifierT verifier) {
  return {std::move(settings),
          [make_drafter, policy, verifier](text_writer& writer, std::span<const espalier::token_id> prompt,
                                           const text_options& how, const round_watcher& watch) mutable {
            if (how.decoding.text.sampling.temperature == 0.0F)
              return writer.write(make_drafter(writer, how), policy, espalier::greedy(), prompt, how, watch).stats;
            return writer.write(make_drafter(writer, how), policy, verifier, prompt, how, watch).stats;
          }};
}

//! The rows of the tables. Only the last two methods draw their tokens; the trees of the others do not depend on chance,
//! so that the target draws from its own rows.
enum ddtree_row : std::size_t {
  plain_row,
  whole_chain_row,
  best_chain_row,
  best_tree_row,
  equal_tree_row,
  large_tree_row,
  sharp_best_row,
  sharp_equal_row,
  draft_chain_row,
  opt_tree_row,
  dynatree_row,
  drawn_tree_row,
  drawn_chain_row,
  n_ddtree_rows
};
inline constexpr const char* ddtree_row_names[] = {"plain",
                                                   "block draft: chain, whole block (DFlash)",
                                                   "block draft: chain of the best length",
                                                   "block draft: best-first (DDTree), best budget",
                                                   "block draft: best-first (DDTree), as many nodes",
                                                   "block draft: best-first (DDTree), 64 nodes",
                                                   "block draft: best-first, marginals at a temperature",
                                                   "block draft: the same, as many nodes",
                                                   "smaller model: chain of the best length",
                                                   "smaller model: best-first (OPT-Tree), best budget",
                                                   "smaller model: DynaTree",
                                                   "block draft: DySpec's greedy tree, best budget",
                                                   "block draft: drawn chain, whole block (DFlash from 0.1.0 on)"};

//! A budget and a temperature of the marginals as one setting.
struct sharp_setting {
  int budget;
  int percent;

  static sharp_setting of(int setting) { return {setting / 1000, setting % 1000}; }
  int number() const { return budget * 1000 + percent; }
};

//! Makes the methods of the rows.
class ddtree_methods {
 public:
  explicit ddtree_methods(int block_length) : block_length_(block_length) {}

  int block_length() const { return block_length_; }

  //! The method of a row; `setting` is a length or a budget, if the method has one.
  block_method make(std::size_t row, int setting) const {
    const auto block = [](text_writer& writer, const text_options&) { return writer.block(); };
    const auto draft = [](text_writer& writer, const text_options&) { return writer.draft(); };
    const espalier::target_only verifier;
    const std::string text = std::to_string(setting);
    switch (row) {
      case whole_chain_row:
      case best_chain_row:
        return block_method_of(text, block, espalier::chain({.length = setting}), verifier);
      case best_tree_row:
      case equal_tree_row:
      case large_tree_row:
        return block_method_of(text, block, espalier::best_first({.budget = setting}), verifier);
      case sharp_best_row:
      case sharp_equal_row: {
        const sharp_setting sharp = sharp_setting::of(setting);
        return block_method_of(
            text,
            [sharp](text_writer& writer, const text_options&) {
              return espalier::factorised(writer.block(), {.temperature = static_cast<float>(sharp.percent) / 100});
            },
            espalier::best_first({.budget = sharp.budget, .max_depth = block_length()}), verifier);
      }
      case draft_chain_row:
        return block_method_of(text, draft, espalier::chain({.length = setting}), verifier);
      case opt_tree_row:
        return block_method_of(text, draft, espalier::best_first({.budget = setting}), verifier);
      case dynatree_row:
        return block_method_of("as bench_tables_dynatree chooses", draft, dynatree(), verifier);
      case drawn_tree_row:
        // DySpec's draft temperature, if the target's is 0.
        return block_method_of(
            text,
            [](text_writer& writer, const text_options& how) {
              const float temperature = std::max(how.decoding.text.sampling.temperature, 0.6F);
              return espalier::factorised(writer.block(), {.temperature = temperature});
            },
            espalier::dyspec_greedy({.budget = setting}), espalier::residual_walk());
      case drawn_chain_row:
        // The package draws the block as the target samples, and tests the draws; at temperature 0 it is the chain.
        return block_method_of(
            text,
            [](text_writer& writer, const text_options& how) {
              return espalier::factorised(writer.block(), how.decoding.text.sampling);
            },
            espalier::sampled_chain({.length = setting}), espalier::naive());
      default:
        return block_method_of(
            "", [](text_writer&, const text_options&) { return espalier::no_drafter(); }, espalier::plain(), verifier);
    }
  }

  //! The settings of a row that are tried, in rising order.
  std::vector<int> settings(std::size_t row) const {
    switch (row) {
      case whole_chain_row:
      case equal_tree_row:
      case drawn_chain_row:
        return {block_length()};
      case best_chain_row:
        return {1, 2, 3, 4, 5, 6, 8, 10, 12, 15};
      case best_tree_row:
        return {4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024};
      case large_tree_row:
        return {64};
      case sharp_best_row:
        return sharp_settings({6, 8, 12});
      case sharp_equal_row:
        return sharp_settings({block_length()});
      case draft_chain_row:
        return {2, 3, 4, 5, 6, 8};
      case opt_tree_row:
      case drawn_tree_row:
        return {4, 6, 8, 12, 16, 24, 32};
      default:
        return {0};
    }
  }

 private:
  static std::vector<int> sharp_settings(const std::vector<int>& budgets) {
    std::vector<int> list;
    for (const int budget : budgets) {
      for (const int percent : {30, 50, 70, 100})
        list.push_back(sharp_setting{budget, percent}.number());
    }
    return list;
  }

  static espalier::dynatree dynatree() {
    espalier::dynatree_options o;
    o.budget = 16;
    o.min_breadth = o.mid_breadth = o.max_breadth = 1;
    o.base_depth = o.max_depth = 16;
    o.prune_probability = o.stop_probability = o.deep_probability = 0.03;
    o.history = false;
    return espalier::dynatree(o);
  }

  int block_length_;
};

}  // namespace bench
