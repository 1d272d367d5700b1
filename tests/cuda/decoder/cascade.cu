// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/cascade.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/block_model.cuh"
#include "cuda/decoder/named_verifier.cuh"
#include "cuda/decoder/same_text.cuh"
#include "cuda/decoder/text_model.cuh"
#include "cuda/support.cuh"
#include "drafter/marginal_drafter.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/cuda/backend/on_host.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/kv_store/on_host_kv.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/cuda/tree_policy/adaptive_chain.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/eagle2.cuh"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/processor/penalties.hpp"
#include "espalier/registry/chosen_verifier.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "raises.hpp"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_COUNTS_CALLS
#endif

namespace device = espalier::cuda;
using namespace espalier;
using espalier_test::device_text_backend;
using espalier_test::draft_model;
using espalier_test::setting;
using espalier_test::target_model;
using espalier_test::text_model;
using espalier_test::written;

namespace {

// Verifiers for trees that are not drawn.
using device_verifier = espalier_test::named_verifier<regime::deterministic>;
using host_verifier = chosen_verifier<regime::deterministic>;

constexpr dynatree_options tree_options{.budget = 14, .base_depth = 3, .max_depth = 5};
constexpr adaptive_chain_options run_options{.length = 3, .max_length = 9};
constexpr text_model other_model{.salt = 5, .own = 0.3F};

// What models and caches of both halves are for a decoder of some texts.
struct on_host {
  explicit on_host(const setting& s)
      : target(s.vocab, s.target_law),
        draft(s.vocab, s.draft_law),
        other(s.vocab, other_model),
        kv(s.context),
        draft_kv(s.draft_context),
        other_kv(s.context) {}
  text_backend<text_model> target, draft, other;
  token_kv kv, draft_kv, other_kv;
};
struct on_device {
  explicit on_device(const setting& s, std::int32_t texts = 1)
      : target(s.vocab, s.target_law, 64 * texts),
        draft(s.vocab, s.draft_law, 64 * texts),
        other(s.vocab, other_model, 64 * texts),
        kv(1, 1, texts, s.context),
        draft_kv(1, 1, texts, s.draft_context),
        other_kv(1, 1, texts, s.context) {}
  device_text_backend target, draft, other;
  device::contiguous_kv<float> kv, draft_kv, other_kv;
};

// A cascade of three policies: calls f(host's drafter, host's policy, device's drafter, device's policy).
template <class FunctionT>
void with_three_parts(const setting& s, on_host& h, on_device& d, const FunctionT& f) {
  const prompt_lookup_options look{.max_ngram = 2, .capacity = 90};
  const eagle2_options shape{.beam = 3, .depth = 2, .budget = 8};
  f(joint(autoregressive(h.draft, h.draft_kv, s.draft), autoregressive(h.other, h.other_kv), prompt_lookup(look)),
    cascade(eagle2(shape), dynatree(tree_options), adaptive_chain(run_options)),
    device::joint(device::autoregressive(d.draft, d.draft_kv, s.draft), device::autoregressive(d.other, d.other_kv),
                  device::prompt_lookup(look)),
    device::cascade{device::eagle2(shape), device::dynatree(tree_options), device::adaptive_chain(run_options)});
}

// Each kind of cascade, likewise.
template <class FunctionT>
void with_parts(int kind, const setting& s, on_host& h, on_device& d, const FunctionT& f) {
  const prompt_lookup_options look{.max_ngram = 2, .capacity = 90};
  const chain_options run{.length = 9};
  if (kind == 0) {
    f(joint(autoregressive(h.draft, h.draft_kv, s.draft), prompt_lookup(look)),
      cascade(dynatree(tree_options), chain(run)),
      device::joint(device::autoregressive(d.draft, d.draft_kv, s.draft), device::prompt_lookup(look)),
      device::cascade{device::dynatree(tree_options), device::chain(run)});
  } else if (kind == 1) {
    f(joint(prompt_lookup(look), autoregressive(h.draft, h.draft_kv, s.draft)),
      cascade(adaptive_chain(run_options), dynatree(tree_options)),
      device::joint(device::prompt_lookup(look), device::autoregressive(d.draft, d.draft_kv, s.draft)),
      device::cascade{device::adaptive_chain(run_options), device::dynatree(tree_options)});
  } else {
    with_three_parts(s, h, d, f);
  }
}

// A text that repeats before long, so that runs are accepted; a draft that goes by the whole text or, better, does not.
setting long_text(float temperature, bool drafts_well = true) {
  setting s;
  s.stop.max_tokens = 100;
  s.options.text.seed = 3;
  s.options.text.sampling.temperature = temperature;
  s.target_law.is_markov = true;
  s.draft_law.is_markov = drafts_well;
  return s;
}

// What a decoder wrote, and the trees that it came from.
struct written_by_trees {
  written text;
  std::vector<std::vector<token_id>> trees{};
  std::int32_t longest = 0;  // path that was accepted

