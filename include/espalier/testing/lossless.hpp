// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/tiny_model.hpp"

namespace espalier::testing {

//! Texts with their probabilities.
using text_distribution = std::map<std::vector<token_id>, double>;

//! Adds to `sum` the probabilities of the texts of n tokens that begin with `text`, whose probability is given, and
//! continue by row(text so far). A `text` of more than n tokens is cut.
inline void continue_with(const tiny_model::row_function& row, std::vector<token_id> text, double probability,
                          std::size_t n, text_distribution& sum) {
  if (text.size() >= n) {
    text.resize(n);
    sum[text] += probability;
    return;
  }
  const std::vector<double> next = row(text);
  for (std::size_t t = 0; t < next.size(); ++t) {
    if (next[t] == 0) continue;
    text.push_back(static_cast<token_id>(t));
    continue_with(row, text, probability * next[t], n, sum);
    text.pop_back();
  }
}

//! The text on which two distributions differ the most.
struct text_difference {
  std::vector<token_id> text;
  double first = 0, second = 0;  //!< probability of the text in each distribution

  //! The difference of the probabilities; 1 if it is NaN.
  double size() const {
    const double d = std::abs(first - second);
    return std::isnan(d) ? 1.0 : d;
  }
};

inline text_difference largest_difference(const text_distribution& a, const text_distribution& b) {
  text_difference largest;
  const auto probability = [](const text_distribution& in, const std::vector<token_id>& text) {
    const auto found = in.find(text);
    return found == in.end() ? 0.0 : found->second;
  };
  const auto look_at = [&](const std::vector<token_id>& text) {
    const text_difference here{text, probability(a, text), probability(b, text)};
    if (here.size() > largest.size()) largest = here;
  };
  for (const auto& entry : a)
    look_at(entry.first);
  for (const auto& entry : b)
    look_at(entry.first);
  return largest;
}

namespace detail {

// The target's rows of a round, found by node.
template <class NumberT>
struct target_rows {
  std::vector<std::vector<NumberT>> rows;
  std::span<const NumberT> row(node_id u) const { return rows[static_cast<std::size_t>(u)]; }
  token_id argmax(node_id u) const {
    const auto r = row(u);
    return static_cast<token_id>(std::max_element(r.begin(), r.end()) - r.begin());
  }
};

inline std::string in_words(const std::vector<token_id>& text) {
  std::string words;
  for (const token_id t : text)
    words += (words.empty() ? "" : " ") + std::to_string(t);
  return words;
}

}  // namespace detail

//! Options of check_lossless().
struct lossless_options {
  std::size_t n_tokens = 4;                //!< number of tokens of the texts that are compared
  double tolerance = 1e-12;                //!< largest difference allowed in the probability of a text
  std::int64_t max_outcomes = 20'000'000;  //!< largest number of outcomes allowed for one round over one model
};

//! The numbers that check_lossless() returns.
struct lossless_report {
  std::int64_t n_outcomes = 0;    //!< number of outcomes of drafting and verifying, over all models together
  double largest_difference = 0;  //!< largest difference found in the probability of a text
};

//! The texts that one round emits, with their probabilities, over every tree that the policy grows and every verdict on
//! it. Adds the number of outcomes to report.n_outcomes.
//!
//! Complexity  the number of outcomes, exponential in the tree's draws: a budget of about 6 nodes is plenty
//! Errors      option_error beyond max_outcomes; law_error if the policy asks out of order, or the verifier accepts a
//!             node that is not in the tree or adds a token outside the vocabulary
template <class NumberT = double, class PolicyT, class VerifierT>
text_distribution round_distribution(const tiny_model& model, const PolicyT& policy, VerifierT verifier,
                                     lossless_report& report,
                                     std::int64_t max_outcomes = lossless_options().max_outcomes) {
  text_distribution emitted;
  enumerating_chance chance;
  basic_row_drafter<NumberT> drafter(model.vocab,
                                     [&](std::span<const token_id> path) { return model.draft(path.subspan(1)); });
  drafter.reserve(most_asked(policy));
  tree<> tree(most_asked(policy));
  reserve_verifier(verifier, policy.max_nodes(), model.vocab);
  std::int64_t n = 0;
  do {
    if (++n > max_outcomes) {
      raise<option_error>("a round has more than ", max_outcomes, " outcomes over the tiny model \"", model.name,
                          "\": give the policy a budget of a few nodes.");
    }
    PolicyT fresh = policy;
    tree.reset(0);
    grow(fresh, tree, drafter, chance);
    const tree_view view = tree;
    detail::target_rows<NumberT> target;
    std::vector<token_id> path;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      path.clear();
      for (node_id a = u; a != root_node; a = view.parent[a])
        path.insert(path.begin(), view.token[a]);
      const std::vector<double> row = model.target(path);
      std::vector<NumberT>& kept = target.rows.emplace_back(row.size());
      std::transform(row.begin(), row.end(), kept.begin(), [](double p) { return static_cast<NumberT>(p); });
    }
    const verdict v = verifier.verify(view, drafter.rows(), target, chance);
    require_law(v.accepted >= 0 && v.accepted < view.n_nodes && v.token >= 0 && v.token < model.vocab,
                "the verifier accepts node ", v.accepted, " and adds token ", v.token, "; the tree has ", view.n_nodes,
                " nodes and the vocabulary ", model.vocab, " tokens.");
    std::vector<token_id> text{v.token};
    for (node_id a = v.accepted; a != root_node; a = view.parent[a])
      text.insert(text.begin(), view.token[a]);
    emitted[text] += chance.probability();
  } while (chance.next());
  report.n_outcomes += n;
  return emitted;
}

