// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <exception>
#include <iostream>
#include <string>

#include "catch.hpp"
#include "espalier/core/error.hpp"

// Runs a check on a part that is wrong on purpose: the check must find it, and its message must name what is wrong by
// the words `told`. Returns 1, the number of biases found.
template <class CheckT>
int find_bias(const std::string& bias, const std::string& told, const CheckT& check) {
  INFO(bias);
  std::string message;
  try {
    check();
  } catch (const espalier::error& e) {
    message = e.what();
  }
  std::cout << "  " << bias << ": " << message.substr(0, 130) << "\n";
  CHECK(message.find(told) != std::string::npos);
  return message.empty() ? 0 : 1;
}
