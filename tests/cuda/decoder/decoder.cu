// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/decoder/decoder.cuh"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/block_model.cuh"
#include "cuda/decoder/device_text.cuh"
#include "cuda/decoder/named_verifier.cuh"
#include "cuda/decoder/same_text.cuh"
#include "cuda/decoder/text_model.cuh"
#include "drafter/marginal_drafter.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/cuda/registry.cuh"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry/chosen_verifier.hpp"
#include "raises.hpp"

namespace device = espalier::cuda;
using namespace espalier;
using espalier_test::block_logits;
using espalier_test::device_block_drafter;
using espalier_test::device_text;
using espalier_test::device_text_backend;
using espalier_test::draft_model;
using espalier_test::host_text;
using espalier_test::setting;
using espalier_test::target_model;
using espalier_test::text_model;
using espalier_test::written;

namespace espalier_test {

// The decoders of these policies are compiled with the pairs of the registry.
extern template written host_text(const part<chain, chain_options>&, std::string_view, const setting&);
extern template written host_text(const part<iid_paths, iid_paths_options>&, std::string_view, const setting&);
extern template written host_text(const part<delayed, delayed_options>&, std::string_view, const setting&);
extern template written host_text(const part<dyspec_greedy, dyspec_greedy_options>&, std::string_view, const setting&);
extern template written host_text(const part<dyspec_threshold, dyspec_threshold_options>&, std::string_view,
                                  const setting&);
extern template written host_text(const part<dynatree, dynatree_options>&, std::string_view, const setting&);
extern template written device_text(const part<iid_paths, iid_paths_options>&, std::string_view, const setting&, bool);
extern template written device_text(const part<delayed, delayed_options>&, std::string_view, const setting&, bool);
extern template written device_text(const part<dyspec_greedy, dyspec_greedy_options>&, std::string_view, const setting&,
                                    bool);
extern template written device_text(const part<dyspec_threshold, dyspec_threshold_options>&, std::string_view,
                                    const setting&, bool);
extern template written device_text(const part<dynatree, dynatree_options>&, std::string_view, const setting&, bool);

}  // namespace espalier_test

namespace {

// Verifiers for trees that are not drawn.
using device_verifier = espalier_test::named_verifier<regime::deterministic>;
using host_verifier = chosen_verifier<regime::deterministic>;

// The target of most decoders here: it counts the rows that are read for the cache alone, and may fail in one pass.
struct watched_backend : device_text_backend {
  using device_text_backend::device_text_backend;
  std::int32_t read_rows = 0;
  int passes = 0;
  int fail_at = -1;
  bool throws = false;  // or the logits of that pass are NaN

  template <class KVStoreT>
  vocab_rows<float> forward(KVStoreT& kv, const device::forward_batch_view& batch, cudaStream_t stream) {
    if (batch.n_outputs == 0) read_rows += batch.n_rows;
    if (throws && passes == fail_at) {
      ++passes;
      raise<error>("the model is gone.");
    }
    const vocab_rows<float> rows = device_text_backend::forward(kv, batch, stream);
    if (passes++ == fail_at)
      device::require(cudaMemsetAsync(const_cast<float*>(rows.data), 0xFF, 8, stream), "cudaMemsetAsync");
    return rows;
  }
};

}  // namespace

TEST_CASE("Options of both samplers, the order of rows and short contexts change nothing between host and device") {
  setting s;
  s.options.text.seed = 11;
  const auto which = GENERATE(0, 1, 2, 3, 4, 5);
  switch (which) {
    case 0:
      s.options.text.sampling = {.temperature = 0.7F, .top_k = 9};
      s.draft = {.temperature = 0.8F, .top_p = 0.9F};
      break;
    case 1:
      s.options.text.sampling = {.temperature = 1.2F, .top_p = 0.8F, .min_p = 0.05F};
      s.options.order = node_order::depth_first;
      break;
    case 2:
      s.options.text.sampling = {.temperature = 1};
      s.context = 24;
      s.stop.max_tokens = 200;
      s.options.order = node_order::heavy_path;
      break;
    case 3:
      s.options.text.sampling = {.temperature = 1};
      s.draft_context = 17;
      s.options.order = node_order::breadth_first;
      break;
    case 4:
      s.options.text.sampling = {.temperature = 1};
      s.prompt = {6};
      s.stop.max_tokens = 1;
      break;
    default:
      s.options.text.sampling = {.temperature = 1};
      s.prompt = {6};
      s.stop.tokens = {2, 9};
  }
  INFO("case " << which);
  const part<iid_paths, iid_paths_options> paths{"iid-paths", "", {.paths = 3, .length = 4}};
  CHECK(device_text(paths, "traversal", s) == host_text(paths, "traversal", s));
  const part<dyspec_greedy, dyspec_greedy_options> dyspec{"dyspec-greedy", "", {.budget = 9}};
  CHECK(device_text(dyspec, "residual-walk", s) == host_text(dyspec, "residual-walk", s));
}

