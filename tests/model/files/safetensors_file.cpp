// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/files/safetensors_file.hpp"

#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "model/llama/model_writer.hpp"

namespace {

using namespace espalier;
using Catch::Matchers::ContainsSubstring;

void refused(const std::string& text, const std::string& words) {
  INFO(words);
  CHECK_THROWS_WITH(model_writer::open(text), ContainsSubstring(words) && ContainsSubstring("model.safetensors"));
  CHECK_THROWS_AS(model_writer::open(text), model_error);
}

std::string with_header(const std::string& header, std::size_t data = 0) {
  model_writer::file_text file;
  file.data.assign(data, '\0');
  return file.text(header);
}

std::string one_tensor(const std::string& fields, std::size_t data) {
  return with_header("{\"w\":{" + fields + "}}", data);
}

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  return text + rest;
}

}  // namespace

TEST_CASE("a safetensors file is read as it was written") {
  model_writer::file_text file;
  file.add("b", {2, 2}, {1, 2, 3, 4});
  file.add_bytes("empty", "F32", {0, 7}, "");
  file.add_bytes("a", "I8", {3}, "xyz");
  file.header["__metadata__"] = {{"format", "pt"}};
  auto read = model_writer::open(file.text());
  REQUIRE(read.entries().size() == 3);
  REQUIRE(read.find("b"));
  CHECK(read.find("b")->shape == std::vector<std::uint64_t>{2, 2});
  CHECK(read.find("nothing") == nullptr);
  float values[2] = {};
  read.read(*read.find("b"), 8, values, sizeof values);
  CHECK(values[0] == 3.0F);
  CHECK(values[1] == 4.0F);
  char letters[3] = {};
  read.read(*read.find("a"), 0, letters, 3);
  CHECK(std::string(letters, 3) == "xyz");
  CHECK(read.find("a")->dtype == "I8");
  CHECK(model_writer::open(with_header("{}")).entries().empty());
}

TEST_CASE("a file that is cut short is refused at every length") {
  model_writer::file_text file;
  file.add("a", {3}, {1, 2, 3});
  file.add("b", {2, 1}, {1, 2});
  const std::string whole = file.text();
  for (std::size_t n = 0; n < whole.size(); ++n) {
    INFO(n);
    CHECK_THROWS_AS(model_writer::open(whole.substr(0, n)), model_error);
  }
  CHECK_NOTHROW(model_writer::open(whole));
}

TEST_CASE("a header that lies about its length is refused") {
  refused("", "too short");
  refused(with_length(3, "{}"), "said to be 3 bytes long, but the file has 10");
  refused(with_length(~std::uint64_t{0}, "{}"), "said to be 18446744073709551615");
  refused(with_length(100'000'001, "{}"), "said to be 100000001");
  refused(with_length(1, "{}"), "is not a JSON object");
}

TEST_CASE("a header that is no table of tensors is refused") {
  refused(with_header("[]"), "is not a JSON object");
  refused(with_header("{\"w\":"), "is not a JSON object");
  refused(with_header("{} {}"), "is not a JSON object");
  refused(with_header("{\"w\":3}"), "tensor \"w\" is not described by an object");
  refused(with_header("{\"__metadata__\":3}"), "__metadata__ is not an object");
  refused(with_header("{\"w\":{},\"w\":{}}"), "the key \"w\" twice");
  std::string deep = "{\"w\":";
  for (int i = 0; i < 100000; ++i)
    deep += "[";
  refused(with_header(deep), "nested more than 16 levels deep");
}

TEST_CASE("a tensor that does not fit is refused by name") {
  const std::string dtype = R"("dtype":"F32")", shape = R"("shape":[2])", offsets = R"("data_offsets":[0,8])";
  CHECK_NOTHROW(model_writer::open(one_tensor(dtype + "," + shape + "," + offsets, 8)));
  refused(one_tensor(shape + "," + offsets, 8), "tensor \"w\" has no dtype");
  refused(one_tensor(R"("dtype":32,)" + shape + "," + offsets, 8), "has no dtype");
  refused(one_tensor(R"("dtype":"F33",)" + shape + "," + offsets, 8), "unknown dtype \"F33\"");
  refused(one_tensor(dtype + "," + offsets, 8), "has no shape");
  for (const char* bad : {"-2", "2.5", "2e0", "\"2\"", "[2]", "18446744073709551616"}) {
    refused(one_tensor(dtype + R"(,"shape":[)" + bad + "]," + offsets, 8), "not made of whole numbers");
  }
  refused(one_tensor(dtype + R"(,"shape":[4294967296,4294967296],)" + offsets, 8), "size overflows");
  refused(one_tensor(dtype + R"(,"shape":[4611686018427387904],)" + offsets, 8), "size overflows");
  refused(one_tensor(dtype + "," + shape, 8), "no pair of data_offsets");
  for (const char* bad : {"[0]", "[0,8,8]", "[-1,7]", "[0.0,8.0]", "8", "[null,8]"}) {
    refused(one_tensor(dtype + "," + shape + R"(,"data_offsets":)" + bad, 8), "no pair of data_offsets");
  }
  refused(one_tensor(dtype + "," + shape + R"(,"data_offsets":[8,0])", 8), "lies at bytes 8 to 0");
  refused(one_tensor(dtype + "," + shape + R"(,"data_offsets":[0,9])", 8), "the file has 8 bytes of tensors");
  refused(one_tensor(dtype + "," + shape + R"(,"data_offsets":[18446744073709551608,18446744073709551615])", 8),
          "the file has 8 bytes of tensors");
  refused(one_tensor(dtype + R"(,"shape":[3],)" + offsets, 8), "has 8 bytes, but its shape and dtype make 12");
}

TEST_CASE("tensors must cover the file without overlap or hole") {
  const auto two = [](int a_first, int a_last, int b_first, int b_last, std::size_t data) {
    const auto entry = [](int first, int last) {
      return R"({"dtype":"U8","shape":[)" + std::to_string(last - first) + R"(],"data_offsets":[)" +
             std::to_string(first) + "," + std::to_string(last) + "]}";
    };
    return with_header("{\"a\":" + entry(a_first, a_last) + ",\"b\":" + entry(b_first, b_last) + "}", data);
  };
  CHECK_NOTHROW(model_writer::open(two(4, 9, 0, 4, 9)));
  refused(two(0, 5, 4, 9, 9), "tensor \"b\" overlaps");
  refused(two(0, 4, 0, 4, 4), "overlaps");
  refused(two(0, 9, 2, 3, 9), "tensor \"b\" overlaps");
  refused(two(0, 4, 5, 9, 9), "hole before tensor \"b\"");
  refused(two(1, 4, 4, 9, 9), "hole before tensor \"a\"");
  refused(two(0, 4, 4, 9, 11), "2 bytes after its last tensor");
}

TEST_CASE("a file that is not there is named") {
  CHECK_THROWS_WITH(safetensors_file("/no/such.safetensors"), "/no/such.safetensors cannot be opened.");
}
