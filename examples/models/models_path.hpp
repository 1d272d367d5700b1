// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace models {

//! The path of the bundled models: examples/models in the working directory, else the place that the program was built
//! from.
inline std::string default_models_path() {
  const std::string here = "examples/models";
  std::error_code ignored;
  if (std::filesystem::is_directory(here, ignored)) return here;
#if defined(EXAMPLES_MODELS)
  return EXAMPLES_MODELS;
#else
  return here;
#endif
}

}  // namespace models
