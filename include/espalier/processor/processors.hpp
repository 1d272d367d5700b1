// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "espalier/concepts/processor.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Applies several processors, one after the other.
//!
//!     processors process(penalties({.frequency = 0.5}), minimum_length(20, ends, vocab_size));
//!
//! Law         as Processor. A token that one processor forbids stays forbidden; other logits may depend on the order
//!             of the processors
template <Processor... ProcessorsT>
class processors {
 public:
  processors() = default;
  explicit processors(ProcessorsT... parts) requires(sizeof...(ProcessorsT) > 0) : parts_(std::move(parts)...) {}

  void begin(std::span<const token_id> tokens) {
    std::apply([&](auto&... part) { (part.begin(tokens), ...); }, parts_);
  }
  void commit(std::span<const token_id> tokens) {
    std::apply([&](auto&... part) { (part.commit(tokens), ...); }, parts_);
  }
  bool idle() const {
    return std::apply([](const auto&... part) { return (detail::is_idle(part) && ...); }, parts_);
  }

  template <class NumberT>
  void process(std::span<const token_id> path, std::span<NumberT> logits) {
    const auto process_one = [&](auto& part) {
      if (!detail::is_idle(part)) part.process(path, logits);
    };
    std::apply([&](auto&... part) { (process_one(part), ...); }, parts_);
  }

  //! Adds to `list` the changes that process() would make to the row, for processing on the device.
  template <class ChangesT>
  requires(detail::ListsChanges<ProcessorsT, ChangesT>&&...) void changes(std::span<const token_id> path,
                                                                          ChangesT& list) {
    const auto list_one = [&](auto& part) {
      if (!detail::is_idle(part)) part.changes(path, list);
    };
    std::apply([&](auto&... part) { (list_one(part), ...); }, parts_);
  }

  bool allows(std::span<const token_id> path, token_id token) {
    return std::apply([&](auto&... part) { return (detail::is_allowed(part, path, token) && ...); }, parts_);
  }

  //! The only token that is allowed, if a processor knows it and all others allow it. No value otherwise, or if a
  //! processor that is not idle cannot say what it forbids.
  std::optional<token_id> only(std::span<const token_id> path) {
    constexpr auto tells = []<class PartT>(const PartT& part) {
      return detail::HasAllows<PartT> || detail::is_idle(part);
    };
    if (!std::apply([&](const auto&... part) { return (tells(part) && ...); }, parts_)) return std::nullopt;
    std::optional<token_id> token;
    const auto ask_one = [&](auto& part) {
      if (!token) token = detail::only_token(part, path);
    };
    std::apply([&](auto&... part) { (ask_one(part), ...); }, parts_);
    return token && allows(path, *token) ? token : std::nullopt;
  }

  //! The token of the first processor that prescribes one, if all processors allow it; else no value.
  std::optional<token_id> prescribed(std::span<const token_id> path) {
    std::optional<token_id> token;
    const auto ask_one = [&](auto& part) {
      if (!token) token = detail::prescribed_token(part, path);
    };
    std::apply([&](auto&... part) { (ask_one(part), ...); }, parts_);
    return token && allows(path, *token) ? token : std::nullopt;
  }

 private:
  std::tuple<ProcessorsT...> parts_;
};

}  // namespace espalier
