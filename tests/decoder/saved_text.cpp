// SPDX-License-Identifier: BSL-1.0
#include "espalier/decoder/saved_text.hpp"

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "decoder/counted.hpp"
#include "decoder/showing_backend.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/saved_sequence.hpp"
#include "espalier/registry.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

const std::vector<token_id> prompt{3, 1, 4, 1, 5, 9, 2, 6};
constexpr text_options sampled{.sampling = {.temperature = 1, .top_k = 9}, .seed = 12, .stream = 2};

// A verifier that draws, for trees of this kind.
template <class PolicyT>
auto verifier_for() {
  if constexpr (compatible(PolicyT::sampling, regime::without_replacement)) {
    return residual_walk();
  } else if constexpr (compatible(PolicyT::sampling, regime::iid)) {
    return traversal();
  } else {
    return target_only();
  }
}

template <class PolicyT>
auto decoder_of(two_models<>& m, PolicyT policy, std::int32_t sequence = 0) {
  return m.decoder(std::move(policy), verifier_for<PolicyT>(), {.sequence = sequence, .prefill_rows = 16});
}

// Saved, written as bytes, and read into one of a decoder that has written something else.
template <class DecoderT, class SavedT>
SavedT through_bytes(const SavedT& saved, const DecoderT& other) {
  std::vector<std::byte> bytes;
  saved.write(bytes);
  SavedT read = other.save();
  REQUIRE(read.read(bytes).empty());
  return read;
}

// A text that is saved after each of its steps goes on elsewhere as it goes on here: over empty caches, and over
// theirs.
template <class PolicyT>
void check_law(const PolicyT& policy, const std::vector<token_id>& start) {
  two_models m;
  auto decode = decoder_of(m, policy);
  decode.begin(start, {.max_tokens = 60}, sampled);
  const std::vector<token_id> text = run(decode);
  decode.begin(start, {.max_tokens = 60}, sampled);
  bool more = true;
  for (int step = 0; more; ++step) {
    if (step % 3 == 0 || step < 3) {
      INFO("after " << step << " steps");
      two_models n;
      auto other = decoder_of(n, policy, 1);
      other.begin({{7, 7, 7}}, {.max_tokens = 40},
                  {.sampling = {.temperature = 1}, .seed = 1});  // learns something else
      run(other);
      other.load(through_bytes(decode.save(), other));
      REQUIRE(other.current().state() == decode.current().state());
      REQUIRE(other.current().round() == decode.current().round());
      REQUIRE(other.current().written().size() == decode.current().written().size());
      REQUIRE(run(other) == text);
      REQUIRE(other.current().seed() == 12);
      REQUIRE(other.current().options().stream == 2);

      two_models cached;
      auto third = decoder_of(cached, policy, 2);
      for (auto [from, to] : {std::pair{&m.kv, &cached.kv}, {&m.draft_kv, &cached.draft_kv}}) {
        std::vector<std::byte> rows;
        write_sequence(*from, 0, rows);
        REQUIRE(read_sequence(*to, 2, rows).empty());
      }
      third.load(decode.save());
      const auto size = static_cast<int>(decode.current().tokens().size());
      cached.count(static_cast<std::size_t>(size));
      const int missing = std::max(1, size - m.kv.size(0));
      step_round(third);
      if (decode.current().running()) REQUIRE(cached.target.text_rows == missing);
      REQUIRE(run(third) == text);
    }
    more = decode.step();
  }
}

}  // namespace

TEST_CASE("a text that was saved goes on elsewhere as it would have gone on, with every policy") {
  boost::hana::for_each(tree_policies, [](const auto& part) {
    INFO(part.name);
    check_law(part.make(), prompt);
  });
  std::vector<token_id> longer;
  for (int i = 0; i < 100; ++i)
    longer.push_back(i * i % 11);
  check_law(adaptive_chain(), longer);
  check_law(cost_aware_draws({.draft_cost = 0.3}), longer);
}

