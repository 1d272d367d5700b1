// SPDX-License-Identifier: BSL-1.0
// Files of traces: what was written is read, and nothing of a file that is not whole.
#include "nde/trace_file.hpp"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/error.hpp"
#include "raises.hpp"

using espalier::model_error;

namespace {

struct scratch_file {
  std::string path;
  scratch_file(const std::string& name)
      : path((std::filesystem::temp_directory_path() / ("espalier-nde-" + name + ".safetensors")).string()) {}
  ~scratch_file() { std::filesystem::remove(path); }

  std::string contents() const {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  void replace(const std::string& by) const { std::ofstream(path, std::ios::binary | std::ios::trunc) << by; }
};

nde::trace two_roots() {
  nde::trace t;
  t.tensors = {{"target_hidden", {{0, 3}}}, {"draft_hidden_prev", {{0, 2}}}, {"draft_hidden_root", {{0, 2}}},
               {"scalars", {{0, 9}}},       {"efficiency", {{0, 2, 324}}},   {"nodes", {{0, 324}}},
               {"draft_rows", {{0, 324}}}};
  t.settings = {{"format", nde::trace_format}, {"verifiers", "spectr,khisti"}, {"domain", "words with \"quotes\""}};
  for (int root = 0; root < 2; ++root) {
    float next = static_cast<float>(root);
    for (auto& [name, tensor] : t.tensors) {
      std::size_t n = 1;
      for (std::size_t i = 1; i < tensor.shape.size(); ++i)
        n *= tensor.shape[i];
      t.append(name, std::vector<float>(n, next += 0.5F));
    }
  }
  return t;
}

}  // namespace

TEST_CASE("A trace is read as it was written", "[nde]") {
  const scratch_file file("whole");
  const nde::trace written = two_roots();
  nde::write_trace(file.path, written);
  CHECK_FALSE(std::filesystem::exists(file.path + ".partial"));
  const nde::trace read = nde::read_trace(file.path);
  CHECK(read.settings == written.settings);
  REQUIRE(read.roots() == 2);
  REQUIRE(read.tensors.size() == written.tensors.size());
  for (const auto& [name, tensor] : written.tensors) {
    INFO(name);
    CHECK(read.tensors.at(name).shape == tensor.shape);
    CHECK(read.tensors.at(name).values == tensor.values);
  }
}

TEST_CASE("A trace that is not whole is refused, by name", "[nde]") {
  const scratch_file file("cut");
  nde::write_trace(file.path, two_roots());
  const std::string whole = file.contents();
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{5}, std::size_t{200}, whole.size() / 2, whole.size() - 1}) {
    INFO(size << " of " << whole.size() << " bytes");
    file.replace(whole.substr(0, size));
    CHECK(says(message_of<model_error>([&] { nde::read_trace(file.path); }), file.path));
  }
  file.replace(whole + "more");
  CHECK(says(message_of<model_error>([&] { nde::read_trace(file.path); }), file.path));
}

TEST_CASE("A file of other tensors is no trace", "[nde]") {
  const scratch_file file("other");
  nde::trace t = two_roots();
  SECTION("another format") {
    t.settings["format"] = "something else";
    nde::write_trace(file.path, t);
    CHECK(says(message_of<model_error>([&] { nde::read_trace(file.path); }), "is no trace", nde::trace_format));
  }
  SECTION("a tensor is missing") {
    t.tensors.erase("nodes");
    nde::write_trace(file.path, t);
    CHECK(says(message_of<model_error>([&] { nde::read_trace(file.path); }), "no tensor nodes"));
  }
  SECTION("a tensor has more roots than others") {
    t.append("nodes", std::vector<float>(324));
    nde::write_trace(file.path, t);
    CHECK(says(message_of<model_error>([&] { nde::read_trace(file.path); }), "nodes has 3 roots"));
  }
  SECTION("a tensor is of another shape than the format says") {
    t.tensors["efficiency"].shape = {2, 4, 162};
    nde::write_trace(file.path, t);
    CHECK(says(message_of<model_error>([&] { nde::read_trace(file.path); }), "tensor efficiency"));
  }
  SECTION("a number is none") {
    t.tensors["scalars"].values[3] = std::numeric_limits<float>::quiet_NaN();
    nde::write_trace(file.path, t);
    CHECK(says(message_of<model_error>([&] { nde::read_trace(file.path); }), "tensor scalars", "nan"));
  }
}
