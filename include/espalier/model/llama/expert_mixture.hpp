// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/matrix_rows.hpp"
#include "espalier/model/llama/mixture_shape.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/simd.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"

namespace espalier::detail {

// The experts that the rows of a batch use. The uses of an expert stand together.
//
// Law: the experts of a row and their factors depend on the row's own numbers alone
class expert_choice {
 public:
  // One expert and the uses of it, numbers begin to end - 1.
  struct group {
    int expert;
    int begin, end;

    int size() const { return end - begin; }
  };
  // A row that uses an expert, and the factor of the expert's output.
  struct use {
    std::int32_t row;
    float factor;
  };

  expert_choice() = default;
  expert_choice(const mixture_shape& shape, int max_rows) : shape_(shape) {
    const auto experts = static_cast<std::size_t>(shape.experts);
    const std::size_t uses = static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(shape.used);
    numbers_.resize(experts + simd_lanes);
    taken_.resize(experts);
    next_.resize(experts);
    chosen_.resize(uses);
    factors_.resize(uses);
    uses_.resize(uses);
    groups_.resize(experts);
  }

  // Chooses for each row the experts with the greatest numbers, of equal ones those with the lower index.
  //
  // Shapes: routed [rows][routed_size]
  // Pre: rows is at most max_rows
  void choose(const float* routed, int rows) {
    n_rows_ = rows;
    std::fill(next_.begin(), next_.end(), 0);
    for (int row = 0; row < rows; ++row)
      choose_of(row, routed + static_cast<std::ptrdiff_t>(row) * shape_.routed_size());
    n_groups_ = 0;
    int begin = 0;
    for (int e = 0; e < shape_.experts; ++e) {
      int& next = next_[static_cast<std::size_t>(e)];
      const int end = begin + next;
      if (end > begin) groups_[n_groups_++] = {e, begin, end};
      next = begin;
      begin = end;
    }
    for (int i = 0; i < rows * shape_.used; ++i) {
      int& next = next_[static_cast<std::size_t>(chosen_[static_cast<std::size_t>(i)])];
      uses_[static_cast<std::size_t>(next++)] = {i / shape_.used, factors_[static_cast<std::size_t>(i)]};
    }
  }

  // Returns the number of rows that the last call of choose() had.
  int n_rows() const { return n_rows_; }
  // Returns the experts that any row uses, ascending.
  std::span<const group> groups() const { return std::span(groups_).first(n_groups_); }
  // Returns the uses of an expert, rows ascending.
  std::span<const use> uses_of(const group& g) const {
    return std::span(uses_).subspan(static_cast<std::size_t>(g.begin), static_cast<std::size_t>(g.size()));
  }

 private:
  void choose_of(int row, const float* numbers) {
    const auto first = static_cast<std::size_t>(row) * static_cast<std::size_t>(shape_.used);
    const std::span<int> chosen = std::span(chosen_).subspan(first, static_cast<std::size_t>(shape_.used));
    for (int& best : chosen) {
      best = -1;
      for (int e = 0; e < shape_.experts; ++e) {
        if (!taken_[static_cast<std::size_t>(e)] && (best < 0 || numbers[e] > numbers[best])) best = e;
      }
      taken_[static_cast<std::size_t>(best)] = 1;
      ++next_[static_cast<std::size_t>(best)];
    }
    std::copy_n(numbers, shape_.experts, numbers_.begin());
    const float total = exponentials(numbers_.data(), shape_.experts);
    const std::span<float> factors = std::span(factors_).subspan(first, chosen.size());
    float sum = 0.0F;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const auto e = static_cast<std::size_t>(chosen[i]);
      taken_[e] = 0;
      factors[i] = numbers_[e] / total;
      sum += factors[i];
    }
    for (float& factor : factors)
      factor = shape_.sums_to_one ? factor / sum : factor;
  }

  mixture_shape shape_;
  std::vector<float> numbers_;  // [experts] of one row, with room for a whole vector behind the last
  std::vector<char> taken_;     // [experts] whether the row has chosen it already
  std::vector<int> next_;       // [experts] number of its uses, then the number of its next use
  std::vector<int> chosen_;     // [rows][used]
  std::vector<float> factors_;  // [rows][used]
  std::vector<use> uses_;       // [rows * used]
  std::vector<group> groups_;   // [experts] of which the first n_groups_ count
  std::size_t n_groups_ = 0;
  int n_rows_ = 0;
};