TEST_CASE("a text that was saved goes on with a cascade, whose parts have each learnt something") {
  const auto write = [](bool moves) {
    two_models m, n;
    joint drafter(m.drafter(), m.drafter(1)), other_drafter(n.drafter(), n.drafter(1));
    auto decode = make_decoder(drafter, cascade(dynatree(), adaptive_chain()), target_only(), m.kv, m.target);
    auto other = make_decoder(other_drafter, cascade(dynatree(), adaptive_chain()), target_only(), n.kv, n.target);
    decode.begin(prompt, {.max_tokens = 80}, sampled);
    for (int i = 0; i < 12; ++i)
      decode.step();
    if (!moves) return run(decode);
    other.load(through_bytes(decode.save(), other));
    return run(other);
  };
  CHECK(write(true) == write(false));
}

namespace {

// Chooses by all that it is shown.
struct hashing_selector {
  std::int32_t target_hidden_size() const { return 2; }
  std::int32_t draft_hidden_size() const { return 2; }
  std::int32_t choose(const selector_features& f) const {
    double sum = 0;
    for (const auto numbers : {f.target_hidden, f.draft_hidden_prev, f.draft_hidden_root}) {
      for (const float x : numbers)
        sum += static_cast<double>(x);
    }
    for (const float x : f.scalars)
      sum += 1000 * static_cast<double>(x);
    const auto key = models::mixed(static_cast<std::uint64_t>(static_cast<std::int64_t>(sum)));
    return delayed_action::number({1 + static_cast<std::int32_t>(key % 4), static_cast<std::int32_t>(key / 4 % 4),
                                   1 + static_cast<std::int32_t>(key / 16 % 4)});
  }
};

struct selecting {
  models::showing_backend target{11, {}}, draft{11, {.noise = 0.3}};
  token_kv kv{200}, draft_kv{200};
  autoregressive<models::showing_backend&, token_kv&> drafter{draft, draft_kv, {.temperature = 1}};
  decoder<decltype(drafter)&, neural_delayed<hashing_selector>, traversal, token_kv&, models::showing_backend&> decode =
      make_decoder(
          drafter,
          neural_delayed<hashing_selector>({}, {}, {"", "", "", cost_curve::linear(0.25, 1), cost_curve::linear(2, 1)}),
          traversal(), kv, target);
};

}  // namespace

TEST_CASE("a text that was saved goes on with a selector, which hears what it would have heard") {
  selecting whole;
  whole.decode.begin(prompt, {.max_tokens = 60}, sampled);
  const std::vector<token_id> text = run(whole.decode);
  for (const bool with_caches : {false, true}) {
    selecting c;
    c.decode.begin(prompt, {.max_tokens = 60}, sampled);
    int chosen = 0;
    for (bool more = true; more; more = c.decode.step()) {
      selecting other;
      if (with_caches) {
        std::vector<std::byte> rows;
        write_sequence(c.kv, 0, rows);
        write_sequence(c.draft_kv, 0, rows);
        REQUIRE(read_sequence(other.draft_kv, 0, read_sequence(other.kv, 0, rows)).empty());
      }
      other.decode.load(through_bytes(c.decode.save(), other.decode));
      other.decode.step();
      chosen += other.decode.policy().chosen() ? 1 : 0;
      REQUIRE(run(other.decode) == text);
    }
    CHECK(chosen > 5);
  }
}

TEST_CASE("samples of one text: each what a copy elsewhere would write, and the rows of their beginning once") {
  for (const int steps : {0, 5}) {
    two_models m;
    auto decode = decoder_of(m, delayed());
    decode.begin(prompt, {.max_tokens = 40}, sampled);
    for (int i = 0; i < steps; ++i)
      decode.step();
    const auto base = decode.save();
    const std::vector<token_id> original = run(decode);
    const std::vector<token_id> so_far = copy(base.written.tokens());
    std::set<std::vector<token_id>> texts;
    for (std::uint32_t stream = 0; stream < 5; ++stream) {
      decode.load(base.fork(stream));
      m.count(so_far.size());
      step_round(decode);
      CHECK(m.target.text_rows == 1);
      CHECK(m.draft.text_rows <= 2);
      const std::vector<token_id> text = run(decode);
      CHECK(std::equal(so_far.begin(), so_far.end(), text.begin()));
      texts.insert(text);
      two_models n;
      auto other = decoder_of(n, delayed(), 1);
      auto elsewhere = through_bytes(base, other);
      elsewhere.written.fork(stream);
      other.load(elsewhere);
      CHECK(run(other) == text);
      CHECK((stream == sampled.stream) == (text == original));
      if (steps > 0) continue;
      // Of a prompt alone, a sample is the text of its stream.
      other.begin(prompt, {.max_tokens = 40}, {.sampling = sampled.sampling, .seed = 12, .stream = stream});
      CHECK(run(other) == text);
    }
    CHECK(texts.size() == 5);
  }
}

