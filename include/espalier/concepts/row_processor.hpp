// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/processed.cpp
#pragma once

#include <optional>
#include <span>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! A reference to the processor of a text, through which the rows of a drafter pass in a round; the drafter need not
//! know the processor's type. Trivially copyable. An empty one changes nothing.
//!
//!     if (process) process(tree, u, logits, out);     then sample from out, else from logits
//!
//! Pre         it is not empty when operator(), only() or prescribed() is called; a drafter uses the same one in a
//!             whole round
template <class NumberT>
class row_processor {
 public:
  row_processor() = default;
  //! Makes a reference to `with`, which must outlive it. `with` has process(tree, u, logits, out), which writes the row
  //! that follows node u into out, and only(tree, u), which returns the only token that process() leaves there, if it
  //! is known that there is only one. Optional: allows(tree, u, token) and prescribed(tree, u).
  template <class WithT>
  explicit row_processor(WithT& with)
      : with_(&with),
        call_([](void* one, tree_view tree, node_id u, std::span<const NumberT> logits, std::span<NumberT> out) {
          static_cast<WithT*>(one)->process(tree, u, logits, out);
        }),
        only_([](void* one, tree_view tree, node_id u) { return static_cast<WithT*>(one)->only(tree, u); }) {
    if constexpr (requires(tree_view tree) { with.allows(tree, root_node, token_id{}); }) {
      allows_ = [](void* one, tree_view tree, node_id u, token_id token) {
        return static_cast<WithT*>(one)->allows(tree, u, token);
      };
    }
    if constexpr (requires(tree_view tree) { with.prescribed(tree, root_node); })
      prescribed_ = [](void* one, tree_view tree, node_id u) { return static_cast<WithT*>(one)->prescribed(tree, u); };
  }

  explicit operator bool() const { return with_ != nullptr; }

  //! Writes into out the logits of the token after node u, as the processor changes them; a decoder's processor does
  //! not change them if it would forbid every token. At the root, tree is not read.
  //!
  //! Shapes      logits, out [vocab]
  void operator()(tree_view tree, node_id u, std::span<const NumberT> logits, std::span<NumberT> out) const {
    call_(with_, tree, u, logits, out);
  }

  //! The only token that the processor leaves after node u; nothing where it may leave others. At the root, tree is not
  //! read.
  std::optional<token_id> only(tree_view tree, node_id u) const { return only_(with_, tree, u); }

  //! False if the processor is known to forbid this token after node u.
  bool allows(tree_view tree, node_id u, token_id token) const {
    return allows_ == nullptr || allows_(with_, tree, u, token);
  }

  //! The token with which the text likely goes on after node u, since the processor prescribes its bytes or leaves no
  //! other; nothing where it prescribes none.
  std::optional<token_id> prescribed(tree_view tree, node_id u) const {
    return prescribed_ != nullptr ? prescribed_(with_, tree, u) : only(tree, u);
  }

 private:
  void* with_ = nullptr;
  void (*call_)(void*, tree_view, node_id, std::span<const NumberT>, std::span<NumberT>) = nullptr;
  std::optional<token_id> (*only_)(void*, tree_view, node_id) = nullptr;
  bool (*allows_)(void*, tree_view, node_id, token_id) = nullptr;
  std::optional<token_id> (*prescribed_)(void*, tree_view, node_id) = nullptr;
};

//! A drafter whose rows can pass through a text's processor, so that it drafts what the target may write.
//!
//! Minimal definition, besides Drafter
//!   process_rows(process)      takes a row_processor<NumberT>, with the number type of the drafter's rows: rows that
//!                              are made from now on pass through it, if it is not empty. Called in each round before
//!                              the drafter is asked
//! Models
//!   autoregressive; feature_steps; text_counts; translated; block_diffusion, for the first row of its block, and for
//!   each next row as long as only() gives the token of the row before; factorised, which then has one row for each
//!   node. A joint has no process_rows(): its parts take the processor
template <class DrafterT, class NumberT>
concept ProcessingDrafter = requires(DrafterT& drafter, row_processor<NumberT> process) {
  drafter.process_rows(process);
};

}  // namespace espalier
