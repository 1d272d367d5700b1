// SPDX-License-Identifier: BSL-1.0
// Tested by tests/registry.cpp
#pragma once

#include <algorithm>
#include <boost/hana/all_of.hpp>
#include <boost/hana/filter.hpp>
#include <boost/hana/for_each.hpp>
#include <boost/hana/integral_constant.hpp>
#include <boost/hana/unpack.hpp>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/nearest_name.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/registry.hpp"

namespace espalier {

namespace detail {

// The registry's parts whose verifiers are lossless for a regime.
template <regime Sampling>
inline constexpr auto fitting_verifiers = boost::hana::filter(verifiers, []<class PartT>(const PartT&) {
  return boost::hana::bool_c<compatible(Sampling, PartT::type::lossless)>;
});

}  // namespace detail

//! A verifier that is chosen by its name at run time, out of all verifiers of the registry that are lossless for trees
//! of a regime. A program that offers every pair of policy and verifier thus compiles one decoder for each policy
//! instead of one for each pair.
//!
//! Law         lossless for trees of this regime, since each verifier that it can hold is
//! Errors      option_error if no verifier of this name is lossless for such trees; if no verifier has this name, the
//!             message gives the nearest name
template <regime Sampling>
class chosen_verifier {
 public:
  //! True if none of the verifiers that it can hold reads a row of the draft. This is so for deterministic trees. All
  //! of these verifiers are then lossless for every regime.
  static constexpr bool target_alone =
      decltype(boost::hana::all_of(detail::fitting_verifiers<Sampling>, []<class PartT>(const PartT&) {
        return boost::hana::bool_c<detail::reads_target_alone<typename PartT::type>()>;
      }))::value;
  static constexpr regime lossless = target_alone ? regime::any : Sampling;

  explicit chosen_verifier(std::string_view name) : held_(find(name)) {}

  void reserve(std::int32_t max_nodes, std::int32_t vocab) {
    std::visit([&](auto& verifier) { reserve_verifier(verifier, max_nodes, vocab); }, held_);
  }

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) {
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
    if (!is_found) refuse(name);
    return found;
  }

  [[noreturn]] static void refuse(std::string_view name) {
    std::vector<std::string_view> known;
    boost::hana::for_each(verifiers, [&](const auto& part) { known.push_back(part.name); });
    if (std::find(known.begin(), known.end(), name) != known.end())
      raise<option_error>("the verifier ", name, " is not lossless for the policy's trees.");
    const std::string_view nearest = nearest_name(name, known);
    if (nearest.empty()) raise<option_error>("there is no verifier ", name, ".");
    raise<option_error>("there is no verifier ", name, "; the nearest name is ", nearest, ".");
  }

  variant_type held_;
};

}  // namespace espalier
