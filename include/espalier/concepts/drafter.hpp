// SPDX-License-Identifier: BSL-1.0
// Tested by tests/concepts/minimal.cpp
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

namespace detail {

template <class DrafterT>
concept FollowsText = requires(DrafterT& drafter, std::span<const token_id> context, tree_view tree, verdict v) {
  drafter.begin(context);
  drafter.commit(tree, v);
};

template <class DrafterT>
concept CountsFeatures = requires(const DrafterT& drafter) {
  { drafter.n_read() } -> std::convertible_to<std::int32_t>;
};

template <class DrafterT>
concept MakesDrafters = requires(DrafterT& drafter, std::int32_t sequence) {
  drafter.for_text(sequence);
};

template <class DrafterT>
concept HasVocabulary = requires(const DrafterT& drafter) {
  { drafter.vocab_size() } -> std::convertible_to<std::int32_t>;
};

template <class DrafterT>
concept HasRows = requires(DrafterT& drafter) {
  { drafter.rows().row(root_node)[0] } -> std::convertible_to<double>;
};

template <class DrafterT>
concept HasForwardSeconds = requires(const DrafterT& drafter) {
  { drafter.forward_seconds() } -> std::convertible_to<double>;
};

// Type of the logits of a block drafter.
template <class DrafterT>
using block_number = std::remove_cvref_t<decltype(std::declval<DrafterT&>().propose_block().row(0)[0])>;

template <class DrafterT>
concept NamesCorrect = requires {
  &DrafterT::correct;
};

template <class WholeT>
concept HasParts = requires(WholeT& whole) {
  whole.parts();
};

template <class DrafterT>
concept HasRoom = requires(DrafterT& drafter, const DrafterT& fixed, std::int32_t n) {
  drafter.reserve(n);
  { fixed.capacity() } -> std::convertible_to<std::int32_t>;
};

}  // namespace detail

//! The state of a draft model after one token of the text.
template <class NumberT>
struct model_state {
  std::span<const NumberT>
      row{};  //!< [vocab] the distribution that the next token is drawn from; empty if it is not known
  std::span<const float> hidden{};  //!< [hidden_size] the last hidden state; empty if the model keeps none
};

//! Proposes continuations of a text.
//!
//! Minimal definition
//!   begin(context)          begins to follow a new text, whose last token is pending
//!   commit(tree, verdict)   ends a round: the accepted path and one token join the text
//!   reserve(n)              takes memory for rounds that ask about at most n nodes; called before any round by each
//!                           decoder that uses the drafter
//!   capacity() -> int       tokens of the longest text that it can follow, drafted tokens included; beyond it nothing
//!                           is drafted
//! Optional
//!   vocab_size() -> int     only of a drafter that gives probabilities: the size of its vocabulary, which must be the
//!                           target's
//!   rows() -> node_rows     the distributions of this round that tokens were drawn from, for verifiers that read them;
//!                           or sampled_rows, which a sampler of the library made and verifiers need not check
//!   forward_seconds() -> double   seconds that it has spent in draft models since construction, for the statistics
//!   read_prompt             see PromptDrafter
//!   release                 see ReleasingDrafter
//!   for_text(sequence) -> drafter   another drafter over the same model, for a text of its own; see drafter_for_text
//!   parts() -> tuple of drafter&, room(part) -> int   the drafters that this one consists of, which a policy asks one
//!                           by one, and how many tokens each of them may still draft; see joint and for_each_part
//! Laws
//!   It follows one text at a time: decoders that share one take turns text by text.
//!   After commit its state equals that of a fresh drafter given the same committed tokens.
//!   A round that is given up midway, without commit, leaves no trace.
//! Models
//!   the models of the refinements below; joint, which has several parts; no_drafter for plain decoding
template <class DrafterT>
concept Drafter = detail::FollowsText<DrafterT> && detail::HasRoom<DrafterT>;

//! Returns the parts of a drafter or policy, as a tuple of references: parts(), which joint and cascade have. Any other
//! drafter or policy has one part, itself.
template <class WholeT>
auto parts_of(WholeT& whole) {
  if constexpr (detail::HasParts<WholeT>) {
    return whole.parts();
  } else {
    return std::tuple<WholeT&>(whole);
  }
}

