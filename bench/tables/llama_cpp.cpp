// SPDX-License-Identifier: BSL-1.0
// Measures rounds over llama.cpp beside llama.cpp's own passes, and finds where greedy texts differ from plain
// decoding's.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../program.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/model/llama_cpp/llama_cpp_backend.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"

namespace {

using namespace espalier;

struct arguments {
  std::string model, draft;
  int tokens = 64, texts = 16, threads = 1, capacity = 2048;
};

constexpr const char* prompts[] = {
    "The history of the printing press begins in",
    "Dear Sir or Madam, I am writing to you because",
    "def quicksort(items):\n    if len(items) < 2:\n        return items\n",
    "The three laws of thermodynamics say that",
    "Question: What is the capital of France?\nAnswer: Paris\nQuestion: What is the capital of Spain?\nAnswer:",
    "Once upon a time there was a gardener who",
    "A recipe for bread. Ingredients: flour, water, salt, yeast. Method:",
    "In the year 1969, the first people on the Moon",
    "1, 2, 4, 8, 16, 32,",
    "#include <stdio.h>\nint main(void) {\n",
    "The difference between a virus and a bacterium is",
    "To be, or not to be, that is the question:",
    "SELECT name, price FROM products WHERE",
    "The committee met on Monday. The committee decided that",
    "Photosynthesis is the process by which",
    "My favourite book is about a boy who",
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The difference of two tokens' logits after a text, in one pass over all of it.
float gap_after(const llama_cpp_model& model, std::span<const token_id> text, token_id a, token_id b) {
  llama_cpp_kv kv(model, {.capacity = static_cast<int>(text.size())});
  llama_cpp_backend backend(model);
  prefill reading(64);
  const auto rows = reading.run(backend, kv, 0, text, 1, [](std::int32_t, std::int32_t) {});
  const auto row = rows.row(0);
  return std::abs(row[static_cast<std::size_t>(a)] - row[static_cast<std::size_t>(b)]);
}

class comparison {
 public:
  explicit comparison(const arguments& given)
      : given_(given),
        model_(given.model, {.threads = given.threads}),
        draft_(given.draft.empty() ? model_ : llama_cpp_model(given.draft, {.threads = given.threads})),
        stop_{.max_tokens = given.tokens, .tokens = model_.end_tokens()} {}

  void run() {
    std::printf("# Over llama.cpp\n\n%d texts of up to %d tokens, greedy, %d threads, %s",
                static_cast<int>((std::min)(std::size(prompts), static_cast<std::size_t>(given_.texts))), given_.tokens,
                given_.threads, given_.model.c_str());
    std::printf(given_.draft.empty() ? "; the draft is the target itself\n\n" : ", draft %s\n\n", given_.draft.c_str());
    std::printf(
        "| method | tokens a round | tokens a second | own time of a round | beside llama.cpp's | texts that "
        "differ | gap of the logits there |\n|---|---|---|---|---|---|---|\n");
    measure("plain", no_drafter(), plain());
    measure("prompt look-up, chain of 8", prompt_lookup(), chain({.length = 8}));
    with_draft("chain of 4", chain({.length = 4}));
    with_draft("fixed tree, 4 deep, 3 wide, 32", fixed({.depth = 4, .breadth = 3, .budget = 32}));
    with_draft("dynatree, 32", dynatree({.budget = 32}));
  }

 private:
  template <class PolicyT>
  void with_draft(const char* name, PolicyT policy) {
    llama_cpp_kv kv(draft_, {.capacity = given_.capacity});
    draft_kv_ = &kv;
    measure(name, autoregressive(llama_cpp_backend(draft_), kv), std::move(policy));
    draft_kv_ = nullptr;
  }

  template <class DrafterT, class PolicyT>
  void measure(const char* name, DrafterT drafter, PolicyT policy) {
    llama_cpp_kv kv(model_, {.capacity = given_.capacity});
    auto decode = make_decoder(drafter, std::move(policy), greedy(), kv, llama_cpp_backend(model_));
    const auto engine_seconds = [&] {
      return kv.engine_seconds() + (draft_kv_ == nullptr ? 0.0 : draft_kv_->engine_seconds());
    };
    std::vector<double> own, share;
    std::vector<float> gaps;
    double seconds = 0;
    std::size_t n_tokens = 0, n_rounds = 0, n_different = 0;
    const auto n = (std::min)(std::size(prompts), static_cast<std::size_t>(given_.texts));
    texts_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      const std::vector<token_id> prompt = model_.tokens(prompts[i]);
      decode.begin(prompt, stop_);
      for (bool first = true;; first = false) {
        const double before = engine_seconds();
        stopwatch watch;
        if (!decode.step()) break;
        const double whole = watch.lap(), engine = engine_seconds() - before;
        if (first) continue;  // it reads the prompt
        seconds += whole;
        ++n_rounds;
        n_tokens += decode.last_round().committed.size();
        own.push_back(whole - engine);
        share.push_back((whole - engine) / engine);
      }
      const auto text = decode.current().written();
      if (!texts_[i]) {
        texts_[i].emplace(text.begin(), text.end());
        continue;
      }
      const auto [here, there] = std::mismatch(text.begin(), text.end(), texts_[i]->begin(), texts_[i]->end());
      if (here == text.end() && there == texts_[i]->end()) continue;
      ++n_different;
      if (here == text.end() || there == texts_[i]->end()) continue;
      std::vector<token_id> before = prompt;
      before.insert(before.end(), text.begin(), here);
      gaps.push_back(gap_after(model_, before, *here, *there));
    }
    std::string gap = "none";
    if (!gaps.empty()) {
      char words[64];
      std::snprintf(words, sizeof words, "%.3f to %.3f",
                    static_cast<double>(*std::min_element(gaps.begin(), gaps.end())),
                    static_cast<double>(*std::max_element(gaps.begin(), gaps.end())));
      gap = words;
    }
    std::printf("| %s | %.2f | %.1f | %.3f ms | %.2f %% | %d of %d | %s |\n", name,
                static_cast<double>(n_tokens) / static_cast<double>(n_rounds), static_cast<double>(n_tokens) / seconds,
                1e3 * median(own), 100 * median(share), static_cast<int>(n_different), static_cast<int>(n),
                gap.c_str());
    std::fflush(stdout);
  }

  arguments given_;
  llama_cpp_model model_, draft_;
  stop_conditions stop_;
  llama_cpp_kv* draft_kv_ = nullptr;
  std::vector<std::optional<std::vector<token_id>>> texts_;  // texts of the first method, which is plain decoding
};

}  // namespace

int main(int argc, char** argv) {
  arguments given;
  given.model = ESPALIER_BENCH_GGUF;
  bench::program program("bench_tables_llama_cpp", "A round's own time beside llama.cpp's passes, and its texts.");
  program.add("--model", given.model, "GGUF file of the target");
  program.add("--draft", given.draft, "GGUF file of the draft; without one the target drafts for itself");
  program.add("--tokens", given.tokens, "tokens of a text at most");
  program.add("--texts", given.texts, "prompts, of 16");
  program.add("--threads", given.threads, "threads of llama.cpp");
  program.add("--capacity", given.capacity, "rows of each cache");
  return program.run(argc, argv, [&] {
    comparison(given).run();
    return 0;
  });
}
