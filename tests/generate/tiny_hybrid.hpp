// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "model/llama/hybrid_tensors.hpp"
#include "model/llama/model_writer.hpp"
#include "program.hpp"

// A small random Bamba as a folder, with a tokenizer.
struct tiny_hybrid {
  float noise = 0.0F;

  // Its path.
  std::string write(const std::string& name) const {
    const std::string folder = scratch() + "/" + name;
    std::filesystem::create_directories(folder);
    const std::string config = hybrid_tensors::config_text(719, 64, 3, 4, 2, 96, 4, 16, 256);
    std::ofstream(folder + "/config.json") << config;
    std::filesystem::copy_file(ESPALIER_TEST_DATA "/tokenizer/bytes.json", folder + "/tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
    std::ofstream(folder + "/model.safetensors", std::ios::binary)
        << model_writer::random_hybrid(espalier::model_config::parse(config, "hybrid"), 1, noise).text();
    return folder;
  }
};
