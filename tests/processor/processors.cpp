// SPDX-License-Identifier: BSL-1.0
#include "espalier/processor/processors.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/processor/banned_sequences.hpp"
#include "espalier/processor/constrained.hpp"
#include "espalier/processor/forced_tokens.hpp"
#include "espalier/processor/logit_bias.hpp"
#include "espalier/processor/minimum_length.hpp"
#include "espalier/processor/penalties.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

using tokens = std::vector<token_id>;
using row = std::vector<double>;

constexpr double never = -std::numeric_limits<double>::infinity();

template <class ProcessorT>
row processed(ProcessorT& processor, const tokens& path, row logits) {
  processor.process(path, std::span(logits));
  return logits;
}

// A path of two tokens, kept here.
std::span<const token_id> tokens_of_path(token_id first) {
  static token_id path[2];
  path[0] = first, path[1] = first + 1;
  return path;
}

// The laws of the concept, over all paths of two tokens of four.
template <class ProcessorT>
void check_laws(ProcessorT processor, const tokens& prompt, const tokens& text) {
  const row z{0.5, -1, 2, 0.25};
  processor.begin(prompt);
  processor.commit(text);
  for (token_id a = 0; a < 4; ++a) {
    for (token_id b = 0; b < 4; ++b) {
      const row first = processed(processor, {a, b}, z);
      ProcessorT other = processor;
      other.commit(tokens{a, b});
      CHECK(processed(other, {}, z) == first);
      other.begin(prompt);
      for (const token_id t : text)
        other.commit({&t, 1});
      CHECK(processed(other, {a, b}, z) == first);
      CHECK(processed(processor, {a, b}, z) == first);
      if constexpr (detail::HasIdle<ProcessorT>) CHECK((!processor.idle() || first == z));
      for (token_id t = 0; t < 4; ++t) {
        if constexpr (detail::HasAllows<ProcessorT>)
          CHECK(processor.allows(tokens{a, b}, t) == (first[static_cast<std::size_t>(t)] > never));
      }
      if constexpr (detail::HasOnly<ProcessorT>) {
        const std::optional<token_id> only = processor.only(tokens{a, b});
        if (only) CHECK(std::count(first.begin(), first.end(), never) == 3);
        if (only) CHECK(first[static_cast<std::size_t>(*only)] > never);
      }
      if constexpr (detail::HasPrescribed<ProcessorT>) {
        const std::optional<token_id> next = processor.prescribed(tokens{a, b});
        if (next) CHECK(first[static_cast<std::size_t>(*next)] > never);
      }
    }
  }
}

// Words of tokens 0 and 1 without two 1s in a row; token 3 ends them.
struct no_two_ones {
  using state_type = bool;  // whether the last one was 1
  std::uint32_t mask = 0;
  int* n_advanced;

  bool start() const { return false; }
  bool advance(bool, token_id token) const {
    ++*n_advanced;
    return token == 1;
  }
  std::span<const std::uint32_t> allowed(bool state) {
    mask = state ? 0b1001U : 0b1011U;
    return {&mask, 1};
  }
  std::optional<token_id> prescribed(bool state) const { return state ? 0 : 1; }
};

// Token 37, then 31 or 32, then nothing.
struct one_then_two {
  using state_type = int;
  static constexpr std::uint32_t masks[3][2] = {{0, 1U << 5}, {1U << 31, 1}, {0, 0}};

  int start() const { return 0; }
  int advance(int state, token_id) const { return state < 2 ? state + 1 : 2; }
  std::span<const std::uint32_t> allowed(int state) const { return masks[state]; }
};

// It does not tell that it does.
struct forbids_two {
  void begin(std::span<const token_id>) {}
  void commit(std::span<const token_id>) {}
  template <class NumberT>
  void process(std::span<const token_id>, std::span<NumberT> logits) {
    logits[2] = -std::numeric_limits<NumberT>::infinity();
  }
};

}  // namespace

TEST_CASE("processors keep their laws") {
  int n = 0;
  const tokens prompt{0, 1, 2}, text{2, 1};
  check_laws(logit_bias({{1, 0.5}, {2, never}}, 4), prompt, text);
  check_laws(penalties({.repetition = 1.25, .presence = 0.5, .frequency = 0.25}), prompt, text);
  check_laws(minimum_length(4, {3, 0}, 4), prompt, text);
  check_laws(minimum_length(5, {3, 0}, 4), prompt, text);
  check_laws(banned_sequences({{1, 0, 2}, {3}, {0, 0}}, 4), prompt, text);
  check_laws(forced_tokens({2, 1, 0, 3, 2}, 4), prompt, text);
  check_laws(constrained(no_two_ones{0, &n}), prompt, {0, 1});
  check_laws(processors(penalties({.presence = 0.5}), banned_sequences({{1}}, 4), constrained(no_two_ones{0, &n})),
             prompt, {0, 1});
  check_laws(processors<penalties, constrained<no_two_ones>>(), prompt, text);
}

