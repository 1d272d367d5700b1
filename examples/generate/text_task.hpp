// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"
#include "espalier/core/status.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/decoder/stop.hpp"

namespace espalier {
class tokenizer;
}

namespace generate {

//! The text that a method wrote after a prompt.
struct written_text {
  std::vector<espalier::token_id> tokens;
  espalier::status end = espalier::status::running;
  espalier::statistics statistics;
};

using round_watcher = std::function<void(const espalier::round_record&)>;

//! A text to write, and the names of the parts to write it with, on any device.
struct text_task {
  const generate::arguments& arguments;
  const std::string& method;
  const std::string& verifier;
  std::span<const espalier::token_id> prompt;
  const round_watcher& watch;
  const espalier::tokenizer& text;

  //! When the text ends.
  espalier::stop_conditions stop() const;
  //! The bytes of a token.
  std::string_view piece(espalier::token_id token) const;
};

//! Writes a text with a decoder of the host or of a device.
template <class DecoderT>
written_text write_by(DecoderT& decode, const text_task& work) {
  written_text result;
  const auto tokens = decode.generate(work.prompt, work.stop(), espalier::observe_all(result.statistics, work.watch),
                                      [&](espalier::token_id token) { return work.piece(token); });
  result.tokens.assign(tokens.begin(), tokens.end());
  result.end = decode.current().state();
  return result;
}

}  // namespace generate
