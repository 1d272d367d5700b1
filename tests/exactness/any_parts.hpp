// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "espalier/concepts/verifier.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/tree_policy/any_policy.hpp"

// Policies and verifiers stand behind one type each, so that one decoder is compiled and not one for each pair.
template <espalier::regime Sampling>
using enumerated_policy =
    espalier::any_policy<Sampling, espalier::takes<espalier::sampled_rows<double>, espalier::enumerating_chance>,
                         espalier::takes<espalier::sampled_rows<double>, espalier::philox_chance>>;

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
