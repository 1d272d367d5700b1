// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/model_weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "model/llama/model_writer.hpp"

namespace {

using namespace espalier;
using Catch::Matchers::ContainsSubstring;
using weights_type = model_weights;

model_config config() {
  model_config c = model_writer::wide_config();
  c.tied_embeddings = false;
  return c;
}

void refused(const model_writer::file_text& file, const std::string& words) {
  auto opened = model_writer::open(file.text());
  CHECK_THROWS_WITH(weights_type::load(config(), opened),
                    ContainsSubstring(words) && ContainsSubstring("model.safetensors"));
  CHECK_THROWS_AS(weights_type::load(config(), opened), model_error);
}

// Half precision by its definition.
float half_value(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) return fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// A file that counts what is read of it, and can have more tensors, which must not be read.
class counted_source : public tensor_source {
 public:
  explicit counted_source(tensor_source& file) : file_(file) {}

  std::size_t bytes = 0;
  std::vector<std::string> more;

  const std::string& where() const override { return file_.where(); }
  std::vector<std::string> names() const override {
    std::vector<std::string> all = file_.names();
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  const tensor_entry* find(const std::string& name) const override { return file_.find(name); }
  void read(const tensor_entry& entry, std::uint64_t first, void* to, std::size_t n) override {
    bytes += n;
    file_.read(entry, first, to, n);
  }

 private:
  tensor_source& file_;
};

}  // namespace

TEST_CASE("every half-precision number widens exactly") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float found = detail::float_from_f16(static_cast<std::uint16_t>(bits));
    const float expected = half_value(static_cast<std::uint16_t>(bits));
    if (std::isnan(expected)) {
      REQUIRE(std::isnan(found));
    } else {
      REQUIRE(found == expected);
      REQUIRE(std::signbit(found) == std::signbit(expected));
    }
  }
  CHECK(detail::float_from_bf16(0x3F80) == 1.0F);
  CHECK(detail::float_from_bf16(0xC040) == -3.0F);
}

TEST_CASE("rows of int8 are multiplied by their scales") {
  model_writer::file_text file;
  file.add_bytes("w", "I8", {2, 3}, std::string("\x01\x80\x7f\x00\xff\x02", 6));
  file.add("w_scale", {2}, {0.5F, 4.0F});
  auto opened = model_writer::open(file.text());
  std::vector<float> found;
  const weight_type type = detail::tensor_reader(opened).matrix("w", 2, 3, [&](int row, const weight_row& weights) {
    CHECK(row == static_cast<int>(found.size()) / 3);
    CHECK(weights.type == weight_type::i8_rows);
    found.resize(found.size() + 3);
    weights.decode(&found[found.size() - 3]);
  });
  CHECK(type == weight_type::i8_rows);
  CHECK(found == std::vector<float>{0.5F, -64.0F, 63.5F, 0.0F, -4.0F, 8.0F});
}

TEST_CASE("a matrix larger than the buffer is read whole") {
  model_writer::file_text file;
  std::vector<float> values(300 * 1000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i);
  file.add("w", {300, 1000}, values);
  auto opened = model_writer::open(file.text());
  std::vector<float> found;
  detail::tensor_reader(opened).matrix("w", 300, 1000, [&](int, const weight_row& row) {
    found.resize(found.size() + 1000);
    row.decode(&found[found.size() - 1000]);
  });
  CHECK(found == values);
}

TEST_CASE("of a matrix the wanted part is read, and little else") {
  for (const int columns : {600, 6000}) {
    model_writer::file_text file;
    std::vector<float> values(static_cast<std::size_t>(20 * columns)), expected;
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i);
    file.add("w", {20, static_cast<std::uint64_t>(columns)}, values);
    for (const int row : {0, 1, 2, 7, 19})
      expected.insert(expected.end(), values.begin() + row * columns + 96, values.begin() + row * columns + 512);
    auto opened = model_writer::open(file.text());
    counted_source counted(opened);
    std::vector<float> found;
    const auto visit = [&](int, const weight_row& row) {
      REQUIRE(row.n == 416);
      found.resize(found.size() + 416);
      row.decode(&found[found.size() - 416]);
    };
    const auto wanted = [](int row) { return row < 3 || row == 7 || row == 19; };
    detail::tensor_reader(counted).matrix("w", 20, columns, visit, wanted, [](weight_type) {
      return detail::column_range{96, 512};
    });
    CHECK(found == expected);
    CHECK(counted.bytes == sizeof(float) * 5 * (columns == 600 ? 600 : 416));
  }
}

