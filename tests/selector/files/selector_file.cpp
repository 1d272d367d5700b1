// SPDX-License-Identifier: BSL-1.0
#include "espalier/selector/files/selector_file.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "model/llama/model_writer.hpp"
#include "raises.hpp"
#include "selector/made_up_features.hpp"
#include "selector/made_up_tensors.hpp"

using namespace espalier;

namespace {

constexpr int target_hidden = 24, draft_hidden = 8;
const selector_origin origin{"llama 7x24", "llama 2x8", 4096, "specinfer"};

// Writes what delayed_selector::read asks for.
struct tensor_writer {
  model_writer::file_text& file;
  bool four_bits;
  std::string of_floats;  // a matrix that is not

  void vector(const std::string& name, int n, float*) const {
    const std::vector<float> values = made_up(name, static_cast<std::size_t>(n));
    file.add(name, {static_cast<std::uint64_t>(n)}, values);
  }
  template <class VisitT>
  void matrix(const std::string& name, int rows, int columns, VisitT&&) const {
    const auto n = static_cast<std::size_t>(columns);
    const std::vector<float> values = made_up(name, static_cast<std::size_t>(rows), n);
    const std::vector<std::uint64_t> shape{static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)};
    if (!four_bits || name == of_floats) return file.add(name, shape, values);
    std::string bytes;
    std::vector<float> scales;
    for (std::size_t first = 0; first < values.size(); first += n) {
      float largest = 0;
      for (std::size_t i = first; i < first + n; ++i)
        largest = std::max(largest, std::abs(values[i]));
      scales.push_back(largest / 7);
      for (std::size_t i = first; i < first + n; ++i)
        bytes.push_back(static_cast<char>(std::lround(values[i] / scales.back())));
    }
    file.add_bytes(name, "I8", shape, bytes);
    file.add(name + "_scale", {static_cast<std::uint64_t>(rows)}, scales);
  }
};

model_writer::file_text written(bool four_bits, const std::string& of_floats = "") {
  model_writer::file_text file;
  delayed_selector shape(target_hidden, draft_hidden, selector_weights::float32);
  tensor_writer writer{file, four_bits, of_floats};
  shape.read(writer);
  file.header["__metadata__"] = {{"format", "espalier-nde-selector 2"},
                                 {"target", origin.target},
                                 {"draft", origin.draft},
                                 {"vocab", "4096"},
                                 {"verifier", origin.verifier}};
  return file;
}

selector_file load(const std::string& text) {
  return load_selector(safetensors_file(std::make_unique<std::istringstream>(text), "selector.safetensors"));
}

// The message that a file is refused with once it was changed.
template <class ChangeT>
std::string refusal(const ChangeT& change) {
  model_writer::file_text file = written(false);
  change(file);
  return message_of<model_error>([&] { load(file.text()); });
}

void put(model_writer::file_text& file, const std::string& tensor, std::size_t index, float value) {
  const auto begin = file.header[tensor]["data_offsets"][0].get<std::size_t>();
  std::memcpy(file.data.data() + begin + index * sizeof value, &value, sizeof value);
}

}  // namespace

TEST_CASE("a selector that was read from a file is the one that was written, in both forms") {
  for (const bool four_bits : {false, true}) {
    selector_file file = load(written(four_bits).text());
    CHECK(file.origin == origin);
    CHECK(file.selector.target_hidden_size() == target_hidden);
    CHECK(file.selector.draft_hidden_size() == draft_hidden);
    delayed_selector expected(target_hidden, draft_hidden,
                              four_bits ? selector_weights::int4 : selector_weights::float32);
    made_up_tensors tensors;
    expected.read(tensors);
    for (int number = 0; number < 5; ++number) {
      const made_up_features inputs(number, target_hidden, draft_hidden);
      CHECK(file.selector.choose(inputs.features) == expected.choose(inputs.features));
      for (std::size_t i = 0; i < expected.scores().size(); ++i)
        REQUIRE(std::abs(file.selector.scores()[i] - expected.scores()[i]) < 1e-5F);
    }
  }
}

