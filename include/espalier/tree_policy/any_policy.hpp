// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

//! Names the types of an answer, such as node_rows<float>, and of a Chance, which any_policy is to take together.
template <class AnswerT, class ChanceT>
struct takes {};

namespace detail {

// The part of any_policy's interface that takes the answers of one kind of drafter.
template <class TakesT>
class taking_policy;
template <class AnswerT, class ChanceT>
class taking_policy<takes<AnswerT, ChanceT>> {
 public:
  virtual std::span<const node_id> take(tree<>& tree, const AnswerT& answer, ChanceT& chance) = 0;
};

// The part of any_policy's interface that reads model states of one type of numbers.
template <class NumberT>
class reading_policy {
 public:
  virtual void read(std::span<const NumberT> logits, std::span<const float> hidden) = 0;
  virtual void read_draft(model_state<NumberT> root, model_state<NumberT> previous) = 0;
};

// The interface of a policy without its type.
template <class... TakesT>
class untyped_policy : public taking_policy<TakesT>..., public reading_policy<float>, public reading_policy<double> {
 public:
  virtual ~untyped_policy() = default;
  virtual std::unique_ptr<untyped_policy> copy() const = 0;
  virtual std::int32_t max_nodes() const = 0;
  virtual std::int32_t max_asked() const = 0;
  virtual std::span<const node_id> was() const = 0;
  virtual tree_limit limited_by() const = 0;
  virtual void open(const round_start& start) = 0;
  virtual void reset() = 0;
  virtual std::span<const node_id> begin(tree<>& tree) = 0;
  virtual void observe(tree_view tree, verdict v) = 0;
  virtual bool reads_states() const = 0;
  using taking_policy<TakesT>::take...;
  using reading_policy<float>::read, reading_policy<double>::read;
  using reading_policy<float>::read_draft, reading_policy<double>::read_draft;
};

// Adds take() of every kind of answer to a holder of a policy.
template <class PolicyT, class BaseT, class... TakesT>
class policy_holder : public BaseT {
 public:
  explicit policy_holder(PolicyT policy) : policy_(std::move(policy)) {}

 protected:
  PolicyT policy_;
};
template <class PolicyT, class BaseT, class AnswerT, class ChanceT, class... RestT>
class policy_holder<PolicyT, BaseT, takes<AnswerT, ChanceT>, RestT...>
    : public policy_holder<PolicyT, BaseT, RestT...> {
 public:
  using policy_holder<PolicyT, BaseT, RestT...>::policy_holder;
  using policy_holder<PolicyT, BaseT, RestT...>::take;

  std::span<const node_id> take(tree<>& tree, const AnswerT& answer, ChanceT& chance) override {
    if constexpr (TakesAnswer<PolicyT, AnswerT, ChanceT>) {
      return this->policy_.take(tree, answer, chance);
    } else {
      raise<option_error>("the policy cannot grow from this kind of drafter.");
    }
  }
};

// A policy behind the interface.
template <class PolicyT, class... TakesT>
class typed_policy final : public policy_holder<PolicyT, untyped_policy<TakesT...>, TakesT...> {
  using base = policy_holder<PolicyT, untyped_policy<TakesT...>, TakesT...>;
  using base::policy_;

 public:
  using base::base;

  std::unique_ptr<untyped_policy<TakesT...>> copy() const override { return std::make_unique<typed_policy>(policy_); }
  std::int32_t max_nodes() const override { return policy_.max_nodes(); }
  std::int32_t max_asked() const override { return most_asked(policy_); }
  std::span<const node_id> was() const override {
    if constexpr (RebuildingPolicy<PolicyT>) return policy_.was();
    return {};
  }
  tree_limit limited_by() const override {
    if constexpr (requires { policy_.limited_by(); }) return policy_.limited_by();
    return tree_limit::policy;
  }
  void open(const round_start& start) override {
    if constexpr (OpeningPolicy<PolicyT>) policy_.open(start);
  }
  void reset() override {
    if constexpr (ResettingPolicy<PolicyT>) policy_.reset();
  }
  std::span<const node_id> begin(tree<>& tree) override { return policy_.begin(tree); }
  void observe(tree_view tree, verdict v) override { policy_.observe(tree, v); }

