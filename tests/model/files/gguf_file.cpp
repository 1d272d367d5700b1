// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/files/gguf_file.hpp"

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "model/files/gguf_writer.hpp"

namespace {

using namespace espalier;
using Catch::Matchers::ContainsSubstring;
using gguf_writer::bytes_of;

void refused(const std::string& text, const std::string& words) {
  INFO(words);
  CHECK_THROWS_WITH(gguf_writer::open(text), ContainsSubstring(words) && ContainsSubstring("model.gguf"));
  CHECK_THROWS_AS(gguf_writer::open(text), model_error);
}

gguf_writer::file_text small() {
  gguf_writer::file_text file;
  file.add("general.architecture", "llama");
  file.add("llama.block_count", 2);
  file.add("llama.rope.freq_base", 10000.0F);
  file.add("flag", true);
  file.add("tokens", std::vector<std::string>{"a", "", "bc"});
  file.add_raw("scores", 9, bytes_of(std::uint32_t{6}) + bytes_of(std::uint64_t{2}) + bytes_of(0.5F) + bytes_of(-1.0F));
  file.add_raw("types", 9, bytes_of(std::uint32_t{5}) + bytes_of(std::uint64_t{2}) + bytes_of(3) + bytes_of(-1));
  file.add_raw("big", 10, bytes_of(std::uint64_t{0xFFFFFFFFFFFFFFFF}));
  file.add_raw("double", 12, bytes_of(0.25));
  file.add_tensor("b", {2, 3}, {1, 2, 3, 4, 5, 6});
  file.add_tensor("q", 3, {2, 64}, std::string(80, 'x'));
  return file;
}

}  // namespace

TEST_CASE("a GGUF file is read as it was written") {
  gguf_file file = gguf_writer::open(small().text());
  const gguf_metadata& data = file.metadata();
  CHECK(data.text("general.architecture") == "llama");
  CHECK(data.text_or("nothing", "else") == "else");
  CHECK(data.integer("llama.block_count", 1, 10) == 2);
  CHECK(data.integer_or("nothing", 7, 1, 10) == 7);
  CHECK(data.number("llama.rope.freq_base", 1, 1e12) == 10000.0);
  CHECK(data.number("llama.block_count", 1, 10) == 2.0);
  CHECK(data.number_or("double", 0, -1, 1) == 0.25);
  CHECK(data.flag_or("flag", false));
  CHECK(data.texts("tokens") == std::vector<std::string>{"a", "", "bc"});
  CHECK(data.numbers("scores") == std::vector<float>{0.5F, -1.0F});
  CHECK(data.integers("types") == std::vector<std::int64_t>{3, -1});
  CHECK(data.is_list("types"));
  CHECK_FALSE(data.is_list("flag"));
  CHECK_FALSE(data.has("nothing"));
  REQUIRE(file.find("b"));
  CHECK(file.find("b")->shape == std::vector<std::uint64_t>{2, 3});
  CHECK(file.find("b")->dtype == "F32");
  float values[2] = {};
  file.read(*file.find("b"), 8, values, sizeof values);
  CHECK(values[0] == 3.0F);
  CHECK(values[1] == 4.0F);
  CHECK(file.find("q")->dtype == "Q4_1");
  CHECK(file.find("q")->bytes == 80);
  CHECK(file.find("nothing") == nullptr);
}

TEST_CASE("a value of another kind or range is named with what is allowed") {
  const gguf_file file = gguf_writer::open(small().text());
  const gguf_metadata& data = file.metadata();
  CHECK_THROWS_WITH(data.integer("nothing", 1, 2), "model.gguf lacks \"nothing\".");
  CHECK_THROWS_WITH(data.integer("llama.block_count", 3, 9),
                    ContainsSubstring("is 2, but must be a whole number from 3 to 9"));
  CHECK_THROWS_WITH(data.integer("double", 0, 9), ContainsSubstring("\"double\" is 0.25"));
  CHECK_THROWS_WITH(data.integer("big", 0, 9), ContainsSubstring("\"big\" is 9223372036854775807"));
  CHECK_THROWS_WITH(data.integer("tokens", 0, 9), ContainsSubstring("\"tokens\" is a list of 3"));
  CHECK_THROWS_WITH(data.number("flag", 0, 9), ContainsSubstring("\"flag\" is true, but must be a number from 0 to 9"));
  CHECK_THROWS_WITH(data.flag_or("double", true), ContainsSubstring("must be true or false"));
  CHECK_THROWS_WITH(data.text("flag"), ContainsSubstring("must be text"));
  CHECK_THROWS_WITH(data.texts("general.architecture"), ContainsSubstring("is \"llama\", but must be a list of texts"));
  CHECK_THROWS_WITH(data.numbers("tokens"), ContainsSubstring("a list of numbers"));
  CHECK_THROWS_WITH(data.integers("scores"), ContainsSubstring("a list of whole numbers"));
}

