// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "espalier/core/sampling_options.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/outside_pass.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"
#include "parts.hpp"

namespace parts {

//! The drafter of a decoder. The values are those of ESPALIER_DRAFT_MODEL and so on.
enum class draft_kind {
  model,          //!< a draft model whose passes the caller makes
  prompt_lookup,  //!< runs of tokens that followed the text's last ones before
  none,           //!< nothing, for the policy plain
};

//! The sizes and options of a decoder, besides its policy and verifier.
struct decoder_setup {
  std::int32_t vocab_size = 0;
  std::int32_t context = 0;    //!< slots of each sequence, of both caches
  std::int32_t max_texts = 8;  //!< texts served at once
  std::int32_t prefill_rows = 64;
  draft_kind draft = draft_kind::model;
  node_order order = node_order::insertion;
  sampling_options draft_sampling{.temperature = 1};
  //! Moves a row of the caller's caches: (is_draft, sequence, from, to). Without it, caches are never compacted.
  std::function<void(bool, std::int32_t, std::int32_t, std::int32_t)> move{};
};

//! A batch_decoder over any policy and any verifier, whose passes the caller makes: its members are those of
//! batch_decoder.
class outside_decoder {
 public:
  virtual ~outside_decoder() = default;
  virtual text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options) = 0;
  virtual void cancel(text_id id) = 0;
  virtual void resume(text_id id) = 0;
  virtual bool is_idle() const = 0;
  virtual outside_pass begin_step() = 0;
  virtual outside_pass end_step(logits_view logits) = 0;
  virtual void give_up() = 0;
  virtual std::span<const text_event> events() const = 0;
  virtual const text& current(text_id id) const = 0;
};

//! Errors      option_error for sizes out of range, for a verifier that is not lossless for the policy's trees, and for
//!             a policy that cannot grow from the draft
std::unique_ptr<outside_decoder> make_outside_decoder(const decoder_setup& setup, std::unique_ptr<policy_part> policy,
                                                      std::unique_ptr<verifier_part> verifier);

}  // namespace parts
