// SPDX-License-Identifier: BSL-1.0
#include "alone.hpp"

#include "../examples/models/model_set.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/verifier/target_only.hpp"

struct lone_writer::parts {
  models::model_set models = models::model_set::load({SERVE_MODELS}, {.max_rows = 96});
  espalier::recurrent_kv kv = models.make_cache(models.target), draft_kv = models.make_cache(models.draft_model());
  espalier::autoregressive<espalier::llama_backend&, espalier::recurrent_kv&> drafter{models.draft_model(), draft_kv};
  decltype(espalier::make_decoder(drafter, espalier::chain(), espalier::target_only(), kv, models.target)) decode =
      espalier::make_decoder(drafter, espalier::chain(), espalier::target_only(), kv, models.target);
};

lone_writer::lone_writer() : parts_(new parts) {}
lone_writer::~lone_writer() = default;

lone_writer::text lone_writer::write(const request& r) {
  const espalier::tokenizer& tokenizer = parts_->models.text;
  auto& decode = parts_->decode;
  text result;
  decode.begin(
      tokenizer.encode_prompt(r.prompt),
      {.max_tokens = r.max_tokens, .tokens = tokenizer.ends_of_text(), .strings = r.stop, .show_string = false},
      {.sampling = {.temperature = r.temperature, .top_p = r.top_p}, .seed = r.seed, .stream = r.stream});
  while (decode.step([&](espalier::token_id token) { return tokenizer.piece(token); }))
    result.bytes += decode.last_round().shown;
  result.n_tokens = static_cast<std::int32_t>(decode.current().written().size());
  const espalier::status end = decode.current().state();
  result.stopped = end == espalier::status::stop_token || end == espalier::status::stop_string;
  return result;
}

std::int32_t lone_writer::n_prompt_tokens(const std::string& prompt) const {
  return static_cast<std::int32_t>(parts_->models.text.encode_prompt(prompt).size());
}
