// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/util/byte_reader.hpp"
#include "espalier/core/util/byte_writer.hpp"
#include "espalier/decoder/model_states.hpp"
#include "espalier/decoder/text.hpp"

namespace espalier {

namespace detail {

// Returns the name of a type as the compiler spells it.
template <class T>
constexpr std::string_view type_name() {
  std::string_view name = __PRETTY_FUNCTION__;
  name.remove_prefix(name.find("T = ") + 4);
  return name.substr(0, name.find_first_of(";]"));
}

// Returns the policy as a text begins with it: without what it has learnt.
template <class PolicyT>
PolicyT without_history(PolicyT policy) {
  if constexpr (ResettingPolicy<PolicyT>) policy.reset();
  return policy;
}

// Checks that a text's policy suits the decoder that serves the text and has the policy `there`. Errors: option_error
// if the two draft or ask about different numbers of nodes, or only one of them reads states.
template <class PolicyT>
void require_same_size(const PolicyT& policy, const PolicyT& there) {
  if (policy.max_nodes() != there.max_nodes()) {
    raise<option_error>("the text's policy drafts up to ", policy.max_nodes(), " tokens a round, but the decoder's ",
                        there.max_nodes(), ": both need the same options.");
  }
  if (most_asked(policy) != most_asked(there) || reads_states(policy) != reads_states(there))
    raise<option_error>(
        "the text's policy asks about other nodes than the decoder's, or reads states: both need the "
        "same options.");
}

}  // namespace detail

//! A text and what its policy has learnt of it: all that it takes to go on anywhere else with equal parts. Caches are
//! no part of it: where the text is loaded, a cache that holds its beginning is used (see write_sequence); without one
//! the text is forwarded again.
//!
//!     const auto base = decode.save();
//!     for (std::uint32_t i = 0; i < 4; ++i) {
//!       decode.load(base.fork(i));
//!       while (decode.step()) {
//!       }
//!     }
//!
//! Law         a text that is loaded goes on as it would have gone on where it was saved
template <class PolicyT, class ProcessorT = no_processor>
struct saved_text {
  text written{};
  PolicyT policy;
  bool policy_in_step = false;  //!< whether the policy has read the row that the pending token came from
  ESPALIER_NO_UNIQUE_ADDRESS ProcessorT processor{};
  bool processor_in_step =
      true;  //!< false after a failed commit: the processor may have read other tokens than the text's

  //! Returns another sample that begins with the tokens so far: its further random numbers are those of this stream.
  saved_text fork(std::uint32_t stream) const {
    saved_text sample(*this);
    sample.written.fork(stream);
    return sample;
  }

  //! Makes the processor read the text: the prompt, and what was written since. After resume() all tokens from before
  //! are prompt.
  void read_again() {
    const std::span<const token_id> all = written.tokens(), after_prompt = written.written();
    processor_in_step = false;
    processor.begin(all.first(all.size() - after_prompt.size()));
    processor.commit(after_prompt);
    processor_in_step = true;
  }

  //! Moves the text to where it is served next; `there` is the policy of the decoder there.
  //!
  //! Errors      input_error if the text does not fit vocabulary or context; option_error if its policy does not suit
  //!             the decoder
  void move_to(const PolicyT& there, std::int32_t context, std::int32_t vocab_size) {
    detail::require_same_size(policy, there);
    written.move_to(context, vocab_size);
  }

#if ESPALIER_HOSTED
  //! Appends this text to `bytes`.
  void write(std::vector<std::byte>& bytes) const {
    byte_writer archive(bytes, what, version);
    saved_text(*this).serialize(archive);
    archive.finish();
  }

  //! Reads the saved text with which `bytes` begin, and what its policy had learnt. The options of the policy, and the
  //! processor, stay those of this object; the processor reads the text. Returns the bytes after the saved text.
  //!
  //! Errors      input_error if the bytes are no saved text, are cut short or damaged, or are of another version or
  //!             policy; option_error if they hold options out of range. Then this object has not changed
  std::span<const std::byte> read(std::span<const std::byte> bytes) {
    saved_text other(*this);
    byte_reader archive(bytes, what, version);
    other.serialize(archive);
    const std::span<const std::byte> rest = archive.finish();
    other.read_again();
    *this = std::move(other);
    return rest;
  }

 private:
  static constexpr std::string_view what = "saved text";
  static constexpr std::uint32_t version = 2;

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    static_assert(
        detail::LosesNothing<PolicyT>,
        "a policy that learns within a text needs serialize(archive) for the text to be written as bytes: see "
        "SavedPolicy");
    std::string name(detail::type_name<PolicyT>());
    archive(name);
    if (name != detail::type_name<PolicyT>()) {
      raise<input_error>("the ", what, " was written with the policy ", name, "; it cannot go on with ",
                         detail::type_name<PolicyT>(), ".");
    }
    archive.expect("drafted tokens a round at most", policy.max_nodes());
    written.serialize(archive);
    archive(policy_in_step);
    if constexpr (SavedPolicy<PolicyT>) policy.serialize(archive);
  }
#endif
};

}  // namespace espalier
