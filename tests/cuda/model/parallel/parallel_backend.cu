// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/parallel/parallel_backend.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "catch.hpp"
#include "cuda/model/llama/host_llama.hpp"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/model/llama/llama_scenes.cuh"
#include "cuda/model/parallel/process_ranks.hpp"
#include "cuda/model/parallel/rank_scenes.cuh"
#include "cuda/model/parallel/staged_ranks.cuh"
#include "espalier/core/forward_batch.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/model/parallel/agreement.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/traversal.hpp"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_COUNTS_CALLS
#endif

namespace {

using namespace espalier;
namespace gpu = espalier::cuda;
using llama_driver::device_batch;
using llama_driver::device_kv;
using llama_driver::device_rows;
using process_ranks::outcome;
using process_ranks::process_rank;
using rank_scenes::cache_row_of;
using rank_scenes::context;
using rank_scenes::models;
using rank_scenes::numbers_type;
using rank_scenes::path_of;
using rank_scenes::prompt;
using rank_scenes::rows_of;
using rank_scenes::write_text;
using rank_type = staged_ranks<process_rank>;

template <class NumberT, class LogitT = float>
using parallel = gpu::parallel_backend<rank_type, NumberT, LogitT>;

static_assert(Communicator<process_rank>);
static_assert(gpu::Communicator<rank_type>);
static_assert(!gpu::Communicator<process_rank>);
static_assert(gpu::Backend<parallel<float>, device_kv<float>>);
static_assert(gpu::Backend<parallel<__half, __half>, device_kv<__half>>);
static_assert(gpu::detail::KeepsFailure<parallel<float>>);

const std::vector<std::string> folders = {"llama",
                                          "llama_tied",
                                          "llama_f16",
                                          "llama_int8_rows",
                                          "llama3",
                                          "qwen2",
                                          "qwen3",
                                          "gpt_neox",
                                          "gpt_neox_sequential",
                                          "llama_f16/model.gguf",
                                          "mistral",
                                          "gemma",
                                          "gemma2",
                                          "gemma3",
                                          "granite",
                                          "smollm3",
                                          "glm4",
                                          "mixtral",
                                          "qwen3_moe_plain",
                                          "gpt_oss"};

// On a device of one process; no other process of the test has used one.
template <class NumberT, class LogitT>
numbers_type rows_of_one(const std::string& path) {
  const auto found = process_ranks::run(1, [&](process_rank&) {
    auto backend = gpu::llama_backend<NumberT, LogitT>::load(path, {.max_rows = 40, .batch_invariant = true});
    return rows_of(backend);
  });
  REQUIRE(found.front().error == "");
  return found.front().numbers;
}

template <class NumberT, class LogitT>
std::vector<outcome> rows_of_ranks(const std::string& path, int n, gpu::parallel_options options) {
  options.max_rows = 40, options.batch_invariant = true;
  return process_ranks::run(n, [&](process_rank& own) {
    rank_type ranks(own);
    auto backend = parallel<NumberT, LogitT>::load(path, ranks, options);
    numbers_type rows = rows_of(backend);
    ranks.raise_failure();
    return rows;
  });
}

double difference(const numbers_type& found, const numbers_type& expected) {
  double most = 0.0, largest = 1e-30;
  if (found.size() != expected.size()) return INFINITY;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!std::isfinite(found[i])) return INFINITY;
    most = std::max(most, std::abs(double{found[i]} - double{expected[i]}));
    largest = std::max(largest, std::abs(double{expected[i]}));
  }
  return most / largest;
}

}  // namespace

TEST_CASE("Ranks that divide outputs have the bits of one device") {
  for (const std::string& folder : folders) {
    INFO(folder);
    const numbers_type expected = rows_of_one<float, float>(path_of(folder));
    for (const int n : {1, 2, 3, 4}) {
      INFO(n << " ranks");
      REQUIRE(rows_of_ranks<float, float>(path_of(folder), n, {}) ==
              std::vector<outcome>(std::size_t(n), {"", expected}));
    }
  }
}

