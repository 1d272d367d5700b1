// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/text_processors.cu
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! One step of the change of a token's logit. Trivially copyable, read in kernels.
struct row_change {
  enum class kind : std::int32_t {
    none,
    add,       //!< z + a
    penalise,  //!< (z / a if z > 0, else z a) - b - c
  };

  token_id token = 0;
  kind what = kind::none;
  std::int32_t next = -1;      //!< index of the token's next step in the same list, or -1
  std::int32_t is_first = 0;   //!< 1 for the first step of its token, else 0
  double a = 0, b = 0, c = 0;  //!< the numbers in the formula of `what`

  //! The logit after this step, bit for bit as the host's processors compute it from a float.
  ESPALIER_HOST_DEVICE float applied(float z) const {
    if (what == kind::add) return z + static_cast<float>(a);
    if (what == kind::none) return z;
    const double x = static_cast<double>(z);
    const double repeated = x > 0 ? x / a : x * a;
    return static_cast<float>(repeated - b - c);
  }
};

//! The changes that a processor makes to a row of logits, recorded without the row. A processor on the host writes them
//! down, the device applies them. The steps of a token are applied in the order in which they were listed. A forbidden
//! token gets minus infinity, whatever else is listed. Tokens outside the vocabulary are ignored.
//!
//! Complexity  begin: O(steps listed before); allow_only, and the first forbid after begin: O(vocabulary / 32); agrees:
//!             O(steps of the token); the other functions O(1). Memory is allocated by the constructor, and when there
//!             are more steps than ever before
//! Pre         first_of, is_allowed, agrees: the token is in the vocabulary; is_allowed: is_masked(), too
class row_changes {
 public:
  explicit row_changes(std::int32_t vocab)
      : vocab_(vocab),
        first_(static_cast<std::size_t>(vocab), -1),
        last_(first_.size(), -1),
        allowed_((static_cast<std::size_t>(vocab) + 31) / 32) {}

  //! Drops all changes.
  void begin() {
    for (const row_change& c : steps_)
      first_[static_cast<std::size_t>(c.token)] = -1;
    steps_.clear();
    is_masked_ = false;
  }

  void add(token_id token, double bias) { list({.token = token, .what = row_change::kind::add, .a = bias}); }
  //! Lists the step: z / factor if z is above 0, else z * factor; then minus `less` and minus `further`.
  void penalise(token_id token, double factor, double less, double further) {
    list({.token = token, .what = row_change::kind::penalise, .a = factor, .b = less, .c = further});
  }
  void forbid(token_id token) {
    if (!is_known(token)) return;
    mask();
    allowed_[static_cast<std::size_t>(token) / 32] &= ~(1U << token % 32);
  }
  //! Forbids the tokens that are not in the mask. Token t is bit t % 32 of word t / 32; tokens beyond the last word are
  //! not in the mask.
  void allow_only(std::span<const std::uint32_t> mask_words) {
    mask();
    for (std::size_t w = 0; w < allowed_.size(); ++w)
      allowed_[w] &= w < mask_words.size() ? mask_words[w] : 0U;
  }
  //! Forbids all tokens but this one; all without exception if this one is forbidden already or not in the vocabulary.
  void allow_only(token_id token) {
    const bool was_allowed = is_known(token) && (!is_masked_ || is_allowed(token));
    is_masked_ = true;
    std::fill(allowed_.begin(), allowed_.end(), 0U);
    if (was_allowed) allowed_[static_cast<std::size_t>(token) / 32] |= 1U << token % 32;
  }

  //! The steps of all tokens; the steps of one token are linked, in their order.
  std::span<const row_change> steps() const { return steps_; }
  //! Index of the token's first step, or -1.
  std::int32_t first_of(token_id token) const { return first_[static_cast<std::size_t>(token)]; }
  //! True if forbid() or allow_only() was called since begin(), so that allowed() counts.
  bool is_masked() const { return is_masked_; }
  //! The mask of the tokens that may follow; valid if is_masked().
  std::span<const std::uint32_t> allowed() const { return allowed_; }
  bool is_allowed(token_id token) const {
    return (allowed_[static_cast<std::size_t>(token) / 32] >> token % 32 & 1U) != 0;
  }

  //! True if `other` lists the same steps for this token. The forbidden tokens are not compared.
  bool agrees(const row_changes& other, token_id token) const {
    std::int32_t i = first_of(token), j = other.first_of(token);
    for (; i >= 0 && j >= 0;
         i = steps_[static_cast<std::size_t>(i)].next, j = other.steps_[static_cast<std::size_t>(j)].next) {
      const row_change &x = steps_[static_cast<std::size_t>(i)], &y = other.steps_[static_cast<std::size_t>(j)];
      if (x.what != y.what || x.a != y.a || x.b != y.b || x.c != y.c) return false;
    }
    return i < 0 && j < 0;
  }

 private:
  bool is_known(token_id token) const { return 0 <= token && token < vocab_; }

  void mask() {
    if (is_masked_) return;
    is_masked_ = true;
    std::fill(allowed_.begin(), allowed_.end(), ~std::uint32_t{0});
  }

  void list(row_change change) {
    if (!is_known(change.token)) return;
    const auto t = static_cast<std::size_t>(change.token);
    const auto at = static_cast<std::int32_t>(steps_.size());
    change.is_first = first_[t] < 0 ? 1 : 0;
    if (first_[t] < 0)
      first_[t] = at;
    else
      steps_[static_cast<std::size_t>(last_[t])].next = at;
    last_[t] = at;
    steps_.push_back(change);
  }

  std::int32_t vocab_;
  std::vector<std::int32_t> first_, last_;  // [vocab] index of a token's first and last step
  std::vector<row_change> steps_;
  std::vector<std::uint32_t> allowed_;  // [(vocab + 31) / 32]
  bool is_masked_ = false;
};

}  // namespace espalier::cuda
