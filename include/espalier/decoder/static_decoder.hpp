// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/static_decoder.cpp
#pragma once

#include <csetjmp>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <string_view>
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
#include "espalier/decoder/no_pieces.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"

namespace espalier {

//! A decoder for machines without a heap: everything that it will ever need is in this one object, of a size that is
//! known at compile time. `FactoryT` builds the decoder that it holds, with the parts that have lists by value, and
//! with the options that the capacity says:
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
//! An error is a status here: failed, until the next text begins, or until a step after the failed one succeeds. Only
//! one thread at a time may use static_decoders, all of a program together.
//!
//! Law         texts are those of the decoder that it holds
template <const static_capacity& Capacity, class FactoryT>
class static_decoder {
  using decoder_type = std::invoke_result_t<FactoryT&, const decoder_options&>;
  static_assert(ESPALIER_HOSTED == 0 || sizeof(FactoryT) == 0,
                "a static_decoder needs ESPALIER_HOSTED to be 0 in all of the program, and -fno-exceptions");
  static_assert(std::is_trivially_destructible_v<decoder_type>,
                "no part of a static_decoder may need its destructor: it is left by a jump where something fails");

  // The number is an argument, so that the compiler tells it.
  template <std::size_t Needed>
  static constexpr std::size_t checked_bytes() {
    static_assert(Capacity.bytes == 0 || Needed <= Capacity.bytes,
                  "static_capacity::bytes is too small for this decoder: the compiler names the bytes that it needs as "
                  "Needed");
    return Needed;
  }

 public:
  //! Memory that lists take, in this object.
  static constexpr std::size_t bytes = checked_bytes<decoder_type::bytes(Capacity)>();

  //! Builds the decoder. Where that fails, as for an option out of range or parts that need more than the capacity
  //! says, the state is failed for ever.
  explicit static_decoder(FactoryT build = {}) : arena_(memory_, bytes) {
    arena* const outer = std::exchange(arena::current(), &arena_);
    is_built_ = attempt([&] {
      ::new (static_cast<void*>(std::addressof(decoder_))) decoder_type(build(decoder_options::of(Capacity)));
    });
    arena::current() = outer;
  }
  static_decoder(const static_decoder&) = delete;
  static_decoder& operator=(const static_decoder&) = delete;

  //! Starts a text: decoder::begin. Where it fails the text before then still stands, and no step is made until another
  //! one begins.
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

  //! decoder::step. False, too, where it fails: the text then stands at its last committed token, and step() tries
  //! again.
  template <class PieceT = no_pieces>
  bool step(const PieceT& piece_of = {}) {
    if (!has_begun_) return false;
    bool is_more = false;
    has_failed_ = !attempt([&] { is_more = decoder_.step(piece_of); });
    if (has_failed_) decoder_.give_up();
    return !has_failed_ && is_more;
  }

  status state() const { return !is_built_ || has_failed_ ? status::failed : decoder_.current().state(); }
  //! Why the state is failed, as a sentence. Valid until another static_decoder fails.
  const char* message() const { return failure().c_str(); }
  //! Bytes of the memory that are in use: as many as were computed, or fewer where parts are smaller than the capacity.
  std::size_t used() const { return arena_.used(); }

  //! Pre         building it has not failed
  const text& current() const { return decoder_.current(); }
  const round_record& last_round() const { return decoder_.last_round(); }

 private:
  static std::jmp_buf*& way_back() {
    static std::jmp_buf* place = nullptr;
    return place;
  }
  static detail::message_text& failure() {
    static detail::message_text message;
    return message;
  }

  // False where the action raises an error. Nothing that it leaves has a destructor.
  template <class ActionT>
  [[gnu::noinline]] static bool attempt(const ActionT& action) {
    std::jmp_buf here;
    std::jmp_buf* const volatile outer = std::exchange(way_back(), &here);
    const volatile error_handler_type handler = std::exchange(error_handler(), [](const char* message) {
      failure().clear();
      failure() += std::string_view(message);
      std::longjmp(*way_back(), 1);
    });
    volatile bool is_done = false;
    if (setjmp(here) == 0) {
      action();
      is_done = true;
    }
    way_back() = outer;
    error_handler() = handler;
    return is_done;
  }

  alignas(arena::alignment) std::byte memory_[bytes];
  arena arena_;
  union {
    decoder_type decoder_;
  };
  bool is_built_ = false;
  bool has_begun_ = false;  // a text, by the last begin()
  bool has_failed_ = false;
};

}  // namespace espalier