  template <class DecoderT>
  void take(DecoderT& decode, const setting& s) {
    decode.begin(s.prompt, s.stop);
    while (decode.step()) {
      const auto& round = decode.last_round();
      text.rounds.emplace_back(round.committed.begin(), round.committed.end());
      trees.emplace_back();
      for (node_id u = 1; u < round.tree.n_nodes; ++u)
        trees.back().insert(trees.back().end(), {round.tree.parent[u], round.tree.token[u]});
      if (round.tree.n_nodes > 0) longest = (std::max)(longest, round.tree.depth[round.decision.accepted]);
    }
    text.end = decode.current().state();
  }
  friend bool operator==(const written_by_trees&, const written_by_trees&) = default;
};

written_by_trees host_text(int kind, const setting& s, const char* verifier) {
  on_host h(s);
  on_device d(s);
  written_by_trees text;
  with_parts(kind, s, h, d, [&](auto drafter, auto policy, const auto&, const auto&) {
    auto decode = make_decoder(drafter, policy, host_verifier(verifier), h.kv, h.target, s.options);
    text.take(decode, s);
  });
  return text;
}

written_by_trees device_text(int kind, const setting& s, const char* verifier, bool replay = true) {
  on_host h(s);
  on_device d(s);
  written_by_trees text;
  with_parts(kind, s, h, d, [&](const auto&, const auto&, auto&& drafter, auto&& policy) {
    decoder_options options = s.options;
    options.replay = replay;
    auto decode = device::make_decoder(drafter, std::move(policy), device_verifier{verifier}, d.kv, d.target, options);
    text.take(decode, s);
  });
  return text;
}

std::vector<token_id> tokens_of(const written_by_trees& written) {
  std::vector<token_id> tokens;
  for (const auto& round : written.text.rounds)
    tokens.insert(tokens.end(), round.begin(), round.end());
  return tokens;
}

setting numbered_text(std::int32_t i, float temperature) {
  setting s = long_text(temperature);
  s.prompt.clear();
  for (std::int32_t j = 0; j < 3 + 6 * i; ++j)
    s.prompt.push_back((j * 7 + (j < 8 ? 0 : i)) % 11);
  s.stop.max_tokens = 15 + 9 * (i % 3);
  s.options.text.seed = 7 + static_cast<std::uint64_t>(i);
  return s;
}

// Rows of a draft model's passes that were written where no page is, or where its store says that nothing is written.
struct misplaced {
  std::int32_t rows = 0;  // of all passes
  std::int32_t without_page = 0;
  std::int32_t told = 0;
};

// One thread. Rows without a page become padding.
template <class NumberT>
__global__ void find_misplaced(device::forward_batch_view batch, device::kv_view<NumberT> kv, std::int32_t n_told,
                               misplaced* found) {
  for (std::int32_t r = 0; r < batch.n_rows; ++r) {
    if (batch.sequence_of[r] < 0) continue;
    ++found->rows;
    const std::int32_t sequence = batch.sequences[batch.sequence_of[r]].sequence, slot = batch.slots[r];
    found->told += slot < n_told ? 1 : 0;
    if (kv.pages[sequence * kv.max_pages + slot / kv.page_size] >= 0) continue;
    ++found->without_page;
    const_cast<std::int32_t*>(batch.sequence_of)[r] = -1;
  }
}

struct watched_backend : device_text_backend {
  using device_text_backend::device_text_backend;

