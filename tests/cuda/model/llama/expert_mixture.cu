// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/llama/expert_mixture.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"

namespace {

namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;

template <class NumberT>
using job_type = gpu::detail::mixture_job<NumberT>;

struct sizes {
  int rows, experts, used, hidden, inner;
  bool sums_to_one, biased;
  float limit;
};

// A mixture with random weights, and its result by the definition.
template <class NumberT>
class mixture {
 public:
  mixture(const sizes& of, unsigned seed) : of_(of), random_(seed) {
    routed = numbers<float>(of.rows * of.experts, 2.0F), from = numbers<NumberT>(of.rows * of.hidden, 1.0F);
    gate = numbers<NumberT>(of.experts * of.inner * of.hidden, 0.4F);
    up = numbers<NumberT>(of.experts * of.inner * of.hidden, 0.4F);
    down = numbers<NumberT>(of.experts * of.hidden * of.inner, 0.4F);
    router_bias = numbers<float>(of.experts, 1.0F), gate_bias = numbers<float>(of.experts * of.inner, 1.0F);
    up_bias = numbers<float>(of.experts * of.inner, 1.0F), down_bias = numbers<float>(of.experts * of.hidden, 1.0F);
    to = numbers<float>(of.rows * of.hidden, 1.0F);
    sequence_of.assign(static_cast<std::size_t>(of.rows), 0);
  }

  std::vector<float> routed, router_bias, gate_bias, up_bias, down_bias, to;
  std::vector<NumberT> from, gate, up, down;
  std::vector<std::int32_t> sequence_of;

  // Returns the rows that the kernels write, and the experts that they chose.
  std::vector<float> on_device(std::vector<std::int32_t>* chosen = nullptr) const {
    const auto uses = static_cast<std::size_t>(of_.rows * of_.used);
    const auto device_routed = to_device(routed), device_router_bias = to_device(router_bias),
               device_gate_bias = to_device(gate_bias), device_up_bias = to_device(up_bias),
               device_down_bias = to_device(down_bias);
    const auto device_from = to_device(from), device_gate = to_device(gate), device_up = to_device(up),
               device_down = to_device(down);
    const auto device_sequences = to_device(sequence_of);
    const auto device_to = to_device(to);
    const gpu::device_array<std::int32_t> device_chosen(uses);
    const gpu::device_array<float> factors(uses), outputs(uses * static_cast<std::size_t>(of_.hidden));
    const gpu::device_array<NumberT> activated(uses * static_cast<std::size_t>(of_.inner));
    job_type<NumberT> job;
    job.sequence_of = device_sequences.data();
    job.routed = device_routed.data(), job.from = device_from.data();
    job.gate = device_gate.data(), job.up = device_up.data(), job.down = device_down.data();
    if (of_.biased) {
      job.router_bias = device_router_bias.data(), job.gate_bias = device_gate_bias.data();
      job.up_bias = device_up_bias.data(), job.down_bias = device_down_bias.data();
    }
    job.chosen = device_chosen.data(), job.factors = factors.data();
    job.activated = activated.data(), job.outputs = outputs.data(), job.to = device_to.data();
    job.rows = of_.rows, job.experts = job.routed_stride = of_.experts, job.used = of_.used;
    job.hidden = job.width = job.down_bias_stride = of_.hidden, job.inner = job.inputs = of_.inner;
    job.sums_to_one = of_.sums_to_one, job.limit = of_.limit, job.gain = 1.3F;
    const gpu::detail::mixture_launcher<NumberT> launcher{job, nullptr};
    launcher.choose(), launcher.widen(), launcher.narrow(), launcher.add();
    gpu::require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
    if (chosen != nullptr) *chosen = to_host(device_chosen);
    return to_host(device_to);
  }

  std::vector<float> expected() const {
    std::vector<float> rows = to;
    for (int row = 0; row < of_.rows; ++row) {
      if (sequence_of[static_cast<std::size_t>(row)] >= 0) add(row, &rows[at(row, of_.hidden)]);
    }
    return rows;
  }

 private:
  template <class ElementT>
  std::vector<ElementT> numbers(int n, float scale) {
    std::normal_distribution<float> normal(0.0F, scale);
    std::vector<ElementT> all;
    for (int i = 0; i < n; ++i)
      all.push_back(ElementT(normal(random_)));
    return all;
  }
  static std::size_t at(int row, int width) { return static_cast<std::size_t>(row) * static_cast<std::size_t>(width); }

