// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <type_traits>

#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/delayed.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/dyspec_greedy.cuh"
#include "espalier/cuda/tree_policy/dyspec_threshold.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/cuda/tree_policy/sampled_chain.cuh"
#include "espalier/registry.hpp"

namespace espalier::cuda {

namespace detail {

template <class PolicyT>
struct device_form {
  using type = void;
};
template <>
struct device_form<espalier::plain> {
  using type = plain;
};
template <>
struct device_form<espalier::chain> {
  using type = chain;
};
template <>
struct device_form<espalier::sampled_chain> {
  using type = sampled_chain;
};
template <>
struct device_form<espalier::iid_paths> {
  using type = iid_paths;
};
template <>
struct device_form<espalier::delayed> {
  using type = delayed;
};
template <>
struct device_form<espalier::dyspec_greedy> {
  using type = dyspec_greedy;
};
template <>
struct device_form<espalier::dyspec_threshold> {
  using type = dyspec_threshold;
};
template <>
struct device_form<espalier::dynatree> {
  using type = dynatree;
};
template <>
struct device_form<espalier::best_first> {
  using type = best_first;
};

}  // namespace detail

//! The policy on the device that is the host's policy of the same name and options; void where there is none.
template <class PolicyT>
using device_policy = typename detail::device_form<PolicyT>::type;

//! Whether there is one.
template <class PolicyT>
inline constexpr bool has_device_policy = !std::is_void_v<device_policy<PolicyT>>;

//! Whether a verifier runs on the device: all but khisti, whose maximum flow is the host's.
template <class VerifierT>
inline constexpr bool runs_on_device = !std::is_same_v<VerifierT, khisti>;

//! Makes the device's form of a known part, with the part's options.
//!
//! Errors      option_error of the part
template <class PartT>
auto make_on_device(const PartT& part) {
  using policy = device_policy<typename PartT::type>;
  if constexpr (std::is_same_v<typename PartT::options_type, no_options>) {
    return policy();
  } else {
    return policy(part.options);
  }
}

}  // namespace espalier::cuda
