// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/batch_decoder.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/token.hpp"

namespace espalier::detail {

// The drafting of a step for all texts together: one pass of a shared draft model answers the questions of all texts.
// Each part of the drafter (see for_each_part) has a model, and passes, of its own.
//
// The places are those of a batch_decoder, in the order of their turns. The host is that decoder, which catches what is
// thrown for one text and makes room in caches: host.attempt(place, f), host.attempt_all(f, each_place),
// host.make_room(place). A place without a text is passed over.
template <class DrafterT>
class batch_drafting {
 public:
  using drafter_of_text = decltype(drafter_for_text(std::declval<DrafterT&>(), 0));

  // Takes memory for this many texts, rows of a pass, and nodes of a tree.
  void reserve(std::int32_t n_texts, std::int32_t n_rows, std::int32_t n_nodes) {
    const auto n = static_cast<std::size_t>(n_texts);
    first_.reserve(n), flags_.reserve(n);
    std::apply(
        [&](auto&... passes) {
          const auto make_room = [&](auto& pass) {
            if constexpr (std::is_same_v<std::remove_reference_t<decltype(pass)>, forward_batch>)
              pass.reserve(n_rows, n_nodes, n_texts);
          };
          (make_room(passes), ...);
        },
        passes_);
  }

  // Begins a step: drafters read prompts. Those that share passes read `most` rows in all texts and parts together; any
  // other PromptDrafter reads up to as many rows as the parts before it have left, for each text.
  template <class HostT, class PlaceT>
  void read_prompts(HostT& host, DrafterT& model, std::span<PlaceT* const> places, std::int32_t most) {
    n_passes_ = 0;
    for (PlaceT* p : places) {
      p->is_reading_draft = p->text != nullptr && p->has_begun() && p->is_drafted_for && p->served.draft_reads();
      if (p->is_reading_draft) p->served.set_draft_reads(false);  // unless a part needs more
    }
    for_each_part(model, [&](auto& shared, auto part) { read_part(part, host, shared, places, most); });
  }

  // Returns how many tokens of a text of `size` tokens its drafter has still to read before a round, over all parts. A
  // PromptDrafter that is no SharedDrafter does not tell this: all `size` tokens count.
  static std::int32_t unread(drafter_of_text& drafter, std::int32_t size) {
    std::int32_t n = 0;
    for_each_part(drafter, [&](auto& part, auto) { n += unread_of(part, size); });
    return n;
  }

  // Grows the trees of all places that draw one, step by step; they share this budget, if it is given.
  template <class HostT, class PlaceT, class ChancesT, class BudgetT>
  void grow(HostT& host, DrafterT& model, std::span<PlaceT* const> places, const ChancesT& chance_of, BudgetT* budget) {
    bool wants = true;
    while (wants) {
      wants = false;
      // Notes which part each text asks before any gets an answer: one step of a part serves all texts that ask it.
      flags_.clear();
      for (PlaceT* p : places) {
        const bool asks = p->draws() && !p->served.growing().wanted().empty();
        flags_.push_back(asks ? p->served.growing().part() : n_parts<DrafterT>);
        wants = wants || asks;
      }
      for_each_part(model, [&](auto& shared, auto part) { grow_part(part, host, shared, places, chance_of, budget); });
    }
  }

  // Passes of shared models since the step began.
  std::int32_t n_passes() const { return n_passes_; }

 private:
  // Where the rows of a text begin in a pass.
  struct pass_place {
    std::size_t place;
    std::int32_t first_output, first_row;
  };

  template <class PartT>
  static std::int32_t unread_of(PartT& part, [[maybe_unused]] std::int32_t size) {
    if constexpr (SharedDrafter<PartT>) {
      part.want_prompt((std::numeric_limits<std::int32_t>::max)());
      return part.n_wanted();
    } else {
      return PromptDrafter<PartT> ? size : 0;
    }
  }

  // Makes this part of each text's drafter read the prompt. A SharedDrafter reads `most` rows in all texts together,
  // and they are taken off `most`; another PromptDrafter reads up to `most` for each text.
  template <std::size_t Index, class HostT, class SharedT, class PlaceT>
  void read_part(part_index<Index> part, HostT& host, [[maybe_unused]] SharedT& shared, std::span<PlaceT* const> places,
                 std::int32_t& most) {
    using drafter_type = part_type<drafter_of_text, Index>;
    for (PlaceT* p : places) {
      p->is_asked = false;
      if (p->text == nullptr || !p->is_reading_draft || room_of(p->served.drafter(), Index) <= 0) continue;
      drafter_type& drafter = part_of(p->served.drafter(), part);
      host.attempt(*p, [&] {
        if constexpr (SharedDrafter<drafter_type>) {
          p->is_asked = most > 0;
          if (!p->is_asked || drafter.want_prompt(most)) p->served.set_draft_reads(true);
          if (p->is_asked) most -= drafter.n_wanted();
        } else if constexpr (PromptDrafter<drafter_type>) {
          if (drafter.read_prompt(most)) p->served.set_draft_reads(true);
        }
      });
    }
    if constexpr (SharedDrafter<drafter_type>) make_passes(part, host, shared, places);
  }

