// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! Errors      cuda_error where the status of `call` is not success
inline void require(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  raise<cuda_error>(call, " failed: ", cublasLtGetStatusString(status), ".");
}

namespace detail {

template <auto DestroyT>
struct lt_destroy {
  template <class ObjectT>
  void operator()(ObjectT* object) const {
    (void)DestroyT(object);
  }
};
template <class HandleT, auto DestroyT>
using lt_handle = std::unique_ptr<std::remove_pointer_t<HandleT>, lt_destroy<DestroyT>>;

}  // namespace detail

//! The products of a transformer's weights with rows of activations, by cuBLASLt: y[r][o] = sum over i of x[r][i] W[o][i], or that
//! added to what y holds.
//!
//! All matrices are row-major here: W [outputs][inputs], x [rows][inputs], y [rows][outputs]. cuBLASLt counts by columns, so
//! what it is told is Y = transposed(W) X, with W inputs by outputs, X inputs by rows and Y outputs by rows, leading dimensions
//! inputs, inputs and outputs.
//!
//! Products are added first, then numbers of rows are planned: cuBLASLt's choice of an algorithm is asked for there, once for each product
//! and number of rows. multiply() takes planned numbers of rows only.
//!
//! Sums are in float. With float weights nothing is rounded to TF32.
//!
//! Complexity  plan: one heuristic search a product. multiply: one cublasLtMatmul; no search, no allocation, no synchronisation; a
//!             graph can capture it
//! Law         the same call gives the same bits on the same device and library. With `one_algorithm` a product runs by one algorithm
//!             for all numbers of rows, which does not divide a sum among blocks: each output then is summed in an order that only the
//!             algorithm's tiles decide. cuBLASLt does not promise more; tests compare the bits
//! Errors      cuda_error that names the call, or the product that no algorithm computes
class matrix_products {
 public:
  //! `numbers`: what weights and x are made of.
  matrix_products(cudaDataType_t numbers, bool one_algorithm) : numbers_(numbers), one_algorithm_(one_algorithm) {
    cublasLtHandle_t handle = nullptr;
    require(cublasLtCreate(&handle), "cublasLtCreate");
    handle_.reset(handle);
    cublasLtMatmulDesc_t description = nullptr;
    require(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    description_.reset(description);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    require(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
            "cublasLtMatmulDescSetAttribute");
    workspace_ = device_array<unsigned char>(workspace_bytes);
  }

  //! Post        the product's number
  int add(int outputs, int inputs, cudaDataType_t result, bool accumulate) {
    products_.push_back({outputs, inputs, result, accumulate, layout(numbers_, inputs, outputs), {}});
    return static_cast<int>(products_.size()) - 1;
  }

  //! Does nothing where this number of rows has been planned.
  void plan(int rows) {
    if (std::binary_search(planned_.begin(), planned_.end(), rows)) return;
    for (product& p : products_) {
      sized s{rows, layout(numbers_, p.inputs, rows), layout(p.result, p.outputs, rows), {}};
      choose(p, s);
      const auto at =
          std::lower_bound(p.sizes.begin(), p.sizes.end(), rows, [](const sized& a, int b) { return a.rows < b; });
      p.sizes.insert(at, std::move(s));
    }
    planned_.insert(std::lower_bound(planned_.begin(), planned_.end(), rows), rows);
  }

  //! The least planned number of rows that holds n.
  //!
  //! Pre         n is at most the largest that has been planned
  int planned(int n) const { return *std::lower_bound(planned_.begin(), planned_.end(), n); }

  //! Shapes      matrix [outputs][inputs], x [rows][inputs], y [rows][outputs], each aligned to 256 bytes
  //! Pre         rows is planned
  void multiply(int number, const void* matrix, const void* x, void* y, int rows, cudaStream_t stream) const {
    const product& p = products_[static_cast<std::size_t>(number)];
    const sized& s =
        *std::lower_bound(p.sizes.begin(), p.sizes.end(), rows, [](const sized& a, int b) { return a.rows < b; });
    const float one = 1.0F, others = p.accumulate ? 1.0F : 0.0F;
    require(cublasLtMatmul(handle_.get(), description_.get(), &one, matrix, p.weights.get(), x, s.x.get(), &others, y,
                           s.y.get(), y, s.y.get(), &s.algorithm, workspace_.data(), workspace_bytes, stream),
            "cublasLtMatmul");
  }

 private:
  using layout_handle = detail::lt_handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
  using preference_handle = detail::lt_handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

  // What the vendor advises for compute capability 9.0.
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
  // The algorithm for all numbers of rows is the best for this many.
  static constexpr int typical_rows = 64;

  struct sized {
    int rows;
    layout_handle x, y;
    cublasLtMatmulAlgo_t algorithm;
  };
  struct product {
    int outputs, inputs;
    cudaDataType_t result;
    bool accumulate;
    layout_handle weights;
    std::vector<sized> sizes;  // ascending
    bool has_algorithm = false;
    cublasLtMatmulAlgo_t algorithm{};
  };

  static layout_handle layout(cudaDataType_t numbers, int down, int across) {
    cublasLtMatrixLayout_t made = nullptr;
    require(cublasLtMatrixLayoutCreate(&made, numbers, static_cast<std::uint64_t>(down),
                                       static_cast<std::uint64_t>(across), down),
            "cublasLtMatrixLayoutCreate");
    return layout_handle(made);
  }

  void choose(product& p, sized& s) const {
    if (!one_algorithm_) {
      s.algorithm = candidates(p, s, 1).front().algo;
      return;
    }
    if (!p.has_algorithm) {
      const sized typical{
          typical_rows, layout(numbers_, p.inputs, typical_rows), layout(p.result, p.outputs, typical_rows), {}};
      const sized single{1, layout(numbers_, p.inputs, 1), layout(p.result, p.outputs, 1), {}};
      for (const cublasLtMatmulHeuristicResult_t& found : candidates(p, typical, 16)) {
        if (!serves(p, single, found.algo)) continue;
        p.algorithm = found.algo;
        p.has_algorithm = true;
        break;
      }
    }
    if (!p.has_algorithm || !serves(p, s, p.algorithm)) refuse(p, s.rows);
    s.algorithm = p.algorithm;
  }

  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const product& p, const sized& s, int most) const {
    cublasLtMatmulPreference_t made = nullptr;
    require(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const preference_handle preference(made);
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      require(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof value),
              "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    if (one_algorithm_) {
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    }
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
    int n = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), description_.get(), p.weights.get(), s.x.get(), s.y.get(),
                                       s.y.get(), made, most, found.data(), &n);
    found.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(n) : 0);
    if (found.empty()) refuse(p, s.rows);
    return found;
  }

  bool serves(const product& p, const sized& s, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle_.get(), description_.get(), p.weights.get(), s.x.get(), s.y.get(), s.y.get(),
                                   &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= workspace_bytes;
  }

  [[noreturn]] void refuse(const product& p, int rows) const {
    raise<cuda_error>("cuBLASLt has no ",
                      one_algorithm_ ? "one algorithm for all numbers of rows, with " : "algorithm for ", rows,
                      " rows of ", p.inputs, " inputs and ", p.outputs, " outputs",
                      one_algorithm_ ? " among them (option batch_invariant)." : ".");
  }

  cudaDataType_t numbers_;
  bool one_algorithm_;
  detail::lt_handle<cublasLtHandle_t, cublasLtDestroy> handle_;
  detail::lt_handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description_;
  device_array<unsigned char> workspace_;
  std::vector<product> products_;
  std::vector<int> planned_;  // ascending
};

}  // namespace espalier::cuda
