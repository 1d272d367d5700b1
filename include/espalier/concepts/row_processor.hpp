// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <optional>
#include <span>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! How a drafter's rows of a round pass through the text's processor, whose type the drafter need not know: a reference
//! to what a decoder keeps, trivially copyable. An empty one changes nothing.
//!
//!     if (process) process(tree, u, logits, out);     then sample from out, else from logits
//!
//! Pre         it is not empty where it is called, and the same all through a round
template <class NumberT>
class row_processor {
 public:
  row_processor() = default;
  //! `with` has process(tree, u, logits, out), which writes the row that follows node u into out, and only(tree, u),
  //! the one token that it leaves there, if it is known to be one.
  template <class WithT>
  explicit row_processor(WithT& with)
      : with_(&with),
        call_([](void* one, tree_view tree, node_id u, std::span<const NumberT> logits, std::span<NumberT> out) {
          static_cast<WithT*>(one)->process(tree, u, logits, out);
        }),
        only_([](void* one, tree_view tree, node_id u) { return static_cast<WithT*>(one)->only(tree, u); }) {}

  explicit operator bool() const { return with_ != nullptr; }

  //! Shapes      logits, out [vocab]; of the root, tree is not looked at
  void operator()(tree_view tree, node_id u, std::span<const NumberT> logits, std::span<NumberT> out) const {
    call_(with_, tree, u, logits, out);
  }

  //! The one token that the processor leaves after node u; nothing where there may be others. Of the root, tree is not
  //! looked at.
  std::optional<token_id> only(tree_view tree, node_id u) const { return only_(with_, tree, u); }

 private:
  void* with_ = nullptr;
  void (*call_)(void*, tree_view, node_id, std::span<const NumberT>, std::span<NumberT>) = nullptr;
  std::optional<token_id> (*only_)(void*, tree_view, node_id) = nullptr;
};

//! A drafter whose rows can pass through a text's processor, so that it drafts what the target may write.
//!
//! Minimal definition, besides Drafter
//!   process_rows(process)      a row_processor of its number: rows that are made from now on pass through it; an empty
//!                              one ends that. Given for each round, before the drafter is asked
//! Models
//!   autoregressive; block_diffusion, of whose block it is the first row, and those after a row of one token;
//!   factorised, whose rows are then by node. Of a joint the parts are asked one by one
template <class DrafterT, class NumberT>
concept ProcessingDrafter = requires(DrafterT& drafter, row_processor<NumberT> process) {
  drafter.process_rows(process);
};

}  // namespace espalier
