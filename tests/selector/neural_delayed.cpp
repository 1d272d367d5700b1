// SPDX-License-Identifier: BSL-1.0
#include "espalier/selector/neural_delayed.hpp"
#include "espalier/decoder/grow.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "raises.hpp"
#include "selector/made_up_tensors.hpp"
#include "text_models.hpp"

using namespace espalier;

namespace {

constexpr std::int32_t vocab = 9, target_hidden = 6, draft_hidden = 4;

// Keeps what it was shown, and chooses as it is told.
struct listening_selector {
  struct seen {
    std::vector<float> target_hidden, previous, root;
    std::array<float, selector_features::n_scalars> scalars;
  };
  std::vector<seen>* heard;
  delayed_options choice{.paths = 2, .trunk = 1, .length = 2};

  std::int32_t target_hidden_size() const { return target_hidden; }
  std::int32_t draft_hidden_size() const { return draft_hidden; }
  std::int32_t choose(const selector_features& f) {
    const auto copy = [](std::span<const float> x) { return std::vector<float>(x.begin(), x.end()); };
    heard->push_back({copy(f.target_hidden), copy(f.draft_hidden_prev), copy(f.draft_hidden_root), f.scalars});
    return delayed_action::number(choice);
  }
};

// A hidden state that is a function of the text up to a position.
void add_state(std::span<const token_id> text, std::int32_t n, std::vector<float>& to) {
  std::uint64_t key = 17;
  for (const token_id t : text)
    key = models::mixed(key ^ static_cast<std::uint64_t>(t));
  for (std::int32_t i = 0; i < n; ++i)
    to.push_back(static_cast<float>(models::mixed_unit(key + static_cast<std::uint64_t>(i))));
}
std::vector<float> state_of(std::span<const token_id> text, std::int32_t n) {
  std::vector<float> state;
  add_state(text, n, state);
  return state;
}

// A text_backend with hidden states, made while it writes the logits.
struct stateful_model {
  models::text_model model;
  std::int32_t hidden;
  std::vector<float>* states;
  void operator()(std::span<const token_id> text, std::span<float> logits) const {
    model(text, logits);
    add_state(text, hidden, *states);
  }
};

struct stateful_backend {
  explicit stateful_backend(models::text_model model, std::int32_t n)
      : hidden(n), inner(vocab, stateful_model{model, n, &states}) {
    states.reserve(1 << 16);
  }
  std::int32_t hidden;
  std::vector<float> states{};
  std::vector<std::int32_t> place{};
  text_backend<stateful_model> inner;

  std::int32_t vocab_size() const { return vocab; }
  logits_view forward(token_kv& kv, forward_batch_view batch) {
    states.clear();
    place.assign(static_cast<std::size_t>(batch.n_rows()), -1);
    for (std::size_t i = 0; i < batch.outputs.size(); ++i)
      place[static_cast<std::size_t>(batch.outputs[i])] = static_cast<std::int32_t>(i);
    return inner.forward(kv, batch);
  }
  std::int32_t hidden_size() const { return hidden; }
  std::span<const float> hidden_state(std::int32_t row) const {
    const std::int32_t i = place[static_cast<std::size_t>(row)];
    if (i < 0) return std::span(states).first(static_cast<std::size_t>(hidden));
    return std::span(states).subspan(static_cast<std::size_t>(i * hidden), static_cast<std::size_t>(hidden));
  }
};

const cost_model costs{"", "", "", cost_curve::linear(0.25, 1), cost_curve::linear(2, 1)};
constexpr sampling_options sampling{.temperature = 0.8F, .top_p = 0.9F};
const models::text_model target_model{.seed = 3}, draft_model{.seed = 3, .noise = 0.5};

std::vector<float> softmax_of(const models::text_model& model, std::span<const token_id> text) {
  std::vector<float> row(vocab);
  model(text, row);
  softmax(row, sampling.temperature, row, 0);
  return row;
}

std::vector<float> drawn_from(const models::text_model& model, std::span<const token_id> text) {
  std::vector<float> logits(vocab), row(vocab);
  model(text, logits);
  sampler sample(sampling);
  sample.reserve(vocab);
  sample.probabilities(logits, row, 0);
  return row;
}

}  // namespace

