// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/selector/neural_delayed.cuh"

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/named_verifier.cuh"
#include "cuda/decoder/same_text.cuh"
#include "cuda/decoder/text_model.cuh"
#include "cuda/support.cuh"
#include "espalier/backend/text.hpp"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry/chosen_verifier.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "raises.hpp"
#include "selector/made_up_tensors.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::device_text_backend;
using espalier_test::named_verifier;
using espalier_test::text_model;

namespace espalier_test {

// Number i of the hidden state after a text: a function of the text, so that a row that is taken for another shows.
ESPALIER_HOST_DEVICE inline float state_number(std::uint32_t text, std::int32_t i) {
  return 6 * text_model::unit(text * 31U + static_cast<std::uint32_t>(i)) - 3;
}

// Writes the hidden states of a pass; a block works for a row.
template <class UnusedT = void>
ESPALIER_KERNEL void show_states(gpu::forward_batch_view batch, gpu::kv_view<float> kv, std::int32_t size,
                                 float* states) {
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  if (batch.sequence_of[row] < 0) return;
  const batch_sequence s = batch.sequences[batch.sequence_of[row]];
  std::uint32_t text = 17;
  const auto read = [&](std::int32_t slot) {
    text = text_model::extended(text, static_cast<token_id>(*kv.key(0, s.sequence, slot)));
  };
  for (std::int32_t i = 0; i < s.prefix; ++i)
    read(i);
  const std::uint32_t* mask = batch.mask + s.mask_begin + (row - s.row_begin) * s.mask_words;
  for (std::int32_t j = 0; j < s.mask_words * 32; ++j) {
    if ((mask[j / 32] >> (j % 32) & 1U) != 0) read(s.prefix + j);
  }
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < size; i += static_cast<std::int32_t>(blockDim.x))
    states[row * size + i] = state_number(text, i);
}

}  // namespace espalier_test

namespace {

using espalier_test::state_number;

// A text_backend whose hidden states are functions of the text.
struct showing_text {
  text_backend<text_model> inner;
  std::int32_t size;
  std::vector<std::uint32_t> texts{};
  mutable std::vector<float> state{};

  showing_text(std::int32_t vocab, text_model model, std::int32_t hidden) : inner(vocab, model), size(hidden) {}

  std::int32_t vocab_size() const { return inner.vocab_size(); }
  std::int32_t hidden_size() const { return size; }
  std::span<const float> hidden_state(std::int32_t row) const {
    state.resize(static_cast<std::size_t>(size));
    for (std::int32_t i = 0; i < size; ++i)
      state[static_cast<std::size_t>(i)] = state_number(texts[static_cast<std::size_t>(row)], i);
    return state;
  }

  logits_view forward(token_kv& kv, forward_batch_view batch) {
    const logits_view logits = inner.forward(kv, batch);
    texts.assign(static_cast<std::size_t>(batch.n_rows()), 17);
    for (const batch_sequence& s : batch.sequences) {
      for (std::int32_t r = s.row_begin; r < s.row_end; ++r) {
        std::uint32_t& text = texts[static_cast<std::size_t>(r)];
        for (std::int32_t i = 0; i < s.prefix; ++i)
          text = text_model::extended(text, kv.token(s.sequence, i));
        const auto mask = batch.mask_of(s, r);
        for (std::int32_t j = 0; j < 32 * s.mask_words; ++j) {
          if ((mask[static_cast<std::size_t>(j / 32)] >> (j % 32) & 1U) != 0)
            text = text_model::extended(text, kv.token(s.sequence, s.prefix + j));
        }
      }
    }
    return logits;
  }
};

// showing_text on the device.
class showing_device : public device_text_backend {
 public:
  showing_device(std::int32_t vocab, text_model model, std::int32_t max_rows, std::int32_t hidden)
      : device_text_backend(vocab, model, max_rows),
        size_(hidden),
        states_(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(hidden)) {
    states_.fill_bytes(0xFF, nullptr);
  }

