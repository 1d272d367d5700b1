// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/status.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/decoder/stop.hpp"
#include "espalier/decoder/text_options.hpp"

#if ESPALIER_HOSTED
#if __has_include(<sys/random.h>)
#include <sys/random.h>
#include <unistd.h>  // musl declares getentropy here
#else
#include <random>
#endif
#endif

namespace espalier {

//! Returns a random seed, a different one each time, for texts that need not be reproduced. Where ESPALIER_HOSTED is 0
//! it always returns 0: such a machine has its own source of random numbers, if any. On POSIX systems it does without
//! <random>, which takes 0.3 s to parse.
//!
//! Errors      input_error where the system gives no random numbers
inline std::uint64_t fresh_seed() {
#if ESPALIER_HOSTED && __has_include(<sys/random.h>)
  std::uint64_t seed = 0;
  if (getentropy(&seed, sizeof seed) != 0)
    raise<input_error>("the system gives no random seed: name one in text_options::seed.");
  return seed;
#elif ESPALIER_HOSTED
  // The device is kept, since opening one takes 16 microseconds on a virtual machine.
  thread_local std::random_device device;
  return static_cast<std::uint64_t>(device()) << 32 | device();
#else
  return 0;
#endif
}

//! A text as it is written: its tokens, its options and stop conditions, and why it ended. It is a value, which does
//! not know where it is served.
//!
//! A span of its tokens is valid until the next begin(), resume(), fork(), move_to() or reserve(), or until 2^20 tokens
//! were written after the last of these calls.
//!
//! Law         between two calls of begin() tokens() only grows; its last token is pending: chosen, but not in the
//!             cache
class text {
 public:
  //! Begins a text. `context` is the number of tokens that the cache can hold at most. The prompt may be a part of
  //! tokens().
  //!
  //! Errors      input_error for an empty prompt, one that leaves no room to write, or a token of the prompt or of the
  //!             stop conditions outside the vocabulary; option_error for options out of their ranges. After an error
  //!             the text from before still stands
  void begin(std::span<const token_id> prompt, stop_conditions stop, const text_options& options, std::int32_t context,
             std::int32_t vocab_size) {
    require_options(options);
    if (ESPALIER_HOSTED == 0 && options.log_probs >= 0)
      raise<option_error>("option log_probs is ", options.log_probs, ", but must be -1 where there is no heap.");
    read_prompt(prompt, std::move(stop), context, vocab_size);
    options_ = options;
    if (!options_.seed) options_.seed = fresh_seed();
    n_scored_ = asks_to_score() ? 1 : prompt_size_;
  }

  //! Goes on after tokens() with `more` tokens in between: the next turn of a conversation, with the options and the
  //! random numbers of this one.
  //!
  //! Errors      as begin()
  void resume(std::span<const token_id> more, stop_conditions stop, std::int32_t context, std::int32_t vocab_size) {
    detail::list<token_id> prompt(tokens_);
    prompt.insert(prompt.end(), more.begin(), more.end());
    const std::int32_t before = scores_prompt() ? n_scored_ : size();
    const auto unseen = search_.held_back();
    read_prompt(prompt, std::move(stop), context, vocab_size);
    search_.show_first(unseen);
    n_scored_ = asks_to_score() ? before : prompt_size_;
  }

  //! Checks the arguments of begin(), or of resume() after n_before tokens, and changes nothing.
  //!
  //! Errors      as begin()
  static void require_prompt(std::size_t n_before, std::span<const token_id> prompt, const stop_conditions& stop,
                             std::int32_t context, std::int32_t vocab_size) {
    require_options(stop);
    const std::size_t n = n_before + prompt.size();
    if (n == 0) raise<input_error>("the prompt is empty; it needs at least one token, such as the model's first.");
    if (static_cast<std::int64_t>(n) >= std::int64_t{context} + (stop.max_tokens == 0 ? 1 : 0))
      raise<input_error>("a prompt of ", n, " tokens leaves no room to write in a context of ", context, ".");
    require_tokens("prompt", prompt, vocab_size);
    require_tokens("stop tokens", stop.tokens, vocab_size);
  }