TEST_CASE("a processor that leaves one token names it") {
  int n = 0;
  processors process(forced_tokens({2, 1}, 4), constrained(no_two_ones{0, &n}), banned_sequences({{3}}, 4));
  process.begin({});
  CHECK(process.only(tokens{}) == std::nullopt);  // 2 is forced, but forbidden by the constraint
  CHECK(process.only(tokens{2}) == 1);
  CHECK(process.only(tokens{2, 1}) == std::nullopt);
  // A part that does not tell what it forbids may forbid the one that is left.
  processors untold(forced_tokens({2, 1}, 4), forbids_two());
  untold.begin({});
  CHECK(untold.only(tokens{}) == std::nullopt);
  processors likes(forced_tokens({2, 1}, 4), penalties({.presence = 0.5}));
  likes.begin({});
  CHECK(likes.only(tokens{}) == 2);
  constrained one(one_then_two{});
  one.begin({});
  CHECK(one.only(tokens{}) == 37);
  CHECK(one.only(tokens{37}) == std::nullopt);
  CHECK(one.only(tokens{37, 0}) == std::nullopt);  // nothing is allowed
}

TEST_CASE("what is prescribed is a guess of one part that all allow, and what is left alone is one") {
  int n = 0;
  processors process(penalties(), constrained(no_two_ones{0, &n}), banned_sequences({{0, 1}}, 4));
  process.begin({});
  CHECK(process.prescribed(tokens{}) == 1);
  CHECK(process.prescribed(tokens{1}) == 0);
  CHECK(process.prescribed(tokens{1, 0}) == std::nullopt);  // 1 is banned after 0
  processors forced(constrained(no_two_ones{0, &n}), forced_tokens({2, 1}, 4));
  forced.begin({});
  CHECK(forced.prescribed(tokens{}) == std::nullopt);  // a guess of 1, but 2 is forced
  CHECK(processors(forced_tokens({2, 1}, 4)).prescribed(tokens{2}) == 1);
  CHECK(constrained(one_then_two{}).prescribed(tokens{}) == std::nullopt);
  CHECK(constrained<no_two_ones>().prescribed(tokens{}) == std::nullopt);
}

TEST_CASE("penalties are what the formula says") {
  penalties p({.repetition = 2, .presence = 0.5, .frequency = 0.25});
  p.begin(tokens{0, 1});
  p.commit(tokens{1, 2, 2});
  CHECK(processed(p, {}, {1, -1, 3, 4}) == row{0.5, -2 - 0.75, 1.5 - 1.0, 4});
  CHECK(processed(p, {3, 3}, {1, -1, 3, 4}) == row{0.5, -2 - 0.75, 1.5 - 1.0, 2 - 1.0});
  CHECK(penalties().idle());
  CHECK(message_of<option_error>([] { penalties({.repetition = 0}); }) ==
        "option repetition is 0, but must lie between 0.01 and 100.");
}

TEST_CASE("tokens behind the end of a row are left alone") {
  const auto check = [](auto processor, const row& expected) {
    row z(6, 1);  // of a larger vocabulary, of which a row has four
    processor.begin(tokens{5});
    processor.commit(tokens{4});
    processor.process({}, std::span(z).first(4));
    CHECK(z == expected);
  };
  const row same(6, 1.0);
  check(logit_bias({{4, 1}, {5, never}}, 6), same);
  check(banned_sequences({{4}, {4, 5}}, 6), same);
  check(minimum_length(9, {4, 5}, 6), same);
  check(penalties({.repetition = 2, .frequency = 1}), same);
  check(forced_tokens({0, 5}, 6), {never, never, never, never, 1, 1});
}

TEST_CASE("penalties forget what was drafted") {
  penalties p({.frequency = 1});
  p.begin(tokens{999});
  row z(1000, 1);
  p.commit(tokens{7});
  p.process(tokens{0, 1, 1}, std::span(z));
  const allocation_count count;
  for (token_id t = 0; t + 2 < 1000; ++t)
    p.process(tokens_of_path(t), std::span(z));
  CHECK(count.so_far() == 0);
  CHECK(processed(p, {7, 3}, row(1000, 0))[7] == -2);
}

TEST_CASE("what is wrong with a processor's options is told when it is built") {
  CHECK(message_of<input_error>([] {
          logit_bias({{4, 1}}, 4);
        }) == "logit_bias names token 4, but the vocabulary ends at 3.");
  CHECK(says(message_of<option_error>([] { logit_bias({{1, NAN}}, 4); }), "the bias of token 1 is nan"));
  CHECK(says(message_of<option_error>([] { logit_bias({{1, INFINITY}}, 4); }), "minus infinity, or lie between"));
  CHECK(says(message_of<input_error>([] { banned_sequences({{1}, {}}, 4); }), "is empty"));
  CHECK(says(message_of<input_error>([] { banned_sequences({{1, -1}}, 4); }), "token -1"));
  CHECK(says(message_of<input_error>([] { forced_tokens({9}, 4); }), "forced_tokens", "token 9"));
  CHECK(says(message_of<option_error>([] { minimum_length(-1, {}, 4); }), "minimum_length is -1"));
}

TEST_CASE("a path costs one advance a node") {
  int n = 0;
  constrained p(no_two_ones{0, &n});
  p.begin({});
  const row z(4, 0.0);
  for (const tokens& path : {tokens{}, tokens{0}, tokens{1}, tokens{0, 1}, tokens{0, 0}, tokens{0, 1, 0}, tokens{0, 1}})
    processed(p, path, z);
  CHECK(n == 5);
  p.commit(tokens{0, 1});
  CHECK(n == 5);
  CHECK(processed(p, {}, z) == row{0, never, never, 0});
  CHECK(n == 5);
}

TEST_CASE("rows longer than the mask end in tokens that are not allowed") {
  int n = 0;
  constrained p(no_two_ones{0, &n});
  const row z = processed(p, {}, row(70, 1.0));
  CHECK(std::count(z.begin(), z.end(), 1.0) == 3);
  CHECK(!p.allows({}, 64));
}