  template <class KVStoreT>
  auto forward(KVStoreT& kv, const device::forward_batch_view& batch, cudaStream_t stream) {
    device::launch("find_misplaced", find_misplaced<float>, {}, stream, batch, kv.view(),
                   static_cast<std::int32_t>(kv.prefix(0).size()), found.data());
    return device_text_backend::forward(kv, batch, stream);
  }

  device::device_array<misplaced> found{1};
};

void check_round_by_round(int kind, bool greedily, std::int32_t draft_context) {
  const bool drafts_well = draft_context == 150;
  CAPTURE(kind, greedily, draft_context, drafts_well);
  setting s = long_text(greedily ? 0.0F : 0.6F, drafts_well);
  s.draft_context = draft_context;
  const char* const verifier = greedily ? "greedy" : "target-only";
  const written_by_trees expected = host_text(kind, s, verifier);
  CHECK(device_text(kind, s, verifier, greedily || draft_context != 60) == expected);
  if (greedily) CHECK(expected.longest >= 8);  // more than a draft model's tree has
}

}  // namespace

TEST_CASE("Host and device write the same text by cascades, round by round") {
  const auto kind = GENERATE(0, 1, 2);
  check_round_by_round(kind, GENERATE(true, false), 150);
}

TEST_CASE("Host and device write the same text by cascades where a draft's context ends", "[long]") {
  const auto kind = GENERATE(0, 1, 2);
  const bool greedily = GENERATE(true, false);
  // Before the text, and before the first token.
  check_round_by_round(kind, greedily, GENERATE(60, 4));
}

TEST_CASE("A text by a cascade is the same among others as alone", "[long]") {
  const auto kind = GENERATE(0, 1, 2);
  CAPTURE(kind);
  constexpr std::int32_t max_texts = 3;
  const setting any = long_text(0.7F);
  on_host h(any);
  on_device d(any, max_texts);
  with_parts(kind, any, h, d, [&](const auto&, const auto&, auto&& drafter, auto&& policy) {
    auto decode = device::make_batch_decoder(drafter, std::move(policy), device_verifier{"target-only"}, d.kv, d.target,
                                             {.max_texts = max_texts, .prefill_rows = 6});
    std::map<text_id, std::vector<token_id>> texts;
    std::vector<text_id> ids;
    const auto add = [&](std::int32_t i) {
      const setting s = numbered_text(i, 0.7F);
      ids.push_back(decode.add(s.prompt, s.stop, s.options.text));
    };
    const auto step = [&] {
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        texts[e.id].insert(texts[e.id].end(), e.round.committed.begin(), e.round.committed.end());
      }
    };
    for (std::int32_t i = 0; i < 4; ++i)
      add(i);
    for (int i = 0; i < 3; ++i)
      step();
    add(4);
    while (!decode.idle())
      step();
    for (std::int32_t i = 0; i < 5; ++i) {
      INFO("text " << i);
      CHECK(texts[ids[static_cast<std::size_t>(i)]] ==
            tokens_of(host_text(kind, numbered_text(i, 0.7F), "target-only")));
    }
  });
}

TEST_CASE("What all policies of a cascade have learnt goes with a text that loses its place", "[long]") {
  // The trees of each text, round by round, with pages for all texts or for half of them.
  using trees = std::vector<std::vector<std::int32_t>>;
  const auto written_with = [&](std::int32_t n_pages, int& preempted) {
    device_text_backend target(37, target_model, 200), draft(37, draft_model, 200);
    device::paged_kv<float> kv(1, 1, 4, 90, 4, n_pages), draft_kv(1, 1, 4, 90, 4, n_pages);
    auto decode = device::make_batch_decoder(
        device::joint(device::prompt_lookup({.max_ngram = 1}), device::autoregressive(draft, draft_kv)),
        device::cascade{device::adaptive_chain(run_options), device::dynatree(tree_options)}, device_verifier{"greedy"},
        kv, target, {.max_texts = 4});
    for (std::int32_t i = 0; i < 4; ++i)
      decode.add(numbered_text(i % 3, 0).prompt, {.max_tokens = 30 + i});
    trees all(4);
    while (!decode.idle()) {
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        auto& own = all[static_cast<std::size_t>(e.id)];
        own.push_back(e.round.tree.n_nodes);
        for (node_id u = 1; u < e.round.tree.n_nodes; ++u)
          own.push_back(e.round.tree.token[u]);
      }
      preempted += decode.last_step().preempted;
    }
    return all;
  };
  int before = 0, after = 0;
  const trees roomy = written_with(200, before), tight = written_with(44, after);
  CHECK(before == 0);
  CHECK(after > 0);
  CHECK(roomy == tight);
}