  bool reads_states() const override {
    if constexpr (requires { policy_.reads_states(); }) return policy_.reads_states();
    return false;
  }
  void read(std::span<const float> logits, std::span<const float> hidden) override { read_states(logits, hidden); }
  void read(std::span<const double> logits, std::span<const float> hidden) override { read_states(logits, hidden); }
  void read_draft(model_state<float> root, model_state<float> previous) override { read_draft_states(root, previous); }
  void read_draft(model_state<double> root, model_state<double> previous) override {
    read_draft_states(root, previous);
  }

 private:
  template <class NumberT>
  void read_states(std::span<const NumberT> logits, std::span<const float> hidden) {
    if constexpr (requires { policy_.read(logits, hidden); }) policy_.read(logits, hidden);
  }
  template <class NumberT>
  void read_draft_states(const model_state<NumberT>& root, const model_state<NumberT>& previous) {
    if constexpr (requires { policy_.read_draft(root, previous); }) policy_.read_draft(root, previous);
  }
};

}  // namespace detail

//! A TreePolicy without its type: it holds any policy whose trees are of the regime `Sampling`. A program that offers
//! many policies thus compiles one decoder for a regime instead of one for each policy.
//!
//!     any_policy<regime::iid, takes<node_rows<float>, philox_chance>> policy{delayed()};
//!
//! TakesT name the drafters' answers and the chances that it takes. It grows from every drafter with one of these
//! answers. Its texts share no budget in a batch (see BudgetedPolicy), and cannot be saved as bytes (see SavedPolicy).
//!
//! Complexity  a virtual call more for each call of the policy; a copy allocates
//! Law         as the policy that it holds
//! Errors      the policy's; option_error from take() if the policy that it holds does not take this kind of answer
template <regime Sampling, class... TakesT>
class any_policy {
 public:
  static constexpr regime sampling = Sampling;

  template <class PolicyT>
  requires(!std::same_as<PolicyT, any_policy>) explicit any_policy(PolicyT policy)
      : policy_(std::make_unique<detail::typed_policy<PolicyT, TakesT...>>(std::move(policy))) {
    static_assert(PolicyT::sampling == Sampling, "any_policy holds policies of its own regime alone");
  }
  any_policy(const any_policy& other) : policy_(other.policy_->copy()) {}
  any_policy(any_policy&&) noexcept = default;
  any_policy& operator=(any_policy other) noexcept {
    policy_ = std::move(other.policy_);
    return *this;
  }
  ~any_policy() = default;

  std::int32_t max_nodes() const { return policy_->max_nodes(); }
  std::int32_t max_asked() const { return policy_->max_asked(); }
  std::span<const node_id> was() const { return policy_->was(); }
  tree_limit limited_by() const { return policy_->limited_by(); }
  void open(const round_start& start) { policy_->open(start); }
  void reset() { policy_->reset(); }
  std::span<const node_id> begin(tree<>& tree) { return policy_->begin(tree); }

  template <class AnswerT, class ChanceT>
  requires(std::same_as<takes<AnswerT, ChanceT>, TakesT> ||
           ...) std::span<const node_id> take(tree<>& tree, const AnswerT& answer, ChanceT& chance) {
    return policy_->take(tree, answer, chance);
  }

  void observe(tree_view tree, verdict v) { policy_->observe(tree, v); }

  bool reads_states() const { return policy_->reads_states(); }
  template <class NumberT>
  void read(std::span<const NumberT> logits, std::span<const float> hidden) {
    policy_->read(logits, hidden);
  }
  template <class NumberT>
  void read_draft(const model_state<NumberT>& root, const model_state<NumberT>& previous) {
    policy_->read_draft(root, previous);
  }

 private:
  std::unique_ptr<detail::untyped_policy<TakesT...>> policy_;
};

}  // namespace espalier
