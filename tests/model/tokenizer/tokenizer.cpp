// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "espalier/model/files/whole_file.hpp"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "../../raises.hpp"
#include "../files/gguf_writer.hpp"
#include "catch.hpp"

using espalier::prompt_piece;
using espalier::token_id;
using espalier::tokenizer;
using nlohmann::json;

namespace {

const std::string folder = ESPALIER_TEST_DATA "/tokenizer/";

json read(const std::string& name) {
  return json::parse(espalier::detail::whole_file(folder + name));
}

const json& golden() {
  static const json file = read("golden.json");
  return file;
}

// The texts of golden.json, those that are not UTF-8 among them.
const std::vector<std::string>& texts() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> read;
    for (const json& text : golden()["texts"]) {
      read.emplace_back();
      if (text.is_string()) {
        read.back() = text.get<std::string>();
      } else {
        const auto hex = text["hex"].get<std::string>();
        for (std::size_t i = 0; i < hex.size(); i += 2)
          read.back() += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
      }
    }
    return read;
  }();
  return all;
}

// A base with a variant's fields in place of its own; those of the model are put among its own.
json variant(const json& base, const json& patch) {
  json file = base;
  for (const auto& [key, value] : patch.items()) {
    if (key == "model") {
      file[key].update(value);
    } else {
      file[key] = value;
    }
  }
  return file;
}

json variant(const std::string& name) {
  const json& entry = golden()["variants"][name];
  return variant(read(entry["base"].get<std::string>() + ".json"), entry["patch"]);
}

tokenizer made(const json& file) {
  return tokenizer::from_json(file.dump(), "tokenizer.json");
}

std::string complaint(const json& file) {
  return message_of<espalier::model_error>([&] { made(file); });
}

// The same with a field set or removed.
json with(json file, const std::string& pointer, const json& value) {
  file[json::json_pointer(pointer)] = value;
  return file;
}

// The piece of each token, one after the other, as a text that is shown while it is written.
std::string streamed(const tokenizer& of, const std::vector<token_id>& tokens) {
  std::string text;
  for (const token_id token : tokens)
    text += of.piece(token);
  return text;
}

std::string scratch(const std::string& name) {
  const auto place = std::filesystem::temp_directory_path() / ("espalier_tokenizer_" + name);
  std::filesystem::remove_all(place);
  std::filesystem::create_directories(place);
  return place.string();
}

void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// The words of a tokenizer.json by their ids, and which of them are added.
void add_words(gguf_writer::file_text& to, const json& file) {
  std::vector<std::string> words(made(file).size());
  std::vector<std::int32_t> kinds(words.size(), 1);
  for (const auto& [word, id] : file["model"]["vocab"].items())
    words[id.get<std::size_t>()] = word;
  for (const json& added : file["added_tokens"]) {
    words[added["id"].get<std::size_t>()] = added["content"].get<std::string>();
    kinds[added["id"].get<std::size_t>()] = added["special"].get<bool>() ? 3 : 4;
  }
  to.add("tokenizer.ggml.tokens", words);
  std::string list = gguf_writer::bytes_of(std::uint32_t{5}) + gguf_writer::bytes_of(std::uint64_t{kinds.size()});
  for (const std::int32_t kind : kinds)
    list += gguf_writer::bytes_of(kind);
  to.add_raw("tokenizer.ggml.token_type", 9, list);
}

