// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/backend/text.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/specinfer.hpp"

// The program of a user, before a mistake is made in it.
using namespace espalier;

struct model {
  std::vector<float> logits{};

  std::int32_t vocab_size() const { return 8; }
  logits_view forward(token_kv&, forward_batch_view batch) {
    logits.assign(batch.outputs.size() * 8, 0.0F);
    return {logits.data(), static_cast<std::int32_t>(batch.outputs.size()), 8};
  }
};

inline model target, draft;
inline token_kv kv(64), draft_kv(64);
inline autoregressive drafter(draft, draft_kv);
inline const std::vector<token_id> prompt{1, 2};
