// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <torch/script.h>

#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/torch/torch_error.hpp"
#include "espalier/model/torch/torch_shape.hpp"

namespace espalier {

namespace detail {

// What PyTorch says, without the stack of its own functions.
inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace detail

//! A model as a TorchScript module, on one device. Copies share the weights.
//!
//!     forward(tokens, positions, slots, seen, outputs, keys, values) -> logits
//!
//! writes the rows' keys and values to their slots, lets each row attend to the slots that it sees, and gives the logits
//! of the rows in `outputs`. examples/torch_backend/export.py makes such a file of a model of Hugging Face.
//!
//! Shapes      tokens, positions, slots [rows] int64; seen [rows][columns] bool, columns above every slot; outputs [n]
//!             int64; keys, values [n_layers][capacity][row_size], capacity >= columns; logits [n][vocab_size]
//! Errors      load: model_error that names the file; the call: torch_error with PyTorch's words, or for logits of
//!             another shape
class torch_module {
 public:
  //! Reads a file that has its shape beside the module, as "espalier.json".
  static torch_module load(const std::string& path, at::Device device = at::kCPU) {
    torch::jit::ExtraFilesMap beside{{"espalier.json", ""}};
    torch::jit::Module loaded;
    try {
      loaded = torch::jit::load(path, device, beside);
    } catch (const std::exception& error) {
      raise<model_error>(path, " is no TorchScript module that this PyTorch can load: ", detail::first_line(error));
    }
    return {std::move(loaded), shape_from(beside.at("espalier.json"), path), device};
  }

  torch_module(torch::jit::Module module, const torch_shape& shape, at::Device device)
      : module_(std::move(module)), shape_(require_options(shape)), device_(device) {
    module_.eval();
    if (!module_.find_method("forward")) raise<model_error>("the module of PyTorch has no method named forward.");
  }

  const torch_shape& shape() const { return shape_; }
  const at::Device& device() const { return device_; }

  at::Tensor operator()(const at::Tensor& tokens, const at::Tensor& positions, const at::Tensor& slots,
                        const at::Tensor& seen, const at::Tensor& outputs, const at::Tensor& keys,
                        const at::Tensor& values) {
    at::Tensor logits;
    try {
      logits = module_.forward({tokens, positions, slots, seen, outputs, keys, values}).toTensor();
    } catch (const std::exception& error) {
      raise<torch_error>("PyTorch could not make a pass over ", tokens.size(0), " rows: ", last_line(error));
    }
    if (logits.dim() != 2 || logits.size(0) != outputs.size(0) || logits.size(1) != shape_.vocab_size) {
      raise<torch_error>("the module of PyTorch gave logits of another shape than [", outputs.size(0), "][",
                         shape_.vocab_size, "].");
    }
    return logits;
  }

 private:
  // An error inside a module says where it happened, and in its last line what.
  static std::string last_line(const std::exception& error) {
    std::string text = error.what();
    text = text.substr(0, text.find("Exception raised from"));
    text.erase(text.find_last_not_of(" \n") + 1);
    return text.substr(text.find_last_of('\n') + 1);
  }

  static torch_shape shape_from(const std::string& text, const std::string& path) {
    const auto json = nlohmann::json::parse(text, nullptr, false);
    torch_shape shape;
    const auto read = [&](const char* name, std::int32_t& to) {
      if (!json.is_object() || !json.contains(name) || !json[name].is_number_integer()) {
        raise<model_error>(path, " does not say its ", name,
                           ": it must have been saved with a file espalier.json that does (export.py writes one).");
      }
      to = json[name].get<std::int32_t>();
    };
    read("vocab_size", shape.vocab_size);
    read("n_layers", shape.n_layers);
    read("row_size", shape.row_size);
    read("max_positions", shape.max_positions);
    return shape;
  }

  torch::jit::Module module_;
  torch_shape shape_;
  at::Device device_;
};

}  // namespace espalier
