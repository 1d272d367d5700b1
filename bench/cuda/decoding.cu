// SPDX-License-Identifier: BSL-1.0
// Measures whole texts on the device in bfloat16, with the bundled models or others: tokens a second and a round, by
// method, over prompts that are given as tokens; whether greedy texts are those of plain decoding; and the cost of bit
// masks.
#include <cuda_bf16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "device_block_model.cuh"
#include "espalier/core/error.hpp"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/block_diffusion.cuh"
#include "espalier/cuda/drafter/factorised.cuh"
#include "espalier/cuda/drafter/feature_steps.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/draft_head_model.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/dyspec_greedy.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/cuda/tree_policy/sampled_chain.cuh"
#include "espalier/processor/constrained.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "layers_read.hpp"
#include "model_paths.hpp"
#include "program.cuh"
#include "round_stations.cuh"
#include "served_model.cuh"
#include "three_of_four.hpp"
#include "whole_texts.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;
using number = __nv_bfloat16;

using text = std::vector<token_id>;
using model = bench::served_model;

// One way of decoding, with a decoder of its own. The first text captures the graphs and is not measured.
struct method {
  std::string name;
  float temperature;
  bench::text_writer write;
  bool must_be_faster = false;  // than plain decoding
  bool is_masked = false;       // whether a constraint says which tokens may follow
  bool is_tree_of_block = false;
};

template <class DrafterT, class PolicyT, class VerifierT, class ProcessorT = no_processor>
method method_of(std::string name, model& target, DrafterT drafter, PolicyT policy, VerifierT verifier,
                 float temperature, ProcessorT processor = {}) {
  using made = device::decoder<DrafterT, PolicyT, VerifierT, device::contiguous_kv<number>&,
                               device::llama_backend<number>&, ProcessorT>;
  return {std::move(name), temperature,
          bench::writing_with(std::make_shared<made>(
              std::move(drafter), std::move(policy), std::move(verifier), target.kv, target.backend,
              decoder_options{.text = {.sampling = {.temperature = temperature}, .seed = 11}}, std::move(processor)))};
}

method masked(method of) {
  of.is_masked = true;
  return of;
}

method asked_to_be_faster(method of) {
  of.must_be_faster = true;
  return of;
}

// What a publication says of trees over its block draft, which the best of the trees here is held against.
struct claims {
  std::vector<std::string> times_plain{};  // speeds over plain decoding, greedy and at temperature 1; empty: none

  void add_to(bench::program& to) {
    to.add("--times-plain", times_plain,
           "two speeds over plain decoding, greedy and at temperature 1, that trees over the block are to reach; they "
           "are then measured with 256 and 512 nodes, too");
  }
  bool are_made() const { return !times_plain.empty(); }
  // The speed for a temperature of 0 or 1. Errors: input_error unless there are two numbers above 0
  double at(float temperature) const {
    char* end = nullptr;
    const std::string& text = times_plain[temperature > 0 && times_plain.size() > 1 ? 1 : 0];
    const double speed = std::strtod(text.c_str(), &end);
    if (times_plain.size() != 2 || text.empty() || *end != '\0' || !(speed > 0))
      raise<input_error>("--times-plain must be two numbers above 0, such as 7.52,6.59.");
    return speed;
  }
};

using block_model = models::device_block_model<number>;
using head_model = device::draft_head_model<number>;

// Rows of a head's pass: best_first asks about fifteen nodes for each of its 64.
constexpr int rows_of_head = 1024;

// The models of a run. Methods whose draft is missing are left out.
struct loaded {
  std::unique_ptr<model> target, draft;
  std::optional<block_model> block;
  std::optional<head_model> head;

  loaded(const models::model_paths& paths, int max_rows) {
    target = std::make_unique<model>(paths.model, models::layers_read(paths), max_rows);
    if (!paths.draft.empty())
      draft = std::make_unique<model>(paths.draft, std::vector<int>{}, 257, 1, paths.head_tokens);
    if (!paths.block.empty()) block.emplace(block_model::load(paths.block, target->backend, max_rows));
    if (!paths.head.empty()) head.emplace(head_model::load(paths.head, target->backend, rows_of_head));
    if (draft && draft->backend.vocab_size() != target->backend.vocab_size())
      raise<model_error>("the target ", paths.model, " has a vocabulary of ", target->backend.vocab_size(),
                         " and the draft ", paths.draft, " one of ", draft->backend.vocab_size(),
                         "; they must be the same.");
  }
};

// A chain and trees over the block. Rows that are corrected by path are asked for node by node.
template <class VerifierT>
void add_methods_of_block(std::vector<method>& all, loaded& models, const std::vector<int>& budgets, VerifierT verifier,
                          float temperature) {
  const auto add = [&](auto drafter) {
    method chain = method_of("chain of the block (DFlash)", *models.target, drafter(),
                             device::chain({.length = models.block->block_length()}), verifier, temperature);
    all.push_back(std::move(chain));
    for (const int budget : budgets) {
      all.push_back(method_of("best_first of " + std::to_string(budget) + " over the block (DDTree)", *models.target,
                              drafter(), device::best_first({.budget = budget}), verifier, temperature));
      all.back().is_tree_of_block = true;
      all.back().must_be_faster = temperature == 0;
    }
  };
  const auto block = [&] { return device::block_diffusion(*models.block); };
  if (models.block->corrects()) {
    add([&] { return device::factorised(block()); });
  } else {
    add(block);
  }
}

