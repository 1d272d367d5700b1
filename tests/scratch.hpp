// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

// A folder for the files of this process's tests, gone when they end.
inline const std::string& scratch() {
  struct folder {
    std::string path =
        (std::filesystem::temp_directory_path() / ("espalier-tests-" + std::to_string(::getpid()))).string();
    folder() { std::filesystem::create_directories(path); }
    ~folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  };
  static const folder here;
  return here.path;
}
