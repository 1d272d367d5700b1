// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <iterator>
#include <string>
#include <string_view>

#include "espalier/model/tokenizer/tokenizer/pretokenizers.hpp"

namespace espalier::detail {

// The rules of a byte-pair encoding for which a name in "tokenizer.ggml.pre" of a GGUF file stands.
struct gguf_cuts {
  std::string_view names;                         // with a space between any two
  std::array<std::string_view, 6> patterns = {};  // each cuts the words that the one before it leaves
  bool takes_whole = false;                       // a word that is a token is not merged from parts
  bool adds_begin = false;     // the token that begins a text goes before it, unless the file says otherwise
  bool composes = false;       // texts are brought into NFC
  bool is_plain = false;       // tokens are written in UTF-8, not with a character for each byte
  bool spells_spaces = false;  // U+2581 stands for a space
};

// The pattern of GPT-4o: a word is upper-case letters, then lower-case ones, then a contraction, if there is one.
inline constexpr std::string_view o200k_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view bloom_pattern = R"( ?[^(\s|.,!?…。，、।۔،)]+)";
inline constexpr std::string_view cjk_pattern = R"([\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
inline constexpr std::string_view kana_pattern = R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";

// Patterns of DeepSeek's first models: letters of the alphabets that have two cases, and the punctuation of Latin and
// CJK texts.
inline constexpr std::string_view cased_pattern =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛ)"
    R"(ὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ)"
    R"(Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