TEST_CASE("A context shorter than a policy's lists of nodes changes nothing between host and device") {
  setting s;
  s.context = 24;
  s.stop.max_tokens = 200;
  const part<dynatree, dynatree_options> breadth_first{"dynatree", ""};
  CHECK(device_text(breadth_first, "greedy", s) == host_text(breadth_first, "greedy", s));
  s.options.text.sampling = {.temperature = 1};
  const part<delayed, delayed_options> paths{"delayed", "", {.paths = 40, .trunk = 1, .length = 3}};
  CHECK(device_text(paths, "traversal", s) == host_text(paths, "traversal", s));
  const part<dyspec_threshold, dyspec_threshold_options> threshold{"dyspec-threshold", "", {.threshold = 0.01F}};
  CHECK(device_text(threshold, "residual-walk", s) == host_text(threshold, "residual-walk", s));
}

TEST_CASE("Options that the device refuses leave the text as it stands") {
  constexpr std::int32_t vocab = 1500;
  watched_backend target(vocab, target_model, 4);
  device::contiguous_kv<float> kv(1, 1, 1, 64);
  auto decode = device::make_decoder(device::no_drafter(), device::plain(), device_verifier{"target-only"}, kv, target,
                                     {.text = {.sampling = {.temperature = 1}, .seed = 3}});
  const std::vector<token_id> prompt{3, 1, 4};
  const std::vector<token_id> expected = [&] {
    const auto text = decode.generate(prompt, {.max_tokens = 6});
    return std::vector<token_id>(text.begin(), text.end());
  }();
  decode.begin(prompt, {.max_tokens = 6});
  REQUIRE(decode.step());
  for (int i = 0; i < 2; ++i) {
    const text_options refused{.sampling = {.temperature = 1, .top_k = 1200}};
    CHECK(says(message_of<option_error>([&] { decode.begin(prompt, {}, refused); }), "top_k on the device is 1200"));
  }
  while (decode.step()) {
  }
  const auto text = decode.current().written();
  CHECK(std::vector<token_id>(text.begin(), text.end()) == expected);
}

TEST_CASE("To resume where no text has begun is to begin one, and reading alone is no round") {
  watched_backend target(37, target_model, 4);
  device::contiguous_kv<float> kv(1, 1, 1, 64);
  auto decode = device::make_decoder(device::no_drafter(), device::plain(), device_verifier{"target-only"}, kv, target,
                                     {.text = {.sampling = {.temperature = 1}, .seed = 9}});
  const std::vector<token_id> prompt{3, 1, 4};
  decode.resume(prompt, {.max_tokens = 5});
  CHECK(decode.current().seed() == 9);
  int rounds = 0;
  decode.generate(prompt, {.max_tokens = 0}, [&](const round_record&) { ++rounds; });
  CHECK(rounds == 0);
}

TEST_CASE("Trees from the marginals of a block are the same on host and device") {
  const auto seed = GENERATE(1U, 2U, 3U);
  const auto greedily = GENERATE(true, false);
  setting s;
  s.options.text.seed = seed;
  s.options.text.sampling.temperature = greedily ? 0.0F : 1.0F;
  const part<best_first, best_first_options> policy{"best-first", "", {.budget = 20, .max_depth = 6}};
  const char* const verifier = greedily ? "greedy" : "target-only";
  text_backend target(s.vocab, target_model);
  token_kv kv(s.context);
  marginal_drafter<float> marginals(s.vocab, 6, [&](std::span<const token_id> text, std::int32_t place) {
    return block_logits(draft_model, s.vocab, text, place);
  });
  auto on_host = make_decoder(marginals, policy.make(), host_verifier(verifier), kv, target, s.options);
  written expected;
  expected.take(on_host, s);

  device_text_backend device_target(s.vocab, target_model, 64);
  device_block_drafter drafter(s.vocab, 6, draft_model);
  auto on_device = device::make_decoder(drafter, device::make_on_device(policy), device_verifier{verifier},
                                        device::contiguous_kv<float>(1, 1, 1, s.context), device_target, s.options);
  written text;
  text.take(on_device, s);
  CHECK(text == expected);
}