void add_merges(gguf_writer::file_text& to, const json& file) {
  std::vector<std::string> merges;
  for (const json& merge : file["model"]["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  to.add("tokenizer.ggml.merges", merges);
}

tokenizer from_gguf(const gguf_writer::file_text& text) {
  const espalier::gguf_file file = gguf_writer::open(text.text());
  return tokenizer::from_gguf(file.metadata());
}

// Of a variant, as GGUF files hold it. Marks that take the white space beside them are unknown there.
gguf_writer::file_text byte_level_gguf(const json& file, const char* pre) {
  gguf_writer::file_text text;
  text.add("tokenizer.ggml.model", "gpt2");
  text.add("tokenizer.ggml.pre", pre);
  add_words(text, file);
  add_merges(text, file);
  return text;
}

}  // namespace

TEST_CASE("each form of a tokenizer.json gives the tokens of Hugging Face's tokenizers", "[tokenizer]") {
  for (const auto& [name, entry] : golden()["variants"].items()) {
    const tokenizer text = made(variant(name));
    for (std::size_t i = 0; i < texts().size(); ++i) {
      INFO(name << ": " << json(texts()[i]).dump(-1, ' ', true, json::error_handler_t::replace));
      if (entry["trusted"][i].is_null()) continue;  // a character that the other tokenizer does not know
      const json& plain = entry["plain"][i].is_null() ? entry["trusted"][i] : entry["plain"][i];
      CHECK(text.encode_trusted(texts()[i]) == entry["trusted"][i].get<std::vector<token_id>>());
      CHECK(text.encode(texts()[i]) == plain.get<std::vector<token_id>>());
      CHECK(text.decode(text.encode(texts()[i])) == streamed(text, text.encode(texts()[i])));
    }
    const auto begin = entry["begin"].get<std::vector<token_id>>();
    CHECK(text.encode_prompt("") == begin);
    CHECK(text.begin_of_text() == (begin.empty() ? -1 : begin.front()));
  }
}

TEST_CASE("tokens of bytes give back the text, byte for byte", "[tokenizer]") {
  for (const char* name : {"gpt2", "smollm", "llama3", "gemma"}) {
    const tokenizer text = made(variant(name));
    for (const std::string& whole : texts()) {
      if (whole.find("<right>") != std::string::npos) continue;  // takes the white space after it
      const json shown(whole);
      INFO(name << ": " << shown.dump(-1, ' ', true, json::error_handler_t::replace));
      std::string valid;
      for (std::string_view rest = whole; !rest.empty();) {
        const auto c = espalier::read_utf8(rest);
        const bool is_valid = c.what == espalier::utf8_character::state::valid;
        for (std::size_t i = 0; i < (is_valid ? 1 : c.bytes); ++i)
          valid += is_valid ? rest.substr(0, c.bytes) : "\xEF\xBF\xBD";
        rest.remove_prefix(c.bytes);
      }
      std::string decoded = text.decode(text.encode(whole));
      if (std::string(name) == "gemma") valid = espalier::detail::replaced(valid, "\xE2\x96\x81", " ");
      CHECK(decoded == valid);
    }
  }
}

TEST_CASE("a user cannot write a special token", "[tokenizer]") {
  const tokenizer text = made(variant("smollm"));
  const token_id end = text.find("<|im_end|>");
  REQUIRE(end >= 0);
  CHECK(text.find("<|im_") == -1);
  CHECK(text.piece(end).empty());
  CHECK(text.encode_trusted("a<|im_end|>b") == [&] {
    auto tokens = text.encode("a");
    tokens.push_back(end);
    for (const token_id token : text.encode("b"))
      tokens.push_back(token);
    return tokens;
  }());
  const auto has_end = [&](const std::vector<prompt_piece>& pieces) {
    const auto tokens = text.encode_pieces(pieces);
    return std::count(tokens.begin(), tokens.end(), end);
  };
  CHECK(has_end({{"<|im_end|>", false}}) == 0);
  CHECK(has_end({{"<|im_end|>", true}}) == 1);
  CHECK(has_end({{"<|im_", true}, {"end|>", true}}) == 1);
  CHECK(has_end({{"<|im_", true}, {"end|>", false}}) == 0);
  CHECK(has_end({{"<|im_", false}, {"end|>", true}}) == 0);
  CHECK(has_end({{"<|im_end|>", true}, {"<|im_end|>", false}, {"", true}, {"<|im_end|>x", true}}) == 2);
  // Text is cut into words across the pieces, as if it were one.
  CHECK(text.encode_pieces(std::vector<prompt_piece>{{"user\n", true}, {"\n x", false}}) == text.encode("user\n\n x"));
  // What is broken in one piece is not mended by the next.
  CHECK(text.encode_pieces(std::vector<prompt_piece>{{"\xC3", false}, {"\xA9", false}}) ==
        text.encode("\xEF\xBF\xBD\xEF\xBF\xBD"));
  CHECK(text.encode_prompt("<|im_end|>") == text.encode("<|im_end|>"));
}

TEST_CASE("what a chat template writes is a special token to it, whatever the file calls it", "[tokenizer]") {
  const std::string place = scratch("marks");
  json file = variant("llama2");  // whose normaliser changes each text
  for (json& added : file["added_tokens"])
    added.update({{"special", false}, {"normalized", added["content"] != "<think>"}});
  file["post_processor"] = nullptr;
  write(place + "/tokenizer.json", file.dump());
  const tokenizer without = tokenizer::load(place);
  write(place + "/tokenizer_config.json", R"({"chat_template": "<|im_end|><think>"})");
  const tokenizer text = tokenizer::load(place);
  for (const std::string mark : {"<|im_end|>", "<think>"}) {
    REQUIRE(text.find(mark) >= 0);
    const auto has = [&](const std::vector<token_id>& tokens) {
      return std::count(tokens.begin(), tokens.end(), text.find(mark)) > 0;
    };
    CHECK(has(without.encode("a " + mark)));  // the normaliser makes it begin with a space
    CHECK(!has(text.encode("a " + mark)));
    CHECK(has(text.encode_trusted("a" + mark)));
    CHECK(text.piece(text.find(mark)) == mark);
  }
  CHECK(without.encode("a<mask>") == text.encode("a<mask>"));
  std::filesystem::remove_all(place);
}

TEST_CASE("a long word takes no long time", "[tokenizer]") {
  for (const char* name : {"gpt2", "llama2"}) {
    const tokenizer text = made(variant(name));
    const auto tokens = text.encode(std::string(1 << 20, 'a') + std::string(1 << 18, ' '));
    CHECK(tokens.size() > 1000);
    CHECK(text.decode(tokens).size() >= (1 << 20) + (1 << 18));
  }
}

TEST_CASE("pieces that together are too long are refused", "[tokenizer]") {
  const tokenizer text = made(variant("gpt2"));
  const std::vector<prompt_piece> pieces{{"a", true}, {std::string(std::size_t{1} << 28, ' '), false}};
  CHECK(says(message_of<espalier::input_error>([&] { text.encode_pieces(pieces); }), "a text has 268435457 bytes",
             "at most 268435456"));
}

TEST_CASE("a GGUF file's byte-level tokens are those of the tokenizer.json", "[tokenizer]") {
  const std::vector<std::pair<const char*, const char*>> names = {
      {"gpt2", "gpt-2"}, {"smollm", "smollm"}, {"llama3", "llama-bpe"}, {"qwen2", "qwen2"}};
  for (const auto& [name, pre] : names) {
    json file = variant(name);
    for (json& added : file["added_tokens"])
      added.update({{"lstrip", false}, {"rstrip", false}, {"normalized", false}});
    const tokenizer expected = made(file);
    gguf_writer::file_text gguf = byte_level_gguf(file, pre);
    gguf.add("tokenizer.ggml.bos_token_id", expected.find("<s>"));
    gguf.add("tokenizer.ggml.eos_token_id", expected.find("</s>"));
    gguf.add("tokenizer.chat_template", "{{ bos_token }}<think>");
    gguf.add("tokenizer.chat_template.tool_use", "{{ tools }}");
    const tokenizer found = from_gguf(gguf);
    CHECK(found.size() == expected.size());
    CHECK(found.begin_of_text() == expected.begin_of_text());
    CHECK(found.ends_of_text() == [&] { return std::vector{expected.find("</s>"), expected.find("<|im_end|>")}; }());
    CHECK(found.chat_template_text() == "{{ bos_token }}<think>");
    CHECK(found.tool_template_text() == "{{ tools }}");
    CHECK(found.chat_variables() == nlohmann::ordered_json{{"bos_token", "<s>"}, {"eos_token", "</s>"}});
    for (const std::string& text : texts()) {
      INFO(name << ": " << json(text).dump(-1, ' ', true, json::error_handler_t::replace));
      CHECK(found.encode_trusted(text) == expected.encode_trusted(text));
      CHECK(found.decode(found.encode(text)) == expected.decode(expected.encode(text)));
      // <think> is no special token, but the template writes it.
      if (text.find("<think>") == std::string::npos) CHECK(found.encode(text) == expected.encode(text));
    }
    CHECK(found.encode("<think>").size() > 1);
    CHECK(found.encode_trusted("<think>") == std::vector{expected.find("<think>")});
  }
}

TEST_CASE("each name of tokenizer.ggml.pre cuts texts by the patterns of the models that it is named after",
          "[tokenizer]") {
  const json cuts = read("cuts.json");
  CHECK(cuts["names"].size() == 91);
  for (const auto& [name, entry] : cuts["names"].items()) {
    INFO(name);
    const auto* const found = espalier::detail::find_gguf_cuts(name);
    REQUIRE(found);
    const auto kind = entry["kind"].get<std::string>();
    CHECK(found->takes_whole == entry.value("ignore_merges", false));
    CHECK(found->adds_begin == (entry.value("add_bos", false) || kind == "GEMMA4"));
    espalier::detail::text_splitter splitter;
    std::string memory;
    for (const std::string_view pattern : found->patterns)
      if (!pattern.empty()) splitter.add({espalier::detail::regex(pattern, name)});
    for (std::size_t i = 0; i < cuts["texts"].size(); ++i) {
      const auto text = cuts["texts"][i].get<std::string>();
      INFO(cuts["texts"][i].dump(-1, ' ', true));
      std::vector<std::size_t> sizes;
      for (const std::string_view word : splitter.split(text, memory))
        sizes.push_back(word.size());
      CHECK(sizes == cuts["cuts"][kind][i].get<std::vector<std::size_t>>());
    }
  }
  for (const char* name : {"", "gpt", "-2", "gpt-2 phi-2", "nothing"})
    CHECK_FALSE(espalier::detail::find_gguf_cuts(name));
}

// A pattern that looked from each group of digits to the end of the number would take minutes.
TEST_CASE("a long number takes no long time, however its digits are cut", "[tokenizer]") {
  const std::string text(200'000, '7');
  for (const auto& cuts : espalier::detail::all_gguf_cuts) {
    INFO(cuts.names);
    espalier::detail::text_splitter splitter;
    std::string memory;
    for (const std::string_view pattern : cuts.patterns)
      if (!pattern.empty()) splitter.add({espalier::detail::regex(pattern, "file")});
    std::size_t size = 0;
    for (const std::string_view word : splitter.split(text, memory))
      size += word.size();
    CHECK(size == text.size());
  }
}

TEST_CASE("a GGUF file's words without a character for each byte are those of the tokenizer.json", "[tokenizer]") {
  json file = variant("gemma");
  for (json& added : file["added_tokens"])
    added.update({{"lstrip", false}, {"rstrip", false}, {"normalized", false}});
  const tokenizer expected = made(file);
  for (const char* model : {"gpt2", "gemma4"}) {
    gguf_writer::file_text gguf;
    gguf.add("tokenizer.ggml.model", model);
    if (model[1] == 'p') gguf.add("tokenizer.ggml.pre", "sarvam-moe");
    add_words(gguf, file);
    add_merges(gguf, file);
    gguf.add("tokenizer.ggml.bos_token_id", expected.find("<s>"));
    const tokenizer found = from_gguf(gguf);
    CHECK(found.begin_of_text() == (model[1] == 'p' ? -1 : expected.find("<s>")));
    for (const std::string& text : texts()) {
      INFO(json(text).dump(-1, ' ', true, json::error_handler_t::replace));
      // Line breaks are words of their own there.
      if (text.find('\n') == std::string::npos) CHECK(found.encode_trusted(text) == expected.encode_trusted(text));
      CHECK(found.decode(found.encode(text)) == expected.decode(expected.encode(text)));
    }
  }
}

TEST_CASE("a GGUF file's WordPiece is that of the tokenizer.json", "[tokenizer]") {
  json file = variant("word_pieces");
  for (json& added : file["added_tokens"])
    added.update({{"lstrip", false}, {"rstrip", false}, {"normalized", false}});
  file["post_processor"] = {{"type", "BertProcessing"}, {"cls", {"<s>", 0}}, {"sep", {"</s>", 0}}};
  for (const json& added : file["added_tokens"])
    if (added["content"] == "<s>") file["post_processor"]["cls"][1] = added["id"];
  const tokenizer expected = made(file);
  CHECK(expected.begin_of_text() == expected.find("<s>"));
  json spelled = json::object();
  for (const auto& [word, id] : file["model"]["vocab"].items()) {
    const bool goes_on = word.starts_with("##");
    spelled[goes_on ? word.substr(2) : word == "[UNK]" ? word : "\xE2\x96\x81" + word] = id;
  }
  file["model"]["vocab"] = spelled;
  file["model"]["continuing_subword_prefix"] = "";
  gguf_writer::file_text gguf;
  gguf.add("tokenizer.ggml.model", "bert");
  add_words(gguf, file);
  gguf.add("tokenizer.ggml.bos_token_id", expected.find("<s>"));
  gguf.add("tokenizer.ggml.unknown_token_id", file["model"]["vocab"]["[UNK]"].get<int>());
  const tokenizer found = from_gguf(gguf);
  CHECK(found.begin_of_text() == expected.begin_of_text());
  for (const std::string& text : texts()) {
    INFO(json(text).dump(-1, ' ', true, json::error_handler_t::replace));
    if (text.find("\xE2\x96\x81") != std::string::npos) continue;  // spells that a word begins in the file
    CHECK(found.encode_trusted(text) == expected.encode_trusted(text));
    if (text.find('<') == std::string::npos)  // added tokens stand for themselves there, without a space
      CHECK(found.decode(found.encode(text)) == expected.decode(expected.encode(text)));
  }
  CHECK(found.decode(found.encode("The \xC3\x89tude")) == " the etude");
}

TEST_CASE("a GGUF file's scored tokens are those of SentencePiece", "[tokenizer]") {
  const std::string model_type = GENERATE("llama", "t5");
  const bool is_unigram = model_type == "t5";
  const std::string path = is_unigram ? folder + "unigram.model" : TOKENIZER_MODELS "/tokenizer.model";
  const tokenizer expected = tokenizer::load(path);
  sentencepiece::SentencePieceProcessor model;
  REQUIRE(model.Load(path).ok());
  std::vector<std::string> words;
  std::string scores = gguf_writer::bytes_of(std::uint32_t{6}), kinds = gguf_writer::bytes_of(std::uint32_t{5});
  scores += gguf_writer::bytes_of(std::uint64_t(model.GetPieceSize()));
  kinds += gguf_writer::bytes_of(std::uint64_t(model.GetPieceSize()));
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    words.push_back(model.IdToPiece(id));
    scores += gguf_writer::bytes_of(model.GetScore(id));
    const bool is_user_defined = !is_unigram && words.back() == "\n";
    kinds += gguf_writer::bytes_of(std::int32_t{
        model.IsUnknown(id) ? 2 : (model.IsControl(id) ? 3 : (is_user_defined ? 4 : (model.IsByte(id) ? 6 : 1)))});
  }
  gguf_writer::file_text gguf;
  gguf.add("tokenizer.ggml.model", model_type);
  gguf.add("tokenizer.ggml.tokens", words);
  gguf.add_raw("tokenizer.ggml.scores", 9, scores);
  gguf.add_raw("tokenizer.ggml.token_type", 9, kinds);
  gguf.add("tokenizer.ggml.bos_token_id", expected.begin_of_text());
  gguf.add("tokenizer.ggml.eos_token_id", expected.ends_of_text().front());
  gguf.add("tokenizer.ggml.add_space_prefix", is_unigram);
  if (is_unigram) {
    const json table = golden()["variants"]["unigram_table"]["patch"]["normalizer"]["normalizers"][0];
    const std::string bytes = espalier::detail::bytes_of_base64(table["precompiled_charsmap"].get<std::string>());
    gguf.add_raw("tokenizer.ggml.precompiled_charsmap", 9,
                 gguf_writer::bytes_of(std::uint32_t{0}) + gguf_writer::bytes_of(std::uint64_t{bytes.size()}) + bytes);
    gguf.add("tokenizer.ggml.remove_extra_whitespaces", true);
    gguf.add("tokenizer.ggml.add_bos_token", true);
  }
  const tokenizer found = from_gguf(gguf);
  CHECK(found.size() == expected.size());
  CHECK(found.begin_of_text() == expected.begin_of_text());
  CHECK(found.ends_of_text() == expected.ends_of_text());
  for (int id = 0; id < found.size(); ++id)
    CHECK(found.piece(id) == expected.piece(id));
  std::string everything;
  for (const std::string& text : texts())
    everything += text;
  for (const std::string& text : texts()) {
    INFO(json(text).dump(-1, ' ', true, json::error_handler_t::replace));
    if (is_unigram && text.ends_with("\xE2\x96\x81")) continue;  // SentencePiece takes this one for a space
    CHECK(found.encode(text) == expected.encode(text));
    CHECK(found.encode_trusted(text) == expected.encode_trusted(text));
  }
  CHECK(found.encode(everything) == expected.encode(everything));
}

TEST_CASE("SentencePiece's tokens give back the text, and bytes without a piece are one token each", "[tokenizer]") {
  const auto text = tokenizer::load(TOKENIZER_MODELS "/tokenizer.model");
  for (const std::string whole :
       {"", "The river", "  two spaces, a tab\t and\n\nlines\n", "def f(x):\n    return x**2\n",
        "caf\xC3\xA9 \xE6\x97\xA5\xE6\x9C\xAC \xF0\x9F\x98\x80 \xC2\xA0.", "<s></s>"}) {
    INFO(whole);
    const auto tokens = text.encode(whole);
    CHECK(text.decode(tokens) == whole);
    CHECK(streamed(text, tokens) == whole);
    const auto prompt = text.encode_prompt(whole);
    REQUIRE(prompt.size() == tokens.size() + 1);
    CHECK(prompt.front() == text.begin_of_text());
    CHECK(text.decode(prompt) == whole);
  }
  CHECK(text.encode_trusted("</s>") == text.ends_of_text());
  const auto tokens = text.encode("\xF0\x9F\x98\x80");
  REQUIRE(tokens.size() >= 4);
  CHECK(text.piece(tokens.back()) == "\x80");
  CHECK(text.piece(-1).empty());
  CHECK(text.piece(text.size()).empty());
  REQUIRE(text.ends_of_text().size() == 1);
  CHECK(text.piece(text.ends_of_text().front()).empty());
}

TEST_CASE("a tokenizer tells the tokens that stand for one byte, and its marks", "[tokenizer]") {
  // Texts are encoded with "a", not with <0x61>; a byte-level vocabulary has no second token for a byte.
  const auto bytes_of = [](const tokenizer& text) {
    std::vector<std::string> bytes;
    for (token_id t = 0; t < text.size(); ++t)
      if (text.is_byte(t)) bytes.emplace_back(text.piece(t));
    std::sort(bytes.begin(), bytes.end());
    return bytes;
  };
  std::vector<std::string> all;
  for (int byte = 0; byte < 256; ++byte)
    all.emplace_back(1, static_cast<char>(byte));
  std::sort(all.begin(), all.end());
  const auto bundled = tokenizer::load(TOKENIZER_MODELS "/tokenizer.model");
  for (const tokenizer& text : {made(variant("llama2")), made(variant("unigram_bytes"))})
    CHECK(bytes_of(text) == all);
  CHECK(bytes_of(bundled) == all);
  CHECK(!bundled.is_byte(bundled.encode("a").at(0)));
  CHECK(bundled.is_byte(bundled.encode("\x01").at(0)));
  for (const char* name : {"gpt2", "unknown", "unigram", "word_pieces"})
    CHECK(bytes_of(made(variant(name))).empty());
  const auto marks = bundled.marks();
  REQUIRE(marks.size() == 2);
  CHECK(marks[0] == std::pair<token_id, std::string>(1, "<s>"));
  CHECK(marks[1] == std::pair<token_id, std::string>(2, "</s>"));
  for (const auto& [token, mark] : made(variant("gpt2")).marks())
    CHECK(made(variant("gpt2")).find(mark) == token);
  CHECK(made(variant("gpt2")).marks().size() >= 3);
}

TEST_CASE("a folder's files tell what begins and ends a text, and the chat template", "[tokenizer]") {
  const std::string place = scratch("folder");
  CHECK(says(message_of<espalier::model_error>([&] { tokenizer::load(place); }), place, "neither", "tokenizer.json"));
  write(place + "/tokenizer.json", variant("gpt2").dump());
  const token_id begin = made(variant("gpt2")).find("<s>"), end = made(variant("gpt2")).find("</s>");
  const token_id turn = made(variant("gpt2")).find("<|im_end|>");
  CHECK(tokenizer::load(place).ends_of_text() == std::vector{turn});
  CHECK(tokenizer::load(place + "/tokenizer.json").begin_of_text() == -1);

  json config = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}, {"chat_template", "one"}};
  write(place + "/tokenizer_config.json", config.dump());
  tokenizer text = tokenizer::load(place);
  CHECK(text.begin_of_text() == -1);
  CHECK(text.chat_variables() == nlohmann::ordered_json{{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  CHECK(text.chat_template_text() == "one");
  CHECK(text.ends_of_text() == std::vector{end, turn});

  config["add_bos_token"] = true;
  config["chat_template"] = {{{"name", "tool_use"}, {"template", "two"}}, {{"name", "default"}, {"template", "three"}}};
  config["pad_token"] = "<pad>";
  config["additional_special_tokens"] = {"<a>", {{"content", "<b>"}}};
  config["extra_special_tokens"] = {{"image_token", "<image>"}};
  write(place + "/tokenizer_config.json", config.dump());
  write(place + "/generation_config.json", R"({"eos_token_id": [3, 1]})");
  write(place + "/config.json", R"({"eos_token_id": 2})");
  text = tokenizer::load(place);
  CHECK(text.begin_of_text() == begin);
  CHECK(text.chat_template_text() == "three");
  CHECK(text.tool_template_text() == "two");
  CHECK(text.chat_variables() == nlohmann::ordered_json{{"bos_token", "<s>"},
                                                        {"eos_token", "</s>"},
                                                        {"pad_token", "<pad>"},
                                                        {"additional_special_tokens", {"<a>", "<b>"}},
                                                        {"image_token", "<image>"}});
  write(place + "/chat_template.json", R"({"chat_template": "{{ bos_token }}"})");
  CHECK(tokenizer::load(place).chat_template_text() == "{{ bos_token }}");
  CHECK(text.ends_of_text() == std::vector{1, 2, 3, end, turn});
  write(place + "/chat_template.jinja", "four");
  CHECK(tokenizer::load(place).chat_template_text() == "four");
  std::filesystem::create_directory(place + "/additional_chat_templates");
  write(place + "/additional_chat_templates/tool_use.jinja", "five");
  CHECK(tokenizer::load(place).tool_template_text() == "five");

  write(place + "/config.json", R"({"eos_token_id": 100000})");
  CHECK(says(message_of<espalier::model_error>([&] { tokenizer::load(place); }), place, "config.json", "eos_token_id",
             "a token from 0 to"));
  write(place + "/config.json", "{}");
  write(place + "/tokenizer_config.json", R"({"eos_token": "<none>"})");
  CHECK(says(message_of<espalier::model_error>([&] { tokenizer::load(place); }), "eos_token", "<none>"));
  write(place + "/tokenizer_config.json", "[");
  CHECK(says(message_of<espalier::model_error>([&] { tokenizer::load(place); }), "tokenizer_config.json", "JSON"));
  std::filesystem::remove_all(place);
}

TEST_CASE("a SentencePiece model's folder has the same files beside it", "[tokenizer]") {
  const std::string place = scratch("sentencepiece_folder");
  std::filesystem::copy_file(TOKENIZER_MODELS "/tokenizer.model", place + "/tokenizer.model");
  const tokenizer alone = tokenizer::load(place);
  CHECK(alone.begin_of_text() >= 0);
  CHECK(alone.chat_template_text().empty());
  write(place + "/tokenizer_config.json",
        R"({"add_bos_token": false, "bos_token": "<s>", "eos_token": "</s>", "chat_template": "one"})");
  write(place + "/generation_config.json", R"({"eos_token_id": [300]})");
  const tokenizer text = tokenizer::load(place);
  CHECK(text.begin_of_text() == -1);
  CHECK(text.chat_template_text() == "one");
  CHECK(text.ends_of_text() == std::vector{alone.ends_of_text().front(), 300});
  CHECK(text.encode("The river") == alone.encode("The river"));
  write(place + "/chat_template.jinja", "two");
  CHECK(tokenizer::load(place).chat_template_text() == "two");
  write(place + "/tokenizer_config.json", R"({"eos_token": "<|im_end|>"})");
  CHECK(says(message_of<espalier::model_error>([&] { tokenizer::load(place); }), "eos_token", "<|im_end|>"));
  std::filesystem::remove_all(place);
}

TEST_CASE("a SentencePiece model's folder may add tokens", "[tokenizer]") {
  const std::string place = scratch("sentencepiece_added");
  std::filesystem::copy_file(TOKENIZER_MODELS "/tokenizer.model", place + "/tokenizer.model");
  const tokenizer alone = tokenizer::load(place);
  const token_id n = alone.size();
  const auto id = [n](int i) { return std::to_string(n + i); };
  const auto joined = [&](std::vector<token_id> begin, token_id between, const std::string& end) {
    begin.push_back(between);
    for (const token_id token : alone.encode(end))
      begin.push_back(token);
    return begin;
  };
  write(place + "/added_tokens.json", R"({"<|im_start|>": )" + id(0) + R"(, "<|im_end|>": )" + id(1) + "}");
  {
    const tokenizer text = tokenizer::load(place);
    CHECK(text.size() == n + 2);
    CHECK(text.find("<|im_end|>") == n + 1);
    CHECK(text.piece(n).empty());
    CHECK(text.ends_of_text().back() == n + 1);
    CHECK(text.encode_trusted("one<|im_start|>two") == joined(alone.encode("one"), n, "two"));
    CHECK(text.encode("one<|im_start|>two") == alone.encode("one<|im_start|>two"));
  }
  const std::string begin = R"({"added_tokens_decoder": {"1": {"content": "<s>", "special": true}, ")";
  write(place + "/tokenizer_config.json",
        begin + id(2) + R"(": {"content": "<think>", "special": false, "rstrip": true}}})");
  {
    const tokenizer text = tokenizer::load(place);
    CHECK(text.size() == n + 3);
    CHECK(text.piece(n + 2) == "<think>");
    CHECK(text.encode("one<think> two") == joined(alone.encode("one"), n + 2, "two"));
  }
  const auto refused = [&](const std::string& config, auto... pieces) {
    write(place + "/tokenizer_config.json", config);
    CHECK(says(message_of<espalier::model_error>([&] { tokenizer::load(place); }), "tokenizer_config.json",
               "added_tokens_decoder", pieces...));
  };
  refused(R"({"added_tokens_decoder": []})", "an object of ids and tokens");
  refused(R"({"added_tokens_decoder": {"1": "<s>"}})", "an object of ids and tokens");
  refused(R"({"added_tokens_decoder": {"x": {"content": "<a>"}}})", "\"<a>\"", "ids are from 0 to");
  refused(R"({"added_tokens_decoder": {"-1": {"content": "<a>"}}})", "\"<a>\"", "ids are from 0 to");
  refused(R"({"added_tokens_decoder": {"1": {"content": "<a>"}}})", "the token 1 is \"<a>\"", "tokenizer.model");
  refused(begin + id(2) + R"(": {"content": "<a>", "single_word": true}}})", "\"<a>\" has single_word");
  std::filesystem::remove_all(place);
}

