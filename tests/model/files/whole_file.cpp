// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/files/whole_file.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include "catch.hpp"
#include "espalier/core/error.hpp"

namespace {

using espalier::model_error;
using espalier::detail::whole_file;

std::string written(const std::string& bytes) {
  const std::string path = (std::filesystem::temp_directory_path() / "espalier-whole-file").string();
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

TEST_CASE("a file is read byte for byte, empty, with zeros and longer than a buffer", "[whole_file]") {
  for (const std::string& bytes : {std::string(), std::string("a\0\r\n\xFF\x1A", 6), std::string(100'000, '\n')})
    CHECK(whole_file(written(bytes)) == bytes);
}

TEST_CASE("a file that is not there and a folder are named", "[whole_file]") {
  CHECK_THROWS_WITH(whole_file("/no/such/file"), "/no/such/file cannot be opened.");
  const std::string folder = std::filesystem::temp_directory_path().string();
  CHECK_THROWS_AS(whole_file(folder), model_error);
}

}  // namespace
