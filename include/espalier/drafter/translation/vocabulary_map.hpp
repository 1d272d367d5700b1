// SPDX-License-Identifier: BSL-1.0
// Tested by tests/drafter/translated.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! The translation of a target's tokens into a draft's vocabulary. Tokens with the same bytes are shared; the bytes of
//! every other token are cut into the draft's tokens, the longest first. It is made once for two tokenizers, from the
//! bytes of their tokens. Of tokens of one vocabulary with the same bytes the first one is shared. Two vocabularies may
//! share none.
//!
//! Shapes      target, draft [vocabulary]: the bytes of each token, none for tokens that are no text
//! Complexity  the constructor: O(bytes * bytes of the longest draft token), expected
//! Errors      input_error from share() and begin_with() for a token that is not in its vocabulary, and from
//!             serialize() for a map of vocabularies of other sizes, or one that contradicts itself
class vocabulary_map {
 public:
  //! A token that both vocabularies have.
  struct shared_token {
    token_id target, draft;
  };

  vocabulary_map(std::span<const std::string> target, std::span<const std::string> draft)
      : cuts_(target.size()), is_shared_(target.size()), is_shared_draft_(draft.size()) {
    std::unordered_map<std::string_view, token_id> of_draft;
    std::size_t longest = 0;
    for (std::size_t t = 0; t < draft.size(); ++t) {
      if (draft[t].empty()) continue;
      of_draft.emplace(draft[t], static_cast<token_id>(t));
      longest = (std::max)(longest, draft[t].size());
    }
    for (std::size_t t = 0; t < target.size(); ++t) {
      for (std::string_view left = target[t]; !left.empty();) {
        std::size_t n = (std::min)(left.size(), longest);
        auto found = of_draft.end();
        while (n > 0 && (found = of_draft.find(left.substr(0, n))) == of_draft.end())
          --n;
        if (n > 0) cuts_[t].push_back(found->second);
        left.remove_prefix((std::max)(n, std::size_t{1}));  // a byte that the draft does not know is left out
      }
      if (cuts_[t].size() == 1 && draft[static_cast<std::size_t>(cuts_[t][0])] == target[t])
        share(static_cast<token_id>(t), cuts_[t][0]);
    }
  }

  //! A map between vocabularies of so many tokens that shares none and cuts none, for serialize() to load.
  vocabulary_map(std::int32_t target_size, std::int32_t draft_size)
      : cuts_(static_cast<std::size_t>(target_size)),
        is_shared_(cuts_.size()),
        is_shared_draft_(static_cast<std::size_t>(draft_size)) {}

  //! Saves the map, or loads one in its place that was made for vocabularies of the same sizes.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive.expect("tokens of the target", target_size());
    archive.expect("tokens of the draft", draft_size());
    std::vector<std::int32_t> lengths;
    std::vector<token_id> cuts, shared;
    for (const std::vector<token_id>& cut : cuts_) {
      lengths.push_back(static_cast<std::int32_t>(cut.size()));
      cuts.insert(cuts.end(), cut.begin(), cut.end());
    }
    for (const shared_token& s : shared_)
      shared.push_back(s.target);
    archive(lengths, cuts, shared, begin_);
    if constexpr (ArchiveT::reads) load(archive, lengths, cuts, shared);
  }

  //! Makes these two tokens a shared token, for example the tokens that end a text, which have no bytes. Changes
  //! nothing if one of them is shared already.
  void share(token_id target, token_id draft) {
    if (target < 0 || target >= target_size() || draft < 0 || draft >= draft_size()) {
      raise<input_error>("tokens ", target, " and ", draft, " are to be shared, but the vocabularies have ",
                         target_size(), " and ", draft_size(), " tokens.");
    }
    char& is_target = is_shared_[static_cast<std::size_t>(target)];
    char& is_draft = is_shared_draft_[static_cast<std::size_t>(draft)];
    if (is_target != 0 || is_draft != 0) return;
    is_target = is_draft = 1;
    cuts_[static_cast<std::size_t>(target)] = {draft};
    shared_.push_back({target, draft});
  }

  //! Makes every translated text begin with this token of the draft, which the draft was trained to see there. A text
  //! whose first token is translated into it gets no second one.
  void begin_with(token_id draft) {
    if (draft < 0 || draft >= draft_size()) {
      raise<input_error>("texts are to begin with the draft's token ", draft, ", but the draft has a vocabulary of ",
                         draft_size(), " tokens.");
    }
    begin_ = draft;
  }

  std::int32_t target_size() const { return static_cast<std::int32_t>(cuts_.size()); }
  std::int32_t draft_size() const { return static_cast<std::int32_t>(is_shared_draft_.size()); }
  //! The draft's token that every translated text begins with; -1: none.
  token_id begin() const { return begin_; }

  //! The tokens that both vocabularies have.
  std::span<const shared_token> shared() const { return shared_; }
  bool is_shared(token_id target) const { return is_shared_[static_cast<std::size_t>(target)] != 0; }
  //! The draft's tokens that stand for a token of the target; none where the draft knows none of its bytes.
  std::span<const token_id> cut(token_id target) const { return cuts_[static_cast<std::size_t>(target)]; }

 private:
  // Takes the map that was read: the lengths of the cuts, their tokens, and the target's shared tokens.
  template <class ArchiveT>
  void load(const ArchiveT& archive, std::span<const std::int32_t> lengths, std::span<const token_id> cuts,
            std::span<const token_id> shared) {
    archive.require(lengths.size() == cuts_.size() && begin_ >= -1 && begin_ < draft_size());
    for (const token_id t : cuts)
      archive.require(t >= 0 && t < draft_size());
    std::size_t from = 0;
    for (std::size_t t = 0; t < cuts_.size(); ++t) {
      archive.require(lengths[t] >= 0 && static_cast<std::size_t>(lengths[t]) <= cuts.size() - from);
      const auto cut = cuts.subspan(from, static_cast<std::size_t>(lengths[t]));
      cuts_[t].assign(cut.begin(), cut.end());
      from += cut.size();
    }
    archive.require(from == cuts.size());
    for (const token_id t : shared) {
      archive.require(t >= 0 && t < target_size() && this->cut(t).size() == 1);
      const std::size_t before = shared_.size();
      share(t, this->cut(t)[0]);
      archive.require(shared_.size() > before);
    }
  }

  std::vector<std::vector<token_id>> cuts_;  // [target]
  std::vector<char> is_shared_;              // [target]
  std::vector<char> is_shared_draft_;        // [draft]
  std::vector<shared_token> shared_;
  token_id begin_ = -1;
};

}  // namespace espalier
