// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/decoder/batch_decoder.cuh"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/block_model.cuh"
#include "cuda/decoder/named_verifier.cuh"
#include "cuda/decoder/same_text.cuh"
#include "cuda/decoder/text_model.cuh"
#include "espalier/cuda/backend/on_host.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/on_host_kv.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/cuda/registry.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/kv_store/token_kv.hpp"
#include "raises.hpp"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_COUNTS_CALLS
#endif

namespace device = espalier::cuda;
using namespace espalier;
using espalier_test::device_block_drafter;
using espalier_test::device_text_backend;
using espalier_test::draft_model;
using espalier_test::for_each_device_policy;
using espalier_test::host_text;
using espalier_test::named_verifier;
using espalier_test::setting;
using espalier_test::target_model;

namespace {

// Texts of unlike lengths, seeds, ends and samplings, some of which begin alike.
std::vector<setting> some_texts(std::int32_t n, float temperature) {
  std::vector<setting> all;
  for (std::int32_t i = 0; i < n; ++i) {
    setting s;
    s.prompt.clear();
    for (std::int32_t j = 0; j < 1 + 5 * i; ++j)
      s.prompt.push_back((j * 7 + (j < 8 ? 0 : i)) % 11);
    s.stop.max_tokens = 9 + 5 * (i % 3);
    s.options.text.seed = 7 + static_cast<std::uint64_t>(i);
    s.options.text.stream = static_cast<std::uint32_t>(i);
    if (temperature > 0) {
      s.options.text.sampling.temperature = temperature + 0.1F * static_cast<float>(i);
      if (i % 2 == 1) s.options.text.sampling.top_k = 12;
    }
    all.push_back(s);
  }
  return all;
}

template <class DecoderT>
text_id add(DecoderT& decode, const setting& s, std::int32_t priority = 0) {
  return decode.add(s.prompt, s.stop, s.options.text, {.priority = priority});
}

// What each text has written so far, as events have told it.
using told = std::map<text_id, std::vector<token_id>>;

template <class DecoderT>
void take(DecoderT& decode, told& texts) {
  for (const text_event& e : decode.step()) {
    REQUIRE(!e.error);
    texts[e.id].insert(texts[e.id].end(), e.round.committed.begin(), e.round.committed.end());
    CHECK(decode.current(e.id).state() == e.round.state);
  }
}

std::vector<token_id> tokens_of(const espalier_test::written& text) {
  std::vector<token_id> tokens;
  for (const auto& round : text.rounds)
    tokens.insert(tokens.end(), round.begin(), round.end());
  return tokens;
}

// Returns verifiers for trees of the policy of this name: each policy has one, and one has khisti too, which keeps
// memory of each text. All pairs are those of pairs_of_*.cu.
std::vector<std::string_view> chosen_verifiers(std::string_view policy) {
  static const std::map<std::string_view, std::vector<std::string_view>> chosen{
      {"plain", {"target-only"}},
      {"chain", {"greedy"}},
      {"adaptive-chain", {"greedy"}},
      {"sampled-chain", {"block-verification"}},
      {"iid-paths", {"traversal"}},
      {"specinfer-static", {"specinfer"}},
      {"delayed", {"spectr", "khisti"}},
      {"neural-delayed", {"traversal"}},
      {"fixed", {"target-only"}},
      {"eagle2", {"target-only"}},
      {"best-first", {"target-only"}},
      {"dynatree", {"target-only"}},
      {"dynatree-first", {"target-only"}},
      {"dyspec-greedy", {"residual-walk"}},
      {"dyspec-threshold", {"residual-walk"}},
      {"dyspec-adaptive", {"residual-walk"}},
      {"sequoia", {"residual-walk"}}};
  return chosen.at(policy);
}

// Options of a text's own, for smaller trees, as far as they may differ from the policy's.
template <class OptionsT>
void make_small(OptionsT& options) {
  if constexpr (requires { options.max_depth; }) options.max_depth = 2;
  if constexpr (requires { options.depth; }) options.depth = 2;
  if constexpr (requires { options.confidence; }) options.length = 3, options.confidence = 0.2;
  bool fills = false;
  if constexpr (requires { options.fill; }) fills = options.fill;
  if constexpr (requires { options.budget; }) {
    if (!fills) options.budget = 5;
  }
  if constexpr (requires { options.base_depth; }) options.base_depth = 2;
}

}  // namespace

