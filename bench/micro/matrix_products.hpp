// SPDX-License-Identifier: BSL-1.0
#pragma once

// The team divides the work; OpenMP, which oneDNN brings along, must not divide it again.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

#if defined(ESPALIER_BENCH_OPENBLAS)
#include <cblas.h>
#endif
#if defined(ESPALIER_BENCH_ONEDNN)
#include <omp.h>

#include <oneapi/dnnl/dnnl.hpp>
#endif

//! Matrix products of other libraries, for comparison.
//!
//! Each is built from row-major weights [outputs][inputs] and has
//! `run(team, x, rows, y)`, which computes y [rows][outputs] = x [rows][inputs] * W^T with as many threads as the team
//! has, in the way that is fastest for the library: its own threads, or one call for each thread's outputs.
namespace products {

using espalier::thread_team;

inline std::size_t size_of(int outputs, int inputs) {
  return static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs);
}

//! Number of outputs of one thread, a multiple of 16.
inline std::pair<int, int> share(int thread, int n_threads, int outputs) {
  const auto bound = [&](int t) { return t == n_threads ? outputs : outputs / 16 * t / n_threads * 16; };
  return {bound(thread), bound(thread + 1)};
}

//! Weights in huge pages if the system has them, as those of a whole model are; a small matrix alone would not fill
//! one.
class huge_floats {
 public:
  explicit huge_floats(std::size_t n) : block_((n + per_page - 1) / per_page * per_page, true), data_(block_.take(n)) {}
  huge_floats(const float* from, std::size_t n) : huge_floats(n) { std::copy_n(from, n, data_); }

  float* data() const { return data_; }

 private:
  static constexpr std::size_t per_page = (std::size_t{1} << 21) / sizeof(float);

  espalier::detail::float_block block_;
  float* data_;
};

class eigen {
 public:
  static constexpr const char* name = "Eigen";
  eigen(int outputs, int inputs, const float* weights)
      : outputs_(outputs), inputs_(inputs), weights_(weights, size_of(outputs, inputs)) {}

  void run(thread_team& team, const float* x, int rows, float* y) const {
    const Eigen::Map<const matrix_type> weights(weights_.data(), outputs_, inputs_);
    team.run([&](int thread) {
      const auto [begin, end] = share(thread, team.n_threads(), outputs_);
      const Eigen::Map<const matrix_type> from(x, rows, inputs_);
      Eigen::Map<matrix_type> to(y, rows, outputs_);
      const auto part = weights.middleRows(begin, end - begin);
      if (rows == 1) {
        to.row(0).segment(begin, end - begin).noalias() = from.row(0) * part.transpose();
      } else {
        to.middleCols(begin, end - begin).noalias() = from * part.transpose();
      }
    });
  }

 private:
  using matrix_type = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  int outputs_, inputs_;
  huge_floats weights_;
};

#if defined(ESPALIER_BENCH_OPENBLAS)
//! With OwnThreadsT the library divides the work among its threads, otherwise the team does.
template <bool OwnThreadsT>
class openblas {
 public:
  static constexpr const char* name = OwnThreadsT ? "OpenBLAS, its threads" : "OpenBLAS, ours";
  openblas(int outputs, int inputs, const float* weights)
      : outputs_(outputs), inputs_(inputs), weights_(weights, size_of(outputs, inputs)) {}

  void run(thread_team& team, const float* x, int rows, float* y) const {
    if constexpr (OwnThreadsT) {
      openblas_set_num_threads(team.n_threads());
      part(x, rows, y, 0, outputs_);
    } else {
      openblas_set_num_threads(1);
      team.run([&](int thread) {
        const auto [begin, end] = share(thread, team.n_threads(), outputs_);
        part(x, rows, y, begin, end);
      });
    }
  }

 private:
  void part(const float* x, int rows, float* y, int begin, int end) const {
    const float* w = weights_.data() + static_cast<std::ptrdiff_t>(begin) * inputs_;
    if (rows == 1) {
      cblas_sgemv(CblasRowMajor, CblasNoTrans, end - begin, inputs_, 1.0F, w, inputs_, x, 1, 0.0F, y + begin, 1);
    } else {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, end - begin, inputs_, 1.0F, x, inputs_, w, inputs_,
                  0.0F, y + begin, outputs_);
    }
  }

  int outputs_, inputs_;
  huge_floats weights_;
};
#endif

#if defined(ESPALIER_BENCH_ONEDNN)
//! Weights are stored in the layout that the library prefers for each number of rows.
class onednn {
 public:
  static constexpr const char* name = "oneDNN, its threads";
  onednn(int outputs, int inputs, const float* weights)
      : outputs_(outputs),
        inputs_(inputs),
        weights_(weights, weights + static_cast<std::ptrdiff_t>(outputs) * inputs) {}

  void run(thread_team& team, const float* x, int rows, float* y) {
    omp_set_num_threads(team.n_threads());
    auto found = plans_.find(rows);
    if (found == plans_.end()) found = plans_.emplace(rows, make_plan(rows)).first;
    plan& p = found->second;
    p.x.set_data_handle(const_cast<float*>(x));
    p.y.set_data_handle(y);
    p.product.execute(stream_, {{DNNL_ARG_SRC, p.x}, {DNNL_ARG_WEIGHTS, p.w}, {DNNL_ARG_DST, p.y}});
    stream_.wait();
  }

 private:
  struct plan {
    dnnl::matmul product;
    huge_floats storage;
    dnnl::memory x, w, y;
  };

  plan make_plan(int rows) {
    using tag = dnnl::memory::format_tag;
    const auto f32 = dnnl::memory::data_type::f32;
    const dnnl::memory::desc x({rows, inputs_}, f32, tag::ab), y({rows, outputs_}, f32, tag::ab),
        w({inputs_, outputs_}, f32, tag::any), plain({inputs_, outputs_}, f32, tag::ba);
    const dnnl::matmul::primitive_desc description({x, w, y}, engine_);
    huge_floats storage(description.weights_desc().get_size() / sizeof(float));
    dnnl::memory from(plain, engine_, weights_.data()), packed(description.weights_desc(), engine_, storage.data());
    dnnl::reorder(from, packed).execute(stream_, from, packed);
    stream_.wait();
    return {dnnl::matmul(description), std::move(storage), {x, engine_, nullptr}, packed, {y, engine_, nullptr}};
  }

  int outputs_, inputs_;
  std::vector<float> weights_;
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::unordered_map<int, plan> plans_;
};
#endif

}  // namespace products
