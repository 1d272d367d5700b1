// SPDX-License-Identifier: BSL-1.0
// Measures trees where the target's pass costs what a large model's does: a small model's logits, and behind each of
// its passes one of Qwen3-8B's shape with random weights over the same rows. So acceptance is real, and so is the ratio
// of costs: by method, number of drafted tokens, and temperature.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/block_diffusion.cuh"
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/block_draft_model.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/selector/neural_delayed.cuh"
#include "espalier/cuda/tree_policy/adaptive_chain.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/cascade.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/delayed.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/dyspec_greedy.cuh"
#include "espalier/cuda/tree_policy/dyspec_threshold.cuh"
#include "espalier/cuda/tree_policy/eagle2.cuh"
#include "espalier/cuda/tree_policy/fixed.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/cuda/tree_policy/sampled_chain.cuh"
#include "espalier/cuda/tree_policy/sequoia.cuh"
#include "espalier/cuda/tree_policy/specinfer_static.cuh"
#include "espalier/model/files/cost_file.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/selector/files/selector_file.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "large_model.cuh"
#include "model_paths.hpp"
#include "program.cuh"
#include "served_model.cuh"
#include "whole_texts.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;
using number_type = __nv_bfloat16;

// A small model's logits at a large model's cost: behind each pass of the small one the large one's over the same rows,
// with a cache of its own, whose logits nobody reads.
class priced_backend {
 public:
  using number = float;

  priced_backend(bench::served_model& target, bool tiny, int max_rows)
      : target_(target),
        config_(bench::large_shape(tiny)),
        large_(config_, bench::random_weights(config_),
               {.max_rows = max_rows,
                .max_positions = target.backend.max_positions(),
                .max_context = target.kv.capacity()}),
        kv_(config_.n_layers, config_.kv_size(), 1, target.kv.capacity()) {}

  int vocab_size() const { return target_.backend.vocab_size(); }
  int max_rows() const { return target_.backend.max_rows(); }
  int max_positions() const { return target_.backend.max_positions(); }

  vocab_rows<float> forward(device::contiguous_kv<number_type>& kv, const device::forward_batch_view& batch,
                            cudaStream_t stream) {
    (void)large_.forward(kv_, batch, stream);
    return target_.backend.forward(kv, batch, stream);
  }

  // The small model's residual stream after a layer, and after the last one: block drafts and selectors read it.
  const float* hidden(int layer) const { return target_.backend.hidden(layer); }
  int hidden_size() const { return target_.backend.hidden_size(); }
  const float* hidden_states() const { return target_.backend.hidden_states(); }

 private:
  bench::served_model& target_;
  model_config config_;
  device::llama_backend<number_type> large_;
  device::contiguous_kv<number_type> kv_;
};

struct drafts {
  std::unique_ptr<bench::served_model> model;
  std::optional<device::block_draft_model<number_type>> block;
  std::optional<selector_file> selector;  // for specinfer
  cost_model costs;                       // of the large model's passes, for the selector

  auto drafter(float temperature) const {
    return device::autoregressive(model->backend, model->kv, {.temperature = temperature});
  }
};

// A way of decoding. Its decoder is made when its turn comes, and gone after it: trees of 1,024 nodes take memory.
struct method {
  std::string name;
  int budget;  // drafted tokens of a round at most
  std::function<bench::text_writer()> make;
};

class methods {
 public:
  methods(bench::served_model& target, priced_backend& backend, drafts& with, int most)
      : target_(target), backend_(backend), with_(with), most_(most) {}

