// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! Returns the number of rows with which a forward pass of `rows` rows is launched: the least number of 1, 9, 17, 33,
//! 65, 129, 257, 513, 1025, ... (a root and 8, 16, 32, ... drafted nodes) that is enough. There are few such numbers,
//! so that few captured graphs serve trees of all sizes.
constexpr int forward_bucket(int rows) {
  if (rows <= 1) return 1;
  int drafted = 8;
  while (drafted + 1 < rows)
    drafted *= 2;
  return drafted + 1;
}

//! Raises a status of cuBLASLt that is not success.
//!
//! Errors      cuda_error that names `call`
inline void require(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  raise<cuda_error>(call, " failed: ", cublasLtGetStatusString(status), ".");
}

namespace detail {

inline void destroy(cublasLtHandle_t it) {
  (void)cublasLtDestroy(it);
}
inline void destroy(cublasLtMatmulDesc_t it) {
  (void)cublasLtMatmulDescDestroy(it);
}
inline void destroy(cublasLtMatrixLayout_t it) {
  (void)cublasLtMatrixLayoutDestroy(it);
}
inline void destroy(cublasLtMatmulPreference_t it) {
  (void)cublasLtMatmulPreferenceDestroy(it);
}

// Owns an object of cuBLASLt. unique_ptr cannot: its deleter would need the name of the type behind the handle.
template <class HandleT>
class lt_object {
 public:
  lt_object() = default;
  lt_object(lt_object&& other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
  lt_object& operator=(lt_object other) noexcept {
    std::swap(it_, other.it_);
    return *this;
  }
  ~lt_object() {
    if (it_ != nullptr) destroy(it_);
  }

  HandleT get() const { return it_; }
  // The address at which a call of cuBLASLt that makes such an object stores its handle.
  HandleT* place() { return &it_; }

 private:
  HandleT it_ = nullptr;
};

}  // namespace detail

//! The products of a transformer's weights with rows of activations, by cuBLASLt: y[r][o] becomes the sum over i of
//! x[r][i] W[o][i], or has that sum added.
//!
//! All matrices are row-major here: W [outputs][inputs], x [rows][inputs], y [rows][outputs]. cuBLASLt takes matrices
//! as column-major, so it is asked for Y = transposed(W) X, where W is inputs by outputs, X inputs by rows and Y
//! outputs by rows, with leading dimensions inputs, inputs and outputs.
//!
//! First, add() is called for each product. Then plan() is called for numbers of rows: it asks cuBLASLt for an
//! algorithm, once for each product and number of rows. multiply() takes planned numbers of rows only.
//!
//! Sums are in float. With float weights nothing is rounded to TF32.
//!
//! Complexity  plan: one heuristic search a product; with `one_algorithm` one search a product in the first plan alone.
//!             multiply: one cublasLtMatmul; no search, no allocation, no synchronisation; a graph can capture it
//! Law         the same call gives the same bits on the same device and library. With `one_algorithm` a product runs by
//!             one algorithm for all numbers of rows, which does not divide a sum among blocks: each output then is
//!             summed in an order that only the algorithm's tiles decide. cuBLASLt does not promise more; tests compare
//!             the bits
//! Errors      cuda_error that names the call, or the product that no algorithm computes
class matrix_products {
 public:
  //! Makes an object that has no products yet. `numbers` is the type of the numbers of W and x.
  matrix_products(cudaDataType_t numbers, bool one_algorithm) : numbers_(numbers), one_algorithm_(one_algorithm) {
    require(cublasLtCreate(handle_.place()), "cublasLtCreate");
    require(cublasLtMatmulDescCreate(description_.place(), CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    require(
        cublasLtMatmulDescSetAttribute(description_.get(), CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
        "cublasLtMatmulDescSetAttribute");
    workspace_ = device_array<unsigned char>(workspace_bytes);
  }

  //! Adds a product and returns its number. `result` is the type of the numbers of y; with `accumulate` the product is
  //! added to y. `alignment` is the alignment of W in bytes. If W is a part of the rows of a larger matrix,
  //! `whole_outputs` is the number of outputs of the larger matrix, for which the algorithm is then chosen if
  //! `one_algorithm` is set; 0: W is whole.
  int add(int outputs, int inputs, cudaDataType_t result, bool accumulate, std::uint32_t alignment = 256,
          int whole_outputs = 0) {
    products_.emplace_back();
    product& p = products_.back();
    p.outputs = outputs, p.inputs = inputs, p.result = result, p.accumulate = accumulate, p.alignment = alignment;
    p.whole_outputs = whole_outputs > 0 ? whole_outputs : outputs;
    p.weights = layout_of(numbers_, inputs, outputs);
    return static_cast<int>(products_.size()) - 1;
  }

  //! Chooses the algorithms for this number of rows; does nothing if that was done before.
  void plan(int rows) {
    if (std::binary_search(planned_.begin(), planned_.end(), rows)) return;
    for (product& p : products_) {
      sized s = shape_of(p, rows);
      choose(p, s);
      p.sizes.insert(p.size(rows), std::move(s));
    }
    planned_.insert(std::lower_bound(planned_.begin(), planned_.end(), rows), rows);
  }

  //! Plans the numbers of rows of forward_bucket() below `most`, and `most` itself.
  void plan_up_to(int most) {
    for (int rows = 1; rows < most; rows = forward_bucket(rows + 1))
      plan(rows);
    plan(most);
  }

  //! The least planned number of rows that is at least n.
  //!
  //! Pre         n is at most the largest that has been planned
  int planned(int n) const { return *std::lower_bound(planned_.begin(), planned_.end(), n); }

  //! Computes the product of this number.
  //!
  //! Shapes      matrix [outputs][inputs], x [rows][inputs], y [rows][outputs]; x and y aligned to 256 bytes
  //! Pre         rows is planned
  void multiply(int number, const void* matrix, const void* x, void* y, int rows, cudaStream_t stream) const {
    const product& p = products_[static_cast<std::size_t>(number)];
    const sized& s = *p.size(rows);
    const float one = 1.0F, others = p.accumulate ? 1.0F : 0.0F;
    require(cublasLtMatmul(handle_.get(), description_.get(), &one, matrix, p.weights.get(), x, s.x.get(), &others, y,
                           s.y.get(), y, s.y.get(), &s.algorithm, workspace_.data(), workspace_bytes, stream),
            "cublasLtMatmul");
  }

 private:
  using layout = detail::lt_object<cublasLtMatrixLayout_t>;

  // The size that NVIDIA advises for compute capability 9.0.
  static constexpr std::size_t workspace_bytes = std::size_t{32} << 20;
  // With one_algorithm, cuBLASLt is asked for its advice for this number of rows.
  static constexpr int typical_rows = 64;

  struct sized {
    int rows = 0;
    layout x, y;
    cublasLtMatmulAlgo_t algorithm{};
  };
  struct product {
    int outputs = 0, inputs = 0;
    cudaDataType_t result{};
    bool accumulate = false;
    std::uint32_t alignment = 256;
    int whole_outputs = 0;
    layout weights;
    std::vector<sized> sizes;  // ascending
    bool has_algorithm = false;
    cublasLtMatmulAlgo_t algorithm{};

    // The first planned size with at least so many rows.
    std::vector<sized>::const_iterator size(int rows) const {
      return std::lower_bound(sizes.begin(), sizes.end(), rows, [](const sized& a, int b) { return a.rows < b; });
    }
  };
  struct candidate_list {
    cublasLtMatmulHeuristicResult_t of[16];
    int n = 0;
  };

  static layout layout_of(cudaDataType_t numbers, int down, int across) {
    layout made;
    require(cublasLtMatrixLayoutCreate(made.place(), numbers, static_cast<std::uint64_t>(down),
                                       static_cast<std::uint64_t>(across), down),
            "cublasLtMatrixLayoutCreate");
    return made;
  }

  sized shape_of(const product& p, int rows) const {
    sized s;
    s.rows = rows;
    s.x = layout_of(numbers_, p.inputs, rows);
    s.y = layout_of(p.result, p.outputs, rows);
    return s;
  }

  void choose(product& p, sized& s) const {
    if (!one_algorithm_) {
      s.algorithm = candidates(p, s, 1).of[0].algo;
      return;
    }
    if (!p.has_algorithm) {
      product whole;
      whole.outputs = p.whole_outputs, whole.inputs = p.inputs, whole.result = p.result, whole.alignment = p.alignment;
      whole.weights = layout_of(numbers_, whole.inputs, whole.outputs);
      const sized single = shape_of(p, 1), whole_single = shape_of(whole, 1);
      const candidate_list found = candidates(whole, shape_of(whole, typical_rows), 16);
      for (int i = 0; i < found.n && !p.has_algorithm; ++i) {
        p.algorithm = found.of[i].algo;
        p.has_algorithm = serves(whole, whole_single, p.algorithm) && serves(p, single, p.algorithm);
      }
    }
    if (!p.has_algorithm || !serves(p, s, p.algorithm)) refuse(p, s.rows);
    s.algorithm = p.algorithm;
  }

  candidate_list candidates(const product& p, const sized& s, int most) const {
    detail::lt_object<cublasLtMatmulPreference_t> preference;
    require(cublasLtMatmulPreferenceCreate(preference.place()), "cublasLtMatmulPreferenceCreate");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      require(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value),
              "cublasLtMatmulPreferenceSetAttribute");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<std::uint64_t>(workspace_bytes));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.alignment);
    if (one_algorithm_) {
      set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE));
    }
    candidate_list found;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_.get(), description_.get(), p.weights.get(), s.x.get(), s.y.get(),
                                       s.y.get(), preference.get(), most, found.of, &found.n);
    if (status != CUBLAS_STATUS_SUCCESS || found.n == 0) refuse(p, s.rows);
    return found;
  }

  bool serves(const product& p, const sized& s, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    const cublasStatus_t status = cublasLtMatmulAlgoCheck(handle_.get(), description_.get(), p.weights.get(), s.x.get(),
                                                          s.y.get(), s.y.get(), &algorithm, &result);
    return status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= workspace_bytes;
  }

  [[noreturn]] void refuse(const product& p, int rows) const {
    raise<cuda_error>("cuBLASLt has no ",
                      one_algorithm_ ? "one algorithm for all numbers of rows, with " : "algorithm for ", rows,
                      " rows of ", p.inputs, " inputs and ", p.outputs, " outputs",
                      one_algorithm_ ? " among them (option batch_invariant)." : ".");
  }

  cudaDataType_t numbers_;
  bool one_algorithm_;
  detail::lt_object<cublasLtHandle_t> handle_;
  detail::lt_object<cublasLtMatmulDesc_t> description_;
  device_array<unsigned char> workspace_;
  std::vector<product> products_;
  std::vector<int> planned_;  // ascending
};

}  // namespace espalier::cuda