TEST_CASE("a matrix without rows, or without columns, is read as that") {
  model_writer::file_text file;
  file.add("no_columns", {2, 0}, {});
  file.add("no_rows", {0, 2}, {});
  auto opened = model_writer::open(file.text());
  detail::tensor_reader reader(opened);
  int rows = 0;
  reader.matrix("no_columns", 2, 0, [&](int, const weight_row& row) {
    rows += 1 + row.n;
    row.decode(nullptr);
  });
  CHECK(rows == 2);
  reader.matrix("no_rows", 0, 2, [&](int, const weight_row&) { ++rows; });
  CHECK(rows == 2);
}

TEST_CASE("a missing tensor is named, whichever it is") {
  const auto whole = model_writer::random_llama(config(), 1);
  for (const auto& [name, entry] : whole.header.items()) {
    model_writer::file_text file = whole;
    file.header["other"] = file.header[name];
    file.header.erase(name);
    refused(file, "lacks tensor \"" + name + "\"");
  }
}

TEST_CASE("a tensor that the model has no place for is named, but those that change nothing are not") {
  const auto whole = model_writer::random_llama(config(), 1);
  const std::string layer = "model.layers.1.";
  for (const char* name : {"self_attn.k_proj.bias", "mlp.gate_proj.bias", "self_attn.sub_norm.weight",
                           "self_attn.q_proj.weight_scale", "inv_freq", "attention.bias"}) {
    auto file = whole;
    file.add(layer + name, {2}, {9, 9});
    refused(file, "tensor \"" + layer + name + "\" has no place in what the config makes: without it, the results");
    file.add("model.layers.2.input_layernorm.weight", {2}, {9, 9});
    refused(file, "tensor \"" + layer + name + "\" (and 1 more) has no place");
  }
  const auto check = [](const std::string& model, const std::string& name, bool is_idle) {
    INFO(model << ' ' << name);
    const model_files files = model_files::open(std::string(ESPALIER_TEST_DATA) + "/golden/" + model);
    counted_source source(*files.tensors);
    source.more = {name};
    const auto load = [&] { weights_type::load(files.config, source); };
    if (is_idle) {
      CHECK_NOTHROW(load());
    } else {
      CHECK_THROWS_WITH(load(), ContainsSubstring(name + "\" has no place"));
    }
  };
  check("llama", "model.layers.0.self_attn.rotary_emb.inv_freq", true);
  check("gpt_neox", "gpt_neox.layers.0.attention.rotary_emb.inv_freq", true);
  check("gpt_neox", "gpt_neox.layers.0.attention.bias", true);
  check("gpt_neox", "gpt_neox.layers.0.attention.masked_bias", true);
  check("gpt_neox", "gpt_neox.layers.0.attention.dense.scale", false);
  check("llama", "vision_tower.weight", false);
  check("llama", "rope_freqs.weight", false);
  check("llama3/model.gguf", "rope_freqs.weight", true);
  check("llama_f16/model.gguf", "blk.0.attn_rot_embd.weight", true);
  check("llama_f16/model.gguf", "blk.0.attn_sub_norm.weight", false);
  check("gpt_neox/model.gguf", "blk.0.attn_k.bias", false);
  check("qwen3_next", "mtp.layers.0.mlp.gate.bias", true);
  check("qwen3_next", "model.layers.0.linear_attn.conv1d.bias", false);
  check("qwen3_5", "model.visual.patch_embed.proj.weight", true);
  check("qwen3_5", "model.embed_tokens.weight", false);
  check("qwen3_5_moe", "model.visual.patch_embed.proj.weight", false);
  check("qwen3_next/model.gguf", "blk.3.nextn.embed_tokens.weight", true);  // layer 3 of 4 only drafts
  check("qwen3_next/model.gguf", "blk.2.nextn.eh_proj.weight", false);
  check("qwen3_next/model.gguf", "blk.4.nextn.eh_proj.weight", false);
}