// The computation of a transformer's mixtures of experts, shared experts left out, with the working memory for it. The
// matrices of an expert are read once for all rows that use it, and the matrices of other experts not at all. The
// matrices may be a part of an expert's: some outputs of gate and up, some inputs or outputs of down.
//
// Law: bitwise, a row's result depends neither on the other rows nor on the number of threads: its experts' outputs are
//      added in the order of the experts
class expert_mixture {
 public:
  expert_mixture() = default;
  expert_mixture(const mixture_shape& shape, int hidden_size, int n_threads, int max_rows)
      : shape_(shape),
        size_(shape.size),
        hidden_(hidden_size),
        choices_(static_cast<std::size_t>(n_threads), expert_choice(shape, max_rows)) {
    const auto uses = static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(shape.used);
    const auto place = [&] {
      widened_ = block_.take(uses * static_cast<std::size_t>(size_));
      activated_ = block_.take(uses * static_cast<std::size_t>(size_));
      gathered_ = block_.take(uses * static_cast<std::size_t>(hidden_));
    };
    place();
    block_ = float_block(block_.used(), false);
    place();
  }

  // Adds to each row of `to` what the experts make of the row of `from`. All threads of the team call it together.
  // `next` is the matrix of the product after this step.
  //
  // Shapes: routed [rows][routed_size]; from [rows][hidden_size], equal for all threads, but each may have a copy of
  // its own; to [rows][hidden_size]
  // Pre: all threads have waited for one another since `routed` and `from` were written. `to` is read by no other
  //      thread, and a thread's columns of it are those of its share of the outputs of `down`
  template <class ExpertsT>
  void run(thread_team& team, product_team& products, int thread, const ExpertsT& experts, const float* routed,
           const float* from, int rows, float* to, const weight_matrix& next) {
    widen(team, products, thread, experts, routed, from, rows, activated_);
    team.barrier();
    add(products, thread, experts, activated_, to, true, true, next);
  }