TEST_CASE("Merged trees are cut to what a pass has room for", "[long]") {
  const auto kind = GENERATE(0, 2);
  const auto max_rows = GENERATE(7, 20);
  const setting any = long_text(0);
  on_host h(any);
  on_device d(any, 4);
  with_parts(kind, any, h, d, [&](const auto&, const auto&, auto&& drafter, auto&& policy) {
    auto decode = device::make_batch_decoder(drafter, std::move(policy), device_verifier{"greedy"}, d.kv, d.target,
                                             {.max_texts = 4, .max_rows = max_rows});
    std::vector<text_id> ids;
    for (std::int32_t i = 0; i < 5; ++i) {
      const setting s = numbered_text(i, 0);
      ids.push_back(decode.add(s.prompt, s.stop, s.options.text));
    }
    std::int32_t drafted = 0;
    while (!decode.idle()) {
      std::int32_t rows = 0;
      for (const text_event& e : decode.step()) {
        REQUIRE(!e.error);
        rows += e.round.tree.n_nodes;
        drafted += e.round.tree.n_nodes - 1;
      }
      CHECK(rows <= max_rows);
    }
    CHECK(drafted > 0);
    for (std::int32_t i = 0; i < 5; ++i) {
      const auto found = decode.current(ids[static_cast<std::size_t>(i)]).written();
      CHECK(std::vector<token_id>(found.begin(), found.end()) ==
            tokens_of(host_text(kind, numbered_text(i, 0), "greedy")));
    }
  });
}

TEST_CASE("A block drafter and runs make one tree, as on the host") {
  setting s = long_text(0);
  s.stop.max_tokens = 60;
  const prompt_lookup_options look{.max_ngram = 2};
  const best_first_options shape{.budget = 9, .max_depth = 5};
  text_backend target(s.vocab, s.target_law);
  token_kv kv(s.context);
  written_by_trees expected;
  {
    const auto block = [&](std::span<const token_id> text, std::int32_t place) {
      return espalier_test::block_logits(draft_model, s.vocab, text, place);
    };
    auto decode = make_decoder(joint(marginal_drafter<float>(s.vocab, 5, block), prompt_lookup(look)),
                               cascade(best_first(shape), chain()), host_verifier("greedy"), kv, target, s.options);
    expected.take(decode, s);
  }
  on_device d(s);
  auto decode = device::make_decoder(
      device::joint(espalier_test::device_block_drafter(s.vocab, 5, draft_model), device::prompt_lookup(look)),
      device::cascade{device::best_first(shape), device::chain()}, device_verifier{"greedy"}, d.kv, d.target,
      s.options);
  written_by_trees text;
  text.take(decode, s);
  CHECK(text == expected);
}

TEST_CASE("Processors change the rows of each draft model of a joint") {
  setting s = long_text(0);
  s.stop.max_tokens = 60;
  const penalties process({.repetition = 1.4F, .frequency = 0.2F});
  on_host h(s);
  on_device d(s);
  with_three_parts(s, h, d, [&](auto host_drafter, auto host_policy, auto&& drafter, auto&& policy) {
    written_by_trees expected, text;
    auto on_the_host =
        make_decoder(host_drafter, host_policy, host_verifier("greedy"), h.kv, h.target, s.options, process);
    expected.take(on_the_host, s);
    auto decode =
        device::make_decoder(drafter, std::move(policy), device_verifier{"greedy"}, d.kv, d.target, s.options, process);
    text.take(decode, s);
    CHECK(tokens_of(text) == tokens_of(expected));
  });
}