TEST_CASE("a tied head may be in the file if it is the embedding") {
  const model_config tied = model_writer::wide_config();
  const auto whole = model_writer::random_llama(tied, 1);
  const auto& offsets = whole.header["model.embed_tokens.weight"]["data_offsets"];
  const auto begin = offsets[0].get<std::size_t>(), end = offsets[1].get<std::size_t>();
  const std::vector<std::uint64_t> shape{203, 96};
  auto file = whole;
  file.add_bytes("lm_head.weight", "F32", shape, whole.data.substr(begin, end - begin));
  auto opened = model_writer::open(file.text());
  CHECK_NOTHROW(weights_type::load(tied, opened));
  for (const std::size_t at : {begin, end - 1}) {
    std::string other = whole.data.substr(begin, end - begin);
    other[at - begin] = static_cast<char>(other[at - begin] ^ 1);
    file = whole;
    file.add_bytes("lm_head.weight", "F32", shape, other);
    opened = model_writer::open(file.text());
    CHECK_THROWS_WITH(weights_type::load(tied, opened),
                      ContainsSubstring("tensor \"lm_head.weight\" is not the same as \"model.embed_tokens.weight\", "
                                        "but the config makes them one"));
  }
  file = whole;
  file.add("lm_head.weight", {2}, {1, 2});
  opened = model_writer::open(file.text());
  CHECK_THROWS_WITH(weights_type::load(tied, opened), ContainsSubstring("\"lm_head.weight\" is not the same as"));
}

TEST_CASE("a language model is read from among the tensors of a model that sees pictures") {
  const auto whole = model_writer::random_llama(config(), 1);
  auto plain = model_writer::open(whole.text());
  const weights_type expected = weights_type::load(config(), plain);
  model_writer::file_text file = whole;
  file.header = nlohmann::json::object();
  for (const auto& [name, entry] : whole.header.items())
    file.header["language_model." + name] = entry;
  file.add("vision_tower.patch_conv.weight", {2}, {1, 2});
  file.add("multi_modal_projector.norm.weight", {2}, {1, 2});
  model_config part = config();
  part.tensor_prefix = "language_model.";
  auto opened = model_writer::open(file.text());
  const weights_type found = weights_type::load(part, opened);
  REQUIRE(found.bytes() == expected.bytes());
  CHECK(std::memcmp(found.final_norm.scale, expected.final_norm.scale, 96 * sizeof(float)) == 0);
  float one[96], other[96];
  expected.head.matrix.get_row(202, one);
  found.head.matrix.get_row(202, other);
  CHECK(std::equal(std::begin(one), std::end(one), std::begin(other)));
  refused(file, "lacks tensor \"model.embed_tokens.weight\"");
  file.add("vision.weight", {2}, {1, 2});
  opened = model_writer::open(file.text());
  CHECK_THROWS_WITH(weights_type::load(part, opened), ContainsSubstring("tensor \"vision.weight\" has no place"));
}

TEST_CASE("a tensor of another shape or dtype than the config asks for is named") {
  auto file = model_writer::random_llama(config(), 1);
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  file.header[name]["shape"] = {96, 150};
  refused(file, name + "\" has shape [96, 150], but the config makes it [150, 96]");
  file.header[name]["shape"] = {150 * 96};
  refused(file, "has shape [14400]");
  file.header[name]["shape"] = {150, 48};
  file.header[name]["dtype"] = "F64";
  refused(file, "has shape [150, 48]");
  file.header[name]["shape"] = {150, 96};
  file.header[name]["dtype"] = "I32";
  refused(file, name + "\" has dtype I32, but must be F32, F16, BF16");
  file = model_writer::random_llama(config(), 1);
  file.header["model.norm.weight"]["dtype"] = "U32";
  refused(file, "model.norm.weight\" has dtype U32");
}

