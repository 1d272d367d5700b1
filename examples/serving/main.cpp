// SPDX-License-Identifier: BSL-1.0
// The code of docs/serving.md: what a server does with decoders, over models that are plain functions of the text.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/backend/text.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;

// The models: what follows the last few letters somewhere in these words, the more likely the longer the match.
struct word_model {
  std::size_t memory;
  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    constexpr std::string_view words = "the cat sat on the mat. the dog sat on the cat. the mat ran. the cat ran.";
    std::fill(logits.begin(), logits.end(), -4.0F);
    for (std::size_t end = 1; end < words.size(); ++end) {
      std::size_t match = 0;
      while (match < std::min({memory, end, text.size()}) && words[end - 1 - match] == text[text.size() - 1 - match])
        ++match;
      float& logit = logits[static_cast<std::size_t>(words[end])];
      logit = std::max(logit, static_cast<float>(2 * match));
    }
  }
};
using word_backend = text_backend<word_model>;

std::vector<token_id> tokens_of(std::string_view text) {
  return {text.begin(), text.end()};
}

// [request]
struct request {
  std::string prompt;
  stop_conditions stop;
  text_options options;
};

// The text of a token.
std::string piece_of(token_id token) {
  return {static_cast<char>(token)};
}
// [request]

// [serve]
// All requests, n_places of them at once; the bytes of each as they come.
std::vector<std::string> serve_all(std::span<const request> requests, int n_places) {
  token_kv cache(512, commit_mode::compact, n_places), draft_cache(512, commit_mode::compact, n_places);
  word_backend target(128, word_model{6}), draft(128, word_model{3});
  autoregressive drafter(draft, draft_cache, {.temperature = 0.8F});
  auto decode = make_batch_decoder(drafter, iid_paths({.paths = 2, .length = 4}), traversal(), cache, target,
                                   {.max_texts = n_places});

  std::map<text_id, std::string> answers;
  for (const request& r : requests)
    decode.add(tokens_of(r.prompt), r.stop, r.options);
  while (!decode.idle()) {
    for (const text_event& e : decode.step(piece_of)) {
      if (e.error) std::rethrow_exception(e.error);
      answers[e.id] += e.round.shown;
    }
  }
  std::vector<std::string> in_order;
  for (const auto& [id, answer] : answers)
    in_order.push_back(answer);
  return in_order;
}
// [serve]

// Two turns; how many rows the target's passes of the second one had.
std::int32_t converse(std::string& text) {
  token_kv cache(512), draft_cache(512);
  word_backend target(128, word_model{6}), draft(128, word_model{3});
  autoregressive drafter(draft, draft_cache);
  auto decode = make_decoder(drafter, iid_paths(), traversal(), cache, target, {.text = {.seed = 7}});
  // [turns]
  decode.begin(tokens_of("the cat "), {.max_tokens = 100});
  while (decode.step())
    continue;
  decode.resume(tokens_of(" and then the dog "), {.max_tokens = 1});
  std::int32_t rows = 0;
  while (decode.step())
    rows += decode.last_round().forwarded_rows;
  // [turns]
  text.assign(decode.current().tokens().begin(), decode.current().tokens().end());
  return rows;
}

// Three samples that share the beginning of a text, which was saved as bytes.
std::vector<std::string> samples_of_one() {
  token_kv cache(512), draft_cache(512);
  word_backend target(128, word_model{6}), draft(128, word_model{3});
  autoregressive drafter(draft, draft_cache, {.temperature = 0.8F});
  auto decode = make_decoder(drafter, iid_paths(), traversal(), cache, target,
                             {.text = {.sampling = {.temperature = 0.8F}, .seed = 7}});
  decode.begin(tokens_of("the "), {.max_tokens = 60});
  decode.step();
  // [save]
  std::vector<std::byte> bytes;
  decode.save().write(bytes);
  // Elsewhere, with equal parts:
  auto saved = decode.save();
  saved.read(bytes);
  std::vector<std::string> samples;
  for (std::uint32_t stream = 0; stream < 3; ++stream) {
    decode.load(saved.fork(stream));
    while (decode.step())
      continue;
    const auto tokens = decode.current().written();
    samples.emplace_back(tokens.begin(), tokens.end());
  }
  // [save]
  return samples;
}

int main() {
  std::vector<request> requests;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    requests.push_back({"the ",
                        {.max_tokens = 60, .strings = {"dog"}, .show_string = false},
                        {.sampling = {.temperature = 0.8F}, .seed = seed}});
  }
  const std::vector<std::string> alone = serve_all(requests, 1), together = serve_all(requests, 3);
  bool right = alone == together;
  for (const std::string& answer : together) {
    std::printf("the %s\n", answer.c_str());
    right = right && answer.find("dog") == std::string::npos;
  }
  std::string text;
  const std::int32_t rows = converse(text);
  std::printf("%s: %d rows in the last turn\n", text.c_str(), static_cast<int>(rows));
  const std::vector<std::string> samples = samples_of_one();
  for (const std::string& sample : samples)
    std::printf("the %s\n", sample.c_str());
  return right && rows == 18 + 1 && samples[0] != samples[1] && samples[1] != samples[2] ? 0 : 1;
}
