// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"

namespace espalier {

//! When a session ends, besides a full context.
struct stop_conditions {
  std::int32_t max_tokens = (std::numeric_limits<std::int32_t>::max)();  //!< new tokens at most
  std::vector<token_id> tokens{};                                        //!< end after any of these
  std::vector<std::string> strings{};  //!< end after the token that completes any of these in the new text, as bytes
};

//! Finds stop strings in a text that arrives in pieces, also where one spans several pieces. Pieces are tried first and
//! kept or taken back together, as a round is.
//!
//! Complexity  push: O(length of the stop strings and of the pieces not kept yet); no allocation after construction while
//!             these have up to 256 bytes
class stop_string_search {
 public:
  stop_string_search() = default;
  explicit stop_string_search(std::vector<std::string> strings) : strings_(std::move(strings)) {
    std::erase(strings_, std::string());
    for (const std::string& s : strings_)
      longest_ = (std::max)(longest_, s.size());
    tail_.reserve(longest_ + 256);
  }

  //! Appends a piece; true when a stop string ends in it.
  bool push(std::string_view piece) {
    if (strings_.empty()) return false;
    tail_.append(piece);
    return std::any_of(strings_.begin(), strings_.end(),
                       [&](const std::string& s) { return tail_.find(s) != std::string::npos; });
  }

  //! Keeps what was pushed: it cannot be taken back any more.
  void keep() {
    if (tail_.size() >= longest_ && longest_ > 0) tail_.erase(0, tail_.size() - (longest_ - 1));
    kept_ = tail_.size();
  }

  //! Takes back what was pushed since keep().
  void take_back() { tail_.resize(kept_); }

 private:
  std::vector<std::string> strings_;
  std::string tail_;      // the end of the text: what is kept of it is shorter than the longest stop string
  std::size_t kept_ = 0;  // bytes of it
  std::size_t longest_ = 0;
};

}  // namespace espalier