TEST_CASE("int8 without scales, or as a norm, is refused") {
  model_writer::file_text file;
  file.add_bytes("w", "I8", {2, 3}, "abcdef");
  file.add_bytes("norm", "I8", {2}, "ab");
  auto opened = model_writer::open(file.text());
  detail::tensor_reader reader(opened);
  CHECK_THROWS_WITH(reader.matrix("w", 2, 3, [](int, const weight_row&) {}),
                    ContainsSubstring("lacks tensor \"w_scale\""));
  float to[2] = {};
  CHECK_THROWS_WITH(reader.vector("norm", 2, to), ContainsSubstring("\"norm\" has dtype I8"));
}

TEST_CASE("scales of int8 that are int8 or of another number are refused by a reader that only checks, too") {
  model_writer::file_text file;
  for (const char* name : {"bytes", "more"})
    file.add_bytes(name, "I8", {2, 3}, "abcdef");
  file.add_bytes("bytes_scale", "I8", {2}, "ab");
  file.add("more_scale", {3}, {1, 2, 3});
  auto opened = model_writer::open(file.text());
  for (const bool only_check : {true, false}) {
    detail::tensor_reader reader(opened, only_check);
    const auto read = [&](const char* name) { reader.matrix(name, 2, 3, [](int, const weight_row&) {}); };
    CHECK_THROWS_WITH(read("bytes"), ContainsSubstring("\"bytes_scale\" has dtype I8"));
    CHECK_THROWS_WITH(read("more"), ContainsSubstring("\"more_scale\" has shape [3], but the config makes it [2]"));
  }
}

TEST_CASE("gate and up are read from one tensor, and so are query, key and value") {
  const model_files phi = model_files::open(std::string(ESPALIER_TEST_DATA) + "/golden/phi3");
  const model_config& c = phi.config;
  const weights_type weights = weights_type::load(c, *phi.tensors);
  const auto rows_of = [&](const char* name, int rows) {
    std::vector<std::vector<float>> all;
    detail::tensor_reader(*phi.tensors).matrix(name, rows, c.hidden_size, [&](int, const weight_row& row) {
      row.decode(all.emplace_back(static_cast<std::size_t>(c.hidden_size)).data());
    });
    return all;
  };
  const auto is = [&](const weight_matrix& matrix, int row, const std::vector<float>& expected) {
    std::vector<float> found(expected.size());
    matrix.get_row(row, found.data());
    return found == expected;
  };
  const auto wide = rows_of("model.layers.1.mlp.gate_up_proj.weight", 2 * c.intermediate_size);
  for (int row = 0; row < c.intermediate_size; ++row) {
    CHECK(is(weights.layers[1].gate.matrix, row, wide[static_cast<std::size_t>(row)]));
    CHECK(is(weights.layers[1].up.matrix, row, wide[static_cast<std::size_t>(c.intermediate_size + row)]));
  }
  const auto all = rows_of("model.layers.1.self_attn.qkv_proj.weight", c.projected_size());
  for (int row = 0; row < c.projected_size(); ++row)
    CHECK(is(weights.layers[1].query_key_value.matrix, row, all[static_cast<std::size_t>(row)]));
  model_config narrow = c;
  narrow.intermediate_size -= 8;
  CHECK_THROWS_WITH(weights_type::load(narrow, *phi.tensors),
                    ContainsSubstring("\"model.layers.0.mlp.gate_up_proj.weight\" has shape [48, 32], but the config "
                                      "makes it [32, 32]"));
  narrow = c;
  narrow.joined_projections = false;
  CHECK_THROWS_WITH(weights_type::load(narrow, *phi.tensors),
                    ContainsSubstring("lacks tensor \"model.layers.0.self_attn.q_proj.weight\""));
}

TEST_CASE("a config that claims far more than the file holds is refused before memory is taken") {
  model_config huge = config();
  huge.n_layers = 4096;
  huge.hidden_size = 1 << 20;
  huge.intermediate_size = 1 << 22;
  huge.vocab_size = 1 << 24;
  auto opened = model_writer::open(model_writer::random_llama(config(), 1).text());
  CHECK_THROWS_AS(weights_type::load(huge, opened), model_error);
}
