// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/small/small_pass.hpp"
#include "espalier/model/small/small_shape.hpp"
#include "espalier/model/small/small_weights.hpp"

namespace espalier {

//! A transformer of the Llama family for small machines. Weights of 8 bits are read from the image, activations are
//! rounded to 8 bits with a scale for each row; products are of integers, and all else is floats. All of its memory is
//! in the object: no heap. From the mathematical library it needs only fmaf, if the processor has no such instruction.
//!
//!     constexpr small_shape shape{.vocab = 512, .hidden = 96, ...};
//!     static small_llama<shape, 8> target(image);
//!
//! Shapes      logits [n_outputs][vocab]
//! Complexity  a pass reads each weight once for up to three rows, or six on a machine of 64 bits
//! Law         Backend's, bitwise: the row of a node does not depend on the batch that it is in
//! Errors      fault() is a sentence if the image is not one of this shape, else null. forward returns no rows, which a
//!             decoder takes for a failed pass, if there is a fault, for more than MaxRows rows, a cache of another
//!             shape or longer than the positions, and tokens, positions or slots that do not exist
//! Pre         the image outlives it; ancestors of a row are in lower slots than the row, as with a decoder.
//!             Contraction of products and sums (-ffp-contract) changes the numbers, so it must be the same wherever
//!             texts must be equal
template <small_shape Shape, std::int32_t MaxRows>
class small_llama {
  static_assert(Shape.is_sound(), "a small_llama has sizes that it cannot compute: see small_shape");
  static_assert(MaxRows > 0, "a small_llama needs a row");

 public:
  explicit small_llama(std::span<const std::byte> image)
      : pass_(small_weights(image), MaxRows, floats_.data(), integers_.data(), slots_.data()) {}
  small_llama(const small_llama&) = delete;
  small_llama& operator=(const small_llama&) = delete;

  const char* fault() const {
    if (pass_.weights().fault() != nullptr) return pass_.weights().fault();
    return pass_.weights().shape() == Shape ? nullptr : "the image of the model is of another shape.";
  }

  std::int32_t vocab_size() const { return Shape.vocab; }
  std::int32_t max_rows() const { return MaxRows; }
  std::int32_t max_positions() const { return Shape.positions; }

  vocab_rows<float> forward(contiguous_kv& kv, const forward_batch_view& batch) {
    if (fault() != nullptr) return {};
    return pass_.run(kv, batch);
  }

 private:
  std::array<float, detail::small_pass::floats(Shape, MaxRows)> floats_{};
  alignas(8) std::array<std::byte, detail::small_pass::integer_bytes(Shape)> integers_{};
  std::array<std::int32_t, static_cast<std::size_t>(Shape.positions)> slots_{};
  detail::small_pass pass_;
};

}  // namespace espalier