TEST_CASE("Runs that are looked up in the text make the same text on host and device") {
  const auto vocab = GENERATE(3, 12);
  const auto greedily = GENERATE(true, false);
  setting s;
  s.vocab = vocab;
  s.stop.max_tokens = 120;
  s.prompt = {1, 2, 0, 1, 2};
  s.options.text.seed = 5;
  s.options.text.sampling.temperature = greedily ? 0.0F : 0.5F;
  const prompt_lookup_options options{.capacity = 130};
  const char* const verifier = greedily ? "greedy" : "target-only";
  const auto compare = [&](const auto& policy) {
    text_backend target(s.vocab, target_model);
    token_kv kv(s.context);
    auto on_host = make_decoder(prompt_lookup(options), policy.make(), host_verifier(verifier), kv, target, s.options);
    written expected;
    expected.take(on_host, s);
    device_text_backend device_target(s.vocab, target_model, 64);
    auto on_device =
        device::make_decoder(device::prompt_lookup(options), device::make_on_device(policy), device_verifier{verifier},
                             device::contiguous_kv<float>(1, 1, 1, s.context), device_target, s.options);
    written text;
    text.take(on_device, s);
    CHECK(text == expected);
    // What was drafted was worth something.
    CHECK(text.rounds.size() < 120);
  };
  const part<chain, chain_options> run{"chain", "", {.length = 6}};
  const part<adaptive_chain, adaptive_chain_options> adaptive{"adaptive-chain", "", {.length = 4, .max_length = 9}};
  compare(run);
  compare(adaptive);
}

TEST_CASE("A text goes on, and another begins, with what the caches hold of it") {
  setting s;
  s.options.text.sampling.temperature = 1;
  s.stop.max_tokens = 13;
  const part<chain, chain_options> policy{"chain", "", {.length = 4}};
  watched_backend target(s.vocab, target_model, 8);
  device_text_backend draft(s.vocab, draft_model, 8);
  device::paged_kv<float> kv(1, 1, 1, s.context, 16), draft_kv(1, 1, 1, s.context, 8);
  auto on_device =
      device::make_decoder(device::autoregressive(draft, draft_kv, s.draft), device::make_on_device(policy),
                           device_verifier{"target-only"}, kv, target, s.options);
  text_backend host_target(s.vocab, target_model), host_draft(s.vocab, draft_model);
  token_kv host_kv(s.context), host_draft_kv(s.context);
  auto on_host = make_decoder(autoregressive(host_draft, host_draft_kv, s.draft), policy.make(),
                              host_verifier("target-only"), host_kv, host_target, s.options);

  const auto same = [&] {
    while (on_host.step()) {
    }
    while (on_device.step()) {
    }
    const auto a = on_host.current().tokens(), b = on_device.current().tokens();
    CHECK(std::vector(a.begin(), a.end()) == std::vector(b.begin(), b.end()));
  };
  on_host.begin(s.prompt, s.stop);
  on_device.begin(s.prompt, s.stop);
  same();
  const std::vector<token_id> turn{8, 8, 2};
  on_host.resume(turn, s.stop);
  on_device.resume(turn, s.stop);
  same();
  const std::vector<token_id> other{3, 1, 4, 9};
  on_host.begin(other, s.stop);
  on_device.begin(other, s.stop);
  same();
}

TEST_CASE("Decoders take turns with a cache and a backend, text by text") {
  setting s;
  s.options.text.sampling.temperature = 1;
  s.stop = {.max_tokens = 40, .tokens = {2, 9, 11}};
  const part<chain, chain_options> policy{"chain", "", {.length = 4}};
  watched_backend target(s.vocab, target_model, 8);
  device_text_backend draft(s.vocab, draft_model, 8);
  device::contiguous_kv<float> kv(1, 1, 1, s.context), draft_kv(1, 1, 1, s.context);
  const auto make = [&] {
    return device::make_decoder(device::autoregressive(draft, draft_kv, s.draft), device::make_on_device(policy),
                                device_verifier{"target-only"}, kv, target, s.options);
  };
  auto a = make(), b = make();
  setting other = s;
  other.prompt = {3, 1, 4, 9, 9, 8};
  for (int turn = 0; turn < 2; ++turn) {
    written by_a, by_b;
    by_a.take(a, s);
    by_b.take(b, other);
    CHECK(by_a == host_text(policy, "target-only", s));
    CHECK(by_b == host_text(policy, "target-only", other));
  }
}

