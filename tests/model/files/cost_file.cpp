// SPDX-License-Identifier: BSL-1.0
// Cost files: what is saved is loaded, what does not fit is named; and the names of models.
#include "espalier/model/files/cost_file.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

std::string path_of(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("espalier_cost_" + name)).string();
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

cost_model made_up_model() {
  return {.hardware = "a \"fine\" machine, 2 threads",
          .target = "large",
          .draft = "small",
          .draft_pass = cost_curve::of_grid({1, 64}, {16, 100}, {0.1, 1.0 / 3, 2e-5 + 0.1, 0.5}),
          .target_pass = cost_curve::of_grid({1, 2, 4}, {0}, {1e-9, 2, 2}),
          .opening = 1.0 / 7};
}

std::string saved() {
  const std::string path = path_of("saved.json");
  save_costs(made_up_model(), path);
  return text_of(path);
}

// The saved text with one piece replaced.
std::string altered(const std::string& from, const std::string& to) {
  std::string text = saved();
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

template <class... PiecesT>
bool is_refused(const std::string& text, const PiecesT&... pieces) {
  const std::string message = message_of<model_error>([&] { parse_costs(text, "here.json"); });
  UNSCOPED_INFO("the message: " << message);
  return says(message, "here.json", pieces...);
}

}  // namespace

TEST_CASE("costs are loaded as they were saved") {
  const std::string path = path_of("kept.json");
  save_costs(made_up_model(), path);
  CHECK(load_costs(path) == made_up_model());
  save_costs(load_costs(path), path);
  CHECK(text_of(path) == saved());
}

TEST_CASE("a cost file says how its seconds came about, or does not") {
  const std::string path = path_of("sourced.json");
  save_costs(made_up_model(), path, "measured with a \"sundial\"");
  CHECK(load_costs(path) == made_up_model());
  CHECK(load_source_of_costs(path) == "measured with a \"sundial\"");
  save_costs(made_up_model(), path);
  CHECK(load_source_of_costs(path).empty());
  write(path, altered("\"format\"", "\"source\": 7, \"format\""));
  CHECK(says(message_of<model_error>([&] { load_source_of_costs(path); }), path, "\"source\" is 7", "a string"));
  CHECK(
      says(message_of<model_error>([] { load_source_of_costs(path_of("absent/none.json")); }), "none.json", "opened"));
}

TEST_CASE("cost files that are cut short are refused") {
  const std::string text = saved();
  for (std::size_t n = 0; n + 2 < text.size(); ++n)
    CHECK(is_refused(text.substr(0, n), "JSON object"));
}

TEST_CASE("cost files that do not fit are refused with the reason") {
  CHECK(says(message_of<model_error>([] { load_costs(path_of("absent/none.json")); }), "none.json", "opened"));
  CHECK(says(message_of<input_error>([] { save_costs(made_up_model(), path_of("absent/none.json")); }), "none.json"));
  CHECK(is_refused(altered("espalier-costs 1", "espalier-costs 2"), "\"format\"", "espalier-costs 1"));
  for (const char* key : {"format", "hardware", "target", "draft", "opening_seconds", "draft_pass", "target_pass",
                          "rows", "contexts", "seconds"})
    CHECK(is_refused(altered("\"" + std::string(key) + "\"", "\"other\""), "lacks \"" + std::string(key) + "\""));
  CHECK(is_refused(altered("\"large\"", "7"), "\"target\" is 7", "a string"));
  CHECK(is_refused(altered("0.14285714285714285", "-1"), "\"opening_seconds\" is -1"));
  CHECK(is_refused(altered("0.14285714285714285", "\"1\""), "\"opening_seconds\""));
  CHECK(is_refused(altered("[1, 64]", "[1, 64, 99]"), "draft_pass", "3 lists"));
  CHECK(is_refused(altered("[1, 64]", "[1, 64.5]"), "draft_pass", "\"rows\" is 64.5", "whole numbers"));
  CHECK(is_refused(altered("[1, 64]", "[64, 1]"), "draft_pass", "rows are not ascending"));
  CHECK(is_refused(altered("[1, 64]", "[-1, 64]"), "\"rows\" is -1"));
  CHECK(is_refused(altered("[1, 64]", "[1, 99999999999]"), "\"rows\" is 99999999999"));
  CHECK(is_refused(altered("[1, 64]", "5"), "\"rows\" is 5", "a list"));
  CHECK(is_refused(altered("[16, 100]", "[16]"), "2 numbers", "must have 1"));
  CHECK(is_refused(altered("[16, 100]", "[]"), "draft_pass"));
  CHECK(is_refused(altered("[0.1, 0.3333333333333333]", "[0.1]"), "draft_pass", "1 numbers", "must have 2"));
  CHECK(is_refused(altered("[0.1, 0.3333333333333333]", "[0.1, null]"), "\"seconds\" is null"));
  CHECK(is_refused(altered("[0.1, 0.3333333333333333]", "[0.1, NaN]"), "JSON object"));
  CHECK(is_refused(altered("[0.1, 0.3333333333333333]", "[-0.1, 0.3]"), "1 rows after 16 tokens are -0.1"));
  CHECK(is_refused(altered("[0.1, 0.3333333333333333]", "[0.4, 0.3]"), "shorter context"));
  CHECK(is_refused(altered("[0.1, 0.3333333333333333]", "[0.2, 0.3]"), "64 rows after 16 tokens", "fewer rows"));
  CHECK(is_refused("[]", "JSON object"));
}

