// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <type_traits>

#include "espalier/cuda/selector/neural_delayed.cuh"
#include "espalier/cuda/tree_policy/adaptive_chain.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/delayed.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/dyspec_greedy.cuh"
#include "espalier/cuda/tree_policy/dyspec_threshold.cuh"
#include "espalier/cuda/tree_policy/eagle2.cuh"
#include "espalier/cuda/tree_policy/fixed.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/cuda/tree_policy/sampled_chain.cuh"
#include "espalier/cuda/tree_policy/sequoia.cuh"
#include "espalier/cuda/tree_policy/specinfer_static.cuh"
#include "espalier/registry.hpp"

namespace espalier::cuda {

namespace detail {

// Declarations that map each policy of the host to the device's policy of the same name. They are never defined.
std::type_identity<void> device_form(...);
std::type_identity<plain> device_form(std::type_identity<espalier::plain>);
std::type_identity<chain> device_form(std::type_identity<espalier::chain>);
std::type_identity<adaptive_chain> device_form(std::type_identity<espalier::adaptive_chain>);
std::type_identity<sampled_chain> device_form(std::type_identity<espalier::sampled_chain>);
std::type_identity<iid_paths> device_form(std::type_identity<espalier::iid_paths>);
std::type_identity<specinfer_static> device_form(std::type_identity<espalier::specinfer_static>);
std::type_identity<delayed> device_form(std::type_identity<espalier::delayed>);
std::type_identity<neural_delayed> device_form(std::type_identity<espalier::neural_delayed<>>);
std::type_identity<dyspec_greedy> device_form(std::type_identity<espalier::dyspec_greedy>);
std::type_identity<dyspec_threshold> device_form(std::type_identity<espalier::dyspec_threshold>);
std::type_identity<sequoia> device_form(std::type_identity<espalier::sequoia>);
std::type_identity<fixed> device_form(std::type_identity<espalier::fixed>);
std::type_identity<dynatree> device_form(std::type_identity<espalier::dynatree>);
std::type_identity<best_first> device_form(std::type_identity<espalier::best_first>);
std::type_identity<eagle2> device_form(std::type_identity<espalier::eagle2>);

}  // namespace detail

//! The device's policy of the same name and options as this policy of the host; void if there is none.
template <class PolicyT>
using device_policy = typename decltype(detail::device_form(std::type_identity<PolicyT>()))::type;

//! Whether the device has a form of this policy.
template <class PolicyT>
inline constexpr bool has_device_policy = !std::is_void_v<device_policy<PolicyT>>;

//! Makes the device's form of a policy that the host's registry lists, with the options that `part` holds.
//!
//! Errors      option_error of the part
template <class PartT>
auto make_on_device(const PartT& part) {
  return part.template make<device_policy<typename PartT::type>>();
}

}  // namespace espalier::cuda
