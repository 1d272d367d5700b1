// SPDX-License-Identifier: BSL-1.0
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

// The drafters of one kind among those of many texts: the only one, or one of a joint.
template <class DrafterT>
struct drafter_parts {
  static constexpr std::size_t n = 1;
  using passes = std::tuple<typename pass_of<DrafterT>::type>;
  template <std::size_t>
  static DrafterT& get(DrafterT& drafter) {
    return drafter;
  }
};

template <JointDrafter DrafterT>
struct drafter_parts<DrafterT> {
  static constexpr std::size_t n = DrafterT::size();
  template <std::size_t Index>
  static auto& get(DrafterT& drafter) {
    return drafter.template get<Index>();
  }
  template <std::size_t... Index>
  static auto passes_of(std::index_sequence<Index...>) -> std::tuple<
      typename pass_of<std::remove_reference_t<decltype(std::declval<DrafterT&>().template get<Index>())>>::type...>;
  using passes = decltype(passes_of(std::make_index_sequence<n>()));
};

// The drafting of a step, of all texts together: one pass of a shared model answers what all of them want to know next.
//
// Places are those of a batch_decoder, in turn, which also catches what is thrown for one text and makes room in
// caches: host.attempt(place, f), host.fail(places), host.make_room(place). A place without a text is passed over.
template <class DrafterT>
class batch_drafting {
 public:
  using drafter_of_text = decltype(drafter_for_text(std::declval<DrafterT&>(), 0));

  // For so many texts and rows a pass, and so many nodes of a tree.
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

  // A step begins. Drafters read prompts, `most` rows of them.
  template <class HostT, class PlaceT>
  void read_prompts(HostT& host, DrafterT& model, std::span<PlaceT* const> places, std::int32_t most) {
    n_passes_ = 0;
    for (PlaceT* p : places) {
      p->reads = p->text != nullptr && p->begun && p->drafts && p->served.draft_reads();
      if (p->reads) p->served.set_draft_reads(false);  // unless a part needs more
    }
    read_parts(host, model, places, most, std::make_index_sequence<drafter_parts<DrafterT>::n>());
  }

  // Tokens of a text that a drafter has still to read before a round.
  static std::int32_t unread(drafter_of_text& drafter, std::int32_t size) {
    return [&]<std::size_t... Index>(std::index_sequence<Index...>) {
      return (... + unread_of(parts_of_text::template get<Index>(drafter), size));
    }
    (std::make_index_sequence<drafter_parts<DrafterT>::n>());
  }

  // The trees of all places that draw one grow, step by step, and share this budget, if any.
  template <class HostT, class PlaceT, class ChancesT, class BudgetT>
  void grow(HostT& host, DrafterT& model, std::span<PlaceT* const> places, const ChancesT& chance_of, BudgetT* budget) {
    bool wants = true;
    while (wants) {
      wants = false;
      grow_parts(host, model, places, chance_of, budget, wants, std::make_index_sequence<drafter_parts<DrafterT>::n>());
    }
  }

  // Of shared models, since prompts were read.
  std::int32_t n_passes() const { return n_passes_; }

 private:
  using parts = drafter_parts<DrafterT>;
  using parts_of_text = drafter_parts<drafter_of_text>;

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

  template <class HostT, class PlaceT, std::size_t... Index>
  void read_parts(HostT& host, DrafterT& model, std::span<PlaceT* const> places, std::int32_t most,
                  std::index_sequence<Index...>) {
    (read_part<Index>(host, model, places, most), ...);
  }

  // What one drafter of each text has still to read.
  template <std::size_t Index, class HostT, class PlaceT>
  void read_part(HostT& host, [[maybe_unused]] DrafterT& model, std::span<PlaceT* const> places, std::int32_t& most) {
    using part_type =
        std::remove_reference_t<decltype(parts_of_text::template get<Index>(places[0]->served.drafter()))>;
    for (PlaceT* p : places) {
      p->asked = false;
      if (p->text == nullptr || !p->reads) continue;
      auto& drafter = p->served.drafter();
      auto& part = parts_of_text::template get<Index>(drafter);
      if constexpr (JointDrafter<drafter_of_text>) {
        if (drafter.template room<Index>() <= 0) continue;
      }
      host.attempt(*p, [&] {
        if constexpr (SharedDrafter<part_type>) {
          p->asked = most > 0;
          if (!p->asked || part.want_prompt(most)) p->served.set_draft_reads(true);
          if (p->asked) most -= part.n_wanted();
        } else if constexpr (PromptDrafter<part_type>) {
          if (part.read_prompt(most)) p->served.set_draft_reads(true);
        }
      });
    }
    if constexpr (SharedDrafter<part_type>) make_passes<Index>(host, model, places);
  }