TEST_CASE("samples of a prompt that was read alone") {
  two_models m;
  auto decode = decoder_of(m, delayed());
  decode.begin(prompt, {.max_tokens = 0}, sampled);
  run(decode);
  const auto base = decode.save();
  for (std::uint32_t stream = 0; stream < 3; ++stream) {
    decode.load(base.fork(stream));
    decode.resume({}, {.max_tokens = 30});
    m.count(prompt.size());
    step_round(decode);
    CHECK(m.target.text_rows == 1);
    const std::vector<token_id> text = run(decode);
    two_models n;
    auto other = decoder_of(n, delayed());
    other.begin(prompt, {.max_tokens = 30}, {.sampling = sampled.sampling, .seed = 12, .stream = stream});
    CHECK(run(other) == text);
  }
}

TEST_CASE("what a text stops at and shows is saved with it") {
  two_models m;
  auto decode = decoder_of(m, chain());
  const stop_conditions stop{.max_tokens = 60, .tokens = {10}, .strings = {"bcca", "abcabcabc"}, .show_string = false};
  text_options options = sampled;
  options.log_probs = 2;
  options.prompt_log_probs = true;
  int held = 0, of_prompt = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    options.seed = seed;
    decode.begin(prompt, stop, options);
    std::string whole;
    while (decode.step(models::piece_of))
      whole += decode.last_round().shown;
    const std::vector<token_id> text = copy(decode.current().tokens());
    const status state = decode.current().state();
    m.kv.truncate(0, 0);
    decode.begin(prompt, stop, options);
    std::string shown;
    for (std::uint64_t i = 0; i < 1 + seed % 5; ++i) {
      if (decode.step(models::piece_of)) shown += decode.last_round().shown;
    }
    two_models n;
    auto other = decoder_of(n, chain());
    other.load(through_bytes(decode.save(), other));
    std::string written;
    for (const token_id t : decode.current().written())
      written += models::piece_of(t);
    held += shown.size() < written.size() ? 1 : 0;
    of_prompt += decode.current().scores_prompt() ? 1 : 0;
    while (other.step(models::piece_of)) {
      shown += other.last_round().shown;
      CHECK(other.last_round().log_probs.size() == other.last_round().committed.size());
    }
    CHECK(shown == whole);
    CHECK(copy(other.current().tokens()) == text);
    CHECK(other.current().state() == state);
  }
  CHECK(held > 3);
  // A prompt that is being read: its chunks go on where they were.
  std::vector<token_id> longer(50, 4);
  decode.begin(longer, {.max_tokens = 5}, options);
  std::size_t scored = 0;
  for (int i = 0; i < 2 && decode.step(); ++i)
    scored += decode.last_round().log_probs.size();
  CHECK(scored == 32);
  two_models n;
  auto other = decoder_of(n, chain());
  other.load(through_bytes(decode.save(), other));
  while (other.step()) {
    if (other.last_round().committed.empty()) scored += other.last_round().log_probs.size();
  }
  CHECK(scored == 49);
}