  // Asks this part of the drafter of each text that wants to know something of it, and hands the policies its answers.
  template <std::size_t Index, class HostT, class SharedT, class PlaceT, class ChancesT, class BudgetT>
  void grow_part(part_index<Index> part, HostT& host, [[maybe_unused]] SharedT& shared, std::span<PlaceT* const> places,
                 const ChancesT& chance_of, BudgetT* budget) {
    using drafter_type = part_type<drafter_of_text, Index>;
    for (std::size_t i = 0; i < places.size(); ++i)
      places[i]->is_asked = places[i]->text != nullptr && flags_[i] == Index;
    // Calls f(place, drafter, chance) for all texts that ask.
    const auto for_each = [&](const auto& f) {
      for (PlaceT* p : places) {
        if (p->text == nullptr || !p->is_asked) continue;
        host.attempt(*p, [&] {
          auto&& chance = chance_of(p->text->id, p->text->value.written);
          f(*p, part_of(p->served.drafter(), part), chance);
        });
      }
    };
    if constexpr (!StepDrafter<drafter_type> && !SharedDrafter<drafter_type>) {
      for_each([](PlaceT& p, auto&, auto& chance) { p.served.grow_step(p.text->value, chance); });
    } else {
      for_each([](PlaceT& p, auto& drafter, auto&) {
        const std::span<const node_id> wanted = p.served.growing().wanted();
        if constexpr (SharedDrafter<drafter_type>)
          drafter.want(p.served.drafted().view(), wanted);
        else
          drafter.propose(p.served.drafted().view(), wanted);
      });
      if constexpr (SharedDrafter<drafter_type>) make_passes(part, host, shared, places);
      if constexpr (!std::is_same_v<BudgetT, no_budget>) {
        if (budget != nullptr) {
          for_each([](PlaceT& p, auto& drafter, auto& chance) {
            p.served.consider(p.text->value, answer_of_part(drafter), chance);
          });
          budget->decide();
          for_each(
              [](PlaceT& p, auto& drafter, auto& chance) { p.served.choose(p.text->value, drafter.rows(), chance); });
          return;
        }
      }
      for_each([&](PlaceT& p, auto& drafter, auto& chance) {
        p.served.take(part, p.text->value, answer_of_part(drafter), chance);
      });
    }
  }

  template <class PartT>
  static auto answer_of_part(PartT& part) {
    if constexpr (SharedDrafter<PartT>)
      return part.answer();
    else
      return part.rows();
  }

  // Makes passes of this part's model until the drafters that were asked know all that they want.
  template <std::size_t Index, class HostT, class SharedT, class PlaceT>
  void make_passes(part_index<Index> part, HostT& host, SharedT& shared, std::span<PlaceT* const> places) {
    auto& pass = std::get<Index>(passes_);
    for (;;) {
      pass.clear();
      first_.clear();
      for (std::size_t i = 0; i < places.size(); ++i) {
        PlaceT* p = places[i];
        const std::int32_t room = shared.max_rows() - pass.n_rows();
        if (p->text == nullptr || !p->is_asked || room <= 0) continue;
        const pass_place at{i, pass.n_outputs(), pass.n_rows()};
        std::int32_t n = 0;
        do {
          host.attempt(*p, [&] { n = part_of(p->served.drafter(), part).add_rows(pass, room); });
        } while (p->text != nullptr && n < 0 && host.make_room(*p));
        if (p->text != nullptr && n > 0) first_.push_back(at);
      }
      if (first_.empty()) return;
      ++n_passes_;
      const auto places_of_pass = [&](const auto& f) {
        for (const pass_place& at : first_) {
          if (places[at.place]->text != nullptr) f(*places[at.place], at);
        }
      };
      host.attempt_all(
          [&] {
            const auto rows = shared.forward(pass);
            places_of_pass([&](PlaceT& p, const pass_place& at) {
              host.attempt(p, [&] { part_of(p.served.drafter(), part).take(rows, at.first_output, at.first_row); });
            });
          },
          [&](const auto& fail) { places_of_pass([&](PlaceT& p, const pass_place&) { fail(p); }); });
    }
  }

  template <class... PartsT>
  static auto passes_of(const std::tuple<PartsT&...>&) -> std::tuple<typename pass_of<PartsT>::type...>;

  decltype(passes_of(parts_of(std::declval<DrafterT&>()))) passes_;  // the batch of each part
  std::vector<pass_place> first_;                                    // the texts of a pass
  std::vector<std::size_t> flags_;  // [places] the part that each text asks; n_parts: none
  std::int32_t n_passes_ = 0;
};

}  // namespace espalier::detail
