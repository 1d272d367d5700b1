// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <string_view>

namespace serve {

//! True if the given text is the secret. The time that the check takes reveals nothing but the length of the secret.
inline bool is_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0U : 1U;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned>(static_cast<unsigned char>(secret[i]) ^ static_cast<unsigned char>(other));
  }
  // volatile, so that the loop is not left early
  const volatile unsigned kept = difference;
  return kept == 0;
}

}  // namespace serve
