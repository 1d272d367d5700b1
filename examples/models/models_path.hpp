// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace models {

//! Folder of the bundled models: the folder installed with this program, else examples/models in the working directory,
//! else the folder in the sources from which the program was built.
//!
//! An installed program is recognised where the system tells the path of the running program (/proc/self/exe).
inline std::string default_models_path() {
  namespace files = std::filesystem;
  std::error_code error;
#if defined(EXAMPLES_INSTALLED_MODELS)
  const files::path program = files::read_symlink("/proc/self/exe", error);
  const files::path installed = (program.parent_path() / EXAMPLES_INSTALLED_MODELS).lexically_normal();
  if (!program.empty() && files::is_directory(installed, error)) return installed.string();
#endif
  const std::string here = "examples/models";
  if (files::is_directory(here, error)) return here;
#if defined(EXAMPLES_MODELS)
  return EXAMPLES_MODELS;
#else
  return here;
#endif
}

}  // namespace models