TEST_CASE("costs of other hardware are warned of, those of other models refused") {
  const cost_model costs = made_up_model();
  CHECK(mismatch(costs, costs.hardware, "large", "small").empty());
  CHECK(says(mismatch(costs, "mine, 8 threads", "large", "small"), "fine", "mine, 8 threads"));
  CHECK(says(message_of<input_error>([&] { mismatch(costs, costs.hardware, "larger", "small"); }), "target model large",
             "larger"));
  CHECK(says(message_of<input_error>([&] { mismatch(costs, costs.hardware, "large", "tiny"); }), "draft model small",
             "tiny"));
}

TEST_CASE("a model is named by its sizes and the bytes of its weights") {
  const std::string folder = path_of("model");
  std::filesystem::create_directories(folder);
  write(folder + "/config.json", R"({"model_type": "llama", "vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 3,
    "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64})");
  // From the definition of FNV-1a: the hashes of no bytes, of "a" and of "foobar".
  write(folder + "/model.safetensors", "");
  CHECK(model_identity(folder) == "llama 3x8, 40 tokens, cbf29ce484222325");
  write(folder + "/model.safetensors", "a");
  CHECK(model_identity(folder) == "llama 3x8, 40 tokens, af63dc4c8601ec8c");
  write(folder + "/model.safetensors", "foobar");
  CHECK(model_identity(folder) == "llama 3x8, 40 tokens, 85944171f73967e8");
  // Longer than is read at once: every byte counts, the first, the last, and those where one piece meets the next.
  std::string weights(3'000'000, 'x');
  write(folder + "/model.safetensors", weights);
  const std::string name = model_identity(folder);
  for (const std::size_t at : {std::size_t{0}, (std::size_t{1} << 20) - 1, std::size_t{1} << 20, weights.size() - 1}) {
    std::string other = weights;
    other[at] = 'y';
    write(folder + "/model.safetensors", other);
    CHECK(model_identity(folder) != name);
  }
  std::filesystem::remove(folder + "/model.safetensors");
  CHECK(says(message_of<model_error>([&] { model_identity(folder); }), "model.safetensors"));
  std::filesystem::remove_all(folder);
  CHECK(says(message_of<model_error>([&] { model_identity(folder); }), "config.json"));
}

TEST_CASE("heads and block drafts are named as models are, a block without a vocabulary of its own by the rest") {
  const std::string golden = std::string(ESPALIER_TEST_DATA) + "/golden/";
  const auto named = [&](const char* folder, const std::string& begin) {
    const std::string name = model_identity(golden + folder);
    INFO(folder << ": " << name);
    return name.starts_with(begin) && name.size() == begin.size() + 16;
  };
  CHECK(named("heads/dflash", "qwen3 2x32, 96 tokens, "));
  CHECK(named("heads/dflash_speculators", "qwen3 2x32, 96 tokens, "));
  CHECK(named("block", "espalier_block 2x32, "));
  CHECK(named("heads/midlayer", "llama 1x32, 96 tokens, "));
  CHECK(named("heads/mtp", "qwen3 1x32, 96 tokens, "));
  CHECK(named("heads/peagle", "llama 1x32, 96 tokens, "));
  CHECK(named("head_gguf/eagle3.gguf", "eagle3 1x32, 96 tokens, "));
  CHECK(named("head_gguf/dflash.gguf", "dflash 2x32, 96 tokens, "));
}
