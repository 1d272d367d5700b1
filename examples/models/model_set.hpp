// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include "block_model.hpp"
#include "drafter_kind.hpp"
#include "espalier/core/error.hpp"
#include "espalier/drafter/translation/vocabulary_map.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/kv_store/sink_window.hpp"
#include "espalier/model/llama/draft_head_model.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "model_paths.hpp"
#include "self_draft.hpp"

namespace models {

//! The way in which the models of a set are to draft.
struct drafting_choice {
  //! The source of drafts, of which alone models are loaded; automatic: all models that there are.
  drafter_kind drafter = drafter_kind::automatic;
  bool ahead = false;         //!< the smaller model drafts while the target computes, on a thread of its own
  self_draft_options self{};  //!< for drafter_kind::self
};

//! A target model, its tokenizer, and the models that draft for it: a smaller one or a head, a block draft, both or
//! none. The target keeps the hidden states that they and selectors read.
//!
//!     models::model_set models = models::model_set::load({"examples/models"}, {.max_rows = 288});
//!     espalier::recurrent_kv kv = models.make_cache(models.target);
//!
//! Errors      espalier::model_error that names the missing or wrong file, or the way in which the models do not fit
//!             together
struct model_set {
  model_paths paths;  //!< the path of each model
  espalier::tokenizer text;
  espalier::llama_backend target;
  std::optional<espalier::llama_backend> draft{};
  std::optional<espalier::draft_head_model> head{};
  std::optional<block_model> block{};
  std::optional<espalier::vocabulary_map> map{};  //!< the target's tokens in the draft's vocabulary, if it has another
  std::optional<espalier::tokenizer> draft_text{};                //!< the draft's tokenizer, if its text is cut again
  std::optional<espalier::recurrent_kv> target_kv{}, draft_kv{};  //!< the caches of target_cache() and draft_cache()

  std::optional<self_draft_options> self{};  //!< set if `draft` is the target itself, made cheaper

  //! Loads the models. options.max_rows: rows of the longest forward pass of each, such as a tree and its pending
  //! token.
  static model_set load(const model_paths& given, const espalier::llama_options& options = {},
                        const drafting_choice& choice = {});

  //! The smaller model.
  //!
  //! Errors      espalier::model_error if there is none, or if it has another vocabulary than the target
  espalier::llama_backend& draft_model() {
    if (map) {
      espalier::raise<espalier::model_error>("the draft ", paths.draft, " has another vocabulary than the target ",
                                             paths.model, "; they must have the same one here.");
    }
    return any_draft_model();
  }

  //! The smaller model, whose vocabulary may be another one: `map` translates then.
  //!
  //! Errors      espalier::model_error if there is none
  espalier::llama_backend& any_draft_model() {
    if (!draft && !paths.head.empty()) {
      espalier::raise<espalier::model_error>(paths.head, " is a head on the target's hidden states, but a smaller ",
                                             "model is needed here.");
    }
    if (!draft) {
      espalier::raise<espalier::model_error>("the model ", paths.model,
                                             " has no draft model beside it; --draft names one.");
    }
    return *draft;
  }

  //! A sentence on a draft with another vocabulary; empty if target and draft have the same one.
  std::string vocabularies_in_words() const {
    if (!map) return {};
    const std::size_t n = map->shared().size();
    const std::string start = "The draft " + paths.draft + " has another vocabulary than the target: ";
    if (draft_text)
      return start + "its text is cut into the target's tokens; " + std::to_string(n) + " tokens are shared, of " +
             std::to_string(draft_text->size()) + " and " + std::to_string(text.size()) + ".";
    return start + "it drafts the " + std::to_string(n) + " tokens that both have, " +
           std::to_string(100 * n / static_cast<std::size_t>(text.size())) + " % of the target's " +
           std::to_string(text.size()) + ".";
  }

  //! The caches for texts that one model writes one after the other: rows of tokens that a text has in common with the
  //! one before it are not computed again. forget_texts() empties both.
  espalier::recurrent_kv& target_cache(espalier::commit_mode mode) { return kept(target_kv, target, mode); }
  espalier::recurrent_kv& draft_cache(espalier::commit_mode mode) { return kept(draft_kv, any_draft_model(), mode); }
  void forget_texts() {
    for (auto* kv : {&target_kv, &draft_kv})
      if (*kv) (*kv)->truncate(0, 0);
  }

  //! Number of tokens that a text may have: the target's positions. Beyond those of a draft nothing is drafted.
  int context() const { return target.max_positions(); }
  //! Number of tokens that target and draft can both follow.
  int drafted_context() const {
    if (head) return head->max_positions();
    if (draft) return (std::min)(context(), draft->max_positions());
    return block ? (std::min)(context(), block->max_positions()) : context();
  }

  //! Options of the cache of a target that drafts for itself over a window.
  //!
  //! Pre         self, and self->window > 0
  espalier::sink_window_options window_options(espalier::commit_mode mode = espalier::commit_mode::compact) const {
    return {.window = self->window, .block = (self->window + 3) / 4, .scratch = 2 * target.max_rows(), .commit = mode};
  }

  //! A cache for one sequence of one of the models, as long as its part of the context. It has room for two passes of
  //! the longest kind: a draft holds as many rows of a tree as the target reads in one pass.
  espalier::recurrent_kv make_cache(const espalier::llama_backend& model,
                                    espalier::commit_mode mode = espalier::commit_mode::compact) const {
    const int rows = 2 * (std::max)(model.max_rows(), target.max_rows());
    return espalier::host_cache(model.config(), 1, (std::min)(context(), model.max_positions()),
                                {.rows = rows, .commit = mode});
  }

 private:
  espalier::recurrent_kv& kept(std::optional<espalier::recurrent_kv>& kv, const espalier::llama_backend& model,
                               espalier::commit_mode mode) {
    if (!kv) kv = make_cache(model, mode);
    return *kv;
  }
};

}  // namespace models
