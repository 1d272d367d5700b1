// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/static_decoder.cpp
#pragma once

#include <cstddef>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/message_text.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/status.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/decoder_options.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"

namespace espalier {

//! A decoder for machines without a heap: everything that it will ever need is in this one object, whose size is known
//! at compile time. `FactoryT` builds the decoder inside. It must give the parts that own lists by value, and hand on
//! the options that it is called with, which decoder_options::of() makes from the capacity:
//!
//!     struct factory {
//!       auto operator()(const decoder_options& options) const {
//!         return make_decoder(autoregressive(draft, token_kv(64)), chain({.length = 4}), greedy(), token_kv(64),
//!                             target, options);
//!       }
//!     };
//!     constexpr static_capacity room{.nodes = 4, .context = 64, .vocabulary = 16};
//!     static static_decoder<room, factory> decode;
//!
//! An error gives the state `failed`, until the next text begins, or until a step after the failed one succeeds. In a
//! program, only one thread at a time may use any static_decoder.
//!
//! Law         texts are those of the decoder inside
template <const static_capacity& Capacity, class FactoryT>
class static_decoder {
  using decoder_type = std::invoke_result_t<FactoryT&, const decoder_options&>;
  static_assert(ESPALIER_HOSTED == 0 || sizeof(FactoryT) == 0,
                "a static_decoder needs ESPALIER_HOSTED to be 0 in all of the program, and -fno-exceptions");
  static_assert(std::is_trivially_destructible_v<decoder_type>,
                "no part of a static_decoder may need its destructor: it is left by a jump where something fails");

  // The number is a template argument, so that the compiler's message contains it.
  template <std::size_t Needed>
  static constexpr std::size_t checked_bytes() {
    static_assert(Capacity.bytes == 0 || Needed <= Capacity.bytes,
                  "static_capacity::bytes is too small for this decoder: the compiler names the bytes that it needs as "
                  "Needed");
    return Needed;
  }

 public:
  //! Bytes of this object that the lists of all parts take.
  static constexpr std::size_t bytes = checked_bytes<decoder_type::bytes(Capacity)>();

  //! Builds the decoder. If that fails, for example because an option is out of range or the parts need more than the
  //! capacity says, the state is `failed` for ever.
  explicit static_decoder(FactoryT build = {}) : arena_(memory_, bytes) {
    arena* const outer = std::exchange(arena::current(), &arena_);
    is_built_ =
        attempt([&] { ::new (static_cast<void*>(&decoder_)) decoder_type(build(decoder_options::of(Capacity))); });
    arena::current() = outer;
  }
  static_decoder(const static_decoder&) = delete;
  static_decoder& operator=(const static_decoder&) = delete;

  //! Starts a text as decoder::begin() does, and returns the state. If it fails, the text from before still stands, but
  //! step() does nothing until a text begins.
  status begin(std::span<const token_id> prompt, const stop_conditions& stop, const text_options& options) {
    if (is_built_) has_begun_ = attempt([&] { decoder_.begin(prompt, stop, options); });
    has_failed_ = !has_begun_;
    return state();
  }
  //! Begins a text with the decoder's options for texts.
  status begin(std::span<const token_id> prompt, const stop_conditions& stop = {}) {
    if (is_built_) has_begun_ = attempt([&] { decoder_.begin(prompt, stop); });
    has_failed_ = !has_begun_;
    return state();
  }

  //! Makes a step as decoder::step() does. Returns false also if the step fails: the text then stands at its last
  //! committed token, and the next step() tries again.
  template <class PieceT = no_pieces>
  bool step(const PieceT& piece_of = {}) {
    if (!has_begun_) return false;
    bool is_more = false;
    has_failed_ = !attempt([&] { is_more = decoder_.step(piece_of); });
    if (has_failed_) decoder_.give_up();
    return !has_failed_ && is_more;
  }

  //! Returns the state of the text, or `failed`: see above.
  status state() const { return !is_built_ || has_failed_ ? status::failed : decoder_.current().state(); }
  //! Returns a sentence that says why the state is `failed`, valid until a static_decoder of this type fails.
  const char* message() const { return failure().c_str(); }
  //! Returns the bytes of the memory that are in use: as many as `bytes`, or fewer if parts are smaller than the
  //! capacity allows.
  std::size_t used() const { return arena_.used(); }

  //! The text, and the record of its last step.
  //!
  //! Pre         the constructor has not failed
  const text& current() const { return decoder_.current(); }
  const round_record& last_round() const { return decoder_.last_round(); }

 private:
  static detail::message_text& failure() {
    static detail::message_text message;
    return message;
  }

  // Calls the action. Returns false if it raises an error: a jump then leaves the action's frames, none of which needs
  // a destructor.
  template <class ActionT>
  static bool attempt(const ActionT& action) {
    return detail::attempt(action, failure());
  }

  alignas(arena::alignment) std::byte memory_[bytes];
  arena arena_;
  union {
    decoder_type decoder_;
  };
  bool is_built_ = false;
  bool has_begun_ = false;  // whether the last begin() has begun a text
  bool has_failed_ = false;
};

}  // namespace espalier