//! Number of parts that a drafter or policy has.
template <class WholeT>
inline constexpr std::size_t n_parts = std::tuple_size_v<decltype(parts_of(std::declval<WholeT&>()))>;

//! Type of the part with this number.
template <class WholeT, std::size_t Index>
using part_type = std::remove_reference_t<std::tuple_element_t<Index, decltype(parts_of(std::declval<WholeT&>()))>>;

//! The number of a part as a type, for calls that need it when they are compiled.
template <std::size_t Index>
using part_index = std::integral_constant<std::size_t, Index>;

//! The part with this number.
template <class WholeT, std::size_t Index>
auto& part_of(WholeT& whole, part_index<Index>) {
  return std::get<Index>(parts_of(whole));
}

//! Calls f(part, part_index) with each part of a drafter or policy, in order.
template <class WholeT, class FunctionT>
void for_each_part(WholeT& whole, const FunctionT& f) {
  [&]<std::size_t... Index>(std::index_sequence<Index...>) {
    (f(espalier::part_of(whole, part_index<Index>()), part_index<Index>()), ...);
  }
  (std::make_index_sequence<n_parts<WholeT>>());
}

namespace detail {

// Calls f(part, part_index) with the part of this number, which is known only when the program runs.
template <class WholeT, class FunctionT>
void with_part(WholeT& whole, std::size_t part, const FunctionT& f) {
  for_each_part(whole, [&](auto& one, auto index) {
    if (index == part) f(one, index);
  });
}

// Number of tokens that a part may still draft; no limit where the drafter has no parts(): there the tree's own limit
// is enough.
template <class DrafterT>
std::int32_t room_of(const DrafterT& drafter, std::size_t part) {
  if constexpr (HasParts<DrafterT>) return drafter.room(part);
  return (std::numeric_limits<std::int32_t>::max)();
}

}  // namespace detail

//! A drafter with rows in a cache, which it can give up to make room for other texts.
//!
//! Minimal definition, besides Drafter
//!   release()                       gives up the rows; begin() comes next
//!   static constexpr bool gives_up_rows   true if a text that leaves its place gives up its rows at once: the store
//!                                   finds them again (SharingKVStore), or does not know their tokens (no
//!                                   PrefixKVStore)
//! Models
//!   autoregressive; joint, if one of its parts is one
template <class DrafterT>
concept ReleasingDrafter = Drafter<DrafterT> && requires(DrafterT& drafter) {
  drafter.release();
  { DrafterT::gives_up_rows } -> std::convertible_to<bool>;
};

namespace detail {

template <class DrafterT>
constexpr bool gives_up_rows() {
  if constexpr (ReleasingDrafter<DrafterT>) return DrafterT::gives_up_rows;
  return false;
}

}  // namespace detail

//! Seconds that a drafter has spent in draft models since construction; 0 where it does not tell them.
template <class DrafterT>
double forward_seconds_of(const DrafterT& drafter) {
  if constexpr (detail::HasForwardSeconds<DrafterT>) return drafter.forward_seconds();
  return 0;
}

//! A drafter that can read a long prompt in pieces.
//!
//! Minimal definition, besides Drafter
//!   read_prompt(n) -> bool     reads up to n tokens of the text before the first round; returns false once the first
//!                              round needs no more of them
//! Models
//!   autoregressive; joint; translated, over a drafter that is one
template <class DrafterT>
concept PromptDrafter = requires(DrafterT& drafter, std::int32_t n) {
  { drafter.read_prompt(n) } -> std::same_as<bool>;
};