  std::vector<method> at(float temperature) {
    found_.clear(), temperature_ = temperature;
    // Above 256 nodes best_first asks about more nodes than the cache of a draft of 1,024 positions has slots for.
    const std::vector<int> few{16, 64}, more{8, 16, 32, 64, 128, 256}, all{8, 16, 32, 64, 128, 256, 512, 1024};
    if (temperature == 0) {
      plain_and_chains(greedy(), greedy(), [](int n) { return device::chain({.length = n}); });
      trees(greedy(), more, all);
      step(
          "EAGLE-2's tree", few, [](int n) { return device::eagle2({.budget = n}); }, greedy());
      step(
          "fixed tree", few, [](int n) { return device::fixed({.budget = n}); }, greedy());
      step(
          "adaptive chain", {16}, [](int n) { return device::adaptive_chain({.length = 8, .max_length = n}); },
          greedy());
      for (const int n : {8, 16})
        add(
            "chain by prompt lookup", n, [] { return device::prompt_lookup(); },
            [n] { return device::chain({.length = n}); }, greedy());
      for (const int n : few)
        add(
            "DynaTree, then a chain of 8 by prompt lookup", n,
            [this] { return device::joint(with_.drafter(drafted_at()), device::prompt_lookup()); },
            [n] { return device::cascade(device::dynatree({.budget = n - 8}), device::chain({.length = 8})); },
            greedy());
    } else {
      plain_and_chains(target_only(), block_verification(), [](int n) { return device::sampled_chain({.length = n}); });
      trees(target_only(), few, few);
      step(
          "DySpec by thresholds, residual walk", {8, 16, 32, 64, 128},
          [](int n) { return device::dyspec_threshold({.budget = n, .threshold = 0.5 / n}); }, residual_walk());
      step(
          "DySpec, residual walk", few, [](int n) { return device::dyspec_greedy({.budget = n}); }, residual_walk());
      step(
          "Sequoia, residual walk", few, [](int n) { return device::sequoia({.budget = n}); }, residual_walk());
      step(
          "SpecInfer's tree, specinfer", few, [](int n) { return device::specinfer_static({.budget = n}); },
          specinfer());
      step(
          "paths delayed by 2, traversal", {2 + 2 * 4, 2 + 4 * 6, 2 + 8 * 6},
          [](int n) {
            return device::delayed({.paths = n < 16 ? 2 : n < 32 ? 4 : 8, .trunk = 2, .length = n < 16 ? 4 : 6});
          },
          traversal());
      if (with_.selector) {
        constexpr delayed_options small{.paths = 2, .trunk = 2, .length = 4}, large = device::neural_delayed::largest;
        step(
            "trees delayed by a selector, specinfer", {small.max_nodes(), large.max_nodes()},
            [this, small, large](int n) {
              return device::neural_delayed({}, with_.selector->selector, with_.costs,
                                            n == small.max_nodes() ? small : large);
            },
            specinfer());
      }
    }
    return std::move(found_);
  }

 private:
  template <class MakeT, class VerifierT, class ChainVerifierT>
  void plain_and_chains(VerifierT alone, ChainVerifierT verifier, MakeT chain) {
    add(
        "plain", 0, [] { return device::no_drafter(); }, [] { return device::plain(); }, alone);
    step("chain", {4, 8, 16}, chain, verifier);
  }

  template <class VerifierT>
  void trees(VerifierT verifier, const std::vector<int>& budgets, const std::vector<int>& of_block) {
    step(
        "DynaTree", {16, 64, 256}, [](int n) { return device::dynatree({.budget = n}); }, verifier);
    step(
        "best_first", budgets, [](int n) { return device::best_first({.budget = n, .max_depth = 8}); }, verifier);
    if (!with_.block) return;
    for (const int n : of_block)
      add(
          "best_first over the block (DDTree)", n, [this] { return device::block_diffusion(*with_.block); },
          [n] { return device::best_first({.budget = n}); }, verifier);
  }

  // A method that drafts token by token.
  template <class MakeT, class VerifierT>
  void step(const std::string& name, const std::vector<int>& budgets, MakeT make, VerifierT verifier) {
    for (const int n : budgets)
      add(
          name, n, [this] { return with_.drafter(drafted_at()); }, [make, n] { return make(n); }, verifier);
  }

  float drafted_at() const { return temperature_ == 0 ? 1 : temperature_; }

  template <class DrafterF, class PolicyF, class VerifierT>
  void add(const std::string& name, int budget, DrafterF drafter, PolicyF policy, VerifierT verifier) {
    if (budget > most_) return;
    using made = device::decoder<decltype(drafter()), decltype(policy()), VerifierT,
                                 device::contiguous_kv<number_type>&, priced_backend&>;
    found_.push_back({name, budget, [=, this, t = temperature_] {
                        return bench::writing_with(std::make_shared<made>(
                            drafter(), policy(), verifier, target_.kv, backend_,
                            decoder_options{.text = {.sampling = {.temperature = t}, .seed = 11}}));
                      }});
  }

  bench::served_model& target_;
  priced_backend& backend_;
  drafts& with_;
  int most_;
  float temperature_ = 0;
  std::vector<method> found_;
};