TEST_CASE("a tokenizer file that does not fit is named, with what is supported", "[tokenizer]") {
  const json file = variant("llama3");
  const std::vector<std::pair<json, std::string>> wrong = {
      {with(file, "/model/type", "WordLevel"), "\"WordLevel\", which is not supported; supported are BPE, Unigram"},
      {with(file, "/model/type", "Unigram"), "lacks \"vocab\", a list"},
      {with(file, "/model/dropout", 0.1), "dropout"},
      {with(file, "/model/end_of_word_suffix", "</w>"), "end_of_word_suffix"},
      {with(file, "/model/vocab", nullptr), "lacks \"vocab\""},
      {with(file, "/model/vocab/x", 1 << 22), "the id 4194304"},
      {with(file, "/model/vocab/x", -1), "the id -1"},
      {with(file, "/model/merges/0", {"a"}), "not a pair"},
      {with(file, "/model/merges/0", "noword nothing"), "\"noword\", which \"vocab\" lacks"},
      {with(file, "/model/unk_token", "nothing"), "unk_token"},
      {with(file, "/normalizer", {{"type", "Nmt"}}), "\"normalizer\" is of type \"Nmt\""},
      {with(file, "/normalizer", {{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}), "no table"},
      {with(file, "/normalizer", 5), "\"normalizer\" is not an object"},
      {with(file, "/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", ""}}}, {"content", ""}}), "a String"},
      {with(file, "/pre_tokenizer", {{"type", "CharDelimiterSplit"}}), "CharDelimiterSplit"},
      {with(file, "/pre_tokenizer", {{"type", "BertPreTokenizer"}}), "both be of ByteLevel"},
      {with(file, "/pre_tokenizer", nullptr), "both be of ByteLevel"},
      {with(file, "/pre_tokenizer/pretokenizers/2", {{"type", "Digits"}}), "nothing may follow ByteLevel"},
      {with(file, "/pre_tokenizer/pretokenizers/1/add_prefix_space", true), "first step only"},
      {with(variant("metaspace_digits"), "/pre_tokenizer/pretokenizers/1/prepend_scheme", "first"),
       "first is supported in its first step only"},
      {with(file, "/pre_tokenizer/pretokenizers/0/behavior", "Kept"), "\"Kept\""},
      {with(file, "/pre_tokenizer/pretokenizers/0/pattern", {{"Regex", "a(b"}}), "not understood"},
      {with(file, "/pre_tokenizer/pretokenizers/0/pattern", {{"Glob", "a"}}), "a String or a Regex"},
      {with(file, "/pre_tokenizer/pretokenizers", json::array({nullptr})), "not an object"},
      {with(file, "/decoder", {{"type", "CTC"}}), "\"decoder\" is of type \"CTC\""},
      {with(file, "/decoder", nullptr), "both be of ByteLevel"},
      {with(file, "/post_processor", {{"type", "BertProcessing"}}), "lacks \"cls\""},
      {with(variant("unigram"), "/model/vocab/3", json::array({"a"})), "not a token and its score"},
      {with(variant("unigram"), "/model/unk_id", 1 << 20), "\"unk_id\""},
      {with(file, "/post_processor/single/0/SpecialToken/id", "<none>"), "one of \"added_tokens\""},
      {with(file, "/added_tokens/0/single_word", true), "single_word"},
      {with(file, "/added_tokens", 1), "not a list"},
      {with(file, "/added_tokens/0/id", "a"), "the id \"a\""},
      {json::object(), "lacks \"model\""},
  };
  for (const auto& [changed, expected] : wrong) {
    INFO(expected);
    CHECK(says(complaint(changed), "tokenizer.json", expected));
  }
  for (const std::string bytes : {"", "{", "[]", "{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}}}"})
    CHECK(says(message_of<espalier::model_error>([&] { tokenizer::from_json(bytes, "some.json"); }), "some.json"));
  CHECK(says(message_of<espalier::model_error>([] { tokenizer::load("/nowhere/tokenizer.json"); }), "/nowhere"));
  CHECK(says(message_of<espalier::model_error>([] { tokenizer::load("/nowhere/m.gguf"); }), "/nowhere"));
  const std::string whole = espalier::detail::whole_file(TOKENIZER_MODELS "/tokenizer.model");
  for (const std::string& bytes : {std::string(), std::string("hello"), whole.substr(0, whole.size() / 2)}) {
    CHECK(says(message_of<espalier::model_error>([&] { tokenizer::from_sentencepiece(bytes, "x.model"); }), "x.model",
               "not a SentencePiece model"));
  }
}