  std::int32_t hidden_size() const { return size_; }
  const float* hidden_states() const { return states_.data(); }

  template <class KVStoreT>
  vocab_rows<float> forward(KVStoreT& kv, const gpu::forward_batch_view& batch, cudaStream_t stream) {
    const vocab_rows<float> logits = device_text_backend::forward(kv, batch, stream);
    gpu::launch("show_states", espalier_test::show_states<>,
                {.grid = static_cast<unsigned>(batch.n_rows), .threads = 32}, stream, batch, kv.view(), size_,
                states_.data());
    return logits;
  }

 private:
  std::int32_t size_;
  gpu::device_array<float> states_;
};
static_assert(gpu::detail::KeepsHiddenStates<showing_device>);

constexpr std::int32_t target_hidden = 40, draft_hidden = 6;

espalier::delayed_selector made_up_selector(selector_weights weights) {
  espalier::delayed_selector selector(target_hidden, draft_hidden, weights);
  made_up_tensors tensors;
  selector.read(tensors);
  return selector;
}

// Costs that depend on the length of the text, so that a wrong length shows.
cost_model made_up_costs() {
  return {{},
          {},
          {},
          cost_curve::of_grid({1, 8}, {0, 60}, {0.2, 1.4, 0.3, 1.6}),
          cost_curve::of_grid({1, 8}, {0, 40}, {0.5, 2.5, 0.7, 3})};
}

// The tokens of a round's tree, with their parents, and what was committed.
using round_told = std::tuple<std::vector<token_id>, std::vector<node_id>, std::vector<token_id>>;

round_told told(const round_record& round) {
  const auto n = static_cast<std::size_t>(round.tree.n_nodes);
  return {{round.tree.token, round.tree.token + n},
          {round.tree.parent, round.tree.parent + n},
          {round.committed.begin(), round.committed.end()}};
}

struct setting {
  std::int32_t vocab = 37;
  selector_weights weights = selector_weights::float32;
  sampling_options target{.temperature = 1}, draft{.temperature = 1};
  std::vector<token_id> prompt{3, 1, 4, 1, 2};
  std::int32_t context = 200;
  std::uint64_t seed = 1;
  bool is_sharp = false;

  text_model law(std::uint32_t salt) const { return {.salt = salt, .own = 0.3F, .sharpness = is_sharp ? 20.0F : 6.0F}; }
  decoder_options options() const { return {.text = {.sampling = target, .seed = seed}}; }
};

// Calls each(round) for all rounds of a text, which goes on twice: once after further tokens and once after none.
template <class DecoderT, class FunctionT>
void for_each_round(DecoderT& decode, const setting& s, const FunctionT& each) {
  decode.begin(s.prompt, {.max_tokens = 14});
  while (decode.step())
    each(decode.last_round());
  decode.resume(std::vector<token_id>{2, 3}, {.max_tokens = 7});
  while (decode.step())
    each(decode.last_round());
  decode.resume({}, {.max_tokens = 7});
  while (decode.step())
    each(decode.last_round());
}

constexpr const char* verifier = "traversal";

// The actions that the host's selector chose are counted in `chosen`.
std::vector<round_told> on_host(const setting& s, std::map<std::int32_t, int>* chosen = nullptr) {
  showing_text target(s.vocab, s.law(1), target_hidden), draft(s.vocab, s.law(2), draft_hidden);
  token_kv kv(s.context), draft_kv(s.context);
  autoregressive drafter(draft, draft_kv, s.draft);
  espalier::neural_delayed policy({}, made_up_selector(s.weights), made_up_costs());
  auto decode = make_decoder(drafter, std::move(policy),
                             chosen_verifier<espalier::neural_delayed<>::sampling>(verifier), kv, target, s.options());
  std::vector<round_told> all;
  for_each_round(decode, s, [&](const round_record& round) {
    all.push_back(told(round));
    if (chosen != nullptr && decode.policy().chosen()) ++(*chosen)[delayed_action::number(decode.policy().action())];
  });
  return all;
}

template <class FunctionT>
void with_device_decoder(const setting& s, gpu::neural_delayed policy, bool replay, const FunctionT& f) {
  const std::int32_t rows = policy.max_nodes() + 2;
  showing_device target(s.vocab, s.law(1), rows, target_hidden), draft(s.vocab, s.law(2), rows, draft_hidden);
  gpu::contiguous_kv<float> kv(1, 1, 1, s.context), draft_kv(1, 1, 1, s.context);
  decoder_options options = s.options();
  options.replay = replay;
  auto decode = gpu::make_decoder(gpu::autoregressive(draft, draft_kv, s.draft), std::move(policy),
                                  named_verifier<gpu::neural_delayed::sampling>{verifier}, kv, target, options);
  f(decode);
}

std::vector<round_told> on_device(const setting& s, bool replay = true) {
  std::vector<round_told> all;
  with_device_decoder(
      s, gpu::neural_delayed({}, made_up_selector(s.weights), made_up_costs()), replay,
      [&](auto& decode) { for_each_round(decode, s, [&](const round_record& round) { all.push_back(told(round)); }); });
  return all;
}

}  // namespace

