// SPDX-License-Identifier: BSL-1.0
#include "alone.hpp"

#include "../examples/models/model_set.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"

struct lone_writer::parts {
  models::model_set models;
  espalier::recurrent_kv kv = models.make_cache(models.target);
  decltype(espalier::make_decoder(espalier::no_drafter(), espalier::plain(), espalier::target_only(), kv,
                                  models.target)) decode =
      espalier::make_decoder(espalier::no_drafter(), espalier::plain(), espalier::target_only(), kv, models.target);
};

lone_writer::lone_writer(const std::string& models)
    : parts_(new parts{models::model_set::load({models.empty() ? SERVE_MODELS : models}, {.max_rows = 96},
                                               {.drafter = models::drafter_kind::text})}) {}
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