void measure(bench::bench_run& run, const bench::text_arguments& pair, int max_tokens, int max_texts) {
  const models::model_paths paths = models::model_paths{run.options.models, pair.draft, pair.block}.resolved();
  if (paths.draft.empty()) raise<model_error>("trees need a draft model (--draft), and ", paths.model, " has none.");
  if (run.options.tiny) max_tokens = 6, max_texts = 1;
  const int most = run.size(1024, 16), rows = most + 1;
  std::vector<int> read_by_block;
  if (!paths.block.empty()) read_by_block = block_draft_config::load(paths.block).hidden_layers;
  const std::string selector = run.options.models + "/selector/specinfer.safetensors";
  const bool selects = std::filesystem::exists(selector);
  const auto last_layer = [](const std::string& folder) { return model_config::load(folder).n_layers - 1; };
  std::vector<int> kept = read_by_block;
  if (selects && std::find(kept.begin(), kept.end(), last_layer(paths.model)) == kept.end())
    kept.push_back(last_layer(paths.model));
  bench::served_model target(paths.model, kept, rows);
  const std::vector<int> kept_of_draft = selects ? std::vector<int>{last_layer(paths.draft)} : std::vector<int>{};
  // best_first asks the draft about more nodes than it keeps.
  drafts with{
      std::make_unique<bench::served_model>(paths.draft, kept_of_draft, std::max(2 * rows, 128), 1, paths.head_tokens),
      {},
      {},
      load_costs(ESPALIER_BENCH_PRICES)};
  if (selects) with.selector.emplace(load_selector(selector));
  if (!paths.block.empty())
    with.block.emplace(device::block_draft_model<number_type>::load(paths.block, target.backend));
  priced_backend backend(target, run.options.tiny, rows);
  const std::vector<std::vector<token_id>> all = pair.read_prompts(backend.vocab_size());
  // Prompts from the whole file, since neighbours are of one kind.
  std::vector<std::vector<token_id>> prompts;
  for (int p = 0; p < max_texts && p < static_cast<int>(all.size()); ++p)
    prompts.push_back(all[all.size() * static_cast<std::size_t>(p) / static_cast<std::size_t>(max_texts)]);

  methods of(target, backend, with, most);
  std::string failures;
  for (const float temperature : {0.0F, 0.6F, 1.0F}) {
    std::vector<std::vector<token_id>> plain(prompts.size());
    double plain_rate = 0;
    for (const method& m : of.at(temperature)) {
      bench::samples rate;
      double tokens = 0, rounds = 0, seconds = 0;
      int differing = 0;
      try {
        const bench::text_writer write = m.make();
        (void)write(prompts.front(), 4);  // captures the graph
        for (std::size_t p = 0; p < prompts.size(); ++p) {
          const bench::written_text text = write(prompts[p], max_tokens);
          rate.add(static_cast<double>(text.tokens.size()) / text.seconds);
          tokens += static_cast<double>(text.tokens.size()), rounds += text.rounds, seconds += text.seconds;
          if (m.budget == 0) plain[p] = text.tokens;
          differing += text.tokens != plain[p] ? 1 : 0;
        }
      } catch (const error& e) {
        failures += m.name + " of " + std::to_string(m.budget) + ": " + e.what() + " ";
        continue;
      }
      if (m.budget == 0) plain_rate = tokens / seconds;
      char heat[16], note[160];
      std::snprintf(heat, sizeof heat, "%g", static_cast<double>(temperature));
      std::snprintf(note, sizeof note, "%.2f times plain; %.2f tokens a round; %.2f ms a round%s",
                    tokens / seconds / plain_rate, tokens / rounds, 1e3 * seconds / rounds,
                    temperature > 0  ? ""
                    : differing == 0 ? "; every text is plain decoding's"
                                     : "; some texts differ from plain decoding's");
      const std::string size = m.budget > 0 ? " of " + std::to_string(m.budget) : "";
      run.found.add({.key = std::string("trees.") + heat + "." + m.name + "." + std::to_string(m.budget),
                     .what = "temperature " + std::string(heat) + ": " + m.name + size,
                     .measured = rate,
                     .unit = "tokens/s",
                     .note = note});
    }
  }
  if (!failures.empty()) raise<error>(failures);
}

}  // namespace

int main(int argc, char** argv) {
  bench::text_arguments pair;
  int max_tokens = 64, max_texts = 4;
  return bench::run_program(
      argc, argv, "measure_trees", "trees over a small model at a large model's cost",
      [&](bench::bench_run& run) { measure(run, pair, max_tokens, max_texts); },
      [&](bench::program& to) {
        pair.add_to(to);
        to.add("--tokens", max_tokens, "tokens written of each text", 1, 4096);
        to.add("--texts", max_texts, "prompts, from the whole file", 1, 4096);
      });
}