TEST_CASE("A text is the same among others as alone, whatever the parts") {
  int pairs = 0;
  for_each_device_policy([&]<class PolicyT>(const PolicyT& policy) {
    for (const std::string_view verifier : chosen_verifiers(policy.name)) {
      INFO(policy.name << " with " << verifier);
      ++pairs;
      const auto texts = some_texts(5, verifier == "greedy" ? 0.0F : 0.8F);
      auto grown = device::make_on_device(policy);
      constexpr std::int32_t max_texts = 3;
      const std::int32_t rows = max_texts * espalier_test::rows_for(grown);
      device_text_backend target(37, target_model, rows), draft(37, draft_model, rows);
      device::contiguous_kv<float> kv(1, 1, max_texts, 150), draft_kv(1, 1, max_texts, 150);
      const auto with = [&](auto&& drafter) {
        auto decode =
            device::make_batch_decoder(drafter, std::move(grown), named_verifier<PolicyT::type::sampling>{verifier}, kv,
                                       target, {.max_texts = max_texts, .prefill_rows = 6});
        told written;
        std::vector<text_id> ids;
        // Two join later, one of them in the middle of the others' rounds. One has options of its own.
        PolicyT own = policy;
        for (std::size_t i = 0; i < 4; ++i) {
          const setting& s = texts[i];
          if constexpr (device::TextwisePolicy<device::device_policy<typename PolicyT::type>>) {
            if (i == 2) {
              make_small(own.options);
              ids.push_back(decode.add(s.prompt, s.stop, s.options.text, {.policy = own.options}));
              continue;
            }
          }
          ids.push_back(add(decode, s));
        }
        for (int step = 0; step < 3; ++step)
          take(decode, written);
        ids.push_back(add(decode, texts[4], 1));
        while (!decode.idle())
          take(decode, written);
        for (std::size_t i = 0; i < texts.size(); ++i) {
          INFO("text " << i);
          const auto expected = host_text(i == 2 ? own : policy, verifier, texts[i]);
          CHECK(written[ids[i]] == tokens_of(expected));
          CHECK(decode.current(ids[i]).state() == expected.end);
        }
      };
      if constexpr (drafts<typename PolicyT::type>) {
        with(device::autoregressive(draft, draft_kv));
      } else {
        with(device::no_drafter());
      }
    }
  });
  CHECK(pairs >= 15);
}

TEST_CASE("Trees from the marginals of blocks are drafted for many texts at once") {
  const auto texts = some_texts(6, 0);
  const part<best_first, best_first_options> policy{"best-first", "", {.budget = 20, .max_depth = 6}};
  device_text_backend target(37, target_model, 4 * 21);
  device_block_drafter drafter(37, 6, draft_model);
  auto decode = device::make_batch_decoder(drafter, device::make_on_device(policy), greedy(),
                                           device::contiguous_kv<float>(1, 1, 4, 150), target, {.max_texts = 4});
  std::vector<text_id> ids;
  told written;
  for (const setting& s : texts)
    ids.push_back(add(decode, s));
  while (!decode.idle())
    take(decode, written);
  for (std::size_t i = 0; i < texts.size(); ++i)
    CHECK(written[ids[i]] == tokens_of(host_text(part<plain>{"plain", ""}, "greedy", texts[i])));
}