TEST_CASE("The selector of the device chooses the host's trees, round by round") {
  const auto weights = GENERATE(selector_weights::float32, selector_weights::int4);
  std::map<std::int32_t, int> chosen;
  int rounds = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    constexpr std::int32_t vocabularies[] = {5, 37, 37, 2500};  // one, one and three blocks of sums
    setting s{.vocab = vocabularies[seed], .weights = weights, .seed = seed};
    s.target.temperature = 0.7F + 0.2F * static_cast<float>(seed);
    if (seed == 1) s.target.top_p = 0.9F;
    if (seed == 2) s.draft = {.temperature = 0.8F, .top_k = 4};
    if (seed == 2) s.is_sharp = true;
    const auto expected = on_host(s, &chosen);
    CAPTURE(seed);
    CHECK(on_device(s, seed != 1) == expected);
    rounds += static_cast<int>(expected.size());
  }
  int of_all = 0;
  for (const auto& [action, n] : chosen)
    of_all += n;
  CHECK(of_all > rounds / 2);  // most rounds were the selector's
  CHECK(chosen.size() >= 5);   // and it did not always say the same
}

TEST_CASE("The selector of the device chooses the host's trees at temperature 0 and after one token") {
  setting s;
  s.target.temperature = 0;
  s.prompt = {3};
  CHECK(on_device(s) == on_host(s));
  s.context = 27;  // the text ends where the context does
  CHECK(on_device(s) == on_host(s));
}

TEST_CASE("A selector chooses no tree beyond the largest that it may") {
  const delayed_options most{.paths = 2, .trunk = 1, .length = 3};
  setting s;
  gpu::neural_delayed policy({.paths = 1, .trunk = 0, .length = 2}, made_up_selector(s.weights), made_up_costs(), most);
  CHECK(policy.max_nodes() == 7);
  std::set<std::int32_t> drafted;
  with_device_decoder(s, std::move(policy), true, [&](auto& decode) {
    decode.begin(s.prompt, {.max_tokens = 24});
    while (decode.step()) {
      const tree_view tree = decode.last_round().tree;
      drafted.insert(tree.n_draws);
      for (node_id u = 0; u < tree.n_nodes; ++u)
        CHECK(tree.depth[u] <= 4);
    }
  });
  CHECK(*drafted.rbegin() <= 7);
  CHECK(drafted.size() > 1);
}