inline constexpr std::string_view wide_punctuation_pattern = R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)";
inline constexpr std::string_view deepseek_pattern =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The rules by their names. The patterns are taken from the models' own tokenizer.json if it is known, else from
// llama.cpp. A pattern that counts the digits to the end of a number at each digit looks at most 300 digits ahead, so
// that it takes time in proportion to the text; longer numbers are cut differently.
//
// Source      https://github.com/ggml-org/llama.cpp, src/llama-vocab.cpp, all names of its version in
//             llama-cpp-python 0.3.36
inline constexpr gguf_cuts all_gguf_cuts[] = {
    {.names = "default", .patterns = {R"([\p{P}$+<=>^~|]+)", gpt2_pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
    {.names = "gpt-2 phi-2 mpt olmo jais trillion jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code "
              "roberta-bpe gigachat a.x-4.0 mellum modern-bert exaone4 granite-docling",
     .patterns = {gpt2_pattern}},
    {.names = "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
     .patterns = {R"(\p{N})", gpt2_pattern}},
    {.names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     .patterns = {llama3_pattern},
     .takes_whole = true,
     .adds_begin = true},
    {.names = "dbrx smaug-bpe chatglm-bpe", .patterns = {llama3_pattern}},
    {.names = "glm4 glm5", .patterns = {llama3_pattern}, .takes_whole = true},
    {.names = "minicpm5",
     .patterns = {R"(\p{N}{1,3})",
                  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
                  R"(\s*[\r\n]+|\s+(?!\S)|\s+)"},
     .takes_whole = true},
    {.names = "jais-2",
     .patterns = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
                  R"(\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|)"
                  R"(\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s)"}},
    {.names = "qwen2 deepseek-r1-qwen", .patterns = {qwen2_pattern}, .composes = true},
    {.names = "stablelm2 hunyuan f2llmv2 kormo megrez solar-open grok-2", .patterns = {qwen2_pattern}},
    {.names = "qwen35",
     .patterns = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
                  R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {.names = "ufakzeka",
     .patterns = {R"([^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {.names = "laguna", .patterns = {R"([^\n]+|\n+)", qwen2_pattern}},
    {.names = "seed-coder",
     .patterns = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|)"
                  R"(\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {.names = "bailingmoe bailingmoe2 llada-moe",
     .patterns = {R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
                  R"(\s*[\r\n]|\s+(?!\S)|\s+)"}},
    {.names = "exaone-moe",
     .patterns = {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}|)"
                  R"( ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+)"}},
    {.names = "tekken",
     .patterns = {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                  R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     .takes_whole = true,
     .adds_begin = true},
    {.names = "gpt-4o llama4 kanana2 talkie minimax-m2", .patterns = {o200k_pattern}},
    {.names = "granite-embed-multi-97m", .patterns = {o200k_pattern}, .takes_whole = true},
    {.names = "tiny_aya cohere2moe", .patterns = {R"(\d{1,3}(?=(?>(?:\d{3}){0,100})(?!\w)))", o200k_pattern}},
    {.names = "kimi-k2",
     .patterns = {R"(\p{Han}+|[^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])*)"
                  R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                  R"([^\r\n\p{L}\p{N}]?(?:(?!\p{Han})[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])+)"
                  R"((?:(?!\p{Han})[\p{Ll}\p{Lm}\p{Lo}\p{M}])*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                  R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}},
    {.names = "youtu",
     .patterns = {R"([\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|)"
                  R"([\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}\x{FF1B}\x{FF0C})"
                  R"(\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|)"
                  R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
                  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
                  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                  R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
                  R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
                  R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
     .takes_whole = true},
    {.names = "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
     .patterns = {R"(\p{N}{1,3})", kana_pattern, deepseek_pattern}},
    {.names = "spark2_5",
     .patterns = {R"(\p{N}{1,3})", kana_pattern,
                  R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
                  R"( ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+)",
                  R"(\p{N})"}},
    {.names = "afmoe",
     .patterns = {R"((?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})++(?!\p{N})))", R"(\p{N}{1,3})",
                  R"([\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF})"
                  R"(\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}\x{0E40}-\x{0E7F}\x{0E80}-\x{0EFF}\x{1780}-\x{17FF})"
                  R"(\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+)",
                  deepseek_pattern}},
    {.names = "deepseek-llm",
     .patterns = {R"([\r\n])", cased_pattern, wide_punctuation_pattern, R"(\s+$)", cjk_pattern, R"(\p{N}+)"}},
    {.names = "deepseek-coder", .patterns = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", cjk_pattern, R"(\p{N})"}},
    {.names = "falcon", .patterns = {R"([\p{P}$+<=>^~|`]+)", gpt2_pattern, "[0-9][0-9][0-9]"}},
    {.names = "bloom poro-chat gpt3-finnish", .patterns = {bloom_pattern}},
    {.names = "viking", .patterns = {bloom_pattern, R"(\p{N})"}},
    {.names = "chameleon",
     .patterns = {"<sentinel:[0-9]+>", "IMGIMG[A-I]{1,4}Z", R"([\t\n]|    |  )", R"(\p{N})", R"([\p{P}!-/:-@\[-`{-~])",
                  gpt2_pattern},
     .adds_begin = true},
    {.names = "superbpe", .patterns = {R"(\p{N}+)", R"((?=(?>(?:\d{3}){1,100})(?!\d)))"}},
    {.names = "gemma4 granite-embed-multi-311m",
     .patterns = {R"([^\n]+|\n+)"},
     .adds_begin = true,
     .is_plain = true,
     .spells_spaces = true},
    {.names = "sarvam-moe", .patterns = {R"([^\n]+|\n+)"}, .is_plain = true, .spells_spaces = true},
    {.names = "whitespace", .patterns = {R"(\S+)"}, .is_plain = true}};

// Returns the rules with this name; null if there are none.
inline const gguf_cuts* find_gguf_cuts(std::string_view name) {
  if (name.empty() || name.find(' ') != std::string_view::npos) return nullptr;
  for (const gguf_cuts& cuts : all_gguf_cuts) {
    for (std::size_t at = 0; (at = cuts.names.find(name, at)) != std::string_view::npos; ++at) {
      const std::size_t end = at + name.size();
      if ((at == 0 || cuts.names[at - 1] == ' ') && (end == cuts.names.size() || cuts.names[end] == ' ')) return &cuts;
    }
  }
  return nullptr;
}

// Returns all names, with a comma between any two.
inline std::string gguf_cuts_names() {
  std::string names;
  for (const gguf_cuts& cuts : all_gguf_cuts) {
    for (const char c : cuts.names)
      names += c == ' ' ? ", " : std::string(1, c);
    if (&cuts != std::end(all_gguf_cuts) - 1) names += ", ";
  }
  return names;
}

}  // namespace espalier::detail
