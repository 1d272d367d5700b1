// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/backend/text.hpp"
#include "espalier/core/status.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/tiny_model.hpp"

namespace models {

using espalier::token_id;

using espalier::testing::mixed;
using espalier::testing::mixed_unit;

// Logits that are a fixed, irregular function of the text. One type for all models: what differs are numbers.
struct text_model {
  std::uint64_t seed = 1;
  std::size_t order = 100;  // tokens it looks back
  double scale = 4;         // of the logits; negative: likes what the same model with a positive scale avoids
  double offset = 0;        // a large one leaves few floats in between, so that ties and near-ties abound
  double noise = 0;         // how far it strays from the same model without noise
  bool blind = false;       // every logit the same

  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    std::uint64_t key = mixed(seed ^ (text.size() << 20));
    for (const token_id t : text.last(std::min(order, text.size())))
      key = mixed(key ^ static_cast<std::uint64_t>(t));
    for (std::size_t v = 0; v < logits.size(); ++v) {
      double x = mixed_unit(key + v);
      if (noise != 0) x += noise * (mixed_unit(mixed(key) + v) - 0.5);
      logits[v] = blind ? 0.0F : static_cast<float>(offset + scale * x);
    }
  }
};

enum class fault { none, throws, nan, infinite, impossible };

// A text_backend that keeps count, and fails on one of its calls.
struct probe_backend {
  explicit probe_backend(std::int32_t vocab, text_model model) : inner(vocab, model) {}

  espalier::text_backend<text_model> inner;
  int calls = 0;
  int rows = 0;
  int largest = 0;  // rows of the largest pass
  int fail_at = -1;
  fault kind = fault::none;
  std::vector<float> spoilt{};

  std::int32_t vocab_size() const { return inner.vocab_size(); }

  espalier::logits_view forward(espalier::token_kv& kv, espalier::forward_batch_view batch) {
    rows += batch.n_rows();
    largest = std::max(largest, batch.n_rows());
    const bool fails = calls++ == fail_at;
    if (fails && kind == fault::throws) {
      // A pass torn in the middle: its slots hold anything.
      for (const std::int32_t slot : batch.slots)
        kv.token(batch.sequences[0].sequence, slot) = -77;
      throw std::runtime_error("the backend failed");
    }
    const espalier::logits_view logits = inner.forward(kv, batch);
    if (!fails || kind == fault::none) return logits;
    spoilt.assign(logits.data, logits.data + static_cast<std::ptrdiff_t>(logits.n_rows) * logits.vocab);
    if (kind == fault::impossible) std::fill(spoilt.begin(), spoilt.end(), -INFINITY);
    const float bad = kind == fault::nan ? std::numeric_limits<float>::quiet_NaN() : INFINITY;
    for (std::int32_t r = 0; r < logits.n_rows && kind != fault::impossible; ++r)
      spoilt[static_cast<std::size_t>((r + 1) * logits.vocab - 1)] = bad;
    return {spoilt.data(), logits.n_rows, logits.vocab};
  }
};

// The same, for at most a few rows a pass.
struct bounded_probe : probe_backend {
  bounded_probe(std::int32_t vocab, text_model model, std::int32_t most) : probe_backend(vocab, model), limit(most) {}
  std::int32_t limit;
  std::int32_t max_rows() const { return limit; }
};

inline std::string piece_of(token_id t) {
  static const std::string_view pieces[] = {"a", "bc", "ca", "b", "", "abc", "d", "cc"};
  return std::string(pieces[t % 8]);
}

struct plain_text {
  std::vector<token_id> text;
  espalier::status state = espalier::status::running;
};

// Plain decoding, written down independently of the library: one call of the model a token.
inline plain_text write_plain(const text_model& model, std::int32_t vocab, std::vector<token_id> prompt,
                              std::size_t context, const espalier::stop_conditions& stop = {}) {
  plain_text out{std::move(prompt)};
  std::vector<float> logits(static_cast<std::size_t>(vocab));
  std::string bytes;
  for (std::int32_t n = 1; out.state == espalier::status::running; ++n) {
    model(out.text, logits);
    const auto token = static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    out.text.push_back(token);
    bytes += piece_of(token);
    const auto ended = [&](const std::string& s) { return !s.empty() && bytes.find(s) != std::string::npos; };
    if (std::count(stop.tokens.begin(), stop.tokens.end(), token) > 0)
      out.state = espalier::status::stop_token;
    else if (std::any_of(stop.strings.begin(), stop.strings.end(), ended))
      out.state = espalier::status::stop_string;
    else if (n == stop.max_tokens)
      out.state = espalier::status::length;
    else if (out.text.size() == context)
      out.state = espalier::status::context_full;
  }
  return out;
}

}  // namespace models
