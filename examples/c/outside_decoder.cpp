// SPDX-License-Identifier: BSL-1.0
// Regimes are known at run time only (see parts.hpp): the checks of draws, which the type of a policy chooses, would
// take every tree for one of all regimes.
#undef ESPALIER_CHECKS
#define ESPALIER_CHECKS 0
#include "outside_decoder.hpp"

#include <utility>

#include "espalier/backend/outside.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/slot_ledger.hpp"

namespace parts {

namespace {

// The bookkeeping of a cache of the caller's: it tells the caller which rows to move.
class called_kv {
 public:
  called_kv(const decoder_setup& setup, bool is_draft)
      : ledger_(setup.max_texts, setup.context, setup.move ? commit_mode::compact : commit_mode::truncate),
        move_(setup.move),
        is_draft_(is_draft) {}

  std::int32_t size(std::int32_t sequence) const { return ledger_.size(sequence); }
  std::int32_t capacity() const { return ledger_.capacity(); }
  bool compacts() const { return ledger_.compacts(); }
  std::int32_t append(std::int32_t sequence, std::int32_t n) { return ledger_.append(sequence, n); }
  std::int32_t commit(std::int32_t sequence, std::span<const std::int32_t> kept) {
    return ledger_.commit(sequence, kept,
                          [&](std::int32_t from, std::int32_t to) { move_(is_draft_, sequence, from, to); });
  }
  void truncate(std::int32_t sequence, std::int32_t n) { ledger_.truncate(sequence, n); }
  std::span<const token_id> prefix(std::int32_t sequence) const { return ledger_.prefix(sequence); }
  std::uint64_t version(std::int32_t sequence) const { return ledger_.version(sequence); }
  void remember(std::int32_t sequence, std::int32_t first, std::span<const token_id> tokens) {
    ledger_.remember(sequence, first, tokens);
  }

 private:
  slot_ledger ledger_;
  std::function<void(bool, std::int32_t, std::int32_t, std::int32_t)> move_;
  bool is_draft_;
};

// The drafters of decoders: a draft model whose passes the caller makes, or the text itself.
class model_draft {
 public:
  explicit model_draft(const decoder_setup& setup)
      : kv_(setup, true), drafter_(outside_backend<>(setup.vocab_size), kv_, setup.draft_sampling) {}
  auto& drafter() { return drafter_; }

 private:
  called_kv kv_;
  autoregressive<outside_backend<>, called_kv&> drafter_;
};
class text_draft {
 public:
  explicit text_draft(const decoder_setup& setup) : drafter_({.capacity = setup.context + 1}) {}
  auto& drafter() { return drafter_; }

 private:
  prompt_lookup drafter_;
};

template <class DraftT>
class decoder_over final : public outside_decoder {
 public:
  decoder_over(const decoder_setup& setup, std::unique_ptr<policy_part> policy, std::unique_ptr<verifier_part> verifier)
      : argmax_only_(verifier->argmax_only()),
        draft_(setup),
        decoder_(draft_.drafter(), named_policy(std::move(policy)), named_verifier(std::move(verifier)),
                 called_kv(setup, false), outside_backend<>(setup.vocab_size), options_of(setup)) {}

  text_id add(std::span<const token_id> prompt, stop_conditions stop, const text_options& options) override {
    if (argmax_only_ && options.sampling.temperature > 0) {
      raise<option_error>("this verifier follows the target's most probable token: the temperature must be 0, but is ",
                          options.sampling.temperature, ".");
    }
    return decoder_.add(prompt, std::move(stop), options);
  }
  void cancel(text_id id) override { decoder_.cancel(id); }
  void resume(text_id id) override { decoder_.resume(id); }
  bool is_idle() const override { return decoder_.idle(); }
  outside_pass begin_step() override { return decoder_.begin_step(); }
  outside_pass end_step(logits_view logits) override { return decoder_.end_step(logits); }
  void give_up() override { decoder_.give_up(); }
  std::span<const text_event> events() const override { return decoder_.events(); }
  const text& current(text_id id) const override { return decoder_.current(id); }

 private:
  static batch_options options_of(const decoder_setup& setup) {
    return {.order = setup.order, .max_texts = setup.max_texts, .prefill_rows = setup.prefill_rows};
  }

  using drafter_type = std::remove_reference_t<decltype(std::declval<DraftT&>().drafter())>;

  bool argmax_only_;
  DraftT draft_;
  batch_decoder<drafter_type&, named_policy, named_verifier, called_kv, outside_backend<>> decoder_;
};

}  // namespace

std::unique_ptr<outside_decoder> make_outside_decoder(const decoder_setup& setup, std::unique_ptr<policy_part> policy,
                                                      std::unique_ptr<verifier_part> verifier) {
  require_fit(*policy, *verifier);
  require_option("vocab_size", setup.vocab_size, 1, 1 << 30);
  require_option("context", setup.context, 1, 1 << 20);
  require_option("max_texts", setup.max_texts, 1, 4096);
  if (setup.draft == draft_kind::model)
    return std::make_unique<decoder_over<model_draft>>(setup, std::move(policy), std::move(verifier));
  // Prompt look-up is never asked by a policy that drafts nothing.
  if (setup.draft == draft_kind::none && policy->max_nodes() > 0)
    raise<option_error>("without a draft nothing can be drafted: the policy must be plain.");
  if (setup.draft == draft_kind::prompt_lookup && !policy->takes_runs())
    raise<option_error>("this policy cannot grow from prompt look-up, which has no probabilities: chain can.");
  if (setup.draft == draft_kind::prompt_lookup && !verifier->target_alone())
    raise<option_error>("this verifier compares with probabilities, which prompt look-up does not have.");
  return std::make_unique<decoder_over<text_draft>>(setup, std::move(policy), std::move(verifier));
}

}  // namespace parts