TEST_CASE("a selector hears of the text, of what both models said before, and of the draft at the root") {
  std::vector<listening_selector::seen> heard;
  stateful_backend target(target_model, target_hidden), draft(draft_model, draft_hidden);
  token_kv kv(200), draft_kv(200);
  autoregressive drafter(draft, draft_kv, sampling);
  auto decode =
      make_decoder(drafter, neural_delayed({.paths = 1, .trunk = 2, .length = 0}, listening_selector{&heard}, costs),
                   specinfer(), kv, target, {.text = {.sampling = sampling, .seed = 4}});
  const std::vector<token_id> prompt{1, 2, 3, 4};
  decode.begin(prompt, {.max_tokens = 40});
  int rounds = 0, compared = 0;
  while (decode.current().state() == status::running) {
    const std::vector<token_id> text(decode.current().tokens().begin(), decode.current().tokens().end());
    const std::size_t before = heard.size();
    decode.step();
    ++rounds;
    if (rounds == 1) CHECK(heard.empty());
    if (heard.size() == before) continue;
    ++compared;
    const std::span<const token_id> all(text), earlier = all.first(text.size() - 1);
    const listening_selector::seen& s = heard.back();
    CHECK(s.target_hidden == state_of(earlier, target_hidden));
    CHECK(s.previous == state_of(earlier, draft_hidden));
    CHECK(s.root == state_of(all, draft_hidden));
    selector_features expected;
    const std::vector<float> p = softmax_of(target_model, earlier), q = drawn_from(draft_model, earlier),
                             root = drawn_from(draft_model, all);
    expected.set_divergences(std::span<const float>(p), std::span<const float>(q), std::span<const float>(root));
    expected.set_text(static_cast<std::int32_t>(text.size()), sampling);
    expected.set_seconds(0.25, 2);
    for (std::size_t i = 0; i < expected.scalars.size(); ++i) {
      INFO(selector_features::scalar_names[i] << " in round " << rounds);
      CHECK(s.scalars[i] == Approx(expected.scalars[i]).epsilon(1e-5).margin(1e-6));
    }
  }
  CHECK(compared > 5);
  CHECK(compared >= rounds - 2);  // not in the first, nor where nothing more may be drafted
}

TEST_CASE("the tree is the chosen one, and the choice can be read") {
  for (const delayed_options choice :
       {delayed_options{.paths = 1, .trunk = 0, .length = 0}, delayed_options{.paths = 3, .trunk = 1, .length = 2},
        delayed_options{.paths = 4, .trunk = 8, .length = 8}}) {
    std::vector<listening_selector::seen> heard;
    stateful_backend target(target_model, target_hidden), draft(draft_model, draft_hidden);
    token_kv kv(300), draft_kv(300);
    autoregressive drafter(draft, draft_kv, {.temperature = 1});
    auto decode = make_decoder(
        drafter, neural_delayed({.paths = 1, .trunk = 2, .length = 0}, listening_selector{&heard, choice}, costs),
        specinfer(), kv, target, {.text = {.sampling = {.temperature = 1}, .seed = 4}});
    const auto& policy = decode.policy();
    decode.begin(std::vector<token_id>{1, 2, 3, 4}, {.max_tokens = 100});
    decode.step();
    CHECK(decode.last_round().tree.n_draws == 2);
    CHECK_FALSE(policy.chosen());
    decode.step();
    CHECK(policy.chosen());
    CHECK(delayed_action::number(policy.action()) == delayed_action::number(choice));
    CHECK(decode.last_round().tree.n_draws == choice.trunk + choice.paths * choice.length);
  }
}

