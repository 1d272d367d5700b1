// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/torch/torch_backend.cpp
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include <torch/script.h>
#include <nlohmann/json.hpp>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/torch/torch_options.hpp"

namespace espalier {

//! Error: PyTorch could not make a pass.
struct torch_error : error {
  using error::error;
};

namespace detail {

// The message of an error of PyTorch, without the call stacks of Python and PyTorch.
inline std::string said_by_torch(const std::exception& error) {
  const std::string text = error.what();
  const std::size_t last = text.rfind("Error: ");
  const std::size_t from = last == std::string::npos ? 0 : last + 7;
  return text.substr(from, text.find('\n', from) - from);
}

// Calls a function that asks PyTorch for a pass of n_rows rows.
//
// Errors      the library's own errors pass through; torch_error for all others
template <class FunctionT>
decltype(auto) asking_torch(std::int64_t n_rows, FunctionT&& ask) {
  try {
    return ask();
  } catch (const error&) {
    throw;
  } catch (const std::exception& failure) {
    raise<torch_error>("PyTorch could not make a pass over ", n_rows, " rows: ", said_by_torch(failure));
  }
}

}  // namespace detail

//! A model as a TorchScript module, on one device. Copies share the weights. The module has a method
//!
//!     forward(tokens, positions, slots, seen, outputs, keys, values) -> logits, or (logits, states)
//!
//! that writes the rows' keys and values to their slots, lets each row attend to the slots that it sees, and returns
//! the logits of the rows in `outputs`, and the states of all rows after the layers that the shape names, if any.
//! examples/torch_backend/export.py makes a file with such a module from a model of Hugging Face.
//!
//! Shapes      tokens, positions, slots [rows] int64; seen [rows][columns] bool; outputs [n] int64; keys, values
//!             [n_layers][capacity][row_size]; logits [n][vocab_size]; states [hidden_layers][rows][width]. Slots are
//!             below capacity, and columns is at most capacity. The slot of a real row is below columns; the slot of a
//!             padding row, which only GPU passes have, may be columns or more
//! Errors      load: model_error that names the file; constructor: option_error for a shape out of range; the call:
//!             torch_error with PyTorch's words, or for logits or states of another shape
class torch_module {
 public:
  //! Reads a module from a file that also contains its shape, as "espalier.json".
  static torch_module load(const std::string& path, at::Device device = at::kCPU) {
    torch::jit::ExtraFilesMap beside{{"espalier.json", ""}};
    torch::jit::Module loaded;
    try {
      loaded = torch::jit::load(path, device, beside);
    } catch (const std::exception& error) {
      raise<model_error>(path, " is no TorchScript module that this PyTorch can load: ", detail::said_by_torch(error));
    }
    if (!loaded.find_method("forward")) raise<model_error>(path, ": its module has no method named forward.");
    return {std::move(loaded), shape_from(beside.at("espalier.json"), path), device};
  }

  //! Takes a module made in another way, and moves it to the device.
  torch_module(torch::jit::Module module, const torch_shape& shape, at::Device device)
      : module_(std::move(module)), shape_(require_options(shape)), device_(device) {
    module_.to(device_);
    module_.eval();
  }

  const torch_shape& shape() const { return shape_; }
  const at::Device& device() const { return device_; }

  //! The result of a pass.
  struct rows_type {
    at::Tensor logits;
    at::Tensor states;  //!< undefined if the shape names no hidden layers
  };

  rows_type operator()(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& slots,
                       const at::Tensor& seen, const at::Tensor& outputs, const at::Tensor& keys,
                       const at::Tensor& values) {
    const auto n_states = static_cast<std::int64_t>(shape_.hidden_layers.size());
    const rows_type rows = detail::asking_torch(tokens.size(0), [&]() -> rows_type {
      const c10::IValue made = module_.forward({tokens, positions, slots, seen, outputs, keys, values});
      if (n_states == 0) return {made.toTensor(), {}};
      const auto& both = made.toTupleRef().elements();
      return {both.at(0).toTensor(), both.at(1).toTensor()};
    });
    const at::Tensor& logits = rows.logits;
    if (logits.dim() != 2 || logits.size(0) != outputs.size(0) || logits.size(1) != shape_.vocab_size) {
      raise<torch_error>("the module of PyTorch gave logits of another shape than [", outputs.size(0), "][",
                         shape_.vocab_size, "].");
    }
    const at::Tensor& states = rows.states;
    if (n_states > 0 && (states.dim() != 3 || states.size(0) != n_states || states.size(1) != tokens.size(0))) {
      raise<torch_error>("the module of PyTorch gave states of another shape than [", n_states, "][", tokens.size(0),
                         "][width].");
    }
    return rows;
  }

 private:
  static torch_shape shape_from(const std::string& text, const std::string& path) {
    const auto json = nlohmann::json::parse(text, nullptr, false);
    torch_shape shape;
    for_each_option(shape, [&](const auto& one, std::int32_t& to) {
      const std::string name(one.name);
      if (!json.is_object() || !json.contains(name) || !json[name].is_number_integer()) {
        raise<model_error>(path, " does not say its ", name,
                           ": it must have been saved with a file espalier.json that does (export.py writes one).");
      }
      const auto number = json[name].template get<std::int64_t>();
      if (number < one.low || number > one.high()) {
        raise<model_error>(path, " says that its ", name, " is ", number, ", but it must be ", one.low, " to ",
                           one.high(), ".");
      }
      to = static_cast<std::int32_t>(number);
    });
    for (const nlohmann::json& layer : json.value("hidden_layers", nlohmann::json::array())) {
      if (!layer.is_number_integer() || layer < 0 || layer >= shape.n_layers)
        raise<model_error>(path, " says that its hidden_layers are ", json["hidden_layers"].dump(),
                           ", but they must be layers from 0 to ", shape.n_layers - 1, ".");
      shape.hidden_layers.push_back(layer.get<std::int32_t>());
    }
    return shape;
  }

  torch::jit::Module module_;
  torch_shape shape_;
  at::Device device_;
};

}  // namespace espalier
