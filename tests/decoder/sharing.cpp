// SPDX-License-Identifier: BSL-1.0
// What happens where parts are shared, do not fit each other, or promise less than the decoder needs.
#include <optional>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "espalier/backend/callable.hpp"
#include "raises.hpp"

using namespace espalier;
using models::text_model;

namespace {

const std::vector<token_id> first_prompt{3, 1, 4, 1};
const std::vector<token_id> second_prompt{5, 9, 2, 6, 5};

template <class DrafterT, class PolicyT>
std::vector<token_id> alone(DrafterT& drafter, PolicyT policy, const std::vector<token_id>& prompt, int n) {
  token_kv kv(96);
  text_backend target(11, text_model{.seed = 7});
  auto decode = make_decoder(drafter, policy, greedy(), kv, target);
  const auto written = decode.generate(prompt, {.max_tokens = n});
  return {written.begin(), written.end()};
}

std::vector<token_id> expected(const std::vector<token_id>& prompt, int n) {
  no_drafter none;
  return alone(none, plain(), prompt, n);
}

std::vector<token_id> copy(std::span<const token_id> text) {
  return {text.begin(), text.end()};
}

// A backend that reads texts of `positions` tokens and takes `rows` rows a pass.
struct bounded_backend {
  text_backend<text_model> inner{11, text_model{.seed = 7}};
  std::int32_t rows;
  std::int32_t positions;

  std::int32_t vocab_size() const { return 11; }
  std::int32_t max_rows() const { return rows; }
  std::int32_t max_positions() const { return positions; }
  logits_view forward(token_kv& kv, forward_batch_view batch) {
    for (const std::int32_t p : batch.positions) {
      if (p >= positions) raise<input_error>("position ", p, " is beyond the last.");
    }
    if (batch.n_rows() > rows) raise<input_error>("too many rows.");
    return inner.forward(kv, batch);
  }
};

}  // namespace

TEST_CASE("decoders may take turns with one sequence of a cache, text by text") {
  token_kv kv(96);
  text_backend target(11, text_model{.seed = 7});
  auto a = make_decoder(no_drafter(), plain(), greedy(), kv, target);
  auto b = make_decoder(no_drafter(), plain(), greedy(), kv, target);
  REQUIRE(copy(a.generate(first_prompt, {.max_tokens = 12})) == expected(first_prompt, 12));
  REQUIRE(copy(b.generate(second_prompt, {.max_tokens = 30})) == expected(second_prompt, 30));
  REQUIRE(copy(a.generate(first_prompt, {.max_tokens = 12})) == expected(first_prompt, 12));
}

TEST_CASE("decoders of unlike budgets may share a drafter") {
  token_kv draft_kv(96);
  text_backend draft(11, text_model{.seed = 7, .noise = 0.5});
  autoregressive drafter(draft, draft_kv);
  token_kv kv(96);
  text_backend target(11, text_model{.seed = 7});
  auto large = make_decoder(drafter, fixed({.depth = 5, .breadth = 3, .budget = 60}), greedy(), kv, target);
  auto small = make_decoder(drafter, chain({.length = 2}), greedy(), kv, target);
  REQUIRE(copy(large.generate(first_prompt, {.max_tokens = 30})) == expected(first_prompt, 30));
  REQUIRE(copy(small.generate(second_prompt, {.max_tokens = 30})) == expected(second_prompt, 30));
  REQUIRE(copy(large.generate(second_prompt, {.max_tokens = 30})) == expected(second_prompt, 30));
}

TEST_CASE("a drafter in the target's own sequence is an error, not a wrong text") {
  token_kv kv(96);
  text_backend model(11, text_model{.seed = 7});
  autoregressive drafter(model, kv);
  auto decode = make_decoder(drafter, chain(), greedy(), kv, model);
  decode.begin(first_prompt);
  REQUIRE(says(message_of<input_error>([&] { decode.step(); }), "another part uses it"));
}

TEST_CASE("a sequence that the cache does not have is refused when the decoder is built") {
  token_kv kv(96);
  text_backend target(11, text_model{});
  REQUIRE(
      says(message_of<input_error>([&] { make_decoder(no_drafter(), plain(), greedy(), kv, target, {.sequence = 1}); }),
           "sequence 1 does not exist"));
}

