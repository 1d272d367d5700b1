// SPDX-License-Identifier: BSL-1.0
// Tested by tests/testing/lossless.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/testing/tiny_model.hpp"

namespace espalier::testing {

//! The largest difference that checks allow in the probability of a text, if rows are of this type: 1e-12; 1e-5 if
//! this type, or wide_number, has less precision than double.
template <class NumberT>
inline constexpr double default_tolerance = sizeof(NumberT) < sizeof(double) || sizeof(wide_number) < sizeof(double)
                                                ? 1e-5
                                                : 1e-12;

//! Texts with their probabilities.
using text_distribution = std::map<std::vector<token_id>, double>;

//! Adds to `sum` the probabilities of the texts of n tokens that begin with `text`. `probability` is that of `text`;
//! each further token is drawn from row(text so far). A `text` of more than n tokens is cut.
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

//! The total variation of two distributions: the greatest difference of the probabilities of a set of texts.
inline double total_variation(const text_distribution& a, const text_distribution& b) {
  double sum = 0;
  const auto probability = [](const text_distribution& in, const std::vector<token_id>& text) {
    const auto found = in.find(text);
    return found == in.end() ? 0.0 : found->second;
  };
  for (const auto& [text, p] : a)
    sum += std::abs(p - probability(b, text));
  for (const auto& [text, p] : b) {
    if (a.find(text) == a.end()) sum += p;
  }
  return sum / 2;
}

namespace detail {

// Compares the texts that a round emits with the target, token by token.
template <class RowT, class SeeT>
class emitted_texts {
  using iterator = text_distribution::const_iterator;

 public:
  emitted_texts(RowT& row, SeeT& see) : row_(row), see_(see) {}

  // Compares the texts [first, last), which begin with text_. `written` is the probability that a written text begins
  // with text_; the part `continued` of it comes from shorter emitted texts that the target continues. `expected` is
  // the target's probability of text_.
  void compare(iterator first, iterator last, double written, double continued, double expected) {
    see_(text_, written, expected);
    const std::size_t n = text_.size();
    if (first != last && first->first.size() == n) continued += (first++)->second;
    if (first == last) return;
    const auto row = row_(text_);
    for (std::size_t t = 0; t < row.size(); ++t) {
      const auto token = static_cast<token_id>(t);
      const iterator end = std::find_if(first, last, [&](const auto& entry) { return entry.first[n] > token; });
      double emitted = 0;
      for (iterator i = first; i != end; ++i)
        emitted += i->second;
      text_.push_back(token);
      compare(first, end, emitted + continued * row[t], continued * row[t], expected * row[t]);
      text_.pop_back();
      first = end;
    }
    if (first != last) see_(first->first, 1.0, 0.0);  // a token outside the vocabulary
  }

 private:
  RowT& row_;
  SeeT& see_;
  std::vector<token_id> text_;
};

inline std::string in_words(const std::vector<token_id>& text) {
  std::string words;
  for (const token_id t : text)
    words += (words.empty() ? "" : " ") + std::to_string(t);
  return words;
}

// Returns the hint that a difference of probabilities may come from rounding; empty if it is too large for that.
inline const char* hint_of_rounding(double difference) {
  return difference < 1e-5 ? " So small a difference may be rounding: if a part computes in float, give the check a "
                             "larger tolerance."
                           : "";
}

}  // namespace detail

//! The text, of any length, whose probability differs the most between two ways to write it: by the target alone, whose
//! rows are row(text so far); and by emitting a text with the given probabilities, which the target then continues. No
//! difference means that a text is distributed as the target alone writes it, however long it becomes.
//!
//! Complexity  O(number of different prefixes of the emitted texts * vocabulary)
template <class RowT>
text_difference largest_difference_from(const text_distribution& emitted, const RowT& row) {
  text_difference largest;
  double total = 0;
  for (const auto& entry : emitted)
    total += entry.second;
  const auto see = [&](const std::vector<token_id>& text, double written, double expected) {
    if (!(std::abs(written - expected) <= largest.size())) largest = {text, written, expected};
  };
  detail::emitted_texts<const RowT, const decltype(see)>(row, see).compare(emitted.begin(), emitted.end(), total, 0, 1);
  return largest;
}

}  // namespace espalier::testing
