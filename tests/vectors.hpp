// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

// The data of one file of exact expected results, from tests/data/vectors or the folder named by ESPALIER_VECTORS.
inline nlohmann::json load_vectors(const std::string& name) {
  const char* folder = std::getenv("ESPALIER_VECTORS");
  const std::string path = (folder ? std::string(folder) : std::string(ESPALIER_TEST_DATA) + "/vectors") + "/" + name;
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  nlohmann::json all = nlohmann::json::parse(file);
  if (all.at("format") != 1) throw std::runtime_error(path + " is not of format 1");
  return all.at("data");
}