TEST_CASE("Runs are looked up in many texts at once") {
  const auto texts = some_texts(6, 0);
  device_text_backend target(37, target_model, 4 * 7);
  auto decode = device::make_batch_decoder(device::prompt_lookup(), device::chain({.length = 6}), greedy(),
                                           device::contiguous_kv<float>(1, 1, 4, 150), target, {.max_texts = 4});
  std::vector<text_id> ids;
  told written;
  for (const setting& s : texts)
    ids.push_back(add(decode, s));
  while (!decode.idle())
    take(decode, written);
  for (std::size_t i = 0; i < texts.size(); ++i)
    CHECK(written[ids[i]] == tokens_of(host_text(part<plain>{"plain", ""}, "greedy", texts[i])));
}

namespace {

constexpr std::int32_t chain_rows = 5;
const part<chain, chain_options> chain_of_four{"chain", "", {.length = 4}};

// Logits of the target turn into NaN for one row of one pass, or it throws there. Counts rows that are read for the
// cache alone, and the rows of the largest other pass.
struct watched_backend : device_text_backend {
  using device_text_backend::device_text_backend;
  std::int32_t read_rows = 0, most_rows = 0;
  int passes = 0, fail_at = -1, bad_row = 0;
  bool throws = false;

  template <class KVStoreT>
  vocab_rows<float> forward(KVStoreT& kv, const device::forward_batch_view& batch, cudaStream_t stream) {
    if (batch.n_outputs == 0) read_rows += batch.n_rows;
    if (batch.n_outputs > 0) most_rows = std::max(most_rows, batch.n_rows);
    const bool fails = passes++ == fail_at;
    if (fails && throws) raise<error>("the model is gone.");
    const vocab_rows<float> rows = device_text_backend::forward(kv, batch, stream);
    if (fails && bad_row < rows.n_rows) {
      device::require(cudaMemsetAsync(const_cast<float*>(rows.at(bad_row)), 0xFF, 8, stream), "cudaMemsetAsync");
    }
    return rows;
  }
};

}  // namespace

TEST_CASE("What a pass breaks holds its texts at their last tokens, and all go on, whichever pass of which model") {
  const bool of_draft = GENERATE(false, true), throws = GENERATE(false, true);
  const int fail_at = GENERATE(range(0, 12));
  CAPTURE(of_draft, throws, fail_at);
  const auto texts = some_texts(3, 0.9F);
  watched_backend target(37, target_model, 4 * chain_rows), draft(37, draft_model, 4 * chain_rows);
  watched_backend& failing = of_draft ? draft : target;
  failing.fail_at = fail_at;
  failing.throws = throws;
  device::contiguous_kv<float> kv(1, 1, 4, 150), draft_kv(1, 1, 4, 150);
  // Three texts are written without a draft, so that the draft follows again when fewer are left.
  auto decode = device::make_batch_decoder(
      device::autoregressive(draft, draft_kv), device::make_on_device(chain_of_four), target_only(), kv, target,
      {.max_texts = 4, .max_rows = fail_at % 2 == 0 ? 1 << 20 : 4, .replay = false});
  std::vector<text_id> ids;
  for (const setting& s : texts)
    ids.push_back(add(decode, s));
  told written;
  std::size_t failures = 0;
  for (int step = 0; !decode.idle() && step < 300; ++step) {
    std::vector<text_id> held;
    for (const text_event& e : decode.step()) {
      if (e.error) {
        ++failures;
        held.push_back(e.id);
        CHECK(says(message_of<error>([&] { std::rethrow_exception(e.error); }),
                   throws ? "the model is gone." : "logit of token 0 after node"));
      } else {
        written[e.id].insert(written[e.id].end(), e.round.committed.begin(), e.round.committed.end());
      }
    }
    for (const text_id id : held)
      decode.resume(id);
  }
  CHECK(decode.idle());
  CHECK(failures <= (throws ? texts.size() : 1));
  if (throws) CHECK((failures > 0) == (failing.passes > fail_at));
  for (std::size_t i = 0; i < texts.size(); ++i)
    CHECK(written[ids[i]] == tokens_of(host_text(chain_of_four, "target-only", texts[i])));
}

