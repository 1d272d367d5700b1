// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/fixed.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda::detail {

// Sets a value in the memory of the device. Run by one thread.
template <class ValueT>
ESPALIER_KERNEL void set_value(ValueT* to, ValueT value) {
  *to = value;
}

// Tells the rule of each text how many drafted tokens were accepted, and of how many; one thread works for a lane.
// Shapes: decisions, rules [places]
template <class RuleT>
ESPALIER_KERNEL void observe_round(text_batch texts, const verdict* decisions, RuleT* rules) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const verdict decision = decisions[here.place];
  if (decision.token >= 0) rules[here.place].observe(here.tree.depth[decision.accepted], here.tree.size->n_draws);
}

// A value for each text, in the memory of the device: the state that a policy keeps of a text. A value is trivially
// copyable and holds no addresses.
template <class ValueT>
class values_by_place {
  static_assert(std::is_trivially_copyable_v<ValueT> && sizeof(ValueT) % 4 == 0, "see LearningPolicy");

 public:
  static constexpr std::size_t value_bytes = sizeof(ValueT);

  // New texts start from the value `first`.
  explicit values_by_place(const ValueT& first) : first_(first) {}

  void reserve(std::int32_t max_texts) {
    const std::vector<ValueT> all(static_cast<std::size_t>(max_texts), first_);
    values_ = device_array<ValueT>(std::span<const ValueT>(all));
  }

  // Prepares this place for another text: sets its value to the first one.
  void reset(std::int32_t place, cudaStream_t stream) const {
    launch("set_value", set_value<ValueT>, {}, stream, data() + place, first_);
  }

  // The values of all texts. Shapes: [places]
  ValueT* data() const { return values_.data(); }
  std::byte* bytes() const { return reinterpret_cast<std::byte*>(data()); }

  static std::vector<std::byte> bytes_of(const ValueT& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    return {bytes.begin(), bytes.end()};
  }

 private:
  ValueT first_;
  device_array<ValueT> values_;
};

}  // namespace espalier::cuda::detail