TEST_CASE("Another decoder goes on with a filled cache, and what it writes into a text in the middle is noticed") {
  setting s;
  s.stop.max_tokens = 12;
  watched_backend target(s.vocab, target_model, 8);
  device::contiguous_kv<float> kv(1, 1, 1, s.context);
  const auto make = [&] {
    return device::make_decoder(device::no_drafter(), device::plain(), device_verifier{"target-only"}, kv, target,
                                s.options);
  };
  auto a = make(), b = make();
  written first, again;
  first.take(a, s);
  CHECK(target.read_rows == static_cast<std::int32_t>(s.prompt.size()) - 1);
  target.read_rows = 0;
  again.take(b, s);
  CHECK(again == first);
  CHECK(target.read_rows == 0);

  // B writes where A has begun: before A's first step, and between two of its rounds.
  setting other = s;
  other.prompt.assign(s.prompt.size() + 5, 8);
  written of_other;
  a.begin(s.prompt, s.stop);
  of_other.take(b, other);
  while (a.step()) {
  }
  const auto is_first = [&] {
    std::vector<token_id> expected;
    for (const auto& round : first.rounds)
      expected.insert(expected.end(), round.begin(), round.end());
    const auto text = a.current().written();
    return std::vector<token_id>(text.begin(), text.end()) == expected;
  };
  CHECK(is_first());
  a.begin(s.prompt, s.stop);
  REQUIRE(a.step());
  of_other.take(b, other);
  CHECK(says(message_of<input_error>([&] { a.step(); }), "sequence 0 of the cache holds another text from token 0 on"));
  while (a.step()) {
  }
  CHECK(is_first());
}

TEST_CASE("Texts that begin alike share pages, and each is written as if it were alone") {
  setting s;
  s.prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9};
  s.options.text.sampling.temperature = 1;
  s.stop.max_tokens = 12;
  const part<chain, chain_options> policy{"chain", "", {.length = 4}};
  watched_backend target(s.vocab, target_model, 8);
  device_text_backend draft(s.vocab, draft_model, 8);
  const auto make = [&](device::paged_kv<float>& kv, device::paged_kv<float>& draft_kv, std::int32_t sequence) {
    decoder_options options = s.options;
    options.sequence = sequence;
    return device::make_decoder(device::autoregressive(draft, draft_kv, s.draft, sequence),
                                device::make_on_device(policy), device_verifier{"target-only"}, kv, target, options);
  };
  device::paged_kv<float> kv(1, 1, 3, s.context, 4), draft_kv(1, 1, 3, s.context, 4);
  auto a = make(kv, draft_kv, 0), b = make(kv, draft_kv, 1), c = make(kv, draft_kv, 2);
  const auto alone = [&](std::int32_t sequence, const setting& of) {
    device::paged_kv<float> own(1, 1, 3, s.context, 4), own_draft(1, 1, 3, s.context, 4);
    auto decode = make(own, own_draft, sequence);
    written text;
    text.take(decode, of);
    return text;
  };
  const auto adopt = [&](std::int32_t sequence, const std::vector<token_id>& tokens) {
    const std::int32_t n = kv.adopt(sequence, std::span(tokens).first(tokens.size() - 1), nullptr);
    device::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return n;
  };
  setting other = s, third = s;
  other.prompt.back() = 0;
  other.prompt.push_back(1);
  third.prompt.resize(10);
  third.prompt.push_back(0);

  written by_a, by_b, by_c;
  by_a.take(a, s);
  target.read_rows = 0;
  CHECK(adopt(1, s.prompt) == 14);
  CHECK(adopt(2, other.prompt) == 14);
  b.begin(s.prompt, s.stop);
  REQUIRE(b.step());
  by_c.take(c, other);  // B's text is in the middle
  CHECK(target.read_rows == 1);
  CHECK(by_c == alone(2, other));
  while (b.step()) {
  }
  const written expected = alone(1, s);
  std::vector<token_id> tokens;
  for (const auto& round : expected.rounds)
    tokens.insert(tokens.end(), round.begin(), round.end());
  CHECK(std::vector<token_id>(b.current().written().begin(), b.current().written().end()) == tokens);
  // A goes back to where all begin alike.
  by_a = {};
  by_a.take(a, third);
  CHECK(by_a == alone(0, third));
  by_b.take(b, s);
  CHECK(by_b == expected);
}