  // Chooses the experts of each row, and writes the thread's columns of their activations: the first half of run().
  //
  // Shapes: activated [rows * used][size], the uses of an expert together
  template <class ExpertsT>
  void widen(thread_team& team, product_team& products, int thread, const ExpertsT& experts, const float* routed,
             const float* from, int rows, float* activated) {
    expert_choice& choice = choices_[static_cast<std::size_t>(thread)];
    choice.choose(routed, rows);
    gather(team, thread, choice, from);
    const std::span<const expert_choice::group> groups = choice.groups();
    const auto of = [&](std::size_t i) -> const auto& {
      return experts[static_cast<std::size_t>(groups[i].expert)];
    };
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const bool last = i + 1 == groups.size();
      widen(products, thread, of(i), groups[i], inputs_of(choice, groups[i], from), activated,
            last ? of(0).down.matrix : of(i + 1).up.matrix);
    }
  }

  // Adds the thread's columns of the experts' outputs, each multiplied by its factor, to the rows of `to`, or writes
  // them there if `adds` is false: the second half of run(). The biases of `down` are left out if `biased` is false.
  //
  // Shapes: activated [rows * used][inputs of down]; to [rows][outputs of down]
  // Pre: all threads have waited for one another since widen()
  template <class ExpertsT>
  void add(product_team& products, int thread, const ExpertsT& experts, const float* activated, float* to, bool adds,
           bool biased, const weight_matrix& next) {
    const expert_choice& choice = choices_[static_cast<std::size_t>(thread)];
    const std::span<const expert_choice::group> groups = choice.groups();
    const auto down = [&](std::size_t i) -> const auto& {
      return experts[static_cast<std::size_t>(groups[i].expert)].down;
    };
    if (!adds) clear(products, thread, choice, experts.front().down.matrix, to);
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const bool last = i + 1 == groups.size();
      add(products, thread, linear_view{down(i).matrix, biased ? down(i).bias : nullptr}, groups[i],
          choice.uses_of(groups[i]), activated, to, last ? next : down(i + 1).matrix);
    }
  }

 private:
  // A matrix with its bias, which may be null.
  struct linear_view {
    const weight_matrix& matrix;
    const float* bias;
  };

  static std::ptrdiff_t at(int row, int width) { return static_cast<std::ptrdiff_t>(row) * width; }

  // Returns whether the rows of an expert stand one after another in the batch, so that they need not be gathered.
  static bool is_run(std::span<const expert_choice::use> uses) {
    return uses.back().row - uses.front().row + 1 == static_cast<std::int32_t>(uses.size());
  }

  // Copies the rows of each expert to gathered_, one after another.
  void gather(thread_team& team, int thread, const expert_choice& choice, const float* from) {
    bool any = false;
    for (const expert_choice::group& g : choice.groups()) {
      const std::span<const expert_choice::use> uses = choice.uses_of(g);
      if (is_run(uses)) continue;
      any = true;
      const auto [first, last] = team.share(thread, g.size());
      for (int i = first; i < last; ++i)
        std::copy_n(from + at(uses[static_cast<std::size_t>(i)].row, hidden_), hidden_,
                    gathered_ + at(g.begin + i, hidden_));
    }
    if (any) team.barrier();
  }

  const float* inputs_of(const expert_choice& choice, const expert_choice::group& g, const float* from) const {
    const std::span<const expert_choice::use> uses = choice.uses_of(g);
    return is_run(uses) ? from + at(uses.front().row, hidden_) : gathered_ + at(g.begin, hidden_);
  }

  // Writes the thread's columns of an expert's activations.
  template <class ExpertT>
  void widen(product_team& products, int thread, const ExpertT& expert, const expert_choice::group& g,
             const float* from, float* activated, const weight_matrix& next) {
    const weight_matrix &gate = expert.gate.matrix, &up = expert.up.matrix;
    float *to = activated + at(g.begin, size_), *by = widened_ + at(g.begin, size_);
    const matrix_rows x = products.prepare(thread, gate.has_bytes() ? gate : up, from, g.size());
    products.multiply(thread, expert.up, x, by, false, gate);
    products.multiply(thread, expert.gate, x, to, false, next);
    const auto [begin, end] = products.outputs_of(thread, gate);
    for (int i = 0; i < g.size(); ++i) {
      float *gates = to + at(i, size_) + begin, *ups = by + at(i, size_) + begin;
      if (shape_.limit > 0.0F) {
        limited_silu_times(gates, ups, end - begin, shape_.gain, shape_.limit);
      } else {
        silu_times(gates, ups, end - begin);
      }
    }
  }

  // Adds the thread's columns of an expert's outputs, multiplied by their factors, to the rows that use it.
  void add(product_team& products, int thread, const linear_view& down, const expert_choice::group& g,
           std::span<const expert_choice::use> uses, const float* activated, float* to, const weight_matrix& next) {
    const int width = down.matrix.outputs();
    // All threads have read the gathered rows: their memory holds the outputs now.
    const matrix_rows x =
        products.prepare(thread, down.matrix, activated + at(g.begin, down.matrix.inputs()), g.size());
    products.multiply(thread, down, x, gathered_, false, next);
    const auto [begin, end] = products.outputs_of(thread, down.matrix);
    for (int i = 0; i < g.size(); ++i) {
      const auto& [row, factor] = uses[static_cast<std::size_t>(i)];
      const simd_float by = simd_broadcast(factor);
      float* sum = to + at(row, width) + begin;
      const float* output = gathered_ + at(i, width) + begin;
      in_lanes(end - begin, [&](int o, auto many) {
        simd_store_run(sum + o, multiply_add(by, simd_load_run(output + o, many), simd_load_run(sum + o, many)), many);
      });
    }
  }

  // Sets the thread's columns of all rows to 0.
  static void clear(const product_team& products, int thread, const expert_choice& choice, const weight_matrix& down,
                    float* to) {
    const auto [begin, end] = products.outputs_of(thread, down);
    for (int row = 0; row < choice.n_rows(); ++row)
      std::fill(to + at(row, down.outputs()) + begin, to + at(row, down.outputs()) + end, 0.0F);
  }

  mixture_shape shape_;
  int size_ = 0;
  int hidden_ = 0;
  std::vector<expert_choice> choices_;  // [threads] each thread makes the same choice, so that none waits for another
  float_block block_;
  float* widened_ = nullptr;    // [rows * used][size] products of `up`
  float* activated_ = nullptr;  // [rows * used][size]
  float* gathered_ = nullptr;   // [rows * used][hidden_size] inputs, and then outputs, of experts
};

}  // namespace espalier::detail
