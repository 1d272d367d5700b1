// SPDX-License-Identifier: BSL-1.0
// Measures many texts at once with the bundled pair: plain batched decoding, static chains and trees, by the number of
// texts.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../serving_load.hpp"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/block_diffusion.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/block_draft_model.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/verifier/greedy.hpp"
#include "program.cuh"
#include "prompts_file.hpp"
#include "served_model.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;
using number = __nv_bfloat16;
using block_model = device::block_draft_model<number>;

using model = bench::served_model;

// One way of serving: n of these texts at once.
struct method {
  std::string name;
  std::function<bench::served_load(std::int32_t, const std::vector<bench::asked_text>&)> serve;
};

template <class MakeDrafterT, class MakePolicyT>
method method_of(std::string name, model& target, MakeDrafterT make_drafter, MakePolicyT make_policy) {
  return {std::move(name), [=, &target](std::int32_t n, const std::vector<bench::asked_text>& asked) {
            auto decode = device::make_batch_decoder(
                make_drafter(), make_policy(), greedy(), target.kv, target.backend,
                {.max_texts = n, .max_waiting = static_cast<std::int32_t>(asked.size()), .prefill_rows = 512});
            // The graphs are captured, for every number of lanes, and no prompt is in the cache afterwards.
            for (std::int32_t lanes = 1; lanes <= n; lanes *= 2) {
              for (std::int32_t i = 0; i < lanes; ++i)
                decode.add(asked[static_cast<std::size_t>(i) % asked.size()].prompt,
                           {.max_tokens = asked[0].max_tokens});
              while (!decode.idle())
                decode.step();
            }
            for (std::int32_t i = 0; i < target.kv.n_sequences(); ++i)
              target.kv.remember(i, 0, {});
            return bench::serve(decode, asked, {.temperature = 0});
          }};
}

double at(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

void measure(bench::bench_run& run) {
  const auto most_texts = run.size<std::int32_t>(64, 2);
  const auto max_rows = run.size<std::int32_t>(1024, 40);
  const int max_tokens = run.size(96, 4);
  std::vector<std::vector<token_id>> prompts;
  for (const models::prompt& p : models::read_prompts(ESPALIER_BENCH_PROMPTS))
    prompts.push_back(p.tokens);
  model target(run.options.models + "/target", block_draft_config::load(run.options.models + "/block").hidden_layers,
               max_rows, most_texts);
  model draft(run.options.models + "/draft", {}, max_rows, most_texts);
  auto block = block_model::load(run.options.models + "/block", target.backend, most_texts);

  std::vector<method> methods;
  methods.push_back(method_of(
      "plain", target, [] { return device::no_drafter(); }, [] { return device::plain(); }));
  const auto drafter = [&] { return device::autoregressive(draft.backend, draft.kv); };
  methods.push_back(method_of("chain of 4", target, drafter, [] { return device::chain({.length = 4}); }));
  const auto blocks = [&] { return device::block_diffusion(block); };
  methods.push_back(method_of("chain of the block (DFlash)", target, blocks,
                              [&] { return device::chain({.length = block.block_length()}); }));
  // Trees are smaller if the pass has no room for so many rows of each text: it has max_rows in all.
  for (const std::int32_t budget : run.options.tiny ? std::vector<std::int32_t>{8} : std::vector<std::int32_t>{8, 64}) {
    methods.push_back(method_of("best_first of " + std::to_string(budget) + " over the block (DDTree)", target, blocks,
                                [budget] { return device::best_first({.budget = budget}); }));
  }

  const auto texts_of = [&](std::size_t n) {
    std::vector<bench::asked_text> asked;
    for (std::size_t i = 0; i < n; ++i)
      asked.push_back({prompts[i % prompts.size()], max_tokens, 0});
    return asked;
  };
  const int repetitions = run.options.tiny ? 1 : std::clamp(run.options.repetitions / 20, 1, 3);
  double plain_rate = 1;
  for (std::int32_t n = 1; n <= most_texts; n *= 2) {
    const auto asked = texts_of(static_cast<std::size_t>(run.size(std::max(16, 2 * n), 2 * n)));
    std::vector<bench::samples> rates(methods.size());
    std::vector<bench::served_load> last(methods.size());
    for (int r = 0; r < repetitions; ++r) {
      for (std::size_t m = 0; m < methods.size(); ++m) {
        last[m] = methods[m].serve(n, asked);
        rates[m].add(last[m].rate());
      }
    }
    plain_rate = rates[0].median();
    for (std::size_t m = 0; m < methods.size(); ++m) {
      char note[160];
      std::snprintf(note, sizeof note, "%.2f times plain; %.2f tokens a round and text; first token after %.1f ms",
                    rates[m].median() / plain_rate,
                    static_cast<double>(last[m].tokens) / std::max<double>(1, static_cast<double>(last[m].rounds)),
                    1e3 * at(last[m].first, 0.5));
      const std::string key = "serving." + std::to_string(n) + "." + std::to_string(m);
      run.found.add({.key = key,
                     .what = std::to_string(n) + " texts at once, " + methods[m].name,
                     .measured = rates[m],
                     .unit = "tokens/s",
                     .note = note});
    }
  }
  // Poisson arrivals, at shares of the rate of plain decoding with all places in use.
  for (const int load : {50, 90}) {
    auto asked = texts_of(run.size<std::size_t>(128, 3));
    std::mt19937_64 random(static_cast<std::uint64_t>(load));
    std::exponential_distribution<double> pause(plain_rate / max_tokens * load / 100);
    double arrival = 0;
    for (bench::asked_text& text : asked)
      text.arrival = arrival += pause(random);
    for (const std::size_t m : {std::size_t{0}, methods.size() - 1}) {
      const bench::served_load served = methods[m].serve(most_texts, asked);
      const std::string what =
          "arrivals at " + std::to_string(load) + " % of plain decoding's most, " + methods[m].name;
      const std::string key = "serving.arrivals." + std::to_string(load) + "." + std::to_string(m);
      bench::samples first, each;
      for (const double seconds : served.first)
        first.add(1e6 * seconds);
      for (const double seconds : served.each)
        each.add(1e6 * seconds);
      char note[96];
      std::snprintf(note, sizeof note, "99 of 100 at most %.0f us", 1e6 * at(served.first, 0.99));
      run.found.add({.key = key + ".first", .what = what + ": to the first token", .measured = first, .note = note});
      std::snprintf(note, sizeof note, "99 of 100 at most %.0f us", 1e6 * at(served.each, 0.99));
      run.found.add({.key = key + ".each", .what = what + ": each further token", .measured = each, .note = note});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_serving", "many texts at once with the bundled pair", measure);
}