//! A drafter of one text among many, whose model makes one pass for the drafters of all these texts together.
//!
//!     drafter.want(tree, nodes);                  for each text, instead of propose()
//!     do {
//!       pass.clear();
//!       ... drafter.add_rows(pass, most) ...      for each text
//!       const auto rows = any.forward(pass);
//!       ... drafter.take(rows, ...) ...           for each text that has added rows
//!     } while (there were any);
//!     ... drafter.answer() ...                    for each text
//!
//! Minimal definition, besides Drafter
//!   typename pass_type             default-constructible; clear(); n_rows() and n_outputs() -> int
//!   for_text(sequence) -> drafter  another drafter of the same model, store and options, for a text in this sequence
//!   want(tree, nodes)              notes that the rows that propose(tree, nodes) would make are wanted, and makes no
//!                                  pass
//!   want_prompt(n) -> bool         notes that the tokens that PromptDrafter's read_prompt(n) would read are wanted;
//!                                  returns what read_prompt(n) would return
//!   n_wanted() -> int              rows that are still to be computed
//!   add_rows(pass, most) -> int    adds rows that are still to be computed to a pass, `most` at most, and returns how
//!                                  many; 0 once all are known; -1, and none is added, where the cache has no room
//!   forward(pass) -> rows          makes the model's pass; its rows are valid until the next pass
//!   take(rows, first_output, first_row)   takes this drafter's rows: its logits begin at row first_output of `rows`,
//!                                         and its batch rows at row first_row of the pass
//!   answer()                       returns what ask() would return; called once all rows are known
//!   max_rows() -> int              rows that a pass has at most
//! Optional
//!   static constexpr bool is_outside   true if an engine makes the passes, between two halves of a step: pass_type has
//!                                  view() -> forward_batch_view, and take() gets the engine's rows, of the target's
//!                                  number type
//! Models
//!   autoregressive, block_diffusion, feature_steps; factorised and translated over a drafter that is one
template <class DrafterT>
concept SharedDrafter = Drafter<DrafterT> && requires(DrafterT& drafter, typename DrafterT::pass_type& pass,
                                                      tree_view tree, std::span<const node_id> nodes, std::int32_t n) {
  drafter.for_text(n);
  drafter.want(tree, nodes);
  { drafter.want_prompt(n) } -> std::same_as<bool>;
  { drafter.n_wanted() } -> std::convertible_to<std::int32_t>;
  { drafter.add_rows(pass, n) } -> std::convertible_to<std::int32_t>;
  drafter.take(drafter.forward(pass), n, n);
  drafter.answer();
  { drafter.max_rows() } -> std::convertible_to<std::int32_t>;
};

namespace detail {

// A drafter whose passes an engine makes.
template <class DrafterT>
concept OutsideDrafter = SharedDrafter<DrafterT> && requires {
  requires DrafterT::is_outside;
};

// Whether an engine makes the passes of a drafter, or of a part of it.
template <class DrafterT>
inline constexpr bool drafts_outside = []<std::size_t... Index>(std::index_sequence<Index...>) {
  return (OutsideDrafter<part_type<DrafterT, Index>> || ...);
}
(std::make_index_sequence<n_parts<DrafterT>>());

struct no_pass {};

template <class DrafterT>
struct pass_of : std::type_identity<no_pass> {};
template <SharedDrafter DrafterT>
struct pass_of<DrafterT> : std::type_identity<typename DrafterT::pass_type> {};

}  // namespace detail

//! A drafter that gives the distribution after each given node, conditioned on its path.
//!
//! Minimal definition, besides Drafter
//!   vocab_size() -> int
//!   propose(tree, nodes)    makes the rows of these nodes. The root alone comes first and opens the round; every other
//!                           node comes after its parent, and at most once a round
//!   rows() -> node_rows     all rows of this round by node, of float or double, until commit() or the next round
//! Errors
//!   input_error from propose for a number that is no node of the tree, a node that was asked about before, and a node
//!   that comes before its parent
//! Optional
//!   renumber(was)           follows a policy that has built the tree anew: node i was node was[i] when the drafter was
//!                           asked about it, or no_node if it was never asked about. After this call the drafter is
//!                           asked about nothing more until the next round opens, unless it has follows_path
//!   static constexpr bool follows_path, max_rows() -> int   follows_path is true if the row after a node is the row
//!                           that the root will have once the node's path is committed. The drafter may then be asked
//!                           about more nodes of a round's tree after the tree has grown (see ahead); max_rows() is
//!                           the greatest number of rows of a pass. translated has it over a drafter that has it:
//!                           there it holds as long as the inner drafter follows the text from its beginning
//! Models
//!   autoregressive; feature_steps; text_counts; translated, over a StepDrafter of another vocabulary; factorised,
//!   which turns a BlockDrafter into one
template <class DrafterT>
concept StepDrafter = Drafter<DrafterT> && detail::HasVocabulary<DrafterT> && detail::HasRows<DrafterT> &&
    requires(DrafterT& drafter, tree_view tree, std::span<const node_id> nodes) {
  drafter.propose(tree, nodes);
};