// A chain and trees over the head.
template <class VerifierT>
void add_methods_of_head(std::vector<method>& all, loaded& models, VerifierT verifier, float temperature) {
  const auto add = [&](const std::string& name, auto policy) {
    all.push_back(method_of(name + " over the head", *models.target, device::feature_steps(*models.head),
                            std::move(policy), verifier, temperature));
    all.back().must_be_faster = temperature == 0;
  };
  add("chain of 5", device::chain({.length = 5}));
  add("DynaTree", device::dynatree());
  add("best_first of 64", device::best_first({.budget = 64}));
}

std::vector<method> all_methods(loaded& models, const std::vector<int>& budgets) {
  model& target = *models.target;
  const auto drafter = [&](float temperature = 1) {
    return device::autoregressive(models.draft->backend, models.draft->kv, {.temperature = temperature});
  };
  std::vector<method> all;
  all.push_back(method_of("plain", target, device::no_drafter(), device::plain(), greedy(), 0));
  if (models.draft) {
    all.push_back(
        asked_to_be_faster(method_of("chain of 5", target, drafter(), device::chain({.length = 5}), greedy(), 0)));
    all.push_back(asked_to_be_faster(method_of("DynaTree", target, drafter(), device::dynatree(), greedy(), 0)));
  }
  if (models.block) add_methods_of_block(all, models, budgets, greedy(), 0);
  if (models.head) add_methods_of_head(all, models, greedy(), 0);
  all.push_back(method_of("plain", target, device::no_drafter(), device::plain(), target_only(), 1));
  if (models.draft) {
    all.push_back(method_of("sampled chain of 5, block verification", target, drafter(),
                            device::sampled_chain({.length = 5}), block_verification(), 1));
    all.push_back(method_of("DynaTree, target only", target, drafter(), device::dynatree(), target_only(), 1));
    all.push_back(method_of("2 paths of 4, traversal", target, drafter(), device::iid_paths({.paths = 2, .length = 4}),
                            traversal(), 1));
    all.push_back(method_of("DySpec of 16, residual walk", target, drafter(), device::dyspec_greedy({.budget = 16}),
                            residual_walk(), 1));
  }
  if (models.block) add_methods_of_block(all, models, budgets, target_only(), 1);
  if (models.head) add_methods_of_head(all, models, target_only(), 1);
  const constrained process{bench::three_of_four(target.backend.vocab_size())};
  all.push_back(
      masked(method_of("plain, masked", target, device::no_drafter(), device::plain(), greedy(), 0, process)));
  if (models.draft) {
    all.push_back(
        masked(method_of("chain of 5, masked", target, drafter(), device::chain({.length = 5}), greedy(), 0, process)));
  }
  return all;
}

