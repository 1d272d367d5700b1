// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "emulator/api.hpp"
#include "emulator/half.hpp"

// Matrix products of cuBLASLt: D = alpha op(A) op(B) + beta C on column-major matrices of float, half or bfloat16,
// summed in float. A captured product is replayed like a launch.

enum cudaDataType { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
using cudaDataType_t = cudaDataType;

// clang-format off
#define EMULATOR_STATUSES(X)                                       \
  X(CUBLAS_STATUS_SUCCESS, 0, "success")                           \
  X(CUBLAS_STATUS_NOT_INITIALIZED, 1, "the library was not initialized")              \
  X(CUBLAS_STATUS_ALLOC_FAILED, 3, "the resource allocation failed")                  \
  X(CUBLAS_STATUS_INVALID_VALUE, 7, "an unsupported value or parameter was passed to the function") \
  X(CUBLAS_STATUS_EXECUTION_FAILED, 13, "the function failed to launch on the GPU")   \
  X(CUBLAS_STATUS_INTERNAL_ERROR, 14, "an internal operation failed")                 \
  X(CUBLAS_STATUS_NOT_SUPPORTED, 15, "the functionality requested is not supported")

enum cublasStatus_t {
#define X(name, value, text) name = value,
  EMULATOR_STATUSES(X)
#undef X
};
inline const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
#define X(name, value, text) case name: return #name;
    EMULATOR_STATUSES(X)
#undef X
  }
  return "unknown";
}
inline const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
#define X(name, value, text) case name: return text;
    EMULATOR_STATUSES(X)
#undef X
  }
  return "unknown";
}
#undef EMULATOR_STATUSES
inline const char* cublasLtGetStatusName(cublasStatus_t status) { return cublasGetStatusName(status); }
inline const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasGetStatusString(status); }
// clang-format on

enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasComputeType_t {
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32F_PEDANTIC = 69,
  CUBLAS_COMPUTE_32F_FAST_TF32 = 77
};
enum cublasLtEpilogue_t { CUBLASLT_EPILOGUE_DEFAULT = 1 };
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
  CUBLASLT_MATMUL_DESC_EPILOGUE = 7
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_TYPE = 0,
  CUBLASLT_MATRIX_LAYOUT_ROWS = 2,
  CUBLASLT_MATRIX_LAYOUT_COLS = 3,
  CUBLASLT_MATRIX_LAYOUT_LD = 4,
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_SEARCH_MODE = 0,
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5
};
enum cublasLtReductionScheme_t { CUBLASLT_REDUCTION_SCHEME_NONE = 0 };

struct cublasLtContext {};
struct cublasLtMatmulDescOpaque_t {
  cublasOperation_t of_a = CUBLAS_OP_N, of_b = CUBLAS_OP_N;
};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  std::uint64_t rows, cols;
  std::int64_t ld;
  std::int32_t batches = 1;
  std::int64_t stride = 0;  // elements from one matrix of a batch to the next
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
};
struct cublasLtMatmulAlgo_t {
  std::uint64_t data[8];
};
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  std::size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};
using cublasLtHandle_t = cublasLtContext*;
using cublasLtMatmulDesc_t = cublasLtMatmulDescOpaque_t*;
using cublasLtMatrixLayout_t = cublasLtMatrixLayoutOpaque_t*;
using cublasLtMatmulPreference_t = cublasLtMatmulPreferenceOpaque_t*;

namespace emulator::detail {

inline std::size_t bytes_of(cudaDataType type) {
  return type == CUDA_R_32F ? 4 : 2;
}

inline float load_number(const void* all, cudaDataType type, std::size_t i) {
  if (type == CUDA_R_32F) return static_cast<const float*>(all)[i];
  const auto bits = static_cast<const std::uint16_t*>(all)[i];
  return type == CUDA_R_16F ? from_half(bits) : from_bfloat16(bits);
}
inline void store_number(void* all, cudaDataType type, std::size_t i, float x) {
  if (type == CUDA_R_32F) {
    static_cast<float*>(all)[i] = x;
  } else {
    static_cast<std::uint16_t*>(all)[i] = type == CUDA_R_16F ? to_half(x) : to_bfloat16(x);
  }
}

struct product {
  cublasLtMatmulDescOpaque_t how;
  cublasLtMatrixLayoutOpaque_t of_a, of_b, of_c, of_d;
  const void *a, *b, *c;
  void* d;
  float alpha, beta;

  cublasStatus_t check() const {
    const bool a_across = how.of_a == CUBLAS_OP_T, b_across = how.of_b == CUBLAS_OP_T;
    const std::uint64_t inner = a_across ? of_a.rows : of_a.cols;
    if ((a_across ? of_a.cols : of_a.rows) != of_d.rows || (b_across ? of_b.rows : of_b.cols) != of_d.cols ||
        (b_across ? of_b.cols : of_b.rows) != inner || of_c.rows != of_d.rows || of_c.cols != of_d.cols) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    for (const auto* layout : {&of_a, &of_b, &of_c, &of_d}) {
      if (layout->ld < static_cast<std::int64_t>(layout->rows) || layout->batches != of_d.batches) {
        return CUBLAS_STATUS_INVALID_VALUE;
      }
    }
    // The device has no kernel for any other mixture.
    const bool known =
        of_a.type == of_b.type && of_c.type == of_d.type && (of_d.type == of_a.type || of_d.type == CUDA_R_32F);
    return known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }

  void run() const {
    for (std::int32_t batch = 0; batch < of_d.batches; ++batch)
      run(batch);
  }