namespace detail {

// A StepDrafter that has follows_path: the tree that it is asked about may hold later rounds.
template <class DrafterT>
concept FollowsPath = StepDrafter<DrafterT> && requires(const DrafterT& drafter) {
  requires DrafterT::follows_path;
  { drafter.max_rows() } -> std::convertible_to<std::int32_t>;
};

}  // namespace detail

//! A StepDrafter that has renumber(), and so can follow a policy that builds the tree anew.
//!
//! Models
//!   autoregressive, feature_steps, factorised, text_counts; translated over one
template <class DrafterT>
concept RenumberingDrafter = StepDrafter<DrafterT> && requires(DrafterT& drafter, std::span<const node_id> was) {
  drafter.renumber(was);
};

//! A drafter that gives distributions of the next tokens from one pass, each regardless of the tokens before it: block
//! diffusion, Medusa-like heads.
//!
//! Minimal definition, besides Drafter
//!   vocab_size() -> int
//!   block_length() -> int
//!   propose_block() -> vocab_rows<float or double>   opens the round; row i of [block_length] holds the logits of the
//!                           token i + 1 positions after the pending one; minus infinity is a token of probability 0
//! Optional
//!   tokens() -> span<const token_id>   the token of each column of the rows, each once: other tokens have probability
//!                           0. Empty: columns are tokens
//! Models
//!   block_diffusion
template <class DrafterT>
concept BlockDrafter = Drafter<DrafterT> && requires(DrafterT& drafter) {
  { drafter.vocab_size() } -> std::convertible_to<std::int32_t>;
  { drafter.block_length() } -> std::convertible_to<std::int32_t>;
  { drafter.propose_block().row(0)[0] } -> std::convertible_to<double>;
};

//! A block drafter whose row of a node depends on the path to it, too: it is the block's row of the node's depth,
//! corrected for the tokens before it without another pass. Such corrections are a bias that depends on the token
//! before (DSpark) or on the whole path (XPress), and a choice among candidates that depends on the token before
//! (DFlash2).
//!
//! Minimal definition, besides BlockDrafter
//!   correct(tree, node, row)   changes `row`, the logits of the node's depth in the last block, a number a column, to
//!                              the logits after the node's path; the root's token is the pending one
//! Optional
//!   corrects() -> bool         false: correct() changes no row, now and later, so that nodes need no rows of their own
//! Laws
//!   A corrected row depends on the block and on the tokens of the node's path, and on nothing else.
//! Models
//!   block_diffusion over a model that corrects; factorised makes a StepDrafter of one. A policy that takes a block
//!   itself reads the rows as propose_block() gives them
template <class DrafterT>
concept ConditionedBlockDrafter = BlockDrafter<DrafterT> &&
    requires(DrafterT& drafter, tree_view tree, node_id node, std::span<detail::block_number<DrafterT>> row) {
  drafter.correct(tree, node, row);
};

//! A drafter that gives runs of tokens without probabilities: n-grams, prompt look-up.
//!
//! Minimal definition, besides Drafter
//!   propose_run(max_tokens) -> token_run   a run of max_tokens tokens at most, possibly none. If the drafter knows the
//!                           length of the match that the run comes from, the run's `match` is this length, by which
//!                           policies tell good runs from bad ones
//! Models
//!   prompt_lookup, ngram
template <class DrafterT>
concept SequenceDrafter = Drafter<DrafterT> && requires(DrafterT& drafter, std::int32_t max_tokens) {
  { drafter.propose_run(max_tokens) } -> std::same_as<token_run>;
};

//! A drafter of one of the three kinds that can be asked. no_drafter is of none of them. A joint is not asked itself:
//! its parts are.
template <class DrafterT>
concept AskableDrafter = StepDrafter<DrafterT> || BlockDrafter<DrafterT> || SequenceDrafter<DrafterT>;