TEST_CASE("a GGUF file's tokenizer that does not fit is named, with what is supported", "[tokenizer]") {
  const auto refused = [](const gguf_writer::file_text& gguf) {
    return message_of<espalier::model_error>([&] { from_gguf(gguf); });
  };
  gguf_writer::file_text words;
  words.add("tokenizer.ggml.tokens", std::vector<std::string>{"a", "b", "ab"});
  const auto with = [&](auto&&... change) {
    gguf_writer::file_text gguf = words;
    (change(gguf), ...);
    return refused(gguf);
  };
  const auto set = [](const char* key, const auto& value) {
    return [key, value](gguf_writer::file_text& gguf) { gguf.add(key, value); };
  };
  const auto merges = [&](const char* merge) { return set("tokenizer.ggml.merges", std::vector<std::string>{merge}); };
  CHECK(says(with(), "model.gguf lacks \"tokenizer.ggml.model\""));
  CHECK(says(with(set("tokenizer.ggml.model", "rwkv")), "\"rwkv\"", "gpt2, gemma4"));
  CHECK(says(with(set("tokenizer.ggml.model", "t5")), "lacks \"tokenizer.ggml.scores\""));
  CHECK(with(set("tokenizer.ggml.model", "bert")).empty());
  const auto gpt2 = set("tokenizer.ggml.model", "gpt2");
  CHECK(says(with(gpt2), "lacks \"tokenizer.ggml.merges\""));
  CHECK(says(with(gpt2, set("tokenizer.ggml.pre", "nothing")), "\"tokenizer.ggml.pre\" is \"nothing\"", "qwen2, "));
  const auto qwen2 = set("tokenizer.ggml.pre", "qwen2");
  CHECK(says(with(gpt2, qwen2), "lacks \"tokenizer.ggml.merges\""));
  CHECK(says(with(gpt2, qwen2, merges("a c")), "\"a c\", but a token of it is missing"));
  CHECK(says(with(gpt2, qwen2, merges("")), "a token of it is missing"));
  CHECK(with(gpt2, qwen2, merges("a b")).empty());
  CHECK(says(with(gpt2, qwen2, merges("a b"), set("tokenizer.ggml.eos_token_id", 3)), "eos_token_id", "from -1 to 2"));
  // -1 in 32 bits without a sign: there is no such token.
  CHECK(with(gpt2, qwen2, merges("a b"), set("tokenizer.ggml.eos_token_id", 0xFFFFFFFFU)).empty());
  CHECK(says(with(gpt2, qwen2, merges("a b"), set("tokenizer.ggml.bos_token_id", 0xFFFFFFFEU)), "4294967294",
             "from -1 to 2"));
  CHECK(says(with(set("tokenizer.ggml.model", "llama")), "lacks \"tokenizer.ggml.scores\""));
}