TEST_CASE("bytes that are of another policy, or cut short, are errors and change nothing") {
  two_models m;
  auto decode = decoder_of(m, dynatree({.budget = 20}));
  decode.begin(prompt, {.max_tokens = 40}, sampled);
  for (int i = 0; i < 6; ++i)
    decode.step();
  std::vector<std::byte> bytes;
  decode.save().write(bytes);
  const auto message = [&](auto policy, std::span<const std::byte> from) {
    two_models n;
    auto other = decoder_of(n, policy);
    other.begin({{1, 2}}, {.max_tokens = 9}, sampled);
    other.step();
    auto saved = other.save();
    std::string what = message_of<input_error>([&] { saved.read(from); });
    std::vector<std::byte> before, after;
    other.save().write(before);
    saved.write(after);
    REQUIRE(before == after);
    return what;
  };
  CHECK(
      says(message(chain(), bytes), "written with the policy espalier::dynatree", "cannot go on with espalier::chain"));
  CHECK(says(message(dynatree({.budget = 21}), bytes), "of 20 drafted tokens a round at most", "here there are 21"));
  CHECK(says(message(dynatree({.budget = 20}), std::span(bytes).first(bytes.size() - 1)), "saved text is cut short"));
  CHECK(says(message(dynatree({.budget = 20}), {}), "no saved text"));
  std::vector<std::byte> rows;
  write_sequence(m.kv, 0, rows);
  CHECK(says(message(dynatree({.budget = 20}), rows), "are a saved sequence, not a saved text"));
  bytes.back() ^= std::byte{1};
  CHECK(says(message(dynatree({.budget = 20}), bytes), "saved text is damaged"));
}

TEST_CASE("rows of another kind of store are refused, and leave nothing behind") {
  contiguous_kv from(2, 4, 1, 8);
  from.append(0, 3);
  from.commit(0, std::vector<std::int32_t>{0, 1, 2});
  from.remember(0, 0, std::vector<token_id>{4, 0, 7});
  std::vector<std::byte> rows;
  write_sequence(from, 0, rows);
  token_kv to(8);
  CHECK(says(message_of<input_error>([&] { read_sequence(to, 0, rows); }), "of 2 layers, but here there are 0"));
  CHECK(to.size(0) == 0);
  CHECK(to.prefix(0).empty());
}

TEST_CASE("a text that does not fit a decoder is an error, and the one before stands") {
  two_models m;
  auto decode = m.decoder(chain(), target_only());
  decode.begin(prompt, {.max_tokens = 40}, sampled);
  decode.step();
  const auto saved = decode.save();
  const auto refused = [&](auto& other) {
    other.begin({{1, 2, 3}});
    other.step();
    const std::vector<token_id> before = copy(other.current().tokens());
    std::string what = message_of<error>([&] { other.load(saved); });
    CHECK(copy(other.current().tokens()) == before);
    CHECK(other.step());
    return what;
  };
  token_kv small(static_cast<std::int32_t>(saved.written.tokens().size())), usual(100);
  text_backend target(11, models::text_model{}), few(9, models::text_model{});
  auto few_tokens = make_decoder(prompt_lookup(), chain(), target_only(), usual, few);
  auto greedy_one = make_decoder(prompt_lookup(), chain(), greedy(), usual, target);
  auto longer_chain = make_decoder(prompt_lookup(), chain({.length = 6}), target_only(), usual, target);
  auto short_one = make_decoder(prompt_lookup(), chain(), target_only(), small, target);
  CHECK(says(refused(short_one), "tokens leaves no room to write in a context of"));
  CHECK(says(refused(few_tokens), "token 5 of the saved text is 9", "vocabulary ends at 8"));
  CHECK(says(refused(greedy_one), "temperature is 1", "greedy"));
  CHECK(says(refused(longer_chain), "drafts up to 5 tokens a round, but the decoder's 6"));
}

TEST_CASE("where no text has begun, that is saved, too") {
  two_models m;
  auto decode = decoder_of(m, chain());
  auto other = decoder_of(m, chain(), 1);
  other.begin(prompt, {.max_tokens = 9}, sampled);
  other.load(through_bytes(decode.save(), other));
  CHECK(other.current().state() == status::idle);
  CHECK_FALSE(other.step());
}

TEST_CASE("a text that goes on with equal options does not allocate in a round") {
  two_models m, n;
  auto decode = decoder_of(m, chain());
  auto other = decoder_of(n, chain());
  const auto piece = [](token_id) { return std::string_view("ab"); };
  other.begin(prompt, {.strings = {"no such text"}}, sampled);
  while (other.step(piece)) {
  }
  decode.begin(prompt, {.strings = {"no such text"}}, sampled);
  for (int i = 0; i < 3; ++i)
    decode.step(piece);
  other.load(decode.save());
  const allocation_count count;
  while (other.step(piece)) {
  }
  CHECK(count.so_far() == 0);
}
