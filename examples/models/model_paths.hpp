// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "espalier/core/error.hpp"

namespace models {

//! The paths of models.
struct model_paths {
  std::string model;    //!< a model, or a folder DIR of several: DIR/target, DIR/draft, DIR/block and a tokenizer
  std::string draft{};  //!< a smaller model; empty: that of DIR, if there is one
  std::string block{};  //!< a block draft; empty: that of DIR, if there is one

  //! These paths with each model's own path filled in.
  //!
  //! Errors      espalier::model_error for a model that does not exist
  model_paths resolved() const {
    namespace files = std::filesystem;
    model_paths each = *this;
    for (const std::string* path : {&model, &draft, &block}) {
      if (path->empty()) continue;
      if (!files::exists(*path))
        espalier::raise<espalier::model_error>("there is no ", *path, ", where a model is looked for.");
      if (files::is_directory(*path) && path != &model && !files::exists(*path + "/config.json"))
        espalier::raise<espalier::model_error>("the folder ", *path, " holds no model: it has no config.json.");
      if (!files::is_directory(*path) && !begins_as_gguf(*path)) {
        espalier::raise<espalier::model_error>(
            *path, " is no GGUF file: it does not begin as one. A model is a GGUF file, or a folder with a ",
            "config.json and its weights in safetensors files.");
      }
    }
    if (files::is_directory(model) && !files::exists(model + "/target") && !files::exists(model + "/config.json")) {
      espalier::raise<espalier::model_error>("the folder ", model, " holds no model: neither a folder target nor a ",
                                             "config.json.");
    }
    if (!files::is_directory(model + "/target")) return each;
    each.model = model + "/target";
    if (draft.empty() && files::is_directory(model + "/draft")) each.draft = model + "/draft";
    if (block.empty() && files::is_directory(model + "/block")) each.block = model + "/block";
    return each;
  }

 private:
  static bool begins_as_gguf(const std::string& path) {
    std::array<char, 4> bytes{};
    std::ifstream(path, std::ios::binary).read(bytes.data(), bytes.size());
    return std::string_view(bytes.data(), bytes.size()) == "GGUF";
  }
};

}  // namespace models