namespace {

// A model of the host that throws in so many of its passes.
struct failing_host : text_backend<espalier_test::text_model> {
  int* passes;
  int first, n;

  failing_host(int& counted, int first_failure, int n_failures)
      : text_backend<espalier_test::text_model>(37, target_model),
        passes(&counted),
        first(first_failure),
        n(n_failures) {}

  template <class KVStoreT>
  vocab_rows<float> forward(KVStoreT& kv, forward_batch_view batch) {
    const int pass = (*passes)++;
    if (pass >= first && pass < first + n) raise<error>("the model is gone.");
    return text_backend<espalier_test::text_model>::forward(kv, batch);
  }
};

}  // namespace

TEST_CASE("What a model of the host throws while it reads a prompt is told at once, and of nobody else's text") {
  const auto fail_at = GENERATE(range(0, 14));
  const auto n_failures = GENERATE(1, 2);
  CAPTURE(fail_at, n_failures);
  const auto texts = some_texts(4, 0.9F);
  int passes = 0;
  device::on_host target(failing_host(passes, fail_at, n_failures), {.max_rows = 16, .max_columns = 64});
  device::on_host_kv kv(token_kv(150, commit_mode::compact, 3), 3);
  auto decode = device::make_batch_decoder(device::no_drafter(), device::plain(), target_only(), kv, target,
                                           {.max_texts = 3, .prefill_rows = 8});
  std::vector<text_id> ids{add(decode, texts[3]), add(decode, texts[1])};
  told written;
  int failures = 0;
  for (int step = 0; (!decode.idle() || step < 4) && step < 300; ++step) {
    if (step == 3) ids.push_back(add(decode, texts[2]));
    std::vector<text_id> held;
    for (const text_event& e : decode.step()) {
      if (!e.error) {
        written[e.id].insert(written[e.id].end(), e.round.committed.begin(), e.round.committed.end());
        continue;
      }
      ++failures;
      held.push_back(e.id);
      CHECK(message_of<error>([&] { std::rethrow_exception(e.error); }) == "the model is gone.");
    }
    // The first text's prompt of 15 rows is read in two passes of its own, one a step.
    if (n_failures == 1 && fail_at == step && step < 2) CHECK(held == std::vector<text_id>{ids[0]});
    for (const text_id id : held)
      decode.resume(id);
  }
  CHECK(decode.idle());
  CHECK(failures > 0);
  CHECK(failures <= 3 * n_failures);
  const std::size_t order[] = {3, 1, 2};
  for (std::size_t i = 0; i < ids.size(); ++i)
    CHECK(written[ids[i]] == tokens_of(host_text(part<plain>{"plain", ""}, "target-only", texts[order[i]])));
}

TEST_CASE("What a round has thrown is told of its own texts, whether rounds are replayed or not") {
  const auto fail_at = GENERATE(range(0, 14));
  CAPTURE(fail_at);
  const auto texts = some_texts(4, 0.9F);
  // Of each step the texts that it told of, and whether they failed.
  using news = std::vector<std::pair<text_id, bool>>;
  const auto told_with = [&](bool replay) {
    int passes = 0;
    device::on_host target(failing_host(passes, fail_at, 1), {.max_rows = 16, .max_columns = 64});
    device::on_host_kv kv(token_kv(150, commit_mode::compact, 3), 3);
    auto decode = device::make_batch_decoder(device::no_drafter(), device::plain(), target_only(), kv, target,
                                             {.max_texts = 3, .prefill_rows = 8, .replay = replay});
    add(decode, texts[0]);
    std::vector<news> all;
    for (int step = 0; (!decode.idle() || step < 6) && step < 300; ++step) {
      if (step == 3 || step == 5) add(decode, texts[step == 3 ? 1 : 2]);
      all.emplace_back();
      for (const text_event& e : decode.step())
        all.back().emplace_back(e.id, static_cast<bool>(e.error));
      for (const auto& [id, failed] : all.back()) {
        if (failed) decode.resume(id);
      }
    }
    return all;
  };
  const std::vector<news> found = told_with(false);
  CHECK(found == told_with(true));
  CHECK(std::any_of(found.begin(), found.end(), [](const news& of_step) {
    return std::any_of(of_step.begin(), of_step.end(), [](const auto& told) { return told.second; });
  }));
  // The first text is alone in the first rounds, in the last of which the second one's prompt is read.
  if (fail_at < 4) {
    for (const auto& [id, failed] : found[static_cast<std::size_t>(fail_at)])
      CHECK((id == 0 && failed));
  }
}

