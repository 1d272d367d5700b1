// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/files/whole_file.hpp"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_exception.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "espalier/core/error.hpp"

namespace {

using Catch::Matchers::Message;
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
  CHECK_THROWS_MATCHES(whole_file("/no/such/file"), model_error, Message("/no/such/file cannot be opened."));
  const std::string folder = std::filesystem::temp_directory_path().string();
  CHECK_THROWS_AS(whole_file(folder), model_error);
}

}  // namespace
