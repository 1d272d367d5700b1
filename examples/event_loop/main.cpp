// SPDX-License-Identifier: BSL-1.0
// A server's own loop: many texts, each with a decoder, and an engine that makes their passes in another thread, the
// last one first. Prints how many texts are those of decoders with a backend of their own.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <span>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "espalier/backend/outside.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;

namespace {

constexpr std::int32_t vocab = 64, n_texts = 64;

// A model: after a text comes mostly what followed its last token before.
void model(std::span<const token_id> text, std::span<float> logits) {
  for (std::size_t t = 0; t < logits.size(); ++t)
    logits[t] = static_cast<float>((t * 7 + static_cast<std::size_t>(text.back()) * 5) % 11);
  for (std::size_t i = 1; i < text.size(); ++i)
    if (text[i - 1] == text.back()) logits[static_cast<std::size_t>(text[i])] += 4.0F;
}

struct pass {
  std::size_t text;
  token_kv* cache;
  forward_batch_view batch;
  std::vector<float> logits{};
};

// Makes passes in a thread of its own.
class engine {
 public:
  void ask(pass p) {
    const std::scoped_lock lock(mutex_);
    asked_.push_back(std::move(p));
    changed_.notify_all();
  }
  pass fetch() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !made_.empty(); });
    pass p = std::move(made_.back());
    made_.pop_back();
    return p;
  }

 private:
  void work(const std::stop_token& stop) {
    text_backend target(vocab, model);
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [&] { return !asked_.empty(); })) {
      pass p = std::move(asked_.back());
      asked_.pop_back();
      lock.unlock();
      const auto rows = target.forward(*p.cache, p.batch);
      p.logits.assign(rows.data, rows.data + rows.n_rows * rows.vocab);
      lock.lock();
      made_.push_back(std::move(p));
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<pass> asked_, made_;
  std::jthread thread_{[this](const std::stop_token& stop) { work(stop); }};
};

std::vector<token_id> prompt_of(std::size_t text) {
  return {static_cast<token_id>(text % vocab), 3, static_cast<token_id>(text * 5 % vocab), 3};
}

}  // namespace

int main() {
  using decoder_type =
      decltype(make_decoder(prompt_lookup(), chain(), greedy(), std::declval<token_kv&>(), outside_backend(vocab)));
  engine target;
  std::vector<std::unique_ptr<token_kv>> caches;
  std::vector<std::unique_ptr<decoder_type>> texts;
  std::size_t under_way = 0;
  // Asks for the next pass of a text, if it needs one.
  const auto go_on = [&](std::size_t text) {
    while (texts[text]->current().running()) {
      const forward_batch_view batch = texts[text]->begin_step();
      if (batch.n_rows() == 0) continue;
      target.ask({text, caches[text].get(), batch});
      ++under_way;
      return;
    }
  };
  for (std::size_t text = 0; text < n_texts; ++text) {
    caches.push_back(std::make_unique<token_kv>(256));
    texts.push_back(
        std::make_unique<decoder_type>(prompt_lookup(), chain(), greedy(), *caches.back(), outside_backend(vocab)));
    texts.back()->begin(prompt_of(text), {.max_tokens = 60});
    go_on(text);
  }
  for (; under_way > 0; --under_way) {
    const pass done = target.fetch();
    const auto n = static_cast<std::int32_t>(done.batch.outputs.size());
    texts[done.text]->end_step(vocab_rows<float>{done.logits.data(), n, vocab});
    go_on(done.text);
  }

  int equal = 0;
  for (std::size_t text = 0; text < n_texts; ++text) {
    auto alone = make_decoder(prompt_lookup(), chain(), greedy(), token_kv(256), text_backend(vocab, model));
    const auto expected = alone.generate(prompt_of(text), {.max_tokens = 60});
    const auto found = texts[text]->current().written();
    equal += std::equal(found.begin(), found.end(), expected.begin(), expected.end()) ? 1 : 0;
  }
  std::printf("%d of %d texts are equal\n", equal, n_texts);
  return equal == n_texts ? 0 : 1;
}