  template <class HostT, class PlaceT, class ChancesT, class BudgetT, std::size_t... Index>
  void grow_parts(HostT& host, DrafterT& model, std::span<PlaceT* const> places, const ChancesT& chance_of,
                  BudgetT* budget, bool& wants, std::index_sequence<Index...>) {
    // Who wants what is looked at before anybody is answered: a step of one drafter is a step for all.
    flags_.clear();
    for (PlaceT* p : places) {
      const bool asks = p->draws() && !p->served.growing().wanted().empty();
      flags_.push_back(asks ? p->served.growing().part() : parts::n);
      wants = wants || asks;
    }
    (grow_part<Index>(host, model, places, chance_of, budget), ...);
  }

  template <std::size_t Index, class HostT, class PlaceT, class ChancesT, class BudgetT>
  void grow_part(HostT& host, DrafterT& model, std::span<PlaceT* const> places, const ChancesT& chance_of,
                 BudgetT* budget) {
    using part_type =
        std::remove_reference_t<decltype(parts_of_text::template get<Index>(places[0]->served.drafter()))>;
    for (std::size_t i = 0; i < places.size(); ++i)
      places[i]->asked = places[i]->text != nullptr && flags_[i] == Index;
    // f(place, drafter, chance) for all that ask.
    const auto for_each = [&](const auto& f) {
      for (PlaceT* p : places) {
        if (p->text == nullptr || !p->asked) continue;
        host.attempt(*p, [&] {
          auto&& chance = chance_of(p->text->id, p->text->value.written);
          f(*p, parts_of_text::template get<Index>(p->served.drafter()), chance);
        });
      }
    };
    if constexpr (!StepDrafter<part_type> && !SharedDrafter<part_type>) {
      for_each([](PlaceT& p, auto&, auto& chance) { p.served.grow_step(p.text->value, chance); });
    } else {
      for_each([](PlaceT& p, auto& drafter, auto&) {
        const std::span<const node_id> wanted = p.served.growing().wanted();
        if constexpr (SharedDrafter<part_type>)
          drafter.want(p.served.drafted().view(), wanted);
        else
          drafter.propose(p.served.drafted().view(), wanted);
      });
      if constexpr (SharedDrafter<part_type>) make_passes<Index>(host, model, places);
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
      for_each([](PlaceT& p, auto& drafter, auto& chance) {
        p.served.template take<Index>(p.text->value, answer_of_part(drafter), chance);
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

  // Passes until all that the asked drafters want is known.
  template <std::size_t Index, class HostT, class PlaceT>
  void make_passes(HostT& host, DrafterT& model, std::span<PlaceT* const> places) {
    auto& pass = std::get<Index>(passes_);
    auto& shared = parts::template get<Index>(model);
    for (;;) {
      pass.clear();
      first_.clear();
      for (std::size_t i = 0; i < places.size(); ++i) {
        PlaceT* p = places[i];
        const std::int32_t room = shared.max_rows() - pass.n_rows();
        if (p->text == nullptr || !p->asked || room <= 0) continue;
        const pass_place at{i, pass.n_outputs(), pass.n_rows()};
        std::int32_t n = 0;
        do {
          host.attempt(*p, [&] { n = parts_of_text::template get<Index>(p->served.drafter()).add_rows(pass, room); });
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
              host.attempt(p, [&] {
                parts_of_text::template get<Index>(p.served.drafter()).take(rows, at.first_output, at.first_row);
              });
            });
          },
          [&](const auto& fail) { places_of_pass([&](PlaceT& p, const pass_place&) { fail(p); }); });
    }
  }

  typename drafter_parts<DrafterT>::passes passes_;
  std::vector<pass_place> first_;   // of the texts in a pass
  std::vector<std::size_t> flags_;  // [places] the drafter that each asks
  std::int32_t n_passes_ = 0;
};

}  // namespace espalier::detail
