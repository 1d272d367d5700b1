// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/testing/enumerating_chance.hpp"

// Policies and verifiers stand behind one type each, so that one decoder is compiled and not one for each pair.
template <espalier::regime Sampling>
class any_policy {
 public:
  static constexpr espalier::regime sampling = Sampling;

  template <class PolicyT>
  explicit any_policy(PolicyT policy) : held_(std::make_unique<model<PolicyT>>(std::move(policy))) {}
  any_policy(const any_policy& other) : held_(other.held_->copy()) {}
  any_policy(any_policy&&) = default;
  any_policy& operator=(any_policy&&) = default;

  std::int32_t max_nodes() const { return held_->max_nodes(); }
  std::int32_t max_asked() const { return held_->max_asked(); }
  std::span<const espalier::node_id> was() const { return held_->was(); }
  void open(const espalier::round_start& start) { held_->open(start); }
  void reset() { held_->reset(); }
  std::span<const espalier::node_id> begin(espalier::tree<>& tree) { return held_->begin(tree); }
  std::span<const espalier::node_id> take(espalier::tree<>& tree, const espalier::sampled_rows<double>& rows,
                                          espalier::enumerating_chance& chance) {
    return held_->take(tree, rows, chance);
  }
  std::span<const espalier::node_id> take(espalier::tree<>&, const espalier::sampled_rows<double>&,
                                          espalier::philox_chance&) {
    return {};
  }
  void observe(espalier::tree_view tree, espalier::verdict v) { held_->observe(tree, v); }

 private:
  struct base {
    virtual ~base() = default;
    virtual std::unique_ptr<base> copy() const = 0;
    virtual std::int32_t max_nodes() const = 0;
    virtual std::int32_t max_asked() const = 0;
    virtual std::span<const espalier::node_id> was() const = 0;
    virtual void open(const espalier::round_start&) = 0;
    virtual void reset() = 0;
    virtual std::span<const espalier::node_id> begin(espalier::tree<>&) = 0;
    virtual std::span<const espalier::node_id> take(espalier::tree<>&, const espalier::sampled_rows<double>&,
                                                    espalier::enumerating_chance&) = 0;
    virtual void observe(espalier::tree_view, espalier::verdict) = 0;
  };
  template <class PolicyT>
  struct model : base {
    explicit model(PolicyT p) : policy(std::move(p)) {}
    std::unique_ptr<base> copy() const override { return std::make_unique<model>(policy); }
    std::int32_t max_nodes() const override { return policy.max_nodes(); }
    std::int32_t max_asked() const override { return espalier::most_asked(policy); }
    std::span<const espalier::node_id> was() const override {
      if constexpr (espalier::RebuildingPolicy<PolicyT>) return policy.was();
      return {};
    }
    void open(const espalier::round_start& start) override {
      if constexpr (espalier::OpeningPolicy<PolicyT>) policy.open(start);
    }
    void reset() override {
      if constexpr (espalier::ResettingPolicy<PolicyT>) policy.reset();
    }
    std::span<const espalier::node_id> begin(espalier::tree<>& tree) override { return policy.begin(tree); }
    std::span<const espalier::node_id> take(espalier::tree<>& tree, const espalier::sampled_rows<double>& rows,
                                            espalier::enumerating_chance& chance) override {
      return policy.take(tree, rows, chance);
    }
    void observe(espalier::tree_view tree, espalier::verdict v) override { policy.observe(tree, v); }
    PolicyT policy;
  };
  std::unique_ptr<base> held_;
};

// RowsT are the target's rows in the decoder.
template <class RowsT>
class any_verifier {
 public:
  static constexpr espalier::regime lossless = espalier::regime::any;

  template <class VerifierT>
  explicit any_verifier(VerifierT verifier) : held_(std::make_unique<model<VerifierT>>(std::move(verifier))) {}
  void reserve(std::int32_t nodes, std::int32_t vocab) { held_->reserve(nodes, vocab); }
  template <class TargetT, class ChanceT>
  espalier::verdict verify(espalier::tree_view tree, const espalier::sampled_rows<double>& draft, TargetT& target,
                           ChanceT& chance) {
    if constexpr (std::is_same_v<TargetT, RowsT> && std::is_same_v<ChanceT, espalier::enumerating_chance>)
      return held_->verify(tree, draft, target, chance);
    return {};
  }

 private:
  struct base {
    virtual ~base() = default;
    virtual void reserve(std::int32_t, std::int32_t) = 0;
    virtual espalier::verdict verify(espalier::tree_view, const espalier::sampled_rows<double>&, RowsT&,
                                     espalier::enumerating_chance&) = 0;
  };
  template <class VerifierT>
  struct model : base {
    explicit model(VerifierT v) : verifier(std::move(v)) {}
    void reserve(std::int32_t nodes, std::int32_t vocab) override {
      espalier::reserve_verifier(verifier, nodes, vocab);
    }
    espalier::verdict verify(espalier::tree_view tree, const espalier::sampled_rows<double>& draft, RowsT& target,
                             espalier::enumerating_chance& chance) override {
      return verifier.verify(tree, draft, target, chance);
    }
    VerifierT verifier;
  };
  std::unique_ptr<base> held_;
};