TEST_CASE("an order that is none is refused") {
  token_kv kv(96);
  text_backend target(11, text_model{});
  REQUIRE(says(message_of<option_error>([&] {
                 make_decoder(no_drafter(), plain(), greedy(), kv, target, {.order = static_cast<node_order>(9)});
               }),
               "option order is 9"));
}

TEST_CASE("a tree that does not fit a pass names both limits") {
  token_kv kv(96), draft_kv(96);
  bounded_backend target{.rows = 40, .positions = 96};
  autoregressive drafter(text_backend(11, text_model{.seed = 7}), draft_kv);
  REQUIRE(says(message_of<option_error>([&] { make_decoder(drafter, dynatree({.budget = 64}), greedy(), kv, target); }),
               "a tree of up to 64 nodes needs passes of 65 rows, but the backend takes at most 40"));
}

TEST_CASE("every method stops at the model's last position, the draft's comes earlier or later") {
  const std::vector<token_id> all = expected(first_prompt, 60);
  for (const std::int32_t draft_positions : {17, 40, 96}) {
    token_kv kv(96), draft_kv(96);
    bounded_backend target{.rows = 128, .positions = 40};
    bounded_backend draft{.rows = 128, .positions = draft_positions};
    autoregressive drafter(draft, draft_kv);
    auto decode = make_decoder(drafter, chain({.length = 5}), greedy(), kv, target);
    const auto written = decode.generate(first_prompt);
    REQUIRE(decode.current().state() == status::context_full);
    REQUIRE(copy(decode.current().tokens()).size() == 40);
    REQUIRE(std::equal(written.begin(), written.end(), all.begin()));
  }
}

TEST_CASE("rows of another shape than asked for are an error") {
  token_kv kv(96);
  std::vector<float> rows(200);
  callable_backend padded(11, [&](token_kv&, forward_batch_view batch) {
    return logits_view{rows.data(), static_cast<std::int32_t>(batch.outputs.size()), 14};
  });
  auto decode = make_decoder(no_drafter(), plain(), greedy(), kv, padded);
  decode.begin(first_prompt);
  REQUIRE(says(message_of<input_error>([&] { decode.step(); }), "rows of 14 logits"));
}

TEST_CASE("a backend may give anything where no rows are asked for") {
  token_kv kv(300);
  text_backend<text_model> inner(11, text_model{.seed = 7});
  callable_backend terse(11, [&](token_kv& cache, forward_batch_view batch) {
    const logits_view rows = inner.forward(cache, batch);
    return batch.outputs.empty() ? logits_view{} : rows;
  });
  auto decode = make_decoder(no_drafter(), plain(), greedy(), kv, terse);
  std::vector<token_id> prompt(200, 3);
  CHECK(copy(decode.generate(prompt, {.max_tokens = 9})).size() == 9);
}

TEST_CASE("stop strings without a function from token to text are an error") {
  token_kv kv(96);
  text_backend target(11, text_model{});
  auto decode = make_decoder(no_drafter(), plain(), greedy(), kv, target);
  decode.begin(first_prompt, {.strings = {"x"}});
  REQUIRE(says(message_of<input_error>([&] { decode.step(); }), "stop strings need the text"));
  REQUIRE(says(message_of<input_error>([&] { decode.begin(first_prompt, {.tokens = {11}}); }),
               "token 0 of the stop tokens is 11"));
  decode.begin(first_prompt, {.strings = {""}});  // there is nothing to look for
  CHECK(decode.step());
}

TEST_CASE("nothing is drafted for the last token of a text") {
  composition<chain> c(chain(), {});
  c.decode.begin(first_prompt, {.max_tokens = 1});
  REQUIRE(c.step());
  CHECK(c.decode.last_round().tree.n_draws == 0);
  CHECK(c.text().size() == first_prompt.size() + 1);
}

TEST_CASE("before any text there is nothing to do") {
  composition<plain> c(plain(), {});
  CHECK(c.decode.current().state() == status::idle);
  CHECK_FALSE(c.step());
}
