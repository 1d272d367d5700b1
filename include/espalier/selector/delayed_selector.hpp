// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/selector/delayed_action.hpp"
#include "espalier/selector/selector_features.hpp"
#include "espalier/selector/selector_layer.hpp"

namespace espalier {

//! The form in which a delayed_selector holds its matrices: as floats, or with 4 bits for each weight, a whole number
//! of -7 to 7, and one scale for each row. With int4, the vectors that are multiplied by the matrices are rounded to
//! bytes, too.
enum class selector_weights { float32, int4 };

namespace detail {

// The sizes of a selector's network, and the places of its weights in one piece of memory, counted in lines of 64 bytes
// from its beginning. Rows of matrices are padded with zeros.
struct selector_layout {
  static constexpr std::size_t n_hidden = 3, projected = 128, first_width = 512, second_width = 32, line_bytes = 64;

  struct input_place {
    std::size_t n = 0, mean = 0, deviation = 0;
  };
  struct layer_place {
    std::size_t outputs = 0, inputs = 0, stride = 0, rows = 0, scales = 0, bias = 0;
  };
  struct state_place {
    input_place scale;
    layer_place projection;
    std::size_t norm_scale = 0, norm_bias = 0;
  };

  selector_weights kind;
  state_place states[n_hidden];  // the target's state, and the draft's at the previous position and at the root
  input_place scalars;
  layer_place first, second, last;
  std::size_t n_lines = 0;

  selector_layout(std::size_t target_hidden, std::size_t draft_hidden, selector_weights weights) : kind(weights) {
    for (std::size_t i = 0; i < n_hidden; ++i) {
      const std::size_t n = i == 0 ? target_hidden : draft_hidden;
      states[i] = {place_input(n), place_layer(projected, n), place_floats(projected), place_floats(projected)};
    }
    scalars = place_input(selector_features::n_scalars);
    first = place_layer(first_width, n_hidden * projected + selector_features::n_scalars);
    second = place_layer(second_width, first_width);
    last = place_layer(delayed_action::count, second_width);
  }

 private:
  std::size_t place(std::size_t bytes) {
    return std::exchange(n_lines, n_lines + (bytes + line_bytes - 1) / line_bytes);
  }
  std::size_t place_floats(std::size_t n) { return place(n * sizeof(float)); }
  input_place place_input(std::size_t n) {
    const std::size_t mean = place_floats(n);
    return {n, mean, place_floats(n)};
  }
  layer_place place_layer(std::size_t outputs, std::size_t inputs) {
    const bool four_bits = kind == selector_weights::int4;
    layer_place made{outputs, inputs, padded(inputs, four_bits ? nibble_inputs : mass_lanes)};
    made.rows =
        place(four_bits ? padded(outputs, nibble_rows) * made.stride / 2 : outputs * made.stride * sizeof(float));
    if (four_bits) made.scales = place_floats(outputs);
    made.bias = place_floats(outputs);
    return made;
  }
};

}  // namespace detail

//! The network that chooses a delayed tree by what is known at the root. All inputs are standardised first, by means
//! and deviations that belong to the weights, and cut off at 8 deviations. Each hidden state is then projected to 128
//! numbers, which are normalised. These numbers and the scalars go through layers of 512 and of 32 to one score for
//! each delayed_action. The highest score is chosen; ties go to the lower number.
//!
//! Complexity  choose: one multiplication for each weight (311,000 weights for hidden states of 384 and 128); no
//!             allocation
//! Errors      option_error for hidden sizes that are not from 1 to 2^20; choose: input_error for hidden states of
//!             other sizes
//! Source      Delayed tree expansion, appendix E, equation 10. There only the scalars are standardised; here the
//!             hidden states are, too
class delayed_selector {
 public:
  //! Makes a network whose weights are all 0; read() sets them.
  delayed_selector(std::int32_t target_hidden, std::int32_t draft_hidden, selector_weights kind)
      : places_(hidden_size("target_hidden", target_hidden), hidden_size("draft_hidden", draft_hidden), kind),
        memory_(places_.n_lines) {
    input_.resize((std::max)(places_.states[0].projection.stride, places_.states[1].projection.stride));
    whole_.bytes.resize((std::max)({input_.size(), places_.first.stride, places_.second.stride}));
    joined_.resize(places_.first.stride);
    hidden_.resize(places_.second.stride);
    narrow_.resize(places_.last.stride);
    scores_.resize(delayed_action::count);
  }

  std::int32_t target_hidden_size() const { return static_cast<std::int32_t>(places_.states[0].scale.n); }
  std::int32_t draft_hidden_size() const { return static_cast<std::int32_t>(places_.states[1].scale.n); }

  //! Takes all weights from `tensors`, which has vector(name, n, float* to) and matrix(name, rows, columns, set_row),
  //! where set_row(row, values [columns]) takes the rows in order. Deviations are above 0, and all numbers finite.
  template <class TensorsT>
  void read(TensorsT& tensors) {
    constexpr std::array<const char*, layout::n_hidden> names = {"target_hidden", "draft_hidden_prev",
                                                                 "draft_hidden_root"};
    for (std::size_t i = 0; i < layout::n_hidden; ++i) {
      const std::string name = names[i];
      const state_place& at = places_.states[i];
      read(tensors, name, at.scale);
      read(tensors, name, at.projection);
      tensors.vector(name + ".norm.weight", static_cast<int>(layout::projected), floats(at.norm_scale));
      tensors.vector(name + ".norm.bias", static_cast<int>(layout::projected), floats(at.norm_bias));
    }
    read(tensors, "scalars", places_.scalars);
    read(tensors, "first", places_.first);
    read(tensors, "second", places_.second);
    read(tensors, "actions", places_.last);
  }

