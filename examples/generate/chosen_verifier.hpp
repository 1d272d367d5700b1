// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <boost/hana/filter.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/unpack.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "arguments.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/registry.hpp"

namespace generate {

namespace detail {

// The parts whose verifiers are lossless for a regime.
template <espalier::regime Sampling>
inline constexpr auto fitting_verifiers = boost::hana::filter(espalier::verifiers, []<class PartT>(const PartT&) {
  return boost::hana::bool_c<espalier::compatible(Sampling, PartT::type::lossless)>;
});

}  // namespace detail

//! The verifier that an argument names, of all that are lossless for trees of this regime: so a program needs one
//! decoder for a policy, and not one for each pair.
//!
//! Law         lossless for these trees, as each that it may hold is
//! Errors      usage_error where none of them has this name
template <espalier::regime Sampling>
class chosen_verifier {
 public:
  static constexpr espalier::regime lossless = Sampling;

  explicit chosen_verifier(std::string_view name) : held_(find(name)) {}

  void reserve(std::int32_t max_nodes, std::int32_t vocab) {
    std::visit(
        [&](auto& verifier) {
          if constexpr (requires { verifier.reserve(max_nodes, vocab); }) verifier.reserve(max_nodes, vocab);
        },
        held_);
  }

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  espalier::verdict verify(espalier::tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) {
    return std::visit([&](auto& verifier) { return verifier.verify(tree, draft, target, chance); }, held_);
  }

 private:
  static constexpr auto variant_of = []<class... PartsT>(const PartsT&...) -> std::variant<typename PartsT::type...> {
    return std::variant<typename PartsT::type...>();
  };
  using variant_type = decltype(boost::hana::unpack(detail::fitting_verifiers<Sampling>, variant_of));

  static variant_type find(std::string_view name) {
    variant_type found;
    bool is_found = false;
    boost::hana::for_each(detail::fitting_verifiers<Sampling>, [&](const auto& part) {
      if (part.name != name) return;
      found = part.make();
      is_found = true;
    });
    if (!is_found) throw usage_error("--verifier " + std::string(name) + " is not lossless for the method's trees.");
    return found;
  }

  variant_type held_;
};

}  // namespace generate