TEST_CASE("a selector of other models, another vocabulary or another verifier is refused, and the message says which") {
  const selector_file file = load(written(true).text());
  require_origin(file, origin);
  const auto message = [&](const selector_origin& present) {
    return message_of<input_error>([&] { require_origin(file, present); });
  };
  selector_origin other = origin;
  other.target = "llama 9x24";
  CHECK(says(message(other), "selector.safetensors", "target model llama 7x24", "this one is llama 9x24"));
  other = origin;
  other.draft = "llama 1x8";
  CHECK(says(message(other), "draft model llama 2x8", "this one is llama 1x8"));
  other = origin;
  other.vocab = 32000;
  CHECK(says(message(other), "vocabulary size 4096", "this one is 32000"));
  other = origin;
  other.verifier = "spectr";
  CHECK(says(message(other), "verifier specinfer", "this one is spectr"));
}

TEST_CASE("a file that is no selector, lacks something, or has another shape is refused") {
  using file_text = model_writer::file_text;
  CHECK(says(refusal([](file_text& f) { f.header.erase("__metadata__"); }), "no selector", "\"format\""));
  CHECK(says(refusal([](file_text& f) { f.header["__metadata__"]["format"] = "pt"; }), "its format is \"pt\""));
  CHECK(says(refusal([](file_text& f) { f.header["__metadata__"].erase("verifier"); }), "\"verifier\""));
  CHECK(says(refusal([](file_text& f) { f.header["__metadata__"]["vocab"] = "many"; }), "\"vocab\" is \"many\""));
  CHECK(says(refusal([](file_text& f) { f.header["__metadata__"]["vocab"] = 4096; }), "\"vocab\"", "not text"));
  // A tensor goes by another name, so that the file stays whole.
  for (const char* name : {"target_hidden.mean", "draft_hidden_root.norm.bias", "scalars.deviation", "second.weight"}) {
    const auto renamed = [&](file_text& f) {
      f.header["other"] = f.header[name];
      f.header.erase(name);
    };
    CHECK(says(refusal(renamed), "lacks tensor", name));
  }
  CHECK(says(refusal([](file_text& f) {
               f.header["first.weight"]["shape"] = {395, 512};
             }),
             "first.weight", "[395, 512]", "make it [512, 395]"));
  CHECK(says(refusal([](file_text& f) { f.header["target_hidden.mean"]["shape"] = {4, 6}; }), "one extent"));
  CHECK(says(refusal([](file_text& f) { f.add("third.bias", {1}, {1}); }), "tensor \"third.bias\" has no place"));
}

TEST_CASE("bytes that 4 bits do not hold are refused") {
  model_writer::file_text file = written(true);
  const auto begin = file.header["second.weight"]["data_offsets"][0].get<std::size_t>();
  file.data[begin + 3 * 512 + 5] = 8;
  CHECK(says(message_of<model_error>([&] { load(file.text()); }), "row 3", "second.weight", "-7 to 7"));
  const std::string mixed = written(true, "second.weight").text();
  CHECK(says(message_of<model_error>([&] { load(mixed); }), "row 0", "second.weight", "all matrices must be"));
}

TEST_CASE("a file that is cut short is refused") {
  const std::string text = written(true).text();
  for (const std::size_t n : {std::size_t{0}, std::size_t{7}, std::size_t{100}, text.size() / 2, text.size() - 1}) {
    INFO(n);
    CHECK(says(message_of<model_error>([&] { load(text.substr(0, n)); }), "selector.safetensors"));
  }
}

TEST_CASE("numbers that are not finite and deviations that are not above 0 are refused") {
  using file_text = model_writer::file_text;
  constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
  CHECK(says(refusal([](file_text& f) { put(f, "first.weight", 1000, nan_value); }), "first.weight", "finite"));
  CHECK(says(refusal([](file_text& f) { put(f, "actions.bias", 3, INFINITY); }), "actions.bias", "finite"));
  CHECK(says(refusal([](file_text& f) { put(f, "scalars.deviation", 3, 0); }), "scalars.deviation", "above 0"));
  CHECK(says(refusal([](file_text& f) { put(f, "target_hidden.deviation", 3, -1); }), "above 0"));
}
