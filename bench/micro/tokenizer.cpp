// SPDX-License-Identifier: BSL-1.0
//
//   bench_micro_tokenizer [TOKENIZER TEXT...]   megabytes encoded a second of processor time, of each file
//   bench_micro_tokenizer TOKENIZER             the tokens of texts, each given as its length, a newline and its bytes:
//                                               what tests/data/tokenizer/make_golden.py compares
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <ctime>
#include <exception>
#include <iostream>
#include <limits>
#include <string>

#include "espalier/model/files/whole_file.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace {

void print_tokens(const espalier::tokenizer& text) {
  std::string whole;
  for (std::size_t n = 0; std::cin >> n;) {
    std::cin.get();
    whole.resize(n);
    std::cin.read(whole.data(), static_cast<std::streamsize>(n));
    std::string line;
    for (const espalier::token_id token : text.encode(whole))
      line += std::to_string(token) + ' ';
    std::puts(line.c_str());
  }
}

void measure(const espalier::tokenizer& text, const std::string& path) {
  const std::string whole = espalier::detail::whole_file(path);
  double least = (std::numeric_limits<double>::max)();
  std::size_t n = 0;
  for (int i = 0; i < 7; ++i) {
    const std::clock_t begin = std::clock();
    n = text.encode(whole).size();
    least = (std::min)(least, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  std::printf("%s: %zu bytes, %zu tokens, %.1f MB/s\n", path.c_str(), whole.size(), n,
              static_cast<double>(whole.size()) / least * 1e-6);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string models = ESPALIER_BENCH_MODELS;
  try {
    const auto text = espalier::tokenizer::load(argc < 2 ? models : argv[1]);
    if (argc < 2) measure(text, models + "/prompts.jsonl");
    if (argc == 2) print_tokens(text);
    for (int i = 2; i < argc; ++i)
      measure(text, argv[i]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_micro_tokenizer: %s\n", error.what());
    return 2;
  }
}
