// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

//! Holds several drafters of one text, for a policy that asks one after the other: see cascade. A joint of one drafter
//! drafts as that drafter alone.
//!
//! Drafters are kept by reference when given as lvalues, by value otherwise.
//!
//!     joint drafter(autoregressive(draft, draft_kv), prompt_lookup());
//!
//! Law         as Drafter, if each part keeps its law. capacity() is the largest capacity of the parts: a part that has
//!             reached its own capacity has a room() of 0, and the others still draft
//! Errors      input_error for vocabularies of different size
template <class... DraftersT>
class joint {
  static_assert((Drafter<std::remove_reference_t<DraftersT>> && ...), "each part of a joint must be a Drafter");

 public:
  explicit joint(DraftersT&&... drafters) : drafters_(std::forward<DraftersT>(drafters)...) {
    std::int32_t known = 0;
    each([&](auto& drafter) {
      if constexpr (detail::HasVocabulary<std::remove_reference_t<decltype(drafter)>>) {
        const std::int32_t vocab = drafter.vocab_size();
        if (known != 0 && vocab != known) {
          raise<input_error>("one drafter of the joint has ", known, " tokens and another ", vocab,
                             "; they must share one vocabulary.");
        }
        known = vocab;
      }
    });
  }

  //! Returns a joint for another text, of the drafters that drafter_for_text() makes of these.
  auto for_text(std::int32_t sequence) {
    return std::apply(
        [&](auto&... drafters) {
          return joint<decltype(drafter_for_text(drafters, sequence))...>(drafter_for_text(drafters, sequence)...);
        },
        drafters_);
  }

  static constexpr bool gives_up_rows = (detail::gives_up_rows<std::remove_reference_t<DraftersT>>() || ...);
  void release() requires(ReleasingDrafter<std::remove_reference_t<DraftersT>> || ...) {
    each([](auto& drafter) {
      if constexpr (ReleasingDrafter<std::remove_reference_t<decltype(drafter)>>) drafter.release();
    });
  }

  std::tuple<std::remove_reference_t<DraftersT>&...> parts() {
    return std::apply([](auto&... drafters) { return std::tie(drafters...); }, drafters_);
  }

  //! Number of tokens that drafter number `part` may still draft.
  std::int32_t room(std::size_t part) const {
    std::int32_t room = 0;
    std::size_t i = 0;
    each([&](const auto& drafter) {
      if (i++ == part) room = left(drafter);
    });
    return room;
  }

  //! The rows of the drafter, if it is the only one. The children of a node may come from several drafters, so that the
  //! rows of one of several drafters are not those from which the whole tree was drawn.
  auto rows() requires(sizeof...(DraftersT) == 1 && (detail::HasRows<std::remove_reference_t<DraftersT>> && ...)) {
    return std::get<0>(drafters_).rows();
  }

  void begin(std::span<const token_id> context) {
    length_ = static_cast<std::int64_t>(context.size());
    each([&](auto& drafter) { drafter.begin(context); });
  }

  void commit(tree_view tree, verdict v) {
    length_ += tree.depth[v.accepted] + 1;
    each([&](auto& drafter) { drafter.commit(tree, v); });
  }

  //! Makes each PromptDrafter that has room read up to n tokens of the prompt. Returns true if one of them has more to
  //! read.
  bool read_prompt(std::int32_t n) {
    bool more = false;
    each([&](auto& drafter) {
      if constexpr (PromptDrafter<std::remove_reference_t<decltype(drafter)>>)
        more = (left(drafter) > 0 && drafter.read_prompt(n)) || more;
    });
    return more;
  }

  void reserve(std::int32_t n_nodes) {
    each([&](auto& drafter) { drafter.reserve(n_nodes); });
  }

  std::int32_t capacity() const {
    std::int32_t largest = 0;
    each([&](const auto& drafter) { largest = std::max<std::int32_t>(largest, drafter.capacity()); });
    return largest;
  }

  //! Size of the vocabulary that all drafters with probabilities share. Exists if at least one drafter has
  //! probabilities.
  std::int32_t vocab_size() const requires(detail::HasVocabulary<std::remove_reference_t<DraftersT>> || ...) {
    std::int32_t vocab = 0;
    each([&](const auto& drafter) {
      if constexpr (detail::HasVocabulary<std::remove_cvref_t<decltype(drafter)>>) vocab = drafter.vocab_size();
    });
    return vocab;
  }

  //! Sum of the seconds spent in draft models, over the drafters that report them.
  double forward_seconds() const {
    double seconds = 0;
    each([&](const auto& drafter) { seconds += forward_seconds_of(drafter); });
    return seconds;
  }

  //! Number of leading tokens of the text whose hidden states every drafter that reads such states has read. A drafter
  //! without room does not count, since it has no use for more states. If none counts, the length of the text.
  std::int32_t n_read() const requires(detail::CountsFeatures<std::remove_reference_t<DraftersT>> || ...) {
    constexpr std::int64_t none = (std::numeric_limits<std::int64_t>::max)();
    std::int64_t least = none;
    each([&](const auto& drafter) {
      if constexpr (detail::CountsFeatures<std::remove_cvref_t<decltype(drafter)>>) {
        if (left(drafter) > 0) least = std::min<std::int64_t>(least, drafter.n_read());
      }
    });
    return static_cast<std::int32_t>(least == none ? length_ : least);
  }

  template <class BackendT>
  void read(const BackendT& backend,
            std::span<const std::int32_t> rows) requires(FeatureDrafter<std::remove_reference_t<DraftersT>, BackendT> ||
                                                         ...) {
    const std::int32_t first = n_read();
    each([&](auto& drafter) {
      if constexpr (FeatureDrafter<std::remove_reference_t<decltype(drafter)>, BackendT>) {
        if (left(drafter) <= 0) return;
        // A path that another drafter has drafted may end beyond what this one can hold.
        const auto known = static_cast<std::size_t>(drafter.n_read() - first);
        const auto most = static_cast<std::size_t>((std::max)(std::int32_t{0}, drafter.capacity() - drafter.n_read()));
        if (known < rows.size()) drafter.read(backend, rows.subspan(known, (std::min)(most, rows.size() - known)));
      }
    });
  }

 private:
  template <class DrafterT>
  std::int32_t left(const DrafterT& drafter) const {
    const std::int64_t left = drafter.capacity() - length_;
    return static_cast<std::int32_t>((std::max)(left, std::int64_t{0}));
  }

  template <class FunctionT>
  void each(const FunctionT& function) {
    std::apply([&](auto&... drafters) { (function(drafters), ...); }, drafters_);
  }
  template <class FunctionT>
  void each(const FunctionT& function) const {
    std::apply([&](const auto&... drafters) { (function(drafters), ...); }, drafters_);
  }

  std::tuple<DraftersT...> drafters_;
  std::int64_t length_ = 0;  // length of the text
};

template <class... DraftersT>
joint(DraftersT&&...) -> joint<DraftersT...>;

}  // namespace espalier