void measure(bench::bench_run& run, const bench::text_arguments& pair, const claims& claimed, int most_tokens) {
  const int max_tokens = run.size(most_tokens, 6);
  // The requirements hold for the bundled models.
  const bool is_bundled = run.options.models == ESPALIER_BENCH_MODELS;
  const std::vector<int> budgets = claimed.are_made() ? std::vector{64, 256, 512} : std::vector{64};
  const std::vector<double> asked =
      claimed.are_made() ? std::vector{claimed.at(0), claimed.at(1)} : std::vector<double>();
  loaded models(models::model_paths{run.options.models, pair.draft, pair.block}.resolved(),
                (std::max)(257, budgets.back() + 1));
  if (claimed.are_made() && !models.block)
    raise<input_error>("--times-plain is of trees over a block draft, but there is none: --block names one.");
  std::vector<text> prompts = pair.read_prompts(models.target->backend.vocab_size());
  if (run.options.tiny) prompts.resize(1);
  const std::vector<method> methods = all_methods(models, budgets);
  struct result {
    bench::samples rate;  // tokens a second, by prompt and repetition
    double tokens = 0, rounds = 0, seconds = 0;
    int differing = 0;
    std::string failure{};  // message of the first text that could not be written; the method is left out after it
  };
  std::vector<result> results(methods.size());
  const int repetitions = run.options.tiny ? 1 : std::clamp(run.options.repetitions / 30, 1, 3);
  for (int r = run.options.tiny ? 0 : -1; r < repetitions; ++r) {
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      if (r < 0 && p > 0) break;
      text plain[2];  // as the model writes freely, and under the masks
      for (std::size_t m = 0; m < methods.size(); ++m) {
        if (!results[m].failure.empty()) continue;
        bench::written_text out;
        try {
          out = methods[m].write(prompts[p], max_tokens);
        } catch (const error& e) {
          results[m].failure = e.what();
          continue;
        }
        if (methods[m].temperature == 0 && methods[m].name.starts_with("plain"))
          plain[methods[m].is_masked] = out.tokens;
        if (r < 0) continue;
        results[m].rate.add(static_cast<double>(out.tokens.size()) / out.seconds);
        results[m].tokens += static_cast<double>(out.tokens.size());
        results[m].rounds += out.rounds;
        results[m].seconds += out.seconds;
        results[m].differing += methods[m].temperature == 0 && out.tokens != plain[methods[m].is_masked] ? 1 : 0;
      }
    }
  }
  double plain_rate = 1;
  double best_share[2] = {1e9, 1e9};  // of the trees over the block: time a token, greedy and at temperature 1
  std::string failures;
  for (std::size_t m = 0; m < methods.size(); ++m) {
    const result& of = results[m];
    if (!of.failure.empty()) {
      failures += methods[m].name + ": " + of.failure + " ";
      continue;
    }
    if (methods[m].name.starts_with("plain")) plain_rate = of.rate.median();
    double& share_here = best_share[methods[m].temperature > 0];
    if (methods[m].is_tree_of_block) share_here = (std::min)(share_here, plain_rate / of.rate.median());
    char note[128];
    std::snprintf(note, sizeof note, "%.2f times plain; %.2f tokens a round; %s", of.rate.median() / plain_rate,
                  of.tokens / of.rounds,
                  methods[m].temperature > 0 ? "sampled"
                  : of.differing == 0        ? "every text is plain decoding's"
                                             : "some texts differ from plain decoding's");
    run.found.add({.key = "decoding." + std::to_string(m),
                   .what = methods[m].name + (methods[m].temperature > 0 ? ", temperature 1" : ", greedy"),
                   .measured = of.rate,
                   .unit = "tokens/s",
                   .note = note});
    if (methods[m].must_be_faster) {
      bench::samples share;
      share.add(plain_rate / of.rate.median());
      run.found.add({.key = "decoding.share." + std::to_string(m),
                     .what = methods[m].name + ": time a token, as a share of plain decoding's",
                     .measured = share,
                     .unit = "of plain",
                     .limit = is_bundled ? std::optional(1 / 1.3) : std::nullopt,
                     .target = "1.3 times plain"});
    }
    if (methods[m].temperature == 0)
      run.found.add("decoding.differing." + std::to_string(m),
                    methods[m].name + ": texts that differ from plain decoding's", of.differing, "texts");
  }
  for (std::size_t i = 0; i < asked.size() && best_share[i] < 1e9; ++i) {
    bench::samples share;
    share.add(best_share[i]);
    char target[96];
    std::snprintf(target, sizeof target, "%.2f times plain, as published", asked[i]);
    run.found.add({.key = "decoding.published." + std::to_string(i),
                   .what = std::string("the best tree over the block, ") + (i > 0 ? "temperature 1" : "greedy") +
                           ": time a token, as a share of plain decoding's",
                   .measured = share,
                   .unit = "of plain",
                   .limit = 1 / asked[i],
                   .target = target});
  }
  // The cost of masks in a round of the same method.
  for (std::size_t m = 0; m < methods.size(); ++m) {
    for (std::size_t of = 0; of < m; ++of) {
      if (!methods[m].is_masked || methods[m].name != methods[of].name + ", masked" || methods[of].temperature > 0)
        continue;
      if (!results[m].failure.empty() || !results[of].failure.empty()) continue;
      bench::samples share;
      share.add(results[m].seconds / results[m].rounds * results[of].rounds / results[of].seconds);
      run.found.add({.key = "decoding.masks." + std::to_string(m),
                     .what = methods[of].name + ": time of a round with a mask for each row, as a share of one without",
                     .measured = share,
                     .unit = "of a round",
                     .limit = 1.03,
                     .target = "masks cost at most 3 % of a round"});
    }
  }
  // The stations of a round, in the middle of a text.
  if (models.draft) {
    auto drafter = device::autoregressive(models.draft->backend, models.draft->kv);
    device::dynatree policy;
    bench::round_stations round(drafter, policy, greedy(), models.target->kv, models.target->backend, prompts.front(),
                                {.text = {.sampling = {.temperature = 0.0F}}});
    const std::string of = is_bundled ? "the bundled pair" : run.options.models;
    bench::measure_stations(run, round, "decoding.station", "A round of DynaTree with " + of + ", " + run.card.name,
                            run.options.inputs.empty() ? "" : run.options.inputs + "/decoding.svg");
  }
  if (!failures.empty()) raise<error>(failures);
}

}  // namespace

int main(int argc, char** argv) {
  bench::text_arguments pair;
  claims claimed;
  int most_tokens = 256;
  return bench::run_program(
      argc, argv, "measure_decoding", "text end to end",
      [&](bench::bench_run& run) { measure(run, pair, claimed, most_tokens); },
      [&](bench::program& to) {
        pair.add_to(to);
        claimed.add_to(to);
        to.add("--tokens", most_tokens, "of each text");
      });
}
