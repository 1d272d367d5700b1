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
//     begin_reading                drafters read prompts
//     while (advance)              a pass is made outside: take its rows, or fail
//     begin_growing                all trees are open
//     while (advance)              as before
//
// The places are those of a batch_decoder, in the order of their turns, or the only place of a decoder; they stay the
// same during a step. A place without a text is passed over. The argument `host` is that decoder. It catches errors of
// one text, and makes room in caches: host.attempt_draft(place, f), which returns false if the text's drafting is over,
// host.attempt_all(f, each_place), host.make_room(place).
template <class DrafterT>
class batch_drafting {
 public:
  using drafter_of_text = decltype(drafter_for_text(std::declval<DrafterT&>(), 0));

  // Takes memory for this many texts, rows of a pass, and nodes of a tree.
  void reserve(std::int32_t n_texts, std::int32_t n_rows, std::int32_t n_nodes) {
    const auto n = static_cast<std::size_t>(n_texts);
    first_.reserve(n), asks_.reserve(n);
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
  template <class PlaceT>
  void begin_reading(std::span<PlaceT* const> places, std::int32_t most) {
    n_passes_ = 0;
    is_reading_ = true, is_asked_ = false;
    part_ = 0;
    most_ = most;
    asks_.resize(places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
      PlaceT& p = *places[i];
      asks_[i].reads = p.text != nullptr && p.has_begun() && p.is_drafted_for && p.served.draft_reads();
      if (asks_[i].reads) p.served.set_draft_reads(false);  // unless a part needs more
    }
  }
  // Whether begin_reading() was called after the last begin_growing().
  bool is_reading() const { return is_reading_; }

  // Begins to grow the trees of all places that have a round in this step.
  void begin_growing() {
    is_reading_ = is_asked_ = false;
    part_ = n_parts<DrafterT>;
  }

  // Goes on with what has begun. Returns true if it needs a pass that is made outside, which is pass() then; false if
  // it is done. `gives`: whether passes may be made outside; else their models raise an error. The trees share
  // `budget`, unless it is null.
  template <class HostT, class PlaceT, class ChancesT, class BudgetT>
  bool advance(HostT& host, DrafterT& model, std::span<PlaceT* const> places, const ChancesT& chance_of,
               BudgetT* budget, bool gives) {
    for (;;) {
      if (part_ == n_parts<DrafterT>) {
        if (is_reading_ || !begin_level(places)) return false;
        part_ = 0;
      }
      bool waits = false;
      with_part(model, part_, [&](auto& shared, auto part) {
        if (!is_asked_) ask(part, host, places, chance_of);
        is_asked_ = true;
        waits = make_passes(part, host, shared, places, gives);
        if (!waits && !is_reading_) answer(part, host, places, chance_of, budget);
      });
      if (waits) return true;
      is_asked_ = false;
      ++part_;
    }
  }

  // Returns the pass that is made outside. part() is the number of the drafter's part that makes it.
  forward_batch_view pass(DrafterT& model) const {
    forward_batch_view view;
    with_part(model, part_, [&]<class PartT, std::size_t Index>(PartT&, part_index<Index>) {
      if constexpr (OutsideDrafter<PartT>) view = std::get<Index>(passes_).view();
    });
    return view;
  }
  std::int32_t part() const { return static_cast<std::int32_t>(part_); }

  // take() hands over the rows of this pass; fail() calls fail_text for each text with rows in it.
  template <class HostT, class PlaceT, class RowsT>
  void take(HostT& host, DrafterT& model, std::span<PlaceT* const> places, const RowsT& rows) {
    with_part(model, part_, [&]<class PartT>([[maybe_unused]] PartT& shared, [[maybe_unused]] auto part) {
      if constexpr (OutsideDrafter<PartT>) {
        static_assert(
            requires { shared.take(rows, 0, 0); },
            "a draft whose passes are made outside must have logits of the target's number type");
        take_rows(part, host, places, rows);
      }
    });
  }
  template <class PlaceT, class FailT>
  void fail(std::span<PlaceT* const> places, const FailT& fail_text) const {
    places_of_pass(places, [&](PlaceT& p, const pass_place&) { fail_text(p); });
  }

  // Returns how many tokens of a text of `size` tokens its drafter has still to read before a round, over all parts. A
  // PromptDrafter that is no SharedDrafter does not tell this: all `size` tokens count.
  static std::int32_t unread(drafter_of_text& drafter, std::int32_t size) {
    std::int32_t n = 0;
    for_each_part(drafter, [&](auto& part, auto) { n += unread_of(part, size); });
    return n;
  }

  // Passes of shared models since the step began.
  std::int32_t n_passes() const { return n_passes_; }

 private:
  // The state of the questions that one text has for its drafter in this step.
  struct asking {
    std::size_t part = 0;   // number of the part that is asked about nodes of a tree; n_parts: none
    bool reads = false;     // the drafter reads a prompt in this step
    bool is_asked = false;  // the drafter takes part in the passes under way
  };
  // The place in a pass at which the rows of one text begin.
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

  // Notes which part each text asks, before any text gets an answer: one step of a part serves all texts that ask it.
  // Returns true if some text asks.
  template <class PlaceT>
  bool begin_level(std::span<PlaceT* const> places) {
    bool wants = false;
    for (std::size_t i = 0; i < places.size(); ++i) {
      PlaceT& p = *places[i];
      const bool asks = p.draws() && !p.served.growing().wanted().empty();
      asks_[i].part = asks ? p.served.growing().part() : n_parts<DrafterT>;
      wants = wants || asks;
    }
    return wants;
  }

  template <std::size_t Index, class HostT, class PlaceT, class ChancesT>
  void ask(part_index<Index> part, HostT& host, std::span<PlaceT* const> places, const ChancesT& chance_of) {
    if (is_reading_)
      ask_to_read(part, host, places);
    else
      ask_about_nodes(part, host, places, chance_of);
  }

  // Makes this part of each text's drafter read the prompt. A SharedDrafter reads most_ rows in all texts together, and
  // they are taken off most_; another PromptDrafter reads up to most_ for each text.
  template <std::size_t Index, class HostT, class PlaceT>
  void ask_to_read(part_index<Index> part, HostT& host, std::span<PlaceT* const> places) {
    using drafter_type = part_type<drafter_of_text, Index>;
    for (std::size_t i = 0; i < places.size(); ++i) {
      PlaceT* const p = places[i];
      bool& is_asked = asks_[i].is_asked;
      is_asked = false;
      if (p->text == nullptr || !asks_[i].reads || room_of(p->served.drafter(), Index) <= 0) continue;
      auto& drafter = part_of(p->served.drafter(), part);
      const bool goes_on = host.attempt_draft(*p, [&] {
        if constexpr (SharedDrafter<drafter_type>) {
          is_asked = most_ > 0;
          if (!is_asked || drafter.want_prompt(most_)) p->served.set_draft_reads(true);
          if (is_asked) most_ -= drafter.n_wanted();
        } else if constexpr (PromptDrafter<drafter_type>) {
          if (drafter.read_prompt(most_)) p->served.set_draft_reads(true);
        }
      });
      is_asked = is_asked && goes_on;
    }
  }

  // Asks this part of each text's drafter about the nodes that the text's policy wants, if the policy asks this part.
  template <std::size_t Index, class HostT, class PlaceT, class ChancesT>
  void ask_about_nodes(part_index<Index> part, HostT& host, std::span<PlaceT* const> places,
                       const ChancesT& chance_of) {
    using drafter_type = part_type<drafter_of_text, Index>;
    for (std::size_t i = 0; i < places.size(); ++i)
      asks_[i].is_asked = places[i]->text != nullptr && asks_[i].part == Index;
    for_each_asked(part, host, places, chance_of, [](PlaceT& p, auto& drafter, auto& chance) {
      if constexpr (SharedDrafter<drafter_type>)
        drafter.want(p.served.drafted().view(), p.served.growing().wanted());
      else if constexpr (StepDrafter<drafter_type>)
        drafter.propose(p.served.drafted().view(), p.served.growing().wanted());
      else
        p.served.grow_step(p.text->value, chance);
    });
  }

  // Hands the policies the answers of this part.
  template <std::size_t Index, class HostT, class PlaceT, class ChancesT, class BudgetT>
  void answer(part_index<Index> part, HostT& host, std::span<PlaceT* const> places, const ChancesT& chance_of,
              [[maybe_unused]] BudgetT* budget) {
    using drafter_type = part_type<drafter_of_text, Index>;
    if constexpr (StepDrafter<drafter_type> || SharedDrafter<drafter_type>) {
      const auto for_each = [&](const auto& f) { for_each_asked(part, host, places, chance_of, f); };
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

  // Calls f(place, drafter, chance) for all texts that ask this part.
  template <std::size_t Index, class HostT, class PlaceT, class ChancesT, class FunctionT>
  void for_each_asked(part_index<Index> part, HostT& host, std::span<PlaceT* const> places, const ChancesT& chance_of,
                      const FunctionT& f) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      PlaceT* const p = places[i];
      if (p->text == nullptr || !asks_[i].is_asked) continue;
      asks_[i].is_asked = host.attempt_draft(*p, [&] {
        auto&& chance = chance_of(p->text->id, p->text->value.written);
        f(*p, part_of(p->served.drafter(), part), chance);
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

  // Makes passes of this part's model until the drafters that were asked know all that they want. Returns true if the
  // next pass is made outside.
  template <std::size_t Index, class HostT, class SharedT, class PlaceT>
  bool make_passes(part_index<Index> part, HostT& host, [[maybe_unused]] SharedT& shared,
                   std::span<PlaceT* const> places, [[maybe_unused]] bool gives) {
    if constexpr (SharedDrafter<part_type<drafter_of_text, Index>>) {
      while (add_rows(part, host, shared, places)) {
        ++n_passes_;
        if constexpr (OutsideDrafter<SharedT>) {
          if (gives) return true;
        }
        host.attempt_all([&] { take_rows(part, host, places, shared.forward(std::get<Index>(passes_))); },
                         [&](const auto& fail_text) { fail(places, fail_text); });
      }
    }
    return false;
  }

  // Fills the next pass of this part's model. Returns false if no drafter has rows for it.
  template <std::size_t Index, class HostT, class SharedT, class PlaceT>
  bool add_rows(part_index<Index> part, HostT& host, SharedT& shared, std::span<PlaceT* const> places) {
    auto& pass = std::get<Index>(passes_);
    pass.clear();
    first_.clear();
    for (std::size_t i = 0; i < places.size(); ++i) {
      PlaceT* p = places[i];
      const std::int32_t room = shared.max_rows() - pass.n_rows();
      if (p->text == nullptr || !asks_[i].is_asked || room <= 0) continue;
      const pass_place at{i, pass.n_outputs(), pass.n_rows()};
      std::int32_t n = 0;
      do {
        asks_[i].is_asked =
            host.attempt_draft(*p, [&] { n = part_of(p->served.drafter(), part).add_rows(pass, room); });
      } while (p->text != nullptr && n < 0 && host.make_room(*p));
      if (p->text != nullptr && n > 0) first_.push_back(at);
    }
    return !first_.empty();
  }

  // Gives each drafter its rows of the pass.
  template <std::size_t Index, class HostT, class PlaceT, class RowsT>
  void take_rows(part_index<Index> part, HostT& host, std::span<PlaceT* const> places, const RowsT& rows) {
    places_of_pass(places, [&](PlaceT& p, const pass_place& at) {
      asks_[at.place].is_asked =
          host.attempt_draft(p, [&] { part_of(p.served.drafter(), part).take(rows, at.first_output, at.first_row); });
    });
  }

  template <class PlaceT, class FunctionT>
  void places_of_pass(std::span<PlaceT* const> places, const FunctionT& f) const {
    for (const pass_place& at : first_) {
      if (places[at.place]->text != nullptr) f(*places[at.place], at);
    }
  }

  template <class... PartsT>
  static auto passes_of(const std::tuple<PartsT&...>&) -> std::tuple<typename pass_of<PartsT>::type...>;

  decltype(passes_of(parts_of(std::declval<DrafterT&>()))) passes_;  // the batch of each part
  std::vector<pass_place> first_;                                    // one entry for each text in the pass
  std::vector<asking> asks_;                                         // [places]
  bool is_reading_ = false;                                          // whether prompts are read; else trees grow
  std::size_t part_ = 0;                                             // number of the part that is asked, or is next
  bool is_asked_ = false;                                            // the part was asked, and has not answered
  std::int32_t most_ = 0;                                            // rows of prompts that are left to parts
  std::int32_t n_passes_ = 0;
};

}  // namespace espalier::detail
