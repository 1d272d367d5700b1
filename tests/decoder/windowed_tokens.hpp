// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "decoder/token_rows.hpp"
#include "espalier/core/token.hpp"
#include "espalier/kv_store/sink_window.hpp"

// A window whose rows are the tokens themselves, for text_backend.
class windowed_tokens : public token_rows<espalier::sink_window_kv<>> {
 public:
  explicit windowed_tokens(const espalier::sink_window_options& options, std::int32_t n_sequences = 1)
      : token_rows(1, 1, n_sequences, options) {}
};

// What plain decoding sees of a text when its last token is pending, written down independently of the library.
inline std::vector<espalier::token_id> window_of(std::span<const espalier::token_id> text,
                                                 const espalier::sink_window_options& o) {
  const std::ptrdiff_t committed = std::ssize(text) - 1, first_slide = o.sinks + o.window + o.block;
  const std::ptrdiff_t n_slides = committed < first_slide ? 0 : (committed - first_slide) / o.block + 1;
  std::vector<espalier::token_id> seen(text.begin(), text.end());
  if (n_slides > 0) seen.erase(seen.begin() + o.sinks, seen.begin() + o.sinks + n_slides * o.block);
  return seen;
}