TEST_CASE("no round allocates with the network in it") {
  delayed_selector network(target_hidden, draft_hidden, selector_weights::int4);
  made_up_tensors tensors;
  network.read(tensors);
  stateful_backend target(target_model, target_hidden), draft(draft_model, draft_hidden);
  token_kv kv(300), draft_kv(300);
  autoregressive drafter(draft, draft_kv, sampling);
  auto decode = make_decoder(drafter, neural_delayed({}, network, costs), specinfer(), kv, target,
                             {.text = {.sampling = sampling, .seed = 4}});
  const std::vector<token_id> prompt{1, 2, 3, 4};
  const auto write = [&] {
    int rounds = 0;
    decode.begin(prompt, {.max_tokens = 200});
    const allocation_count count;
    for (; decode.step(); ++rounds) {
    }
    CHECK(rounds > 10);
    CHECK(decode.policy().chosen());
    return count.so_far();
  };
  write();  // the backends take memory when they first see a large batch, the policy when it first reads
  CHECK(write() == 0);
}

TEST_CASE("without open() a policy with a selector grows the options' tree") {
  std::vector<listening_selector::seen> heard;
  neural_delayed policy({.paths = 2, .trunk = 1, .length = 2}, listening_selector{&heard}, costs);
  stateful_backend draft(draft_model, draft_hidden);
  token_kv draft_kv(100);
  autoregressive drafter(draft, draft_kv, {.temperature = 1});
  drafter.keep_states();
  drafter.reserve(policy.max_nodes());
  const std::vector<token_id> text{1, 2, 3};
  drafter.begin(text);
  tree<> grown(policy.max_nodes());
  grown.reset(text.back());
  philox_chance chance(1, 0, 0);
  espalier::grow(policy, grown, drafter, chance);
  CHECK(grown.view().n_draws == 5);
  CHECK_FALSE(policy.chosen());
  CHECK(heard.empty());
  CHECK(policy.max_nodes() == 40);
}

TEST_CASE("a selector with a drafter that keeps no states, or with other states, is an error that says so") {
  std::vector<listening_selector::seen> heard;
  neural_delayed policy({}, listening_selector{&heard}, costs);
  testing::row_drafter stateless(3, [](auto) { return std::vector<double>{0.5, 0.25, 0.25}; });
  stateless.reserve(policy.max_nodes());
  tree<> grown(policy.max_nodes());
  grown.reset(0);
  philox_chance chance(1, 0, 0);
  CHECK(
      says(message_of<option_error>([&] { espalier::grow(policy, grown, stateless, chance); }), "drafter keeps none"));
  // Nothing is wrong where nothing can be chosen.
  grown.reset(0, 0);
  espalier::grow(policy, grown, stateless, chance);

  const auto refusal = [&](std::int32_t of_target, std::int32_t of_draft) {
    stateful_backend target(target_model, of_target), draft(draft_model, of_draft);
    token_kv kv(100), draft_kv(100);
    autoregressive drafter(draft, draft_kv, {.temperature = 1});
    auto decode = make_decoder(drafter, neural_delayed({}, listening_selector{&heard}, costs), specinfer(), kv, target,
                               {.text = {.sampling = {.temperature = 1}}});
    decode.begin(std::vector<token_id>{1, 2, 3, 4}, {.max_tokens = 30});
    return message_of<input_error>([&] {
      while (decode.step()) {
      }
    });
  };
  CHECK(says(refusal(7, draft_hidden), "target", "7 numbers", "made for 6"));
  CHECK(says(refusal(target_hidden, 3), "draft", "3 numbers", "made for 4"));
  CHECK(says(refusal(0, draft_hidden), "target", "0 numbers", "keeps none"));
  CHECK(refusal(target_hidden, draft_hidden).empty());
}

TEST_CASE("options outside the actions are refused by name") {
  CHECK(says(message_of<option_error>([] { neural_delayed<>({.paths = 5}); }), "paths", "5"));
  CHECK(says(message_of<option_error>([] { neural_delayed<>({.trunk = 9}); }), "trunk", "9"));
  CHECK(says(message_of<option_error>([] { neural_delayed<>({.length = -1}); }), "length", "-1"));
}