TEST_CASE("a pattern that PCRE2 would read in another way is refused", "[tokenizer]") {
  const std::string where = "file";
  const auto refusal = [&](const char* pattern) {
    return message_of<espalier::model_error>([&] { espalier::detail::regex(pattern, where); });
  };
  for (const char* pattern :
       {"\\h",   "\\R",     "\\1",  "[a[b]]",       "[a&&b]", "[a",    "[]a]",  "(*ACCEPT)", "(?R)", "(?<n>a)",
        "a{,3}", "a{1,2}+", "\\pL", "\\p{Nothing}", "\\p{L",  "\\x{}", "\\u12", "[\\W]",     "\\",   "\\p{L-}"}) {
    INFO(pattern);
    CHECK(says(refusal(pattern), "file", pattern));
  }
  const auto matches = [&](const char* pattern, const std::string& text) {
    std::string found;
    espalier::detail::regex(pattern, where).each_match(text, [&](std::size_t begin, std::size_t end) {
      found += "(" + text.substr(begin, end - begin) + ")";
    });
    return found;
  };
  CHECK(matches("\\s+", "a \xE1\xA0\x8E b") == "( )( )");  // U+180E is no white space
  CHECK(matches("\\d+\\w", "12a3") == "(12a)");
  CHECK(matches("\\W", "a-b") == "(-)");
  CHECK(matches("^a$", "a\na") == "(a)(a)");
  CHECK(matches("\\u0061\\x62\\v", "ab\x0B") == "(ab\x0B)");
  CHECK(matches("\\p{Han}+|\\p{^L}",
                "\xE6\xBC\xA2\xE5\xAD\x97"
                "a1") == "(\xE6\xBC\xA2\xE5\xAD\x97)(1)");
  CHECK(matches("a*", "baac\xC3\xA9") == "()(aa)()()");
  CHECK(matches("(?=b)", "abb") == "()()");
  CHECK(says(message_of<espalier::input_error>([&] { matches("(a|aa)+$", std::string(200, 'a') + "b"); }), "file",
             "(a|aa)+$ fails"));
}