  //! Makes this copy of a text another sample: from here on its random numbers are those of this stream.
  void fork(std::uint32_t stream) {
    options_.stream = stream;
    reserve();
  }

  //! Moves the text to where it is served next, with another context and vocabulary.
  //!
  //! Errors      input_error if a token is outside that vocabulary, or the text leaves no room to write in that context
  void move_to(std::int32_t context, std::int32_t vocab_size) {
    require_tokens("saved text", tokens_, vocab_size);
    require_tokens("stop tokens", stop_.tokens, vocab_size);
    if (size() > context - (running() && stop_.max_tokens > 0 ? 1 : 0)) {
      raise<input_error>("a saved text of ", size(), " tokens leaves no room to write in a context of ", context, ".");
    }
    context_ = context;
    reserve();
  }

  std::span<const token_id> tokens() const { return tokens_; }
  //! Tokens that were written after the prompt.
  std::span<const token_id> written() const { return tokens().subspan(static_cast<std::size_t>(prompt_size_)); }
  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }
  status state() const { return state_; }
  bool running() const { return state_ == status::running; }
  const text_options& options() const { return options_; }
  //! Seed that the text is written with, whether it was given or chosen.
  std::uint64_t seed() const { return options_.seed.value_or(0); }
  //! Rounds committed since begin() or resume().
  std::int32_t round() const { return round_; }
  //! Whether log-probabilities of prompt tokens, from token n_scored() on, are asked for and not told yet.
  bool scores_prompt() const { return n_scored_ < prompt_size_; }
  //! Number of leading tokens whose log-probabilities have been told, or are not asked for.
  std::int32_t n_scored() const { return n_scored_; }
  //! Notes that the log-probabilities of the first n tokens have been told.
  void score(std::int32_t n) { n_scored_ = (std::max)(n_scored_, n); }
  //! Whether the text waits for a stop string, and so needs the characters of every token.
  bool reads_pieces() const { return !search_.empty(); }
  //! Tokens that may still be written.
  std::int32_t left() const {
    return static_cast<std::int32_t>(
        (std::min)(static_cast<std::int64_t>(room()), stop_.max_tokens - static_cast<std::int64_t>(written().size())));
  }
  //! Tokens that still fit the context.
  std::int32_t room() const { return context_ - size(); }
  //! New bytes that the last commit() or stop() released for showing, as far as pieces were given: no stop string can
  //! begin in them any more, or the text has ended. Valid until the next of these calls.
  std::string_view shown() const { return search_.shown(); }

  //! Returns the part of a verdict that the text takes: all up to the first stop condition. `piece_of(token)` gives a
  //! token's characters, `after` is the state if all is taken. The text changes in commit() only: the round may be
  //! given up.
  template <class PieceT>
  verdict admit(tree_view tree, verdict v, const PieceT& piece_of, status after = status::running) {
    search_.take_back();
    admitted_state_ = status::running;
    const std::int32_t n = tree.depth[v.accepted] + 1;
    std::int32_t kept = 0;
    while (kept < n && admitted_state_ == status::running) {
      ++kept;
      const token_id token = kept < n ? tree.token[tree.ancestor_at(v.accepted, kept)] : v.token;
      admitted_state_ = state_after(token, piece_of(token), kept);
    }
    if (admitted_state_ == status::running) admitted_state_ = after;
    return cut(tree, v, kept);
  }

  //! Appends the verdict that was admitted last.
  void commit(tree_view tree, verdict admitted) {
    append_committed(tokens_, tree, admitted);
    search_.keep(admitted_state_ != status::running);
    state_ = admitted_state_;
    ++round_;
  }

  //! Ends a text to which nothing is to be added.
  void end() { state_ = status::length; }

