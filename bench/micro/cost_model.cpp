// SPDX-License-Identifier: BSL-1.0
// Measures how well the cost model predicts the time of rounds: a warm-up with measure_costs, then rounds of many
// sizes, each compared with the price of its tree.
//
//   bench_micro_cost_model [--model FOLDER] [--threads N]     the folder has target/, draft/, tokenizer.model,
//                                                              prompts.jsonl
//
// Exits with 1 if half of the trees are more than 10 % off their measured time.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../program.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "model_costs.hpp"
#include "model_set.hpp"
#include "prompts_file.hpp"

namespace {

using espalier::node_id;
using espalier::token_id;

constexpr int most_nodes = 256;
constexpr double asked = 0.10;

// An autoregressive drafter that remembers how many nodes it was asked about in each pass of the round.
class counted_drafter : public espalier::autoregressive<espalier::llama_backend&, espalier::recurrent_kv&> {
 public:
  using espalier::autoregressive<espalier::llama_backend&, espalier::recurrent_kv&>::autoregressive;

  void propose(espalier::tree_view tree, std::span<const node_id> nodes) {
    if (nodes.size() == 1 && nodes[0] == espalier::root_node) passes.clear();
    passes.push_back(static_cast<std::int32_t>(nodes.size()));
    autoregressive::propose(tree, nodes);
  }

  std::vector<std::int32_t> passes;
};

struct measured_round {
  const char* kind;
  std::int32_t nodes;
  double seconds;
  double by_tree;    // predicted from the tree alone
  double by_passes;  // predicted from the passes that were made
};

// The smallest value that at least this share of the values does not exceed.
double quantile(std::vector<double> values, double share) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

double median(std::vector<double> values) {
  return quantile(std::move(values), 0.5);
}

// Measures rounds of one way of drafting, at the end of a given text.
class round_writer {
 public:
  explicit round_writer(models::model_set& models)
      : models_(models),
        target_kv_(models.make_cache(models.target)),
        draft_kv_(models.make_cache(models.draft_model())) {}

  // The costs by which the next rounds are priced.
  const espalier::cost_model& measure(const espalier::measure_options& options) {
    espalier::autoregressive drafter(models_.draft_model(), draft_kv_, {.temperature = 1.0F});
    costs_ = espalier::measure_costs(drafter, models_.target, target_kv_, options);
    return *costs_;
  }

  template <class PolicyT, class VerifierT>
  void write(const char* kind, PolicyT policy, VerifierT verifier, float temperature, std::span<const token_id> text,
             std::uint64_t seed) {
    counted_drafter drafter(models_.draft_model(), draft_kv_, {.temperature = 1.0F});
    auto decode = espalier::make_decoder(drafter, policy, verifier, target_kv_, models_.target,
                                         {.text = {.sampling = {.temperature = temperature}, .seed = seed}});
    constexpr int rounds = 7;
    decode.begin(text, {.max_tokens = rounds * 20});
    for (int i = 0; i < rounds; ++i) {
      const auto context = static_cast<std::int32_t>(decode.current().tokens().size()) - 1;
      if (!decode.step()) return;
      const espalier::round_record& round = decode.last_round();
      // The first round reads the text, and there is no tree where no token may be drafted.
      if (i == 0 || round.tree.n_nodes < 2) continue;
      results.push_back({kind, round.tree.n_nodes - 1, round.seconds.total(), costs_->tree(round.tree, context),
                         costs_->round(drafter.passes, round.forwarded_rows, context)});
    }
  }

  std::vector<measured_round> results;

 private:
  models::model_set& models_;
  std::optional<espalier::cost_model> costs_;
  espalier::recurrent_kv target_kv_;
  espalier::recurrent_kv draft_kv_;
};

void write_all(round_writer& writer, std::span<const token_id> text, std::uint64_t seed) {
  for (const int budget : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256}) {
    writer.write("best_first", espalier::best_first({.budget = budget, .max_depth = 8}), espalier::greedy(), 0.0F, text,
                 seed);
  }
  for (const int depth : {1, 2, 3, 4, 5, 6, 7})
    writer.write("fixed", espalier::fixed({.depth = depth, .breadth = 2, .budget = most_nodes}), espalier::greedy(),
                 0.0F, text, seed);
  for (const espalier::delayed_options& options : std::vector<espalier::delayed_options>{{1, 0, 1},
                                                                                         {1, 0, 3},
                                                                                         {2, 2, 2},
                                                                                         {2, 2, 4},
                                                                                         {4, 0, 4},
                                                                                         {4, 2, 6},
                                                                                         {8, 0, 6},
                                                                                         {12, 2, 8},
                                                                                         {24, 0, 8},
                                                                                         {32, 0, 8}})
    writer.write("delayed", espalier::delayed(options), espalier::specinfer(), 1.0F, text, seed);
}

