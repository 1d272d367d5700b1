// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "espalier/cuda/core/stream.cuh"

namespace espalier::cuda::detail {

// What the launches of a round are made for.
struct round_shape {
  std::int32_t lanes = 1;
  std::int32_t bucket = 0;         // tokens that a text may reach
  std::int32_t n_rows = 1;         // of the target's pass, for trees
  std::int32_t n_prompt_rows = 0;  // and for prompts
  bool processes = false;          // processors change rows

  bool operator==(const round_shape&) const = default;
};

// A graph for each shape of rounds.
class round_graphs {
 public:
  // Replays the round, which enqueue() captures. False for the first one of its shape, which is to be enqueued as it
  // is: what is loaded when it is first used is loaded by then.
  template <class EnqueueT>
  bool replay(const round_shape& shape, cudaStream_t stream, const EnqueueT& enqueue) {
    for (captured& c : all_) {
      if (c.shape != shape) continue;
      if (!c.made) c.made.emplace(stream, enqueue);
      c.made->launch(stream);
      return true;
    }
    all_.push_back({shape, std::nullopt});
    return false;
  }

 private:
  struct captured {
    round_shape shape;
    std::optional<graph> made;
  };
  std::vector<captured> all_;
};

}  // namespace espalier::cuda::detail