namespace {

// A model of the device that does nothing in one of its passes but keep that it has failed.
struct failing_device : device_text_backend {
  failing_device(espalier_test::text_model model, std::int32_t max_rows)
      : device_text_backend(37, model, max_rows), failed_(37 * static_cast<std::size_t>(max_rows)) {}
  int passes = 0, fail_at = -1;
  std::exception_ptr failure;

  template <class KVStoreT>
  vocab_rows<float> forward(KVStoreT& kv, const device::forward_batch_view& batch, cudaStream_t stream) {
    if (passes++ != fail_at) return device_text_backend::forward(kv, batch, stream);
    failed_.fill_bytes(0xFF, stream);
    failure = std::make_exception_ptr(error("the model is gone."));
    return {failed_.data(), batch.n_outputs, vocab_size()};
  }

  void raise_failure() {
    if (const std::exception_ptr raised = std::exchange(failure, nullptr)) std::rethrow_exception(raised);
  }

 private:
  device::device_array<float> failed_;
};

}  // namespace

TEST_CASE("No text begins with rows that a pass has failed to compute, whoever shares pages") {
  const bool of_draft = GENERATE(false, true);
  const int fail_at = GENERATE(range(0, 10)) + (of_draft ? 18 : 0);  // while prompts are read
  CAPTURE(of_draft, fail_at);
  // The words depend on the draft, too.
  const part<sampled_chain, sampled_chain_options> policy{"sampled-chain", "", {.length = 4}};
  const part<block_verification> verifier{"block-verification", ""};
  std::vector<setting> texts = some_texts(4, 0.7F);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i].context = texts[i].draft_context = 60;
    texts[i].prompt.assign(i == 0 ? 3 : 28 + i, 0);
    for (std::size_t j = 0; j < texts[i].prompt.size(); ++j)
      texts[i].prompt[j] = static_cast<token_id>(j < 26 ? 1 + j * 5 % 13 : 1 + (j + i) % 7);
    texts[i].stop.max_tokens = i == 0 ? 30 : 6;
  }
  failing_device target(target_model, 4 * chain_rows + 12), draft(draft_model, 4 * chain_rows + 12);
  (of_draft ? draft : target).fail_at = fail_at;
  device::paged_kv<float> kv(1, 1, 4, 60, 4, 200), draft_kv(1, 1, 4, 60, 4, 200);
  for (const auto* store : {&kv, &draft_kv})  // no row is there by chance
    device::require(cudaMemset(store->view().data, 0x3F, 200 * 4 * 2 * sizeof(float)), "cudaMemset");
  auto decode =
      device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::make_on_device(policy),
                                 verifier.make(), kv, target, {.max_texts = 4, .prefill_rows = 12, .replay = false});
  std::map<text_id, std::size_t> asked{{add(decode, texts[0]), 0}};
  const auto ask = [&](std::size_t i) { return asked[add(decode, texts[i], 1)] = i; };
  const auto cancel = [&](text_id id) {
    if (asked.erase(id) > 0) decode.cancel(id);
  };
  int failures = 0;
  for (int step = 0; (!decode.idle() || step < 3) && step < 300; ++step) {
    // While the first is written, the others' prompts are read; one of them is gone before that is over.
    for (std::size_t i = 1; step == 1 && i < texts.size(); ++i)
      ask(i);
    if (step == 2) cancel(1);
    std::vector<text_id> held;
    for (const text_event& e : decode.step()) {
      if (e.error) held.push_back(e.id);
    }
    failures += static_cast<int>(held.size());
    for (const text_id id : held) {
      if (!decode.current(id).written().empty()) {
        decode.resume(id);
        continue;
      }
      ask(asked.at(id));  // another one has its prompt
      cancel(id);
    }
  }
  CHECK(decode.idle());
  CHECK(failures > 0);
  for (const auto& [id, i] : asked) {
    INFO("text " << i << ", number " << id);
    const auto written = decode.current(id).written();
    CHECK(std::vector<token_id>(written.begin(), written.end()) ==
          tokens_of(host_text(policy, verifier.name, texts[i])));
  }
}

