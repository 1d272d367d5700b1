// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <string_view>

namespace serve {

//! Whether what was given is the secret. The time that it takes tells nothing of the secret but its length.
inline bool is_secret(std::string_view given, std::string_view secret) {
  unsigned difference = given.size() == secret.size() ? 0U : 1U;
  for (std::size_t i = 0; i < secret.size(); ++i) {
    const char other = i < given.size() ? given[i] : '\0';
    difference |= static_cast<unsigned>(static_cast<unsigned char>(secret[i]) ^ static_cast<unsigned char>(other));
  }
  // Not to be left early.
  const volatile unsigned kept = difference;
  return kept == 0;
}

}  // namespace serve
