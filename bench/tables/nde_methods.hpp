// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/cost/cost_model.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/selector/delayed_action.hpp"
#include "espalier/selector/delayed_selector.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "espalier/selector/selector_features.hpp"
#include "sampled_verifiers.hpp"
#include "static_tree.hpp"
#include "text_writer.hpp"

namespace bench {

//! The choices of a verifier's selector, and the time that they took by the clock, also where texts are priced.
struct selector_record {
  std::array<std::int64_t, espalier::delayed_action::count> actions{};  //!< rounds by action; rounds without a choice
                                                                        //!< are not counted
  std::int64_t rounds = 0;                                              //!< all rounds, also those in which the
                                                                        //!< selector was not asked
  double choosing = 0;                                                  //!< seconds in the network
  double reading = 0;    //!< seconds in reading the target's row and state
  double comparing = 0;  //!< seconds in entropies and divergences
  double total = 0;      //!< seconds of the texts, their prompts included

  std::int64_t chosen() const {
    std::int64_t sum = 0;
    for (const std::int64_t n : actions)
      sum += n;
    return sum;
  }
  double share() const { return total > 0 ? (choosing + reading + comparing) / total : 0; }

  selector_record& operator+=(const selector_record& other) {
    for (std::size_t i = 0; i < actions.size(); ++i)
      actions[i] += other.actions[i];
    rounds += other.rounds;
    choosing += other.choosing, reading += other.reading, comparing += other.comparing, total += other.total;
    return *this;
  }
};

namespace detail {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace detail

//! A selector that notes the time it takes.
class timed_selector {
 public:
  timed_selector(espalier::delayed_selector selector, selector_record& record)
      : selector_(std::move(selector)), record_(&record) {}

  std::int32_t target_hidden_size() const { return selector_.target_hidden_size(); }
  std::int32_t draft_hidden_size() const { return selector_.draft_hidden_size(); }

  std::int32_t choose(const espalier::selector_features& features) {
    const auto start = std::chrono::steady_clock::now();
    const std::int32_t action = selector_.choose(features);
    record_->choosing += detail::seconds_since(start);
    return action;
  }

 private:
  espalier::delayed_selector selector_;
  selector_record* record_;
};

//! neural_delayed, with the time that its reading and its selector take.
class timed_neural_delayed : public espalier::neural_delayed<timed_selector> {
 public:
  timed_neural_delayed(static_tree first, espalier::delayed_selector selector, const espalier::cost_model& costs,
                       selector_record& record)
      : neural_delayed({first.paths, first.trunk, first.length}, timed_selector(std::move(selector), record), costs),
        record_(&record) {}

  template <class NumberT>
  void read(std::span<const NumberT> logits, std::span<const float> hidden) {
    const auto start = std::chrono::steady_clock::now();
    neural_delayed::read(logits, hidden);
    record_->reading += detail::seconds_since(start);
  }

 private:
  selector_record* record_;
};

//! Seconds that the entropies and divergences of a round take, measured apart from it: the median of many measurements.
inline double seconds_of_divergences(std::size_t vocab) {
  std::vector<float> rows[3];
  for (std::size_t r = 0; r < 3; ++r) {
    rows[r].resize(vocab);
    double sum = 0;
    for (std::size_t t = 0; t < vocab; ++t)
      sum += rows[r][t] = 1.0F / static_cast<float>(1 + (t * (2 * r + 7)) % vocab);
    for (float& p : rows[r])
      p = static_cast<float>(p / sum);
  }
  espalier::selector_features features;
  std::vector<double> times;
  for (int i = 0; i < 201; ++i) {
    const auto start = std::chrono::steady_clock::now();
    features.set_divergences(std::span<const float>(rows[0]), std::span<const float>(rows[1]),
                             std::span<const float>(rows[2]));
    times.push_back(detail::seconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + 100, times.end());
  return times[100];
}

//! Writes a text with a selector's trees.
template <class PartT>
espalier::statistics write_neurally(text_writer& writer, const PartT& verifier, timed_neural_delayed& policy,
                                    selector_record& record, std::span<const espalier::token_id> prompt,
                                    const text_options& how) {
  const auto note = [&](const espalier::round_record&) {
    if (policy.chosen()) ++record.actions[static_cast<std::size_t>(espalier::delayed_action::number(policy.action()))];
    ++record.rounds;
  };
  auto drafter = writer.draft(how.decoding.text.sampling);
  const auto start = std::chrono::steady_clock::now();
  const espalier::statistics stats = writer.write(drafter, policy, verifier.make(), prompt, how, note).stats;
  record.total += detail::seconds_since(start);
  return stats;
}

}  // namespace bench