TEST_CASE("A text that is only read has ended when the model of the host has read it, and not before") {
  const auto fail_at = GENERATE(range(2, 10));
  CAPTURE(fail_at);
  const auto texts = some_texts(4, 0.9F);
  int passes = 0;
  device::on_host target(failing_host(passes, fail_at, 100), {.max_rows = 16, .max_columns = 64});
  device::on_host_kv kv(token_kv(150, commit_mode::compact, 3), 3);
  auto decode = device::make_batch_decoder(device::no_drafter(), device::plain(), target_only(), kv, target,
                                           {.max_texts = 3, .prefill_rows = 8});
  add(decode, texts[1]);
  text_id read = -1;
  bool has_ended = false, was_held = false;
  for (int step = 0; (!decode.idle() || step < 3) && step < 100; ++step) {
    if (step == 2) read = decode.add(texts[3].prompt, {.max_tokens = 0});
    for (const text_event& e : decode.step()) {
      if (e.id != read) continue;
      was_held = was_held || static_cast<bool>(e.error);
      has_ended = has_ended || !e.error;
    }
  }
  // Fifteen rows, in passes of eight at most, the first of which is the third of all or a later one.
  CHECK(has_ended != was_held);
  if (fail_at < 4) CHECK(was_held);
}

TEST_CASE("Prompts are read in the passes of other texts' rounds, which do not wait for them") {
  const bool paged = GENERATE(false, true);
  CAPTURE(paged);
  std::vector<setting> texts = some_texts(4, 0.7F);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i].context = texts[i].draft_context = 160;
    texts[i].prompt.assign(i == 0 ? 3 : 60 + 7 * i, 0);
    for (std::size_t j = 0; j < texts[i].prompt.size(); ++j)
      texts[i].prompt[j] = static_cast<token_id>(j < 40 ? j * 5 % 13 : (j * 3 + i) % 17);
    texts[i].stop.max_tokens = i == 0 ? 60 : 10;
  }
  const auto run = [&](auto& kv, auto& draft_kv) {
    watched_backend target(37, target_model, 4 * chain_rows + 24);
    device_text_backend draft(37, draft_model, 4 * chain_rows);
    auto decode =
        device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::make_on_device(chain_of_four),
                                   target_only(), kv, target, {.max_texts = 4, .prefill_rows = 24});
    std::vector<text_id> ids{add(decode, texts[0])};
    told written;
    take(decode, written);
    const std::int32_t before = target.read_rows;
    CHECK(before == 2);
    for (std::size_t i = 1; i < texts.size(); ++i)
      ids.push_back(add(decode, texts[i], 1));
    std::int32_t prompt_rows = 0;
    while (!decode.idle()) {
      const std::size_t had = written[ids[0]].size();
      take(decode, written);
      prompt_rows += decode.last_step().prompt_rows;
      CHECK(decode.last_step().prompt_rows <= 24);
      if (decode.current(ids[0]).running()) CHECK(written[ids[0]].size() > had);
    }
    CHECK(target.read_rows == before);
    CHECK(target.most_rows <= 4 * chain_rows + 24);
    const std::int32_t all = 67 + 74 + 81 - 3;
    CHECK(prompt_rows == (paged ? all - 2 * 40 : all));
    for (std::size_t i = 0; i < texts.size(); ++i)
      CHECK(written[ids[i]] == tokens_of(host_text(chain_of_four, "target-only", texts[i])));
  };
  if (paged) {
    device::paged_kv<float> kv(1, 1, 4, 160, 4, 200), draft_kv(1, 1, 4, 160, 4, 200);
    run(kv, draft_kv);
  } else {
    device::contiguous_kv<float> kv(1, 1, 4, 160), draft_kv(1, 1, 4, 160);
    run(kv, draft_kv);
  }
}