namespace detail {

// Returns the token of each column of a block drafter's rows; empty if columns are tokens.
template <class DrafterT>
std::span<const token_id> tokens_of(const DrafterT& drafter) {
  if constexpr (requires { drafter.tokens(); }) return drafter.tokens();
  return {};
}

// Returns the number of columns of a block drafter's rows.
template <class DrafterT>
std::int32_t columns_of(const DrafterT& drafter) {
  const std::size_t n = detail::tokens_of(drafter).size();
  return n > 0 ? static_cast<std::int32_t>(n) : drafter.vocab_size();
}

// Returns the drafter's next block, of `least` rows or more. Raises input_error if its shape is not the one that the
// drafter states.
template <BlockDrafter DrafterT>
auto proposed_block(DrafterT& drafter, std::int32_t least) {
  const auto rows = drafter.propose_block();
  const std::int32_t columns = detail::columns_of(drafter);
  if (rows.n_rows < least || rows.n_rows > drafter.block_length() || rows.vocab != columns) {
    raise<input_error>("the drafter proposes ", rows.n_rows, " rows of ", rows.vocab, " logits; ", least, " to ",
                       drafter.block_length(), " rows of ", columns, " are expected.");
  }
  return rows;
}

}  // namespace detail

//! Returns a drafter for one text among many, which is served in this sequence: the drafter that for_text() makes, or a
//! copy of a drafter that has no for_text().
template <Drafter DrafterT>
auto drafter_for_text(DrafterT& drafter, std::int32_t sequence) {
  if constexpr (detail::MakesDrafters<DrafterT>) {
    return drafter.for_text(sequence);
  } else {
    static_assert(std::copy_constructible<DrafterT>, "a drafter of many texts needs for_text(sequence), or copies");
    return DrafterT(drafter);
  }
}

//! Asks a drafter about nodes of the tree, the root alone or nodes whose parents it was asked about, and returns its
//! answer: of a StepDrafter, node_rows of all nodes so far; of a BlockDrafter, block_rows; of a SequenceDrafter, a
//! token_run of at most max_tokens tokens.
template <AskableDrafter DrafterT>
auto ask(DrafterT& drafter, tree_view tree, std::span<const node_id> nodes, std::int32_t max_tokens) {
  if constexpr (StepDrafter<DrafterT>) {
    drafter.propose(tree, nodes);
    return drafter.rows();
  } else if constexpr (BlockDrafter<DrafterT>) {
    return block_rows{detail::proposed_block(drafter, 0), detail::tokens_of(drafter)};
  } else {
    return drafter.propose_run(max_tokens);
  }
}

//! A drafter that reads the target's hidden states.
//!
//! Minimal definition, besides Drafter
//!   n_read() -> int          number of leading tokens of the text whose hidden states it holds; begin(context) keeps
//!                            the states of the leading tokens that context has in common with the text before
//!   read(backend, rows)      takes the hidden states of these rows of the target's last forward pass. They are the
//!                            rows of the next tokens of the text, the first of which is token number n_read()
//! Laws
//!   When a tree grows, n_read() is at least the length of the text without its pending token: the decoder ensures
//!   that.
//! Models
//!   block_diffusion and feature_steps; factorised and joint over such a drafter
template <class DrafterT, class BackendT>
concept FeatureDrafter = Drafter<DrafterT> && detail::CountsFeatures<DrafterT> &&
    requires(DrafterT& drafter, const BackendT& backend, std::span<const std::int32_t> rows) {
  drafter.read(backend, rows);
};

//! A drafter whose row of a node depends on the target's hidden states and on the path: a head that reads a token and
//! the state before it. For a token that is only drafted, the head's own state takes the place of the target's.
//!
//! Laws, besides those of StepDrafter and FeatureDrafter
//!   A state that was drafted in a round is not used after that round: the target's state takes its place.
//! Models
//!   feature_steps
template <class DrafterT, class BackendT>
concept FeatureStepDrafter = StepDrafter<DrafterT> && FeatureDrafter<DrafterT, BackendT>;

}  // namespace espalier
