// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/verifier/greedy.hpp"
#include "text_models.hpp"

// Logits that are a fixed, irregular function of the last tokens alone: greedy texts soon run in circles.
struct circling_model {
  std::uint64_t seed = 1;
  std::size_t order = 1;

  void operator()(std::span<const espalier::token_id> text, std::span<float> logits) const {
    std::uint64_t key = models::mixed(seed);
    for (const espalier::token_id t : text.last(std::min(order, text.size())))
      key = models::mixed(key ^ static_cast<std::uint64_t>(t));
    for (std::size_t v = 0; v < logits.size(); ++v)
      logits[v] = static_cast<float>(4 * models::mixed_unit(key + v));
  }
};

inline constexpr std::int32_t circling_vocab = 11;

// Plain decoding, one call of the model a token, until the context is full.
inline std::vector<espalier::token_id> write_alone(const circling_model& model, std::vector<espalier::token_id> text,
                                                   std::size_t context) {
  std::vector<float> logits(circling_vocab);
  while (text.size() < context) {
    model(text, logits);
    text.push_back(static_cast<espalier::token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  return text;
}

// What a decoder has written, and how many drafted tokens of it were accepted.
struct written_text {
  std::vector<espalier::token_id> text;
  std::int32_t accepted = 0;
  std::int32_t rounds = 0;
};

template <class DrafterT, class PolicyT>
written_text write_over(DrafterT&& drafter, PolicyT&& policy, const circling_model& target,
                        const std::vector<espalier::token_id>& prompt, std::int32_t context,
                        espalier::commit_mode mode = espalier::commit_mode::compact,
                        espalier::node_order order = espalier::node_order::insertion) {
  espalier::token_kv kv(context, mode);
  espalier::text_backend backend(circling_vocab, target);
  auto decode = espalier::make_decoder(drafter, policy, espalier::greedy(), kv, backend, {.order = order});
  decode.begin(prompt);
  written_text out;
  while (decode.step()) {
    out.accepted += decode.last_round().accepted();
    ++out.rounds;
  }
  const auto text = decode.current().tokens();
  out.text.assign(text.begin(), text.end());
  for (std::int32_t i = 0; i < kv.size(0); ++i)
    REQUIRE(kv.token(0, i) == text[static_cast<std::size_t>(i)]);
  return out;
}

// Writes the text of a decoder one of whose models fails once; the round that failed is tried again.
template <class DecoderT>
std::vector<espalier::token_id> written_past_one_failure(DecoderT& decode) {
  int failures = 0;
  for (bool running = true; running;) {
    try {
      running = decode.step();
    } catch (const std::runtime_error&) {
      ++failures;
    }
  }
  REQUIRE(failures == 1);
  const auto text = decode.current().tokens();
  return {text.begin(), text.end()};
}
