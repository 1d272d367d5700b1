// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <functional>

// The operators that CUB's collectives are called with since CCCL 3.

namespace cuda {

template <class T = void>
struct maximum {
  constexpr T operator()(const T& a, const T& b) const { return a < b ? b : a; }
};
template <>
struct maximum<void> {
  template <class A, class B>
  constexpr auto operator()(const A& a, const B& b) const {
    return a < b ? b : a;
  }
};

template <class T = void>
struct minimum {
  constexpr T operator()(const T& a, const T& b) const { return b < a ? b : a; }
};
template <>
struct minimum<void> {
  template <class A, class B>
  constexpr auto operator()(const A& a, const B& b) const {
    return b < a ? b : a;
  }
};

namespace std {

using ::std::bit_and;
using ::std::bit_or;
using ::std::bit_xor;
using ::std::greater;
using ::std::less;
using ::std::logical_and;
using ::std::logical_or;
using ::std::multiplies;
using ::std::plus;

}  // namespace std

}  // namespace cuda
