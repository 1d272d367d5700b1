// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/simd.hpp"
#include "espalier/model/llama/thread_team.hpp"

namespace bench {

//! Reads memory with every thread of the team.
class memory_reader {
 public:
  memory_reader(std::size_t floats, espalier::thread_team& team) : floats_(floats), team_(team), block_(floats, true) {
    data_ = block_.take(floats);
    std::fill_n(data_, floats, 1.0F);
  }

  void read() {
    team_.run([&](int thread) {
      using namespace espalier::detail;
      const std::size_t part = floats_ / static_cast<std::size_t>(team_.n_threads());
      const float* from = data_ + part * static_cast<std::size_t>(thread);
      simd_float sum[8] = {};
      for (std::size_t i = 0; i + 8 * simd_lanes <= part; i += 8 * simd_lanes) {
        for (std::size_t j = 0; j < 8; ++j)
          sum[j] += simd_load(from + i + j * simd_lanes);
      }
      for (std::size_t j = 1; j < 8; ++j)
        sum[0] += sum[j];
      sink_ = simd_sum(sum[0]);
    });
  }

 private:
  std::size_t floats_;
  espalier::thread_team& team_;
  espalier::detail::float_block block_;
  float* data_ = nullptr;
  volatile float sink_ = 0.0F;
};

}  // namespace bench
