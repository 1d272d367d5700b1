// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/llama/draft_kind.hpp"

namespace models {

//! The way in which a draft with another tokenizer drafts for a target.
enum class translation_kind { automatic, tokens, text };

}  // namespace models

namespace espalier {

template <>
inline constexpr auto known_values<models::translation_kind> = std::array{
    known_value<models::translation_kind>{models::translation_kind::automatic, "auto",
                                          "the tokens, if both share a quarter of the smaller vocabulary"},
    known_value<models::translation_kind>{models::translation_kind::tokens, "tokens",
                                          "the tokens that both have, at every temperature"},
    known_value<models::translation_kind>{models::translation_kind::text, "text",
                                          "its text, cut into the target's tokens; for greedy, target-only"}};

}  // namespace espalier

namespace models {

//! The paths of models.
struct model_paths {
  std::string model;    //!< a model, or a folder DIR of several: DIR/target, DIR/draft, DIR/block and a tokenizer
  std::string draft{};  //!< a model that drafts, of any kind; empty: the smaller model of DIR, if there is one
  std::string block{};  //!< a block draft or a P-EAGLE head; empty: that of DIR, if there is one
  std::string head{};   //!< a head on the target's hidden states
  //! File of the tokens that a smaller model drafts, or "all"; empty: head_tokens.json in its folder, or if there is none,
  //! all.
  std::string head_tokens{};
  std::string map{};  //!< file of the map between two tokenizers, made if it does not exist; empty: it is not kept
  translation_kind translation = translation_kind::automatic;

  static constexpr void describe(auto see) {
    see(espalier::option{"translation", &model_paths::translation, "what a draft with another tokenizer drafts"});
  }

  //! The model that drafts level by level, a smaller model or a head; empty: there is none.
  const std::string& by_level() const { return head.empty() ? draft : head; }

  //! These paths with each model's own path filled in: `draft` is then a smaller model, and a head or a block draft that
  //! it named is at `head` or `block`. A target with a head in its own files, and no draft, is its own `head`.
  //!
  //! Errors      espalier::model_error for a model that does not exist
  model_paths resolved() const {
    namespace files = std::filesystem;
    model_paths each = *this;
    for (const std::string* path : {&model, &draft, &block}) {
      if (path->empty()) continue;
      if (!files::exists(*path))
        espalier::raise<espalier::model_error>("there is no ", *path, ", where a model is looked for.");
      if (files::is_directory(*path) && path != &model && !files::exists(*path + "/config.json"))
        espalier::raise<espalier::model_error>("the folder ", *path, " holds no model: it has no config.json.");
      if (!files::is_directory(*path) && !espalier::gguf_file::begins_as_one(*path)) {
        espalier::raise<espalier::model_error>(
            *path, " is no GGUF file: it does not begin as one. A model is a GGUF file, or a folder with a ",
            "config.json and its weights in safetensors files.");
      }
    }
    if (files::is_directory(model) && !files::exists(model + "/target") && !files::exists(model + "/config.json")) {
      espalier::raise<espalier::model_error>("the folder ", model, " holds no model: neither a folder target nor a ",
                                             "config.json.");
    }
    each.sort_by_kind();
    if (files::is_directory(model + "/target")) {
      each.model = model + "/target";
      if (draft.empty() && files::is_directory(model + "/draft")) each.draft = model + "/draft";
      if (each.block.empty() && files::is_directory(model + "/block")) each.block = model + "/block";
    }
    const std::string beside = each.draft + "/head_tokens.json";
    if (head_tokens == "all") {
      each.head_tokens.clear();
    } else if (head_tokens.empty() && !each.draft.empty() && files::exists(beside)) {
      each.head_tokens = beside;
    }
    if (draft.empty() && each.draft.empty() && files::is_directory(each.model) && espalier::has_head_beside(each.model))
      each.head = each.model;
    return each;
  }

 private:
  void sort_by_kind() {
    if (draft.empty()) return;
    const espalier::draft_kind kind = espalier::draft_kind_of(draft);
    if (kind == espalier::draft_kind::language_model) return;
    std::string& place = espalier::drafts_blocks(kind) ? block : head;
    if (!place.empty())
      espalier::raise<espalier::model_error>("--draft ", draft, " and --block ", place, " both name a block draft.");
    place = std::exchange(draft, {});
  }
};

}  // namespace models
