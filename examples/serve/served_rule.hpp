// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "../models/text_rule.hpp"
#include "espalier/concepts/constraint.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace serve {

//! Error: a rule takes more time or memory than it may. The sentence says which.
struct rule_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! A compiled rule. Whoever uses its automaton holds `mutex`.
struct kept_rule {
  explicit kept_rule(models::text_rule compiled) : rule(std::move(compiled)), start(rule.start()) {}

  std::mutex mutex;
  models::text_rule rule;
  const models::text_rule::state_type start;
  std::atomic<std::size_t> bytes = 0;    // when it was last used by a thread of the keeper
  std::atomic<std::int64_t> turn = 0;    // of its last use: greater ones are later
  std::atomic<std::int32_t> n_uses = 0;  // by requests that have not ended
};

//! The use of a rule by the texts of one request. The thread that writes looks up what is known, and spends a few steps
//! a round on what is not; the rest is found out on the threads of a rule_keeper.
class rule_use {
 public:
  static constexpr std::int64_t steps_of_round = 1 << 15;  //!< 0.2 ms or so

  //! `bytes`: how many the rule may take. `steps`: how many the writing thread spends in a round.
  rule_use(std::shared_ptr<kept_rule> rule, std::size_t bytes, std::int64_t steps = steps_of_round)
      : rule_(std::move(rule)), bytes_(bytes), steps_of_round_(steps), steps_left_(steps) {
    ++rule_->n_uses;
  }
  rule_use(const rule_use&) = delete;
  ~rule_use() { end(); }

  //! The texts have ended: the rule is not needed any more. Called by any thread, more than once, too.
  void end() {
    const std::lock_guard lock(mutex_);
    if (rule_) --rule_->n_uses;
    rule_.reset();
  }
  //! The rule; none once the texts have ended.
  std::shared_ptr<kept_rule> rule() const {
    const std::lock_guard lock(mutex_);
    return rule_;
  }
  std::size_t max_bytes() const { return bytes_; }

  //! Allows the writing thread the steps of another round.
  void begin_round() { steps_left_ = steps_of_round_; }

  //! Calls f(automaton) if the automaton is free and the steps of this round suffice. Returns whether f has come to its
  //! end. For the writing thread.
  template <class FunctionT>
  bool try_now(const FunctionT& f) {
    const std::shared_ptr<kept_rule> kept = rule();
    if (!kept || steps_left_ <= 0) return false;
    const std::unique_lock lock(kept->mutex, std::try_to_lock);
    if (!lock) return false;
    kept->rule.set_limits({.steps = steps_left_, .bytes = bytes_});
    bool is_done = true;
    try {
      f(kept->rule);
    } catch (const espalier::error&) {  // a thread of the keeper will say what is wrong, if it is not time alone
      is_done = false;
    }
    steps_left_ -= kept->rule.steps();
    return is_done;
  }

  double seconds_left = 0;  //!< of a processor; for the thread that holds the rule's mutex

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<kept_rule> rule_;
  const std::size_t bytes_;
  const std::int64_t steps_of_round_;
  std::int64_t steps_left_;
};

//! The Constraint of a rule that may take long. Where it is not known in time what may follow, allowed() throws a
//! mask_awaited: the text sits out until a rule_keeper has found out. The other members throw nothing.
class served_rule {
 public:
  //! The state after the tokens that the automaton has read, and tokens that it has still to read.
  struct state_type {
    models::text_rule::state_type read{};
    std::vector<espalier::token_id> unread{};
  };

  explicit served_rule(std::shared_ptr<rule_use> use) : use_(std::move(use)) {
    if (const auto kept = use_->rule()) start_ = kept->start;
  }

  const std::shared_ptr<rule_use>& use() const { return use_; }

  state_type start() const { return {start_}; }

  state_type advance(const state_type& state, espalier::token_id token) {
    state_type next = state;
    next.unread.push_back(token);
    use_->try_now([&](models::text_rule& rule) { read(rule, next); });
    return next;
  }

  //! Errors      mask_awaited
  std::span<const std::uint32_t> allowed(const state_type& state);

  std::optional<espalier::token_id> prescribed(const state_type& state) {
    std::optional<espalier::token_id> token;
    use_->try_now([&](models::text_rule& rule) {
      state_type now = state;
      read(rule, now);
      token = rule.prescribed(now.read);
    });
    return token;
  }

  //! Makes the automaton read the tokens that it has not read.
  static void read(models::text_rule& rule, state_type& state) {
    std::size_t n = 0;
    auto read = state.read;
    for (; n < state.unread.size(); ++n)
      read = rule.advance(read, state.unread[n]);
    state.read = read;
    state.unread.clear();
  }

 private:
  std::shared_ptr<rule_use> use_;
  models::text_rule::state_type start_{};
  std::vector<std::uint32_t> mask_;  // the last one that was asked for
};

//! Error: what may follow a state of a rule is not known yet.
struct mask_awaited : std::runtime_error {
  mask_awaited(std::shared_ptr<rule_use> of, served_rule::state_type state)
      : std::runtime_error("a rule takes long to find out what may be written next."),
        use(std::move(of)),
        after(std::move(state)) {}

  std::shared_ptr<rule_use> use;
  served_rule::state_type after;
};

inline std::span<const std::uint32_t> served_rule::allowed(const state_type& state) {
  const bool is_known = use_->try_now([&](models::text_rule& rule) {
    state_type now = state;
    read(rule, now);
    const auto mask = rule.allowed(now.read);
    mask_.assign(mask.begin(), mask.end());
  });
  if (!is_known) throw mask_awaited(use_, state);
  return mask_;
}

static_assert(espalier::PrescribingConstraint<served_rule>);

}  // namespace serve
