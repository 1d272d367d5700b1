// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"

int linked_two() {
  return espalier::cuda::context_bucket(1, 4096);
}
