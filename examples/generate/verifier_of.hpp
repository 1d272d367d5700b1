// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <memory>
#include <utility>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/verifier.hpp"
#include "part_with.hpp"
#include "text_verifier.hpp"

namespace generate {

//! A verifier made from a `part` of a list such as the registry's, for every method of the program.
template <class PartT>
class verifier_of final : public verifier_with<PartT> {
  using verifier_type = typename PartT::type;

  static_assert(!espalier::compatible(verifier_type::lossless, espalier::regime::deterministic) ||
                    espalier::detail::reads_target_alone<verifier_type>(),
                "a verifier that names the regime deterministic must have target_alone = true: of trees that are "
                "chosen the program keeps no rows of the draft");

 public:
  using verifier_with<PartT>::verifier_with;

  std::unique_ptr<verifier> copy() const override { return std::make_unique<verifier_of>(*this); }
  std::unique_ptr<text_verifier> make() const override {
    return std::make_unique<held>(this->part().template make<verifier_type>());
  }

 private:
  class held final : public text_verifier {
   public:
    explicit held(verifier_type verifier) : verifier_(std::move(verifier)) {}

    void reserve(std::int32_t max_nodes, std::int32_t vocab) override {
      espalier::reserve_verifier(verifier_, max_nodes, vocab);
    }
    espalier::verdict verify(espalier::tree_view tree, const draft_rows& draft, target_rows& target,
                             espalier::philox_chance& chance) override {
      return verifier_.verify(tree, draft, target, chance);
    }

   private:
    verifier_type verifier_;
  };
};

}  // namespace generate