  void add(int row, float* result) const {
    std::vector<double> scores;
    for (int e = 0; e < of_.experts; ++e) {
      const float own = routed[at(row, of_.experts) + static_cast<std::size_t>(e)];
      scores.push_back(of_.biased ? own + router_bias[static_cast<std::size_t>(e)] : own);
    }
    std::vector<int> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
    });
    double total = 0, share = 0;
    for (const double score : scores)
      total += std::exp(score);
    for (int k = 0; k < of_.used; ++k)
      share += std::exp(scores[static_cast<std::size_t>(order[static_cast<std::size_t>(k)])]) / total;
    for (int k = 0; k < of_.used; ++k) {
      const int e = order[static_cast<std::size_t>(k)];
      const double factor = std::exp(scores[static_cast<std::size_t>(e)]) / total / (of_.sums_to_one ? share : 1.0);
      const std::vector<double> activated = activations(row, e);
      for (int h = 0; h < of_.hidden; ++h) {
        double sum = of_.biased ? down_bias[at(e, of_.hidden) + static_cast<std::size_t>(h)] : 0.0F;
        for (int i = 0; i < of_.inner; ++i)
          sum += static_cast<double>(
                     static_cast<float>(down[at(e * of_.hidden + h, of_.inner) + static_cast<std::size_t>(i)])) *
                 activated[static_cast<std::size_t>(i)];
        result[h] += static_cast<float>(factor * sum);
      }
    }
  }

  std::vector<double> activations(int row, int e) const {
    std::vector<double> all;
    for (int i = 0; i < of_.inner; ++i) {
      const std::size_t own = at(e, of_.inner) + static_cast<std::size_t>(i);
      double g = of_.biased ? gate_bias[own] : 0.0F, u = of_.biased ? up_bias[own] : 0.0F;
      for (int h = 0; h < of_.hidden; ++h) {
        const auto x = static_cast<double>(static_cast<float>(from[at(row, of_.hidden) + static_cast<std::size_t>(h)]));
        const std::size_t weight = own * static_cast<std::size_t>(of_.hidden) + static_cast<std::size_t>(h);
        g += x * static_cast<double>(static_cast<float>(gate[weight]));
        u += x * static_cast<double>(static_cast<float>(up[weight]));
      }
      if (of_.limit > 0.0F) {
        const double limit = of_.limit, least = std::min(g, limit);
        all.push_back(least / (1.0 + std::exp(-1.3 * least)) * (std::clamp(u, -limit, limit) + 1.0));
      } else {
        all.push_back(g / (1.0 + std::exp(-g)) * u);
      }
    }
    return all;
  }

  sizes of_;
  std::mt19937 random_;
};

template <class NumberT>
constexpr float tolerance = sizeof(NumberT) == 4              ? 1e-5F
                            : std::is_same_v<NumberT, __half> ? 3e-3F
                                                              : 3e-2F;

}  // namespace

TEMPLATE_TEST_CASE("A mixture of experts adds what its definition says", "", float, __half, __nv_bfloat16) {
  // Many rows of one expert, more experts than lanes, widths that no run of four divides, every expert in use.
  for (const sizes& of : {sizes{37, 3, 2, 16, 20, true, false, 0.0F}, sizes{9, 40, 7, 12, 8, false, false, 0.0F},
                          sizes{21, 6, 2, 13, 11, true, true, 1.5F}, sizes{5, 4, 4, 8, 36, true, true, 7.0F},
                          sizes{1, 5, 1, 8, 4, false, false, 0.0F}}) {
    mixture<TestType> m(of, 3);
    m.sequence_of.back() = of.rows > 1 ? -1 : 0;
    const auto found = m.on_device(), expected = m.expected();
    float most = 0.0F, largest = 0.0F;
    for (std::size_t i = 0; i < found.size(); ++i) {
      most = std::max(most, std::abs(found[i] - expected[i]));
      largest = std::max(largest, std::abs(expected[i]));
    }
    INFO(of.rows << " rows, " << of.experts << " experts");
    CHECK(most < tolerance<TestType> * largest);
  }
}

TEST_CASE("Of equal numbers the lower expert is chosen, and experts ascend") {
  mixture<float> m({3, 35, 3, 4, 4, true, false, 0.0F}, 4);
  std::fill(m.routed.begin(), m.routed.end(), 1.0F);
  m.routed[35 + 34] = m.routed[35 + 33] = 2.0F;
  m.routed[70 + 7] = -INFINITY, m.routed[70 + 0] = 0.0F;
  std::vector<std::int32_t> chosen;
  m.on_device(&chosen);
  CHECK(chosen == std::vector<std::int32_t>{0, 1, 2, 0, 33, 34, 1, 2, 3});
}

TEST_CASE("A row's result does not depend on other rows, and NaN stays in its row") {
  const sizes of{20, 6, 2, 16, 12, true, true, 7.0F};
  mixture<float> m(of, 5);
  const auto before = m.on_device();
  for (int e = 0; e < of.experts; ++e)
    m.routed[static_cast<std::size_t>(3 * of.experts + e)] = e == 2 ? NAN : 1.0F;
  m.from[5 * 16] = NAN;
  m.sequence_of[7] = -1;
  const auto after = m.on_device();
  for (int row = 0; row < of.rows; ++row) {
    for (int h = 0; h < of.hidden; ++h) {
      const auto i = static_cast<std::size_t>(row * of.hidden + h);
      if (row == 3 || row == 5) {
        CHECK(std::isnan(after[i]));
      } else {
        CHECK(after[i] == (row == 7 ? m.to[i] : before[i]));
      }
    }
  }
}
