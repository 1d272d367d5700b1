// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/safetensors_shards.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/gguf_config.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! A model as its files hold it: its shape, and the source of its tensors.
struct model_files {
  model_config config;
  std::unique_ptr<tensor_source> tensors;

  //! Opens a GGUF file (the first one if the model is in several files), or a folder with a config.json and either a
  //! model.safetensors or the files that model.safetensors.index.json lists.
  //!
  //! Errors      model_error that names the file and what is wrong with it
  static model_files open(const std::string& path) {
    namespace fs = std::filesystem;
    if (fs::is_regular_file(path)) {
      auto file = std::make_unique<gguf_file>(path);
      model_config config = read_gguf_config(*file);
      return {std::move(config), std::move(file)};
    }
    model_config config = model_config::load(path);
    if (fs::exists(path + "/model.safetensors.index.json"))
      return {std::move(config), std::make_unique<safetensors_shards>(path)};
    const std::string weights = path + "/model.safetensors";
    for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"}) {
      if (fs::exists(weights) || !fs::exists(path + "/" + other)) continue;
      raise<model_error>(path, " has ", other, " but no model.safetensors, and no other weights are read: ",
                         "transformers writes it with from_pretrained(...).save_pretrained(...).");
    }
    return {std::move(config), std::make_unique<safetensors_file>(weights)};
  }
};

}  // namespace espalier
