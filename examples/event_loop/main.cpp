// SPDX-License-Identifier: BSL-1.0
// Serves 64 texts in a loop of its own, in four batches, whose passes an engine makes in other threads.
#include <algorithm>
#include <cstdio>
#include <future>

#include "espalier/espalier.hpp"

using namespace espalier;

constexpr std::int32_t vocab = 64, n_texts = 64, n_servers = 4;

// A model: after a text comes mostly what followed its last token before.
void model(std::span<const token_id> text, std::span<float> logits) {
  for (std::size_t t = 0; t < logits.size(); ++t)
    logits[t] = static_cast<float>((t * 7 + static_cast<std::size_t>(text.back()) * 5) % 11);
  for (std::size_t i = 1; i < text.size(); ++i)
    if (text[i - 1] == text.back()) logits[static_cast<std::size_t>(text[i])] += 4.0F;
}

struct server {
  token_kv cache{256, commit_mode::compact, n_texts / n_servers};
  batch_decoder<prompt_lookup, chain, greedy, token_kv&, outside_backend<>> decode{
      prompt_lookup(), chain(), greedy(), cache, outside_backend(vocab), {.max_texts = n_texts / n_servers}};
  std::future<std::vector<float>> logits{};  // of the pass under way
  // Gives out this pass, or else the first one of a next step, if a text is left.
  void go_on(outside_pass pass) {
    while (!pass && !decode.idle())
      pass = decode.begin_step();
    if (pass)
      logits = std::async(std::launch::async, [this, batch = pass.batch] {
        text_backend target(vocab, model);
        const vocab_rows<float> rows = target.forward(cache, batch);
        return std::vector<float>(rows.data, rows.data + rows.n_rows * rows.vocab);
      });
  }
};

int main() {
  const auto prompt_of = [](int i) { return std::vector<token_id>{i, 3, i * 5 % vocab, 3}; };
  server servers[n_servers];
  for (int i = 0; i < n_texts; ++i)
    servers[i % n_servers].decode.add(prompt_of(i), {.max_tokens = 60});
  for (server& s : servers)
    s.go_on({});
  while (std::ranges::any_of(servers, [](server& s) { return s.logits.valid(); })) {
    for (server& s : servers) {
      if (!s.logits.valid() || s.logits.wait_for(std::chrono::microseconds(50)) != std::future_status::ready) continue;
      const std::vector<float> logits = s.logits.get();
      s.go_on(s.decode.end_step({logits.data(), static_cast<std::int32_t>(logits.size()) / vocab, vocab}));
    }
  }
  auto alone = make_decoder(prompt_lookup(), chain(), greedy(), token_kv(256), text_backend(vocab, model));
  int equal = 0;
  for (int i = 0; i < n_texts; ++i)
    equal += std::ranges::equal(servers[i % n_servers].decode.current(i / n_servers).written(),
                                alone.generate(prompt_of(i), {.max_tokens = 60}));
  std::printf("%d of %d texts are equal\n", equal, n_texts);
  return equal == n_texts ? 0 : 1;
}
