// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/selector/delayed_action.hpp"
#include "espalier/selector/selector_features.hpp"

namespace nde {

inline constexpr const char* trace_format = "espalier-nde-traces 1";
inline constexpr auto n_actions = static_cast<std::size_t>(espalier::delayed_action::count);
//! Number of features that depend on the text; the last two features, seconds of passes, depend on the machine.
inline constexpr std::size_t n_scalars = espalier::selector_features::n_scalars - 2;

//! The measurements at the roots of one text. README.md explains each tensor.
struct trace {
  struct tensor {
    std::vector<std::size_t> shape;
    std::vector<float> values{};
  };

  std::map<std::string, tensor> tensors;
  std::map<std::string, std::string> settings;  //!< the file's metadata

  std::size_t roots() const { return tensors.at("scalars").shape[0]; }

  //! Adds one root's values to a tensor whose first extent counts roots.
  template <class ValuesT>
  void append(const std::string& name, const ValuesT& values) {
    tensor& to = tensors.at(name);
    ++to.shape[0];
    to.values.insert(to.values.end(), values.begin(), values.end());
  }
};

//! Writes a file under another name first and then renames it, so that a file with this name is always complete.
//!
//! Errors      input_error if that fails
inline void write_trace(const std::string& path, const trace& t) {
  static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");
  nlohmann::json header{{"__metadata__", t.settings}};
  std::uint64_t end = 0;
  for (const auto& [name, tensor] : t.tensors) {
    const std::uint64_t begin = end;
    end += tensor.values.size() * sizeof(float);
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  const std::string partial = path + ".partial";
  std::ofstream file(partial, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file << text;
  for (const auto& [name, tensor] : t.tensors) {
    file.write(reinterpret_cast<const char*>(tensor.values.data()),
               static_cast<std::streamsize>(tensor.values.size() * sizeof(float)));
  }
  file.close();
  if (!file) espalier::raise<espalier::input_error>(partial, " could not be written.");
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  if (error) espalier::raise<espalier::input_error>(partial, " could not be renamed to ", path, ".");
}

//! Reads a trace and checks that it is complete.
//!
//! Errors      model_error that names the file and what is wrong with it
inline trace read_trace(const std::string& path) {
  espalier::safetensors_file file(path);
  trace t;
  t.settings = file.metadata();
  const auto refuse = [&](const auto&... pieces) { espalier::raise<espalier::model_error>(path, " ", pieces...); };
  if (t.settings["format"] != trace_format) refuse("is no trace: its metadata has no format \"", trace_format, "\".");
  const std::string& verifiers = t.settings["verifiers"];
  const auto n_verifiers = 1 + static_cast<std::size_t>(std::count(verifiers.begin(), verifiers.end(), ','));
  // Extents after the first; 0 stands for any.
  const std::map<std::string, std::vector<std::size_t>> shapes = {{"scalars", {n_scalars}},
                                                                  {"target_hidden", {0}},
                                                                  {"draft_hidden_prev", {0}},
                                                                  {"draft_hidden_root", {0}},
                                                                  {"nodes", {n_actions}},
                                                                  {"draft_rows", {n_actions}},
                                                                  {"efficiency", {n_verifiers, n_actions}}};
  for (const auto& [name, shape] : shapes) {
    const espalier::tensor_entry* entry = file.find(name);
    if (entry == nullptr) refuse("is damaged: it has no tensor ", name, ".");
    trace::tensor& tensor = t.tensors[name];
    tensor.shape.assign(entry->shape.begin(), entry->shape.end());
    bool fits = entry->dtype == "F32" && tensor.shape.size() == shape.size() + 1;
    for (std::size_t i = 0; fits && i < shape.size(); ++i)
      fits = shape[i] == 0 || tensor.shape[i + 1] == shape[i];
    if (!fits) refuse("is damaged: tensor ", name, " is not of the type and shape that the format says.");
    tensor.values.resize(static_cast<std::size_t>(entry->bytes / sizeof(float)));
    file.read(*entry, 0, tensor.values.data(), static_cast<std::size_t>(entry->bytes));
    for (const float value : tensor.values) {
      if (!std::isfinite(value)) refuse("is damaged: tensor ", name, " holds ", value, ".");
    }
  }
  for (const auto& [name, tensor] : t.tensors) {
    if (tensor.shape[0] != t.roots()) {
      refuse("is damaged: tensor ", name, " has ", tensor.shape[0], " roots, and scalars has ", t.roots(), ".");
    }
  }
  if (t.roots() == 0) refuse("is damaged: it has no root.");
  return t;
}

}  // namespace nde