TEST_CASE("what is no GGUF file of a known version is refused") {
  refused("", "is no GGUF file");
  refused(std::string(100, 'x'), "is no GGUF file");
  gguf_writer::file_text file = small();
  file.version = 1;
  refused(file.text(), "version 1, but only versions 2 and 3 are read");
  file.version = 0x03000000;
  refused(file.text(), "big-endian");
}

TEST_CASE("a GGUF file that is cut anywhere is refused") {
  gguf_writer::file_text empty;
  empty.add_tensor("empty", {0}, {});
  for (const std::string& whole : {small().text(), empty.text()}) {
    CHECK_NOTHROW(gguf_writer::open(whole));
    for (std::size_t n = 0; n < whole.size(); ++n) {
      INFO(n);
      CHECK_THROWS_AS(gguf_writer::open(whole.substr(0, n)), model_error);
    }
  }
}

TEST_CASE("counts and sizes that a GGUF file cannot hold are refused before memory is taken") {
  gguf_writer::file_text file = small();
  file.n_pairs = std::uint64_t{1} << 60;
  refused(file.text(), "1152921504606846976 key-value pairs follow");
  file = small();
  file.n_tensors = std::uint64_t{1} << 60;
  refused(file.text(), "1152921504606846976 tensors follow");
  file = small();
  file.add_raw("long", 8, bytes_of(std::uint64_t{0xFFFFFFFFFFFFFFFF}));
  refused(file.text(), "18446744073709551615 bytes of text follow");
  file = small();
  file.add_raw("long", 9, bytes_of(std::uint32_t{10}) + bytes_of(std::uint64_t{1} << 61));
  refused(file.text(), "2305843009213693952 values of a list follow");
}

TEST_CASE("pairs that contradict themselves are refused") {
  gguf_writer::file_text file = small();
  file.add("flag", false);
  refused(file.text(), "has the key \"flag\" twice");
  file = small();
  file.add_raw("odd", 13, "");
  refused(file.text(), "\"odd\" is of kind 13");
  file = small();
  file.add_raw("odd", 9, bytes_of(std::uint32_t{9}) + bytes_of(std::uint64_t{0}));
  refused(file.text(), "\"odd\" is a list of lists");
  for (const std::uint32_t alignment : {0U, 24U, 1U << 21}) {
    file = small();
    file.add("general.alignment", alignment);
    refused(file.text(), "\"general.alignment\" is " + std::to_string(alignment));
  }
}

TEST_CASE("tensors that contradict themselves or one another are refused by name") {
  const auto with = [](std::uint32_t type, const std::vector<std::uint64_t>& shape, std::size_t bytes) {
    gguf_writer::file_text file = small();
    file.add_tensor("w", type, shape, std::string(bytes, '\0'));
    return file.text();
  };
  CHECK_NOTHROW(gguf_writer::open(with(12, {3, 256}, 3 * 144)));
  refused(with(77, {3}, 12),
          "tensor \"w\" is of type 77, which is not known; a model's may be F32, F16, BF16, Q4_0, Q4_1, "
          "Q5_0, Q5_1, Q8_0, IQ4_NL, MXFP4, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K or IQ4_XS.");
  refused(with(0, {1, 1, 1, 1, 1}, 4), "tensor \"w\" has 5 dimensions");
  refused(with(2, {3, 16}, 100), "tensor \"w\" has rows of 16 weights, but Q4_0 needs a multiple of 32");
  refused(with(0, {1U << 31, 1U << 31, 1U << 31}, 4), "tensor \"w\" has a shape whose size overflows");
  refused(with(0, {25}, 96), "tensor \"w\" has 100 bytes from byte");
  gguf_writer::file_text file = small();
  file.add_tensor("b", {1}, {1});
  refused(file.text(), "tensor \"b\" is listed twice");
  file = small();
  file.tensors += gguf_writer::text_of("w") + bytes_of(std::uint32_t{1}) + bytes_of(std::uint64_t{1}) +
                  bytes_of(std::uint32_t{0}) + bytes_of(std::uint64_t{0});
  ++file.n_tensors;
  refused(file.text(), "tensor \"b\" overlaps the one before it");
  file.tensors.replace(file.tensors.size() - 8, 8, bytes_of(std::uint64_t{20}));
  refused(file.text(), "tensor \"w\" begins at byte 20, which is no multiple of the alignment, 32");
}

TEST_CASE("blocks of types that are not decoded have ggml's sizes") {
  gguf_writer::file_text file;
  file.add_tensor("q8_1", 9, {64}, std::string(2 * 36, 'x'));
  file.add_tensor("mxfp4", 39, {64}, std::string(2 * 17, 'x'));
  const gguf_file read = gguf_writer::open(file.text());
  CHECK(read.find("q8_1")->bytes == 2 * 36);
  CHECK(read.find("mxfp4")->bytes == 2 * 17);
}