  //! Ends a text in a round that can add nothing to it. The bytes that were held back are shown.
  void stop(status why) {
    search_.take_back();
    search_.keep(true);
    state_ = why;
    ++round_;
  }

#if ESPALIER_HOSTED
  //! Saves or loads all members but the context, which move_to() gives.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    for_each_option(options_.sampling, [&](const auto&, auto& value) { archive(value); });
    archive(options_.seed, options_.stream, options_.log_probs, options_.prompt_log_probs);
    archive(stop_.max_tokens, stop_.tokens, stop_.strings, stop_.show_string);
    archive(tokens_, prompt_size_, n_scored_, round_, state_);
    archive.require((state_ == status::idle || (options_.seed && n_scored_ > 0)) &&
                    (asks_to_score() || n_scored_ == prompt_size_));
    archive.require(0 <= n_scored_ && n_scored_ <= prompt_size_ && prompt_size_ <= size() && 0 <= round_ &&
                    status::idle <= state_ && state_ <= status::nothing_allowed &&
                    (prompt_size_ > 0) == (state_ != status::idle));
    if constexpr (ArchiveT::reads) {
      require_options(options_);
      require_options(options_.sampling);
      require_options(stop_);
      search_.begin(stop_);
    }
    search_.serialize(archive);
  }
#endif

  //! Takes memory for a text of this context now.
  void reserve(std::int32_t context) {
    context_ = context;
    reserve();
  }

 private:
  void read_prompt(std::span<const token_id> prompt, stop_conditions stop, std::int32_t context,
                   std::int32_t vocab_size) {
    require_prompt(0, prompt, stop, context, vocab_size);
    search_.begin(stop);
    stop_ = std::move(stop);
    context_ = context;
    put(prompt);
    reserve();
    prompt_size_ = size();
    round_ = 0;
    state_ = status::running;
  }

  // Replaces tokens_ by the prompt, which may be a part of tokens_.
  void put(std::span<const token_id> prompt) {
    const std::compare_three_way order;  // of pointers to any two objects
    if (order(prompt.data(), tokens_.data()) < 0 || order(prompt.data(), tokens_.data() + tokens_.size()) >= 0)
      return tokens_.assign(prompt.begin(), prompt.end());
    std::copy(prompt.begin(), prompt.end(), tokens_.begin());
    tokens_.resize(prompt.size());
  }

  // Takes the memory that rounds need: they are not to allocate.
  void reserve() {
    tokens_.reserve((std::min)(static_cast<std::size_t>(context_) + 1, tokens_.size() + (std::size_t{1} << 20)));
    search_.reserve();
  }

  bool asks_to_score() const {
    return options_.prompt_log_probs && options_.log_probs >= 0;
  }

  static void require_tokens(std::string_view what, std::span<const token_id> tokens, std::int32_t vocab_size) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab_size) {
        raise<input_error>("token ", i, " of the ", what, " is ", tokens[i], ", but the vocabulary ends at ",
                           vocab_size - 1, ".");
      }
    }
  }

  // Returns the state of the text after the n-th token of a round.
  status state_after(token_id token, std::string_view piece, std::int32_t n) {
    const bool completes_string = search_.push(piece);
    if (std::find(stop_.tokens.begin(), stop_.tokens.end(), token) != stop_.tokens.end()) return status::stop_token;
    if (completes_string) return status::stop_string;
    if (static_cast<std::int64_t>(written().size()) + n >= stop_.max_tokens) return status::length;
    return room() <= n ? status::context_full : status::running;
  }

  detail::list<token_id> tokens_;
  std::int32_t prompt_size_ = 0;
  std::int32_t n_scored_ = 0;
  text_options options_;
  std::int32_t context_ = 0;
  std::int32_t round_ = 0;
  status state_ = status::idle;
  status admitted_state_ = status::idle;
  stop_conditions stop_;
  stop_string_search search_;
};

//! Gives each token an empty piece: for texts without stop strings.
struct no_pieces {
  std::string_view operator()(token_id) const { return {}; }
};

namespace detail {

// Checks that a text with stop strings is given pieces. Errors: input_error if the text has stop strings, and PieceT is
// no_pieces.
template <class PieceT>
void require_pieces(const text& t) {
  if (std::is_same_v<PieceT, no_pieces> && t.reads_pieces())
    raise<input_error>(
        "stop strings need the text of each token: give step(), end_step() or generate() a function for it.");
}

}  // namespace detail

}  // namespace espalier