TEMPLATE_TEST_CASE("So they have with numbers of 16 bits", "", __half, __nv_bfloat16) {
  for (const std::string folder : {"llama_f16", "qwen2", "gpt_neox"}) {
    INFO(folder);
    const numbers_type expected = rows_of_one<TestType, TestType>(path_of(folder));
    for (const int n : {2, 3}) {
      REQUIRE(rows_of_ranks<TestType, TestType>(path_of(folder), n, {}) ==
              std::vector<outcome>(std::size_t(n), {"", expected}));
    }
  }
}

TEST_CASE("Ranks that divide sums agree with one another, and nearly with one device") {
  for (const std::string& folder : folders) {
    INFO(folder);
    const numbers_type expected = rows_of_one<float, float>(path_of(folder));
    for (const int n : {1, 2, 4}) {
      const auto found = rows_of_ranks<float, float>(path_of(folder), n, {.split = rank_split::sums});
      REQUIRE(found == std::vector<outcome>(found.size(), {"", found.front().numbers}));
      REQUIRE(difference(found.front().numbers, expected) < 1e-5);
    }
  }
}

TEST_CASE("Each rank of devices has a part of every expert, and of its heads' sinks") {
  const std::string folder = (std::filesystem::temp_directory_path() / "espalier_cuda_ranks_experts").string();
  write_random_gpt_oss(folder, 7);
  const numbers_type expected = rows_of_one<float, float>(folder);
  for (const int n : {2, 3})
    CHECK(rows_of_ranks<float, float>(folder, n, {}) == std::vector<outcome>(std::size_t(n), {"", expected}));
  for (const int n : {2, 3}) {
    const auto found = rows_of_ranks<float, float>(folder, n, {.split = rank_split::sums});
    REQUIRE(found == std::vector<outcome>(std::size_t(n), found.front()));
    REQUIRE(found.front().error == "");
    CHECK(difference(found.front().numbers, expected) < 1e-4);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("Maxima on the device are those of whole rows, and all else is minus infinity") {
  const numbers_type expected = rows_of_one<float, float>(path_of("llama"));
  constexpr std::ptrdiff_t vocab = 72;
  for (const int n : {1, 2, 4}) {
    for (const outcome& found : rows_of_ranks<float, float>(path_of("llama"), n, {.logits = rank_logits::maxima})) {
      REQUIRE(found.error == "");
      REQUIRE(found.numbers.size() == expected.size());
      for (auto row = found.numbers.begin(), whole = expected.begin(); row != found.numbers.end();
           row += vocab, whole += vocab) {
        const auto greatest = std::max_element(row, row + vocab);
        CHECK(greatest - row == std::max_element(whole, whole + vocab) - whole);
        CHECK(*greatest == whole[greatest - row]);
        CHECK(std::count_if(row, row + vocab, [](float x) { return std::isfinite(x); }) <= n);
      }
    }
  }
}

TEST_CASE("A graph holds a pass with all that goes between ranks") {
  const std::string path = path_of("qwen3");
  for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
    const auto found = process_ranks::run(2, [&](process_rank& own) {
      rank_type ranks(own);
      auto backend = parallel<float>::load(path, ranks, {.max_rows = 20, .split = split, .batch_invariant = true});
      device_kv<float> kv(backend.layers(), backend.cache_row(), 1, 48);
      std::mt19937 random(3);
      gpu::stream stream;
      const forward_batch first = llama_scenes::one_tree(random, backend.vocab_size(), 0, 7),
                          second = llama_scenes::one_tree(random, backend.vocab_size(), 0, 7);
      device_batch batch(first.view());
      vocab_rows<float> logits{};
      gpu::graph replay(stream.get(), [&] { logits = backend.forward(kv, batch.view(), stream.get()); });
      numbers_type all;
      for (const forward_batch* b : {&first, &second}) {
        batch.update(b->view());
        replay.launch(stream.get());
        gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
        const auto replayed = device_rows(logits);
        const auto direct = device_rows(backend.forward(kv, batch.view(), nullptr));
        all.push_back(replayed == direct ? 1.0F : 0.0F);
      }
      return all;
    });
    CHECK(found == std::vector<outcome>(2, {"", {1.0F, 1.0F}}));
  }
}

namespace {

template <class PolicyT, class OptionsT, class VerifierT>
void compare_texts(const OptionsT& policy, const VerifierT& verifier, float temperature, int n,
                   const gpu::parallel_options& options) {
  const auto expected = process_ranks::run(1, [&](process_rank&) {
    auto target = gpu::llama_backend<float>::load(path_of("llama"), {.max_rows = 40, .batch_invariant = true});
    return write_text(PolicyT(policy), verifier, target, temperature, [](const round_record&) {});
  });
  REQUIRE(expected.front().numbers.size() == 30);
  const auto found = process_ranks::run(n, [&](process_rank& own) {
    rank_type ranks(own);
    auto target = parallel<float>::load(path_of("llama"), ranks, options);
    process_rank beside = own.beside();  // the stream's thread meets in `own`
    return write_text(PolicyT(policy), verifier, target, temperature, agreement(beside));
  });
  CHECK(found == std::vector<outcome>(static_cast<std::size_t>(n), expected.front()));
}

}  // namespace

TEST_CASE("Decoders on all ranks write the text of one device") {
  const gpu::parallel_options rows{.max_rows = 40, .batch_invariant = true};
  const gpu::parallel_options maxima{.max_rows = 40, .logits = rank_logits::maxima, .batch_invariant = true};
  compare_texts<gpu::dynatree>(dynatree_options{.budget = 8}, greedy(), 0.0F, 2, rows);
  compare_texts<gpu::dynatree>(dynatree_options{.budget = 8}, greedy(), 0.0F, 3, maxima);
  compare_texts<gpu::iid_paths>(iid_paths_options{.paths = 3, .length = 3}, traversal(), 1.0F, 2, rows);
}

TEST_CASE("A decoder on the device that reads whole rows refuses maxima") {
  const auto found = process_ranks::run(1, [](process_rank& own) {
    rank_type ranks(own);
    auto target = parallel<float>::load(path_of("llama"), ranks, {.max_rows = 40, .logits = rank_logits::maxima});
    process_rank beside = own.beside();
    return write_text(gpu::iid_paths({.paths = 3, .length = 3}), traversal(), target, 1.0F, agreement(beside));
  });
  for (const outcome& of : found)
    CHECK(of.error.find("the verifier must be greedy") != std::string::npos);
}

TEST_CASE("Many texts over ranks are those of one device") {
  const auto write = [](auto& target) {
    auto draft = gpu::llama_backend<float>::load(path_of("llama_int8_rows"), {.max_rows = 40});
    gpu::contiguous_kv<float> kv(target.config().n_layers, cache_row_of(target), 2, context),
        draft_kv(draft.config().n_layers, draft.config().kv_size(), 2, context);
    auto decode = gpu::make_batch_decoder(gpu::autoregressive(draft, draft_kv), gpu::dynatree({.budget = 6}), greedy(),
                                          kv, target, {.max_texts = 2});
    std::vector<text_id> texts;
    for (const token_id first : {5, 9, 61})
      texts.push_back(decode.add(std::vector<token_id>{first, 17, 3}, {.max_tokens = 12}));
    numbers_type all;
    while (!decode.idle()) {
      for (const text_event& event : decode.step()) {
        if (event.error) std::rethrow_exception(event.error);
        all.push_back(static_cast<float>(std::find(texts.begin(), texts.end(), event.id) - texts.begin()));
        all.insert(all.end(), event.round.committed.begin(), event.round.committed.end());
      }
    }
    return all;
  };
  const auto expected = process_ranks::run(1, [&](process_rank&) {
    auto target = gpu::llama_backend<float>::load(path_of("llama"), {.max_rows = 40, .batch_invariant = true});
    return write(target);
  });
  REQUIRE(expected.front().numbers.size() > 36);
  const auto found = process_ranks::run(2, [&](process_rank& own) {
    rank_type ranks(own);
    auto target = parallel<float>::load(path_of("llama"), ranks, {.max_rows = 40, .batch_invariant = true});
    return write(target);
  });
  CHECK(found == std::vector<outcome>(2, expected.front()));
}

TEST_CASE("Where a rank is gone the others end in an error, and their texts stand") {
  const auto found = process_ranks::run(
      3,
      [&](process_rank& own) {
        rank_type ranks(own);
        auto target = parallel<float>::load(path_of("llama"), ranks, {.max_rows = 40});
        gpu::contiguous_kv<float> kv(target.layers(), target.cache_row(), 1, context);
        auto draft = gpu::llama_backend<float>::load(path_of("llama_int8_rows"), {.max_rows = 40});
        gpu::contiguous_kv<float> draft_kv(draft.config().n_layers, draft.config().kv_size(), 1, context);
        auto decode =
            gpu::make_decoder(gpu::autoregressive(draft, draft_kv), gpu::dynatree({.budget = 8}), greedy(), kv, target);
        decode.begin(prompt, {.max_tokens = 60});
        for (int i = 0; i < 4; ++i)
          decode.step();
        const std::int32_t before = decode.current().size();
        if (own.rank() == 1) ranks.break_next();
        const auto fails = [&] {
          try {
            for (int i = 0; i < 3; ++i)
              decode.step();
          } catch (const rank_error&) {
            return 1.0F;
          }
          return 0.0F;
        };
        numbers_type all{fails(), fails()};
        // At most the round that was under way has been taken in.
        all.push_back(decode.current().size() - before <= 9 ? 1.0F : 0.0F);
        return all;
      },
      3.0);
  CHECK(found == std::vector<outcome>(3, {"", {1.0F, 1.0F, 1.0F}}));
}

TEST_CASE("Ranks that write other texts hear of it") {
  const auto found = process_ranks::run(2, [&](process_rank& own) {
    rank_type ranks(own);
    auto target = parallel<float>::load(path_of("llama"), ranks, {.max_rows = 40});
    // The same shapes of passes, other draws.
    auto draft = gpu::llama_backend<float>::load(path_of("llama_int8_rows"), {.max_rows = 40});
    gpu::contiguous_kv<float> kv(target.layers(), target.cache_row(), 1, context),
        draft_kv(draft.config().n_layers, draft.config().kv_size(), 1, context);
    const std::uint64_t seed = own.rank() == 0 ? 5 : 6;
    auto decode = gpu::make_decoder(gpu::autoregressive(draft, draft_kv, {.temperature = 1}),
                                    gpu::iid_paths({.paths = 2, .length = 3}), traversal(), kv, target,
                                    {.text = {.sampling = {.temperature = 1}, .seed = seed}});
    process_rank beside = own.beside();
    decode.generate(prompt, {.max_tokens = 30}, agreement(beside));
    return numbers_type{};
  });
  for (const outcome& of_rank : found)
    CHECK_THAT(of_rank.error,
               Catch::Matchers::StartsWith("the ranks do not agree: the batch of rank 1 is not that of rank 0."));
}

TEST_CASE("What ranks send on devices is what the documented formula says") {
  constexpr std::int64_t rows = 33;
  const std::string folder = models + "draft";
  const model_config c = model_config::load(folder);
  const auto on_256 = [](std::int64_t bytes) { return (bytes + 255) / 256 * 256; };
  // Two ranks divide all sizes evenly, but for the 11 runs of 32 of the intermediate size, which end early.
  REQUIRE((c.intermediate_size == 336 && c.hidden_size % 64 == 0 && c.vocab_size % 64 == 0 && c.n_kv_heads % 2 == 0));
  for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
    const auto found = process_ranks::run(2, [&](process_rank& own) {
      rank_type ranks(own);
      auto backend = parallel<float>::load(folder, ranks, {.max_rows = 33, .split = split});
      device_kv<float> kv(backend.layers(), backend.cache_row(), 1, 64);
      std::mt19937 random(3);
      const forward_batch tree = llama_scenes::one_tree(random, backend.vocab_size(), 0, 33);
      backend.forward(kv, device_batch(tree.view()).view(), nullptr);
      gpu::require(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize");
      const rank_traffic sent = ranks.enqueued();
      return numbers_type{static_cast<float>(sent.calls), static_cast<float>(sent.bytes)};
    });
    const auto block = [&](std::int64_t columns) { return on_256(rows * columns * 4); };
    const std::int64_t hidden = block(c.hidden_size / 2);
    const std::int64_t each =
        split == rank_split::sums ? 4 * hidden : block(c.query_size() / 2) + 2 * hidden + block(336 - 5 * 32);
    const std::int64_t bytes = on_256(4 * rows * (c.hidden_size + 2)) + c.n_layers * each + block(c.vocab_size / 2);
    const numbers_type expected{static_cast<float>(2 + 4 * c.n_layers), static_cast<float>(bytes)};
    CHECK(found == std::vector<outcome>(2, {"", expected}));
  }
}

#if defined(ESPALIER_TEST_COUNTS_CALLS)
TEST_CASE("The own part of the stream is copied only where it has become another") {
  // The embedding makes it another, and so do biases that settle before a product goes back.
  for (const auto& [folder, per_layer, copies] :
       {std::tuple("llama", 5, 1), std::tuple("gpt_neox", 4, 2), std::tuple("gpt_neox_sequential", 5, 4)}) {
    INFO(folder);
    const auto found = process_ranks::run(2, [path = path_of(folder)](process_rank& own) {
      rank_type ranks(own);
      auto backend = parallel<float>::load(path, ranks, {.max_rows = 20});
      device_kv<float> kv(backend.layers(), backend.cache_row(), 1, 16);
      std::mt19937 random(8);
      const device_batch batch(llama_scenes::one_tree(random, backend.vocab_size(), 0, 7).view(), 2);
      emulator::reset();
      backend.forward(kv, batch.view(), nullptr);
      return numbers_type{static_cast<float>(emulator::calls("cudaLaunchKernelEx"))};
    });
    // Blocks become rows twice a product that goes back, and of the logits; beginning and end of a pass are marked.
    const auto launches = static_cast<float>(3 + 2 * per_layer + 2 * 4 + 1 + 2 + copies);
    CHECK(found == std::vector<outcome>(2, {"", {launches}}));
  }
}
#endif

TEST_CASE("A rank of devices reads and holds its part alone") {
  const std::string folder = models + "target";
  for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
    const auto load = [&](int rank, int size) {
      const auto found = process_ranks::run(1, [&](process_rank&) {
        const model_files files = model_files::open(folder);
        const rank_part part(files.config, rank, size);
        const auto own = gpu::rank_weights<__half>::load(files.config, *files.tensors, part, split);
        return numbers_type{static_cast<float>(own.weights_taken()), static_cast<float>(own.bytes())};
      });
      REQUIRE(found.front().error == "");
      return found.front().numbers;
    };
    const numbers_type whole = load(0, 1);
    float taken = 0.0F;
    for (int r = 0; r < 3; ++r) {
      const numbers_type part = load(r, 3);
      taken += part[0];
      CHECK(part[1] < 0.42F * whole[1]);
    }
    CHECK(taken == whole[0]);
  }
}

TEST_CASE("What does not fit a rank on a device is named") {
  const auto said = [](const std::string& folder, const gpu::parallel_options& options, bool passes) {
    const auto found = process_ranks::run(1, [&](process_rank& own) {
      rank_type ranks(own);
      auto backend = parallel<float>::load(path_of(folder), ranks, options);
      gpu::forward_batch_view batch;
      batch.n_rows = passes ? 5 : 0;
      device_kv<float> kv(backend.layers(), passes ? backend.cache_row() : 8, 1, 8);
      backend.forward(kv, batch, nullptr);
      return numbers_type{};
    });
    return found.front().error;
  };
  CHECK(said("llama", {.max_rows = 0}, true) == "option max_rows is 0, but must lie between 1 and 65536.");
  CHECK(said("llama", {.max_rows = 4}, true) ==
        "a batch has 5 rows, but the backend was built for at most 4 (option max_rows).");
  CHECK(said("llama", {}, false) ==
        "the cache has 2 layers of 8 numbers a row, but this rank's part of the model 2 of 16.");
  CHECK_THAT(said("bamba", {}, true), Catch::Matchers::ContainsSubstring("recurrent layers (bamba) cannot be divided"));
}
