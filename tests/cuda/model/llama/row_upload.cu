// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/llama/row_upload.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "raises.hpp"

namespace {

namespace gpu = espalier::cuda;

// What is said of a weight that is uploaded as NumberT.
template <class NumberT>
std::string said_of(float weight) {
  gpu::device_array<NumberT> to(2);
  const std::vector<float> row = {1.0F, weight};
  return message_of<espalier::model_error>([&] {
    gpu::detail::row_upload<NumberT> upload;
    upload.add(to.data(), row.data(), row.size());
    upload.flush();
  });
}

}  // namespace

TEST_CASE("a weight beyond the range of the numbers on the device is refused, not made infinite", "[gpu]") {
  constexpr float infinity = std::numeric_limits<float>::infinity(), greatest = (std::numeric_limits<float>::max)();
  CHECK(says(said_of<__half>(65520.0F), "65504"));
  CHECK(said_of<__half>(65504.0F).empty());
  CHECK(says(said_of<__nv_bfloat16>(greatest), "bfloat16 ends at"));
  CHECK(said_of<__nv_bfloat16>(3.3895e38F).empty());
  CHECK(said_of<float>(greatest).empty());
  // A weight that is infinite in the file stays so.
  CHECK(said_of<__nv_bfloat16>(infinity).empty());
  CHECK(said_of<__half>(infinity).empty());
}
