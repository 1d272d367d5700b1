// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

//! Policies and verifiers whose types are known at run time only, for interfaces to other languages. The library's
//! parts are types, so that a pair that does not fit does not compile; here require_fit() says so at run time.
//! Each part of the registry is compiled once for rows of float and once for rows of double, and no pair is.
namespace parts {

using namespace espalier;

//! The three decisions of a chance, made elsewhere: by an enumerator, or by another language.
class decisions {
 public:
  virtual ~decisions() = default;
  virtual bool accept(double p, double q, chance_key at) = 0;
  virtual std::int32_t pick(std::span<const double> weights, chance_key at) = 0;
  virtual std::int32_t index(std::int32_t n, chance_key at) = 0;
};

//! A Chance that asks `decisions`. A pick copies its weights.
class any_chance {
 public:
  explicit any_chance(decisions& by) : by_(&by) {}

  bool accept(double p, double q, chance_key at = {}) { return by_->accept(p, q, at); }
  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key at = {}) {
    copy_.resize(weights.size());
    for (std::size_t i = 0; i < copy_.size(); ++i)
      copy_[i] = static_cast<double>(weights[i]);
    return by_->pick(copy_, at);
  }
  std::int32_t index(std::int32_t n, chance_key at = {}) { return by_->index(n, at); }

 private:
  decisions* by_;
  std::vector<double> copy_;
};

//! Decisions that another Chance makes, which must outlive them.
template <class ChanceT>
class decisions_of final : public decisions {
 public:
  explicit decisions_of(ChanceT& chance) : chance_(chance) {}
  bool accept(double p, double q, chance_key at) override { return chance_.accept(p, q, at); }
  std::int32_t pick(std::span<const double> weights, chance_key at) override { return chance_.pick(weights, at); }
  std::int32_t index(std::int32_t n, chance_key at) override { return chance_.index(n, at); }

 private:
  ChanceT& chance_;
};

//! The target's rows of a round, found by node.
template <class NumberT>
class target_part {
 public:
  virtual ~target_part() = default;
  virtual std::span<const NumberT> row(node_id u) = 0;
  virtual token_id argmax(node_id u) = 0;
};

//! Target rows of another type, which must outlive this.
template <class NumberT, class RowsT>
class target_of final : public target_part<NumberT> {
 public:
  explicit target_of(RowsT& rows) : rows_(rows) {}
  std::span<const NumberT> row(node_id u) override { return rows_.row(u); }
  token_id argmax(node_id u) override { return rows_.argmax(u); }

 private:
  RowsT& rows_;
};

//! A tree policy of any type. The functions are those of TreePolicy and its refinements; a policy that has no such
//! member does nothing, or says that it has no answer. Each take() is for one kind of rows.
class policy_part {
 public:
  virtual ~policy_part() = default;
  virtual std::unique_ptr<policy_part> copy() const = 0;
  virtual regime sampling() const = 0;
  virtual bool takes_runs() const = 0;
  virtual std::int32_t max_nodes() const = 0;
  virtual std::int32_t max_asked() const = 0;
  virtual void open(const round_start& start) = 0;
  virtual void reset() = 0;
  virtual std::span<const node_id> begin(tree<>& t) = 0;
  virtual std::span<const node_id> take(tree<>& t, const node_rows<float>& rows, philox_chance& chance) = 0;
  virtual std::span<const node_id> take(tree<>& t, const node_rows<double>& rows, any_chance& chance) = 0;
  virtual std::span<const node_id> take(tree<>& t, const token_run& run, philox_chance& chance) = 0;
  virtual std::span<const node_id> was() const = 0;
  virtual void observe(tree_view t, verdict v) = 0;
};

//! A verifier of any type.
class verifier_part {
 public:
  virtual ~verifier_part() = default;
  virtual std::unique_ptr<verifier_part> copy() const = 0;
  virtual regime lossless() const = 0;
  virtual bool argmax_only() const = 0;
  virtual bool target_alone() const = 0;
  virtual void reserve(std::int32_t max_nodes, std::int32_t vocab) = 0;
  virtual verdict verify(tree_view t, const node_rows<float>& draft, target_part<float>& target,
                         philox_chance& chance) = 0;
  virtual verdict verify(tree_view t, const node_rows<double>& draft, target_part<double>& target,
                         any_chance& chance) = 0;
};

//! The names of the registry's parts.
std::vector<std::string_view> policy_names();
std::vector<std::string_view> verifier_names();
//! The description of the options of a part, one a line: name, range, default and meaning.
std::string policy_options(std::string_view name);
std::string verifier_options(std::string_view name);

//! Makes a part of the registry. `options` are words like "budget=8 history=off"; what is left out has its default.
//!
//! Errors      option_error for a name, an option or a value that is not known or out of range
std::unique_ptr<policy_part> make_policy(std::string_view name, std::string_view options);
std::unique_ptr<verifier_part> make_verifier(std::string_view name, std::string_view options);

//! Checks that a verifier is lossless for the trees of a policy.
//!
//! Errors      option_error
inline void require_fit(const policy_part& policy, const verifier_part& verifier) {
  if (compatible(policy.sampling(), verifier.lossless())) return;
  raise<option_error>("the verifier is not lossless for the policy's trees: docs/pairs.md lists the pairs that fit.");
}

//! A TreePolicy of any type. It says every regime of itself: whoever makes a decoder of it calls require_fit() first.
class named_policy {
 public:
  static constexpr regime sampling = regime::any;

  explicit named_policy(std::unique_ptr<policy_part> part) : part_(std::move(part)) {}
  named_policy(const named_policy& other) : part_(other.part_->copy()) {}
  named_policy(named_policy&&) noexcept = default;
  named_policy& operator=(const named_policy& other) {
    part_ = other.part_->copy();
    return *this;
  }
  named_policy& operator=(named_policy&&) noexcept = default;

  std::int32_t max_nodes() const { return part_->max_nodes(); }
  std::int32_t max_asked() const { return part_->max_asked(); }
  void open(const round_start& start) { part_->open(start); }
  void reset() { part_->reset(); }
  std::span<const node_id> begin(tree<>& t) { return part_->begin(t); }
  std::span<const node_id> take(tree<>& t, const node_rows<float>& rows, philox_chance& chance) {
    return part_->take(t, rows, chance);
  }
  std::span<const node_id> take(tree<>& t, const token_run& run, philox_chance& chance) {
    return part_->take(t, run, chance);
  }
  std::span<const node_id> was() const { return part_->was(); }
  void observe(tree_view t, verdict v) { part_->observe(t, v); }

 private:
  std::unique_ptr<policy_part> part_;
};

//! A Verifier of any type. It says that it is lossless for every regime: see named_policy.
class named_verifier {
 public:
  static constexpr regime lossless = regime::any;

  explicit named_verifier(std::unique_ptr<verifier_part> part) : part_(std::move(part)) {}

  void reserve(std::int32_t max_nodes, std::int32_t vocab) { part_->reserve(max_nodes, vocab); }
  template <class TargetRowsT>
  verdict verify(tree_view t, const node_rows<float>& draft, TargetRowsT& target, philox_chance& chance) {
    target_of<float, TargetRowsT> rows(target);
    return part_->verify(t, draft, rows, chance);
  }

 private:
  std::unique_ptr<verifier_part> part_;
};

}  // namespace parts