TEST_CASE("a GGUF model in several files is read from all of them, or refused by the part that does not fit") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "espalier_gguf_parts";
  fs::remove_all(folder);
  fs::create_directories(folder);
  const auto path = [&](int i) { return (folder / ("model-0000" + std::to_string(i) + "-of-00003.gguf")).string(); };
  const auto part = [](int number, int count, const std::string& tensor, float value) {
    gguf_writer::file_text file;
    if (number == 0) file.add("general.architecture", "llama");
    file.add_raw("split.no", 2, bytes_of(static_cast<std::uint16_t>(number)));
    file.add_raw("split.count", 2, bytes_of(static_cast<std::uint16_t>(count)));
    file.add_raw("split.tensors.count", 5, bytes_of(std::int32_t{3}));
    file.add_tensor(tensor, {2}, {0, value});
    return file.text();
  };
  const auto write = [&](int i, const std::string& text) { std::ofstream(path(i), std::ios::binary) << text; };
  const auto refused_with = [&](const std::string& of, const std::string& words) {
    INFO(words);
    CHECK_THROWS_AS(gguf_file(of), model_error);
    CHECK_THROWS_WITH(gguf_file(of), ContainsSubstring(words) && ContainsSubstring(folder.string()));
  };
  write(1, part(0, 3, "a", 1));
  write(2, part(1, 3, "b", 2));
  refused_with(path(1), "model-00003-of-00003.gguf is missing: it is part 3 of 3");
  write(3, part(2, 3, "c", 3));
  gguf_file file(path(1));
  CHECK(file.metadata().text("general.architecture") == "llama");
  CHECK(file.paths() == std::vector<std::string>{path(1), path(2), path(3)});
  CHECK(file.names() == std::vector<std::string>{"a", "b", "c"});
  for (int i = 0; i < 3; ++i) {
    const tensor_entry* entry = file.find(std::string(1, static_cast<char>('a' + i)));
    REQUIRE(entry);
    float value = 0.0F;
    file.read(*entry, 4, &value, sizeof value);
    CHECK(value == static_cast<float>(i + 1));
    CHECK(file.where_is(*entry) == path(i + 1));
  }
  refused_with(path(2),
               "is part 2 of a GGUF model in 3 files: give the path of the first, which must end with "
               "-00001-of-00003.gguf, or merge them into one with llama-gguf-split --merge");
  const std::string renamed = (folder / "renamed.gguf").string();
  fs::copy(path(1), renamed);
  refused_with(renamed, "is part 1 of a GGUF model in 3 files");
  refused(part(0, 3, "a", 1), "is part 1 of a GGUF model in 3 files");
  write(3, part(1, 3, "c", 3));
  refused_with(path(1), "says that it is part 2 of 3, but its name that it is part 3 of 3");
  write(3, part(2, 3, "b", 3));
  refused_with(path(1), "00003.gguf: tensor \"b\" is in another part, too");
  gguf_writer::file_text more;
  more.add_raw("split.no", 2, bytes_of(std::uint16_t{2}));
  more.add_raw("split.count", 2, bytes_of(std::uint16_t{3}));
  more.add_tensor("c", {1}, {1});
  more.add_tensor("d", {1}, {1});
  write(3, more.text());
  refused_with(path(1), "\"split.tensors.count\" is 3, but must be 4, as many as all parts have");
  write(3, "no GGUF file, but some text that is long enough");
  refused_with(path(1), "model-00003-of-00003.gguf is no GGUF file");
  fs::remove_all(folder);
}

TEST_CASE("a GGUF file with any bytes changed is read within its bounds or refused") {
  const std::string whole = small().text();
  std::mt19937 random(5);
  int n_read = 0;
  for (int run = 0; run < 20000; ++run) {
    std::string text = whole;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      const std::size_t at = random() % text.size();
      const std::uint64_t odd[] = {0, 1, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF};
      const std::string bytes = bytes_of(odd[random() % 7]).substr(0, std::size_t{1} << random() % 4);
      text.replace(at, std::min(bytes.size(), text.size() - at), bytes, 0, std::min(bytes.size(), text.size() - at));
    }
    try {
      gguf_file file = gguf_writer::open(text);
      ++n_read;
      for (const auto& [name, entry] : file.entries()) {
        REQUIRE(entry.bytes <= text.size());
        REQUIRE(entry.offset <= text.size() - entry.bytes);
      }
    } catch (const model_error&) {
    }
  }
  CHECK(n_read > 1000);
  CHECK(n_read < 19000);
}
