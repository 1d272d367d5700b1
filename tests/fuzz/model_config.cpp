// SPDX-License-Identifier: BSL-1.0
//
// Any text is a config.json whose sizes make sense, or one that is refused with a model_error; nothing else happens.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "espalier/model/llama/model_config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace espalier;
  try {
    const auto c = model_config::parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    const bool sound = c.vocab_size > 0 && c.hidden_size > 0 && c.n_layers > 0 && c.head_dim > 0 && c.n_kv_heads > 0 &&
                       c.n_heads % c.n_kv_heads == 0 && c.intermediate_size > 0 && c.max_positions > 0 &&
                       c.rotary_dims >= 0 && c.rotary_dims <= c.head_dim && c.rotary_dims % 2 == 0 &&
                       c.query_size() > 0 && c.rope_theta >= 1.0 && c.norm_epsilon >= 0.0F && c.window >= 0 &&
                       (c.windowed.empty() || c.windowed.size() == static_cast<std::size_t>(c.n_layers)) &&
                       (c.unrotated.empty() || c.unrotated.size() == static_cast<std::size_t>(c.n_layers)) &&
                       (c.scaling.kind != rope_scaling::kind_type::longrope ||
                        c.scaling.divisors.size() == c.scaling.short_divisors.size());
    const mixture_shape& m = c.mixture;
    const bool mixed = !c.has_mixtures() || (c.mixtures.size() == static_cast<std::size_t>(c.n_layers) && m.used > 0 &&
                                             m.used <= m.experts && m.size > 0);
    const recurrent_block_shape& r = c.recurrence;
    const bool recurs = !c.is_hybrid() || (c.recurrent.size() == static_cast<std::size_t>(c.n_layers) && r.heads > 0 &&
                                           r.heads % r.groups == 0 && r.head_dim > 0 && r.state > 0 && r.taps > 0 &&
                                           c.n_attention_layers() > 0 && c.n_attention_layers() < c.n_layers);
    if (!sound || !mixed || !recurs) std::abort();
  } catch (const model_error&) {
  }
  return 0;
}