TEST_CASE("Texts that are served together have the trees that they have alone") {
  setting s;
  constexpr std::int32_t n = 3;
  gpu::neural_delayed policy({}, made_up_selector(s.weights), made_up_costs());
  const std::int32_t rows = n * (policy.max_nodes() + 1) + batch_options().prefill_rows;
  showing_device target(s.vocab, s.law(1), rows, target_hidden), draft(s.vocab, s.law(2), rows, draft_hidden);
  gpu::contiguous_kv<float> kv(1, 1, n, s.context), draft_kv(1, 1, n, s.context);
  auto decode = gpu::make_batch_decoder(gpu::autoregressive(draft, draft_kv, s.draft), std::move(policy),
                                        named_verifier<gpu::neural_delayed::sampling>{verifier}, kv, target,
                                        {.max_texts = n, .max_rows = rows});
  std::vector<setting> texts;
  std::map<text_id, std::vector<round_told>> written;
  std::vector<text_id> ids;
  for (std::int32_t i = 0; i < n; ++i) {
    setting one = s;
    one.seed = static_cast<std::uint64_t>(i);
    one.target.temperature = 0.8F + 0.1F * static_cast<float>(i);
    one.prompt.resize(static_cast<std::size_t>(2 + 3 * i), i);
    ids.push_back(decode.add(one.prompt, {.max_tokens = 10 + i}, one.options().text));
    texts.push_back(one);
  }
  while (!decode.idle()) {
    for (const text_event& e : decode.step()) {
      REQUIRE(!e.error);
      if (!e.round.committed.empty()) written[e.id].push_back(told(e.round));
    }
  }
  for (std::size_t i = 0; i < texts.size(); ++i) {
    std::vector<round_told> alone;
    with_device_decoder(texts[i], gpu::neural_delayed({}, made_up_selector(s.weights), made_up_costs()), true,
                        [&](auto& one) {
                          one.begin(texts[i].prompt, {.max_tokens = 10 + static_cast<std::int32_t>(i)});
                          while (one.step())
                            alone.push_back(told(one.last_round()));
                        });
    CAPTURE(i);
    CHECK(written[ids[i]] == alone);
  }
}

TEST_CASE("Models that a selector was not made for are refused when the decoder is made") {
  const setting s;
  const auto make = [&](std::int32_t of_target, std::int32_t of_draft, bool shows) {
    gpu::neural_delayed policy({}, made_up_selector(s.weights), made_up_costs());
    showing_device target(s.vocab, s.law(1), 50, of_target), draft(s.vocab, s.law(2), 50, of_draft);
    device_text_backend silent(s.vocab, s.law(2), 50);
    gpu::contiguous_kv<float> kv(1, 1, 1, s.context), draft_kv(1, 1, 1, s.context);
    const named_verifier<gpu::neural_delayed::sampling> named{verifier};
    if (shows) {
      gpu::make_decoder(gpu::autoregressive(draft, draft_kv, s.draft), std::move(policy), named, kv, target);
    } else {
      gpu::make_decoder(gpu::autoregressive(silent, draft_kv, s.draft), std::move(policy), named, kv, target);
    }
  };
  make(target_hidden, draft_hidden, true);
  CHECK(message_of<input_error>([&] { make(7, draft_hidden, true); }) ==
        "the target's hidden state has 7 numbers, but the selector was made for 40.");
  CHECK(message_of<input_error>([&] { make(target_hidden, 9, true); }) ==
        "the draft's hidden state has 9 numbers, but the selector was made for 6.");
  CHECK(message_of<input_error>([&] { make(target_hidden, draft_hidden, false); }) ==
        "the draft's hidden state has 0 numbers, but the selector was made for 6; this model keeps none "
        "(hidden_layers must list its last layer).");
  CHECK(message_of<option_error>([&] {
          gpu::neural_delayed({}, made_up_selector(s.weights), made_up_costs(), {.paths = 5, .trunk = 1, .length = 1});
        }) == "option most paths is 5, but must lie between 1 and 4.");
}