// The prompts of the folder, one after the other.
std::vector<token_id> text_of(const std::string& folder, const models::model_set& models) {
  std::vector<token_id> text;
  for (const models::prompt& prompt : models::read_prompts(folder + "/prompts.jsonl")) {
    const auto tokens = prompt.tokens.empty() ? models.text.encode_prompt(prompt.text) : prompt.tokens;
    text.insert(text.end(), tokens.begin(), tokens.end());
  }
  return text;
}

template <class KeepT>
void print_line(const char* name, const std::vector<measured_round>& rounds, const KeepT& keep) {
  std::vector<double> seconds, by_tree, by_passes, ratio;
  for (const measured_round& r : rounds) {
    if (!keep(r)) continue;
    seconds.push_back(r.seconds);
    ratio.push_back(r.by_tree / r.seconds);
    by_tree.push_back(std::abs(r.by_tree / r.seconds - 1));
    by_passes.push_back(std::abs(r.by_passes / r.seconds - 1));
  }
  if (seconds.empty()) return;
  std::printf("| %s | %zu | %.2f | %.3f | %.1f %% | %.1f %% | %.1f %% |\n", name, seconds.size(), 1e3 * median(seconds),
              median(ratio), 100 * median(by_tree), 100 * quantile(by_tree, 0.9), 100 * median(by_passes));
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_micro_cost_model", "How well the cost model tells what rounds take.");
  std::string folder = ESPALIER_BENCH_MODELS;
  int threads = 0;
  program.add("--model", folder, "folder with target/, draft/, tokenizer.model and prompts.jsonl");
  program.add("--threads", threads, "threads of a forward pass; 0: one a processor", 0, 256);
  return program.run(argc, argv, [&] {
    auto models = models::model_set::load({folder}, {.threads = threads, .max_rows = most_nodes + 64});
    espalier::measure_options options{.target = espalier::model_identity(models.paths.model),
                                      .draft = models::draft_identity(models),
                                      .hardware = espalier::hardware_name(threads),
                                      .most_rows = most_nodes + 1};
    const std::vector<token_id> text = text_of(folder, models);
    round_writer writer(models);
    // Other programs of the machine change by the minute, so each stretch of rounds has a warm-up of its own.
    std::vector<espalier::cost_model> measured;
    std::size_t first = 0;
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      for (const std::size_t context : {60U, 150U, 300U, 600U}) {
        measured.push_back(writer.measure(options));
        write_all(writer, std::span<const token_id>(text).subspan(first, context), seed);
        first = (first + context) % (text.size() - 700);
      }
    }
    const espalier::cost_model& costs = measured.back();
    std::printf("## What the cost model says of rounds\n\n%s; target %s; draft %s\n\nThe last of %zu warm-ups:\n\n",
                costs.hardware.c_str(), costs.target.c_str(), costs.draft.c_str(), measured.size());
    const auto print_curve = [](const char* name, const espalier::cost_curve& curve) {
      for (const std::int32_t context : curve.contexts()) {
        std::printf("| %s, after %d tokens |", name, context);
        for (const std::int32_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256})
          std::printf(" %.3f |", 1e3 * curve(rows, context));
        std::puts("");
      }
    };
    std::puts("| ms by rows | 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | 256 |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|");
    print_curve("draft pass", costs.draft_pass);
    print_curve("target pass", costs.target_pass);

    std::puts(
        "\nA tree alone is priced as grown level by level, with a draft pass over the nodes of each level that have "
        "children. best_first asks about nodes that it does not keep: the last column prices the passes that were "
        "made.\n"
        "\n| drafted tokens | rounds | median ms | predicted / measured | median error, tree alone | 9 of 10 below | "
        "median error, passes |\n|---|--:|--:|--:|--:|--:|--:|");
    std::int32_t from = 1;
    for (const std::int32_t to : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
      const std::string name = from == to ? std::to_string(to) : std::to_string(from) + " to " + std::to_string(to);
      print_line(name.c_str(), writer.results,
                 [&](const measured_round& r) { return r.nodes >= from && r.nodes <= to; });
      from = to + 1;
    }
    for (const std::string_view kind : {"best_first", "fixed", "delayed"})
      print_line(kind.data(), writer.results, [&](const measured_round& r) { return r.kind == kind; });
    print_line("all", writer.results, [](const measured_round&) { return true; });
    std::vector<double> errors;
    for (const measured_round& r : writer.results)
      errors.push_back(std::abs(r.by_tree / r.seconds - 1));
    const double error = median(errors);
    std::printf("\nMedian error of the price of a tree, 1 to %d drafted tokens: %.1f %% (asked: %.0f %%).\n",
                most_nodes, 100 * error, 100 * asked);
    return error <= asked ? 0 : 1;
  });
}
