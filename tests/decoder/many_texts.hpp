// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "decoder/counted.hpp"
#include "espalier/decoder/batch_decoder.hpp"

// Texts that are written together, and what each of them is alone.
namespace many {

using espalier::token_id;

// What a text is added with.
struct request {
  std::vector<token_id> prompt;
  std::int32_t max_tokens = 40;
  espalier::text_options options{};

  espalier::stop_conditions stop() const { return {.max_tokens = max_tokens}; }
};

// Of unlike lengths, seeds and ends.
inline std::vector<request> requests(std::size_t n, const espalier::sampling_options& sampling) {
  std::vector<request> all;
  for (std::size_t i = 0; i < n; ++i) {
    request r{.prompt = {},
              .max_tokens = static_cast<std::int32_t>(20 + 7 * i % 30),
              .options = {.sampling = sampling, .seed = 7 + i / 2, .stream = static_cast<std::uint32_t>(i)}};
    for (std::size_t j = 0; j < 1 + 11 * i; ++j)
      r.prompt.push_back(static_cast<token_id>((j * 7 + i * 3) % 11));
    all.push_back(std::move(r));
  }
  return all;
}

template <class DecoderT>
espalier::text_id add(DecoderT& decode, const request& r, std::int32_t priority = 0) {
  return decode.add(r.prompt, r.stop(), r.options, {.priority = priority});
}

struct written_alone {
  std::vector<std::vector<token_id>> texts;
  std::vector<int> rounds;
};

template <class PolicyT, class VerifierT>
written_alone alone(const std::vector<request>& requests, PolicyT policy, VerifierT verifier) {
  two_models m;
  m.kv = m.draft_kv = espalier::token_kv(1000);
  auto decode = m.decoder(policy, verifier);
  written_alone all;
  for (const request& r : requests) {
    decode.begin(r.prompt, r.stop(), r.options);
    all.texts.push_back(run(decode));
    all.rounds.push_back(decode.current().round());
  }
  return all;
}

// Goes on to the end. Texts that a failure holds are resumed. Gives the steps that it took.
template <class DecoderT, class AfterT>
int run_all(DecoderT& decode, std::map<espalier::text_id, std::vector<token_id>>& texts, const AfterT& after_step) {
  int steps = 0;
  std::vector<espalier::text_id> held;
  while (!decode.idle()) {
    held.clear();
    for (const espalier::text_event& e : decode.step(models::piece_of)) {
      if (e.error) held.push_back(e.id);
      if (e.round.state != espalier::status::running) texts[e.id] = copy(decode.current(e.id).tokens());
    }
    for (const espalier::text_id id : held)
      decode.resume(id);
    after_step(steps++);
  }
  return steps;
}

template <class DecoderT>
std::map<espalier::text_id, std::vector<token_id>> run_all(DecoderT& decode) {
  std::map<espalier::text_id, std::vector<token_id>> texts;
  run_all(decode, texts, [](int) {});
  return texts;
}

}  // namespace many