  //! Returns the number of the delayed_action with the highest score.
  std::int32_t choose(const selector_features& features) {
    detail::prefetch_pages(memory_.data(), memory_.size() * sizeof(line));
    const std::array<std::span<const float>, layout::n_hidden> states = {
        features.target_hidden, features.draft_hidden_prev, features.draft_hidden_root};
    for (std::size_t i = 0; i < layout::n_hidden; ++i) {
      const state_place& at = places_.states[i];
      if (states[i].size() != at.scale.n) {
        raise<input_error>("a hidden state of the ", i == 0 ? "target" : "draft", " has ", states[i].size(),
                           " numbers, but the selector was made for ", at.scale.n, ".");
      }
      float* out = joined_.data() + i * layout::projected;
      standardise(at.scale, states[i].data(), input_.data());
      std::fill_n(input_.data() + at.scale.n, at.projection.stride - at.scale.n, 0.0F);
      apply(at.projection, input_.data(), out);
      detail::normalise_layer(out, floats(at.norm_scale), floats(at.norm_bias), layout::projected);
    }
    standardise(places_.scalars, features.scalars.data(), joined_.data() + layout::n_hidden * layout::projected);
    apply(places_.first, joined_.data(), hidden_.data());
    detail::gelu_of(hidden_.data(), layout::first_width);
    apply(places_.second, hidden_.data(), narrow_.data());
    detail::gelu_of(narrow_.data(), layout::second_width);
    apply(places_.last, narrow_.data(), scores_.data());
    return static_cast<std::int32_t>(std::max_element(scores_.begin(), scores_.end()) - scores_.begin());
  }

  //! Returns the scores of all actions in the last choice, [delayed_action::count].
  std::span<const float> scores() const { return scores_; }

  //! The places of the weights, and the memory that holds them: what a device copies.
  const detail::selector_layout& places() const { return places_; }
  std::span<const std::byte> weights() const { return std::as_bytes(std::span(memory_)); }

 private:
  using layout = detail::selector_layout;
  using input_place = layout::input_place;
  using layer_place = layout::layer_place;
  using state_place = layout::state_place;

  struct alignas(layout::line_bytes) line {
    std::byte bytes[layout::line_bytes];
  };

  static std::size_t hidden_size(const char* name, std::int32_t n) {
    require_option(name, n, 1, 1 << 20);
    return static_cast<std::size_t>(n);
  }

  float* floats(std::size_t at) { return reinterpret_cast<float*>(memory_.data() + at); }
  std::uint8_t* bytes(std::size_t at) { return reinterpret_cast<std::uint8_t*>(memory_.data() + at); }

  template <class TensorsT>
  void read(TensorsT& tensors, const std::string& name, const input_place& at) {
    tensors.vector(name + ".mean", static_cast<int>(at.n), floats(at.mean));
    tensors.vector(name + ".deviation", static_cast<int>(at.n), floats(at.deviation));
  }
  template <class TensorsT>
  void read(TensorsT& tensors, const std::string& name, const layer_place& at) {
    tensors.matrix(name + ".weight", static_cast<int>(at.outputs), static_cast<int>(at.inputs),
                   [&](int row, const float* values) { set_row(at, static_cast<std::size_t>(row), values); });
    tensors.vector(name + ".bias", static_cast<int>(at.outputs), floats(at.bias));
  }

  void set_row(const layer_place& at, std::size_t row, const float* values) {
    if (places_.kind == selector_weights::float32) {
      std::copy_n(values, at.inputs, floats(at.rows) + row * at.stride);
      return;
    }
    const float scale = detail::nibble_scale(std::span(values, at.inputs));
    floats(at.scales)[row] = scale;
    for (std::size_t i = 0; i < at.inputs; ++i) {
      const float weight = scale > 0 ? std::floor(values[i] / scale + 0.5F) : 0;
      constexpr float most = detail::nibble_most;
      detail::set_nibble(bytes(at.rows), at.stride, row, i, static_cast<int>(std::clamp(weight, -most, most)));
    }
  }

  void standardise(const input_place& at, const float* x, float* out) {
    detail::standardise(x, floats(at.mean), floats(at.deviation), at.n, out);
  }

  // Computes out = matrix * x + bias. x [stride], zero beyond the inputs; out [outputs].
  void apply(const layer_place& at, const float* x, float* out) {
    const std::size_t n = at.stride;
    const float* bias = floats(at.bias);
    if (places_.kind == selector_weights::float32) {
      const float* rows = floats(at.rows);
      for (std::size_t r = 0; r < at.outputs; ++r)
        out[r] = detail::product(rows + r * n, x, n) + bias[r];
      return;
    }
    const float* scales = floats(at.scales);
    const std::uint8_t* weights = bytes(at.rows);
    whole_.set(x, n);
    for (std::size_t first = 0; first < at.outputs; first += detail::nibble_rows) {
      std::int32_t whole[detail::nibble_rows];
      detail::multiply_nibbles(weights + first * n / 2, whole_, n, whole);
      const std::size_t end = (std::min)(at.outputs, first + detail::nibble_rows);
      for (std::size_t r = first; r < end; ++r)
        out[r] = static_cast<float>(whole[r - first]) * (whole_.scale * scales[r]) + bias[r];
    }
  }

  layout places_;
  std::vector<line> memory_;
  std::vector<float> input_;                     // a hidden state, standardised and padded
  detail::whole_numbers whole_;                  // the inputs of a layer
  std::vector<float> joined_, hidden_, narrow_;  // the inputs of the last three layers, padded
  std::vector<float> scores_;
};

}  // namespace espalier