namespace {

// A model of the host that throws in some of its passes, one of which is over a root.
struct failing : text_backend<text_model> {
  int* passes;
  failing(int& counted) : text_backend<text_model>(37, draft_model), passes(&counted) {}
  template <class KVStoreT>
  vocab_rows<float> forward(KVStoreT& kv, forward_batch_view batch) {
    const int pass = (*passes)++;
    if (pass >= 9 && pass < 15) raise<error>("the model is gone.");
    return text_backend<text_model>::forward(kv, batch);
  }
};

}  // namespace

TEST_CASE("What a draft model of the host throws in a joint is told, and the text goes on") {
  setting s = long_text(0);
  s.stop.max_tokens = 40;
  int passes = 0;
  on_device d(s);
  device::on_host draft(failing(passes), {.max_rows = 64, .max_columns = 64});
  device::on_host_kv draft_kv(token_kv(150, commit_mode::compact, 1), 1);
  auto decode = device::make_decoder(device::joint(device::prompt_lookup(), device::autoregressive(draft, draft_kv)),
                                     device::cascade{device::chain(), device::dynatree(tree_options)},
                                     device_verifier{"greedy"}, d.kv, d.target, s.options);
  decode.begin(s.prompt, s.stop);
  int failures = 0;
  for (bool more = true; more;) {
    try {
      more = decode.step();
    } catch (const error& e) {
      ++failures;
      CHECK(says(e.what(), "the model is gone."));
    }
  }
  CHECK(failures > 0);
  const auto found = decode.current().written();
  CHECK(std::vector<token_id>(found.begin(), found.end()) == tokens_of(host_text(0, s, "greedy")));
}

TEST_CASE("A draft model in pages writes rows that have one, after those that its cache has told") {
  const auto check = [](const auto& drafter_over, auto policy) {
    setting s;
    for (token_id t = 0; t < 40; ++t)
      s.prompt.push_back(7 * t % 11);
    watched_backend draft(s.vocab, s.draft_law, 128);
    device_text_backend target(s.vocab, s.target_law, 128);
    device::paged_kv<float> draft_kv(1, 1, 1, 200, 4);
    device::contiguous_kv<float> kv(1, 1, 1, 200);
    draft.found.fill_bytes(0, nullptr);
    auto&& drafter = drafter_over(draft, draft_kv);
    s.options.replay = false;
    auto decode = device::make_decoder(drafter, std::move(policy), device_verifier{"greedy"}, kv, target, s.options);
    written text;
    text.take(decode, s);
    const misplaced found = espalier_test::to_host(draft.found).at(0);
    CHECK(found.rows > 100);
    CHECK(found.without_page == 0);
    CHECK(found.told == 0);
  };
  const auto alone = [](auto& draft, auto& kv) { return device::autoregressive(draft, kv); };
  const auto beside_runs = [](auto& draft, auto& kv) {
    return device::joint(device::autoregressive(draft, kv), device::prompt_lookup());
  };
  constexpr eagle2_options rebuilt{.beam = 8, .depth = 6, .budget = 12};
  check(alone, device::dynatree(tree_options));
  check(alone, device::eagle2(rebuilt));
  check(beside_runs, device::cascade{device::eagle2(rebuilt), device::chain({.length = 2})});
  check(beside_runs, device::cascade{device::dynatree(tree_options), device::chain({.length = 9})});
}

#if defined(ESPALIER_TEST_COUNTS_CALLS)
TEST_CASE("A round by a cascade is one graph launch, two copies and one event") {
  const setting s = long_text(0);
  on_host h(s);
  on_device d(s);
  with_three_parts(s, h, d, [&](const auto&, const auto&, auto&& drafter, auto&& policy) {
    auto decode =
        device::make_decoder(drafter, std::move(policy), device_verifier{"greedy"}, d.kv, d.target, s.options);
    decode.begin(s.prompt, s.stop);
    for (int i = 0; i < 3; ++i)
      REQUIRE(decode.step());
    emulator::reset();
    REQUIRE(decode.step());
    CHECK(emulator::calls("cudaGraphLaunch") == 1);
    CHECK(emulator::calls("cudaMemcpyAsync") == 2);
    CHECK(emulator::calls("cudaEventRecord") == 1);
    for (const char* call : {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaMalloc",
                             "cudaMallocHost", "cudaFree", "cudaLaunchKernelEx", "cudaStreamBeginCapture"})
      CHECK(emulator::calls(call) == 0);
  });
}
#endif
