// SPDX-License-Identifier: BSL-1.0
#include <cuda_bf16.h>

#include "on_cuda.cuh"

namespace generate {

template written_text write_in<__nv_bfloat16>(const text_task&);

}  // namespace generate