//! The largest difference between two distributions of the first n_tokens tokens: that of the target, and that of texts
//! that one round begins and the target continues. The report takes up the difference and the number of outcomes.
template <class NumberT = double, class PolicyT, class VerifierT>
text_difference round_difference(const tiny_model& model, const PolicyT& policy, const VerifierT& verifier,
                                 lossless_report& report, const lossless_options& options = {}) {
  text_distribution expected, written;
  continue_with(model.target, {}, 1.0, options.n_tokens, expected);
  for (const auto& [text, probability] :
       round_distribution<NumberT>(model, policy, verifier, report, options.max_outcomes))
    continue_with(model.target, text, probability, options.n_tokens, written);
  const text_difference off = largest_difference(written, expected);
  report.largest_difference = (std::max)(report.largest_difference, off.size());
  return off;
}

//! Proves a pair of policy and verifier lossless over the tiny models: every outcome of a round is run, and the emitted
//! texts must be distributed as the target alone writes them. A verifier that is for temperature 0 alone
//! (ArgmaxVerifier) must write the target's argmax. NumberT is the type of the rows, float or double; float rows, or a
//! wide_number of float, need a larger tolerance.
//!
//!     testing::check_lossless(my_policy({.budget = 4}), specinfer());
//!
//! Complexity  the number of outcomes, exponential in the tree's draws: a budget of about 6 nodes is plenty
//! Errors      law_error that names the model, the text whose probability differs the most, and both its probabilities;
//!             the errors of round_distribution()
//! Source      docs/algorithms/verifiers.md
template <class NumberT = double, class PolicyT, class VerifierT>
lossless_report check_lossless(const PolicyT& policy, const VerifierT& verifier, const lossless_options& options = {}) {
  static_assert(compatible(PolicyT::sampling, VerifierT::lossless),
                "the verifier is not lossless for trees of the policy's regime; see concepts/regime.hpp");
  lossless_report report;
  for (tiny_model model : tiny_models()) {
    if constexpr (ArgmaxVerifier<VerifierT>) model.target = argmax_only(model.target);
    const text_difference off = round_difference<NumberT>(model, policy, verifier, report, options);
    require_law(off.size() <= options.tolerance, "the pair is not lossless. Over the tiny model \"", model.name,
                "\" it writes the tokens ", detail::in_words(off.text), " with probability ", off.first,
                "; the target alone writes them with ", off.second,
                ". Is the policy's regime, or the one that the verifier is lossless for, what it says?");
  }
  return report;
}

}  // namespace espalier::testing