TEST_CASE("A text takes no more pages than its rows need") {
  setting s;
  s.stop.max_tokens = 10;
  const part<chain, chain_options> policy{"chain", "", {.length = 4}};
  watched_backend target(s.vocab, target_model, 8);
  device_text_backend draft(s.vocab, draft_model, 8);
  // 15 tokens, and what two rounds under way may add.
  device::paged_kv<float> kv(1, 1, 1, 1000, 16, 2), draft_kv(1, 1, 1, 1000, 16, 2);
  auto decode = device::make_decoder(device::autoregressive(draft, draft_kv, s.draft), device::make_on_device(policy),
                                     device_verifier{"greedy"}, kv, target, s.options);
  written text;
  text.take(decode, s);
  CHECK(text == host_text(policy, "greedy", s));
}

namespace {

void check_what_is_learnt(std::uint64_t seed) {
  setting s;
  s.options.text.seed = seed;
  s.options.text.sampling.temperature = 0.7F;
  s.stop.max_tokens = 7;
  s.turns = 8;
  const part<dynatree, dynatree_options> policy{"dynatree", "", {.budget = 12}};
  CHECK(device_text(policy, "target-only", s).tokens() == host_text(policy, "target-only", s).tokens());
}

}  // namespace

TEST_CASE("What a policy learns from is what was committed") {
  check_what_is_learnt(GENERATE(range(1U, 7U)));
}

TEST_CASE("What a policy learns from is what was committed, in many texts", "[long]") {
  check_what_is_learnt(GENERATE(range(7U, 25U)));
}

TEST_CASE("Parts that do not fit the device are refused with a sentence") {
  setting s;
  const auto decoder_of = [&](std::int32_t rows, float temperature, std::int32_t draft_vocab) {
    device_text_backend target(s.vocab, target_model, rows), draft(draft_vocab, draft_model, 8);
    s.options.text.sampling.temperature = temperature;
    auto decode = device::make_decoder(device::autoregressive(draft, device::contiguous_kv<float>(1, 1, 1, 64)),
                                       device::chain(chain_options{.length = 4}), greedy(),
                                       device::contiguous_kv<float>(1, 1, 1, 64), target, s.options);
    decode.begin(s.prompt);
  };
  CHECK_NOTHROW(decoder_of(5, 0, s.vocab));
  CHECK(says(message_of<option_error>([&] { decoder_of(4, 0, s.vocab); }), "passes of 5 rows", "at most 4"));
  CHECK(says(message_of<option_error>([&] { decoder_of(5, 1, s.vocab); }), "temperature is 1", "must be 0"));
  CHECK(says(message_of<input_error>([&] { decoder_of(5, 0, 9); }), "9 tokens", "share one vocabulary"));
}

TEST_CASE("A round that fails leaves the text at its last token, and nothing is lost or doubled") {
  setting s;
  s.options.text.sampling.temperature = 1;
  const auto throws = GENERATE(false, true);
  const auto fail_at = GENERATE(1, 2, 4);
  const part<chain, chain_options> policy{"chain", "", {.length = 3}};
  const written expected = host_text(policy, "target-only", s);

  watched_backend target(s.vocab, target_model, 8);
  target.fail_at = fail_at;
  target.throws = throws;
  device_text_backend draft(s.vocab, draft_model, 8);
  device::contiguous_kv<float> kv(1, 1, 1, s.context), draft_kv(1, 1, 1, s.context);
  decoder_options options = s.options;
  options.replay = false;
  auto decode = device::make_decoder(device::autoregressive(draft, draft_kv, s.draft), device::make_on_device(policy),
                                     device_verifier{"target-only"}, kv, target, options);
  decode.begin(s.prompt, s.stop);
  written text;
  int failures = 0;
  for (bool more = true; more;) {
    const std::size_t before = decode.current().tokens().size();
    try {
      more = decode.step();
      if (more) {
        const auto committed = decode.last_round().committed;
        text.rounds.emplace_back(committed.begin(), committed.end());
        text.limits.push_back(decode.last_round().limited_by);
      }
    } catch (const error& e) {
      ++failures;
      CHECK(says(e.what(), throws ? "the model is gone." : "the target's logit of token 0 after node 0 (the pending"));
      CHECK(decode.current().tokens().size() == before);
    }
  }
  text.end = decode.current().state();
  CHECK(failures == 1);
  CHECK(text == expected);
}