TEST_CASE("A prompt that texts share is read once, and pages for half of the texts are enough") {
  const auto n_pages = GENERATE(200, 26);
  watched_backend target(37, target_model, 4 * chain_rows);
  device_text_backend draft(37, draft_model, 4 * chain_rows);
  device::paged_kv<float> kv(1, 1, 4, 90, 4, n_pages), draft_kv(1, 1, 4, 90, 4, n_pages);
  auto decode =
      device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::make_on_device(chain_of_four),
                                 target_only(), kv, target, {.max_texts = 4, .prefill_rows = 16});
  std::vector<setting> texts = some_texts(6, 0.7F);
  std::vector<text_id> ids;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    texts[i].context = texts[i].draft_context = 90;
    texts[i].prompt.assign(41, 0);
    for (std::size_t j = 0; j < 40; ++j)
      texts[i].prompt[j] = static_cast<token_id>(j * 5 % 13);
    texts[i].prompt.push_back(static_cast<token_id>(i));
    texts[i].stop.max_tokens = 20;
    ids.push_back(add(decode, texts[i]));
  }
  told written;
  int preempted = 0;
  while (!decode.idle()) {
    take(decode, written);
    preempted += decode.last_step().preempted;
  }
  if (n_pages == 200) {
    CHECK(target.read_rows <= 41 + 5 * 2);
    CHECK(preempted == 0);
  } else {
    CHECK(preempted > 0);
  }
  for (std::size_t i = 0; i < texts.size(); ++i)
    CHECK(written[ids[i]] == tokens_of(host_text(chain_of_four, "target-only", texts[i])));
  // A fork begins with the tokens so far, and its rows are there.
  const text_id first = add(decode, texts[0]);
  while (decode.current(first).written().size() < 5)
    decode.step();
  const text_id other = decode.fork(first, 99);
  const auto begun = decode.current(other).written();
  const std::vector<token_id> so_far(begun.begin(), begun.end());
  while (!decode.idle())
    decode.step();
  const auto a = decode.current(first).written(), b = decode.current(other).written();
  CHECK(std::equal(so_far.begin(), so_far.end(), b.begin()));
  CHECK(b.size() == 20);
  CHECK(std::vector<token_id>(a.begin(), a.end()) == written[ids[0]]);
}

TEST_CASE("Many texts are written without trees where a pass has no room, and drafted for again when few are left") {
  const auto texts = some_texts(8, 0.8F);
  const auto max_rows = GENERATE(8, 16, 24);
  watched_backend target(37, target_model, 64);
  device_text_backend draft(37, draft_model, 64);
  device::contiguous_kv<float> kv(1, 1, 8, 150), draft_kv(1, 1, 8, 150);
  auto decode =
      device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::make_on_device(chain_of_four),
                                 target_only(), kv, target, {.max_texts = 8, .max_rows = max_rows});
  std::vector<text_id> ids;
  for (const setting& s : texts)
    ids.push_back(add(decode, s));
  told written;
  std::int32_t drafted = 0;
  while (!decode.idle()) {
    take(decode, written);
    drafted += decode.last_step().drafted;
  }
  CHECK(drafted > 0);
  CHECK(target.most_rows == max_rows);
  for (std::size_t i = 0; i < texts.size(); ++i)
    CHECK(written[ids[i]] == tokens_of(host_text(chain_of_four, "target-only", texts[i])));
}

