// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <string>

#include "espalier/core/option.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "model_paths.hpp"
#include "usage_error.hpp"

namespace models {

//! The source of drafts.
enum class drafter_kind { automatic, model, eagle3, mtp, block, self, text };

//! True if a drafter is a head on the target's hidden states.
constexpr bool is_head(drafter_kind drafter) {
  return drafter == drafter_kind::eagle3 || drafter == drafter_kind::mtp;
}

}  // namespace models

namespace espalier {

template <>
inline constexpr auto known_values<models::drafter_kind> =
    std::array{known_value<models::drafter_kind>{models::drafter_kind::automatic, "auto",
                                                 "what --draft names or the model folder has, else text"},
               known_value<models::drafter_kind>{models::drafter_kind::model, "model", "a smaller language model"},
               known_value<models::drafter_kind>{models::drafter_kind::eagle3, "eagle3",
                                                 "an EAGLE-3 head on the target's hidden states"},
               known_value<models::drafter_kind>{models::drafter_kind::mtp, "mtp",
                                                 "an MTP head on them, which may be in the target's own folder"},
               known_value<models::drafter_kind>{models::drafter_kind::block, "block",
                                                 "a model that drafts all depths in one pass: DFlash, DFlash2, "
                                                 "DSpark, XPress, P-EAGLE"},
               known_value<models::drafter_kind>{models::drafter_kind::self, "self",
                                                 "the target itself, with passes that --self.* make cheaper"},
               known_value<models::drafter_kind>{models::drafter_kind::text, "text",
                                                 "what followed the last tokens before, with no model"}};

}  // namespace espalier

namespace models {

//! Returns the drafter that resolved paths are for: the one that --draft names, the model or the head beside the
//! target, else the block draft there, else the text itself.
inline drafter_kind drafter_beside(const model_paths& paths) {
  if (!paths.head.empty()) {
    const bool is_eagle3 = espalier::draft_kind_of(paths.head) == espalier::draft_kind::eagle3;
    return is_eagle3 ? drafter_kind::eagle3 : drafter_kind::mtp;
  }
  if (!paths.draft.empty()) return drafter_kind::model;
  return paths.block.empty() ? drafter_kind::text : drafter_kind::block;
}

//! Returns resolved paths without those of models that this drafter does not need; all of them for automatic.
inline model_paths paths_for(drafter_kind drafter, model_paths paths) {
  if (drafter == drafter_kind::automatic) return paths;
  if (drafter != drafter_kind::model) paths.draft.clear();
  if (drafter != drafter_kind::block) paths.block.clear();
  if (!is_head(drafter)) paths.head.clear();
  return paths;
}

//! Refuses a drafter whose model the paths of the command line do not name. `block_flag` is the flag that names a block
//! draft.
//!
//! Errors      usage_error
inline void require_drafter(drafter_kind drafter, const model_paths& given, const std::string& block_flag) {
  const model_paths paths = given.resolved();
  const auto require = [&](drafter_kind kind, bool has, const std::string& what, const std::string& flag) {
    if (drafter != kind || has) return;
    const std::string start = "--drafter " + std::string(espalier::name_of(kind)) + " needs " + what + ", but ";
    if (!given.draft.empty()) throw usage_error(start + given.draft + " is none.");
    throw usage_error(start + given.model + " has none beside it; " + flag + " names one.");
  };
  const bool has_head = !paths.head.empty() && drafter_beside(paths) == drafter;
  require(drafter_kind::model, !paths.draft.empty(), "a smaller model", "--draft");
  require(drafter_kind::eagle3, has_head, "an EAGLE-3 head", "--draft");
  require(drafter_kind::mtp, has_head, "an MTP head", "--draft");
  require(drafter_kind::block, !paths.block.empty(), "a block draft", block_flag);
}

}  // namespace models