 private:
  static const void* start(const void* all, const cublasLtMatrixLayoutOpaque_t& layout, std::int32_t batch) {
    return static_cast<const char*>(all) + batch * layout.stride * static_cast<std::int64_t>(bytes_of(layout.type));
  }

  //! The matrix as floats: `outer` vectors of `inner` numbers, the vectors of a dot product.
  static std::vector<float> vectors(const void* all, const cublasLtMatrixLayoutOpaque_t& layout, bool by_column) {
    std::vector<float> out(layout.rows * layout.cols);
    for (std::size_t col = 0; col < layout.cols; ++col) {
      for (std::size_t row = 0; row < layout.rows; ++row) {
        const std::size_t to = by_column ? col * layout.rows + row : row * layout.cols + col;
        out[to] = load_number(all, layout.type, col * static_cast<std::size_t>(layout.ld) + row);
      }
    }
    return out;
  }

  void run(std::int32_t batch) const {
    const std::size_t rows = of_d.rows, cols = of_d.cols;
    const std::size_t inner = how.of_a == CUBLAS_OP_T ? of_a.rows : of_a.cols;
    const auto left = vectors(start(a, of_a, batch), of_a, how.of_a == CUBLAS_OP_T);
    const auto right = vectors(start(b, of_b, batch), of_b, how.of_b == CUBLAS_OP_N);
    const void* add = start(c, of_c, batch);
    void* out = const_cast<void*>(start(d, of_d, batch));
    for (std::size_t col = 0; col < cols; ++col) {
      for (std::size_t row = 0; row < rows; ++row) {
        float sums[8] = {};  // eight at a time, for the vector units
        const float *x = left.data() + row * inner, *y = right.data() + col * inner;
        std::size_t k = 0;
        for (; k + 8 <= inner; k += 8) {
          for (std::size_t j = 0; j < 8; ++j)
            sums[j] += x[k + j] * y[k + j];
        }
        for (; k < inner; ++k)
          sums[0] += x[k] * y[k];
        float sum = alpha * (((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7])));
        if (beta != 0.0F) sum += beta * load_number(add, of_c.type, col * static_cast<std::size_t>(of_c.ld) + row);
        store_number(out, of_d.type, col * static_cast<std::size_t>(of_d.ld) + row, sum);
      }
    }
  }
};

template <class T>
cublasStatus_t assign(T& to, const void* from, std::size_t bytes) {
  if (from == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T, class... A>
cublasStatus_t create(T** out, A... members) {
  *out = new T{members...};
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

namespace api {

inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return create(handle);
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  return destroy(handle);
}

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* how, cublasComputeType_t, cudaDataType scale) {
  return scale == CUDA_R_32F ? create(how) : CUBLAS_STATUS_NOT_SUPPORTED;
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t how) {
  return destroy(how);
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t how, cublasLtMatmulDescAttributes_t which,
                                                     const void* value, std::size_t bytes) {
  cublasLtEpilogue_t epilogue{};
  switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return assign(how->of_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return assign(how->of_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      if (assign(epilogue, value, bytes) != CUBLAS_STATUS_SUCCESS) return CUBLAS_STATUS_INVALID_VALUE;
      return epilogue == CUBLASLT_EPILOGUE_DEFAULT ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                                 std::uint64_t cols, std::int64_t ld) {
  return create(layout, type, rows, cols, ld);
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  return destroy(layout);
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                       cublasLtMatrixLayoutAttribute_t which, const void* value,
                                                       std::size_t bytes) {
  switch (which) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
      return assign(layout->type, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
      return assign(layout->rows, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
      return assign(layout->cols, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_LD:
      return assign(layout->ld, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return assign(layout->batches, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return assign(layout->stride, value, bytes);
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* wish) {
  return create(wish);
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish) {
  return destroy(wish);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                           cublasLtMatmulPreferenceAttributes_t which,
                                                           const void* value, std::size_t bytes) {
  if (which != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return CUBLAS_STATUS_SUCCESS;
  return assign(wish->workspace, value, bytes);
}

//! Offers the only algorithm, if the shapes and types fit together.
inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t, int wanted,
                                                     cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
  const product shape{*how, *a, *b, *c, *d, nullptr, nullptr, nullptr, nullptr, 1, 0};
  if (const cublasStatus_t fault = shape.check(); fault != CUBLAS_STATUS_SUCCESS) return fault;
  results[0] = {};
  results[0].wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

inline cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t*,
                                              cublasLtMatmulHeuristicResult_t* result) {
  const product shape{*how, *a, *b, *c, *d, nullptr, nullptr, nullptr, nullptr, 1, 0};
  *result = {};
  return shape.check();
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t how, const void* alpha, const void* a,
                                     cublasLtMatrixLayout_t of_a, const void* b, cublasLtMatrixLayout_t of_b,
                                     const void* beta, const void* c, cublasLtMatrixLayout_t of_c, void* d,
                                     cublasLtMatrixLayout_t of_d, const cublasLtMatmulAlgo_t*, void*, std::size_t,
                                     cudaStream_t stream) {
  const product work{*how,
                     *of_a,
                     *of_b,
                     *of_c,
                     *of_d,
                     a,
                     b,
                     c,
                     d,
                     *static_cast<const float*>(alpha),
                     *static_cast<const float*>(beta)};
  if (const cublasStatus_t fault = work.check(); fault != CUBLAS_STATUS_SUCCESS) return fault;
  const cudaError_t error = call(
      __func__, allowed, [&](auto& r) { return enqueue(r, stream, cudaGraphNodeTypeKernel, [work] { work.run(); }); });
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace api

}  // namespace emulator::detail