TEST_CASE("Texts are cancelled, resumed and asked about by number") {
  device_text_backend target(37, target_model, 32), draft(37, draft_model, 32);
  device::contiguous_kv<float> kv(1, 1, 2, 150), draft_kv(1, 1, 2, 150);
  auto decode =
      device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::make_on_device(chain_of_four),
                                 target_only(), kv, target, {.max_texts = 2, .max_waiting = 1});
  const auto texts = some_texts(4, 0.8F);
  const text_id a = add(decode, texts[0]), b = add(decode, texts[1]), c = add(decode, texts[2]);
  CHECK(says(message_of<input_error>([&] { add(decode, texts[3]); }), "no more than max_waiting (1) may"));
  decode.step();
  decode.cancel(b);  // in the middle of a round
  CHECK(says(message_of<input_error>([&] { (void)decode.current(b); }), "text 1 is not known"));
  CHECK(says(message_of<input_error>([&] { decode.resume(a); }), "text 0 is still written"));
  while (!decode.idle())
    decode.step();
  const auto expected = [&](std::size_t i) { return tokens_of(host_text(chain_of_four, "target-only", texts[i])); };
  const auto now = [&](text_id id) {
    const auto text = decode.current(id).written();
    return std::vector<token_id>(text.begin(), text.end());
  };
  CHECK(now(a) == expected(0));
  CHECK(now(c) == expected(2));
  // Read, and nothing written.
  const text_id read = decode.add(texts[3].prompt, {.max_tokens = 0});
  while (!decode.idle())
    decode.step();
  CHECK(decode.current(read).written().empty());
  CHECK(decode.current(read).state() == status::length);
  // The next turn of one, while the other is begun anew.
  decode.resume(a, std::vector<token_id>{4, 4}, {.max_tokens = 6});
  const text_id again = add(decode, texts[2]);
  while (!decode.idle())
    decode.step();
  CHECK(decode.current(a).written().size() == 6);
  CHECK(now(again) == expected(2));
  CHECK(says(message_of<option_error>(
                 [&] { decode.add(texts[0].prompt, {}, {.sampling = {.temperature = 1}, .log_probs = 1}); }),
             "log_probs on the device"));
}

#if defined(ESPALIER_TEST_COUNTS_CALLS)
TEST_CASE("A round of many texts is one graph launch, two copies and one event, and joining waits for nobody") {
  device_text_backend target(37, target_model, 64), draft(37, draft_model, 64);
  device::contiguous_kv<float> kv(1, 1, 4, 150), draft_kv(1, 1, 4, 150);
  auto decode =
      device::make_batch_decoder(device::autoregressive(draft, draft_kv), device::make_on_device(chain_of_four),
                                 target_only(), kv, target, {.max_texts = 4});
  auto texts = some_texts(4, 0.8F);
  for (setting& s : texts)
    s.stop.max_tokens = 100;
  for (std::size_t i = 0; i < 3; ++i)
    add(decode, texts[i]);
  for (int i = 0; i < 4; ++i)
    decode.step();
  emulator::reset();
  decode.step();
  CHECK(emulator::calls("cudaGraphLaunch") == 1);
  CHECK(emulator::calls("cudaMemcpyAsync") == 2);
  CHECK(emulator::calls("cudaEventRecord") == 1);
  CHECK(emulator::calls("cudaEventSynchronize") == 1);
  for (const char* call : {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaMalloc",
                           "cudaMallocHost", "cudaFree", "cudaLaunchKernelEx", "cudaStreamBeginCapture"})
    CHECK(emulator::calls(call) == 0);
  add(decode, texts[3]);
  emulator::reset();
  decode.step();
  for (const char* call : {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy"})
    CHECK(emulator::calls(call) == 0);
}
#endif
