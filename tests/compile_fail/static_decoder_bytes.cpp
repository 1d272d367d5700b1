// expect: (Needed = |checked_bytes<)[0-9]+
// SPDX-License-Identifier: BSL-1.0
#define ESPALIER_HOSTED 0
#define ESPALIER_EXCEPTIONS 0
#include "espalier/decoder/static_decoder.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"

#ifdef ESPALIER_VALID
constexpr std::size_t bytes = 1 << 16;
#else
constexpr std::size_t bytes = 64;
#endif

struct model {
  std::int32_t vocab_size() const { return 4; }
  espalier::vocab_rows<float> forward(espalier::token_kv&, espalier::forward_batch_view) { return {}; }
};
struct factory {
  auto operator()(const espalier::decoder_options& options) const {
    return espalier::make_decoder(espalier::no_drafter(), espalier::plain(), espalier::greedy(), espalier::token_kv(16),
                                  model(), options);
  }
};
constexpr espalier::static_capacity room{.context = 16, .vocabulary = 4, .prefill_rows = 64, .bytes = bytes};
espalier::static_decoder<room, factory> decode;
