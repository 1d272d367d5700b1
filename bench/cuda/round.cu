// SPDX-License-Identifier: BSL-1.0
// Measures a whole round without the models' passes: from 15 rows of the draft's logits to a tree of 256 nodes, its
// batch and masks, greedy verification over the target's logits, and the compaction of the cache. It runs as one graph,
// station by station, and through the decoder with a count of the host's calls of the CUDA runtime. round_torch.py does
// the same steps in PyTorch on the same inputs.
#include <cuda_bf16.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "api_calls.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/backend/callable.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/decoder/grow.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/verifier/greedy.hpp"
#include "given_block.cuh"
#include "inputs.hpp"
#include "program.cuh"
#include "random_numbers.cuh"
#include "round_stations.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;

struct sizes {
  std::int32_t n_rows = 15;
  std::int32_t vocab = 151936;
  std::int32_t budget = 256;
  std::int32_t prefix = 2048;
  std::int32_t layers = 36;
  std::int32_t row_size = 1024;
};

// Logits of both models. The target's favourite token after a node is the draft's favourite at that depth, so the
// target follows one path of the tree as far as that path goes.
struct round_inputs {
  std::vector<float> draft;   // [n_rows][vocab]
  std::vector<float> target;  // [budget + 1][vocab], by node
  std::int32_t accepted = 0;

  explicit round_inputs(const sizes& of) : draft(bench::power_law_logits(at(of.n_rows), at(of.vocab), 21)) {
    tree<> grown(of.budget);
    espalier::best_first policy({.budget = of.budget});
    bench::given_block_on_host block{draft, of.n_rows, of.vocab};
    philox_chance chance(0, 0, 0);
    grown.reset(1);
    grow(policy, grown, block, chance);
    target = bench::bell_logits(at(of.budget + 1), at(of.vocab), 22);
    const tree_view view = grown;
    std::vector<token_id> favourites;
    for (std::int32_t r = 0; r < of.n_rows; ++r)
      favourites.push_back(argmax(std::span<const float>(draft).subspan(at(r) * at(of.vocab), at(of.vocab)), r));
    for (node_id u = 0; u < view.n_nodes; ++u) {
      if (view.depth[u] < of.n_rows) target[at(u) * at(of.vocab) + at(favourites[at(view.depth[u])])] = 40;
    }
    for (node_id u = 0; u != no_node && view.depth[u] < of.n_rows;) {
      accepted = view.depth[u];
      u = view.find_child(u, favourites[at(view.depth[u])]);
    }
  }

 private:
  static std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }
};

void write_inputs(const std::string& folder, const sizes& of, const round_inputs& inputs) {
  bench::write_floats(folder + "/round.draft.f32", inputs.draft);
  bench::write_floats(folder + "/round.target.f32", inputs.target);
  std::ofstream(folder + "/round.json") << "{\"n_rows\": " << of.n_rows << ", \"vocab\": " << of.vocab
                                        << ", \"budget\": " << of.budget << ", \"prefix\": " << of.prefix
                                        << ", \"layers\": " << of.layers << ", \"row_size\": " << of.row_size
                                        << ", \"accepted\": " << inputs.accepted << "}\n";
}

using store = device::contiguous_kv<__nv_bfloat16>;

// The decoder's own round over the same logits, seen from the host: its calls, and the time from one step to the next.
template <class ModelT>
void measure_decoder(bench::bench_run& run, const sizes& of, bench::given_block& block, ModelT& model) {
  store kv(of.layers, of.row_size, 1, model.max_positions());
  auto decode = device::make_decoder(block, device::best_first({.budget = of.budget}), greedy(), kv, model,
                                     {.text = {.sampling = {.temperature = 0.0F}}, .order = node_order::insertion});
  const std::vector<token_id> prompt(static_cast<std::size_t>(of.prefix), 1);
  decode.begin(prompt);
  for (int i = 0; i < 3; ++i)
    (void)decode.step();
  (void)bench::api_calls();
  const int steps = run.options.tiny ? 2 : 40;
  bench::samples taken;
  for (int i = 0; i < steps; ++i) {
    const auto start = std::chrono::steady_clock::now();
    (void)decode.step();
    taken.add(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  const auto calls = bench::api_calls();
  run.found.add({.key = "round.step",
                 .what = "a step of the decoder, by the host's clock",
                 .measured = taken,
                 .note = "the caches hold what the round before has used; one round is under way meanwhile"});
  for (const auto& [name, n] : calls)
    run.found.add("round.calls." + name, "calls of " + name + " in a round", static_cast<double>(n) / steps, "calls",
                  name == "cudaEventSynchronize" ? "waits for the round before the one under way" : "");
}

void measure(bench::bench_run& run) {
  const sizes of = run.options.tiny
                       ? sizes{.n_rows = 5, .vocab = 2000, .budget = 16, .prefix = 40, .layers = 2, .row_size = 64}
                       : sizes{};
  const round_inputs inputs(of);
  if (!run.options.inputs.empty()) write_inputs(run.options.inputs, of, inputs);
  bench::given_block block{device::device_array<float>(std::span<const float>(inputs.draft)), of.n_rows, of.vocab};
  const device::device_array<float> target{std::span<const float>(inputs.target)};
  // The target's pass takes no time: its logits are there.
  auto model = device::make_callable_backend<float>(
      {.vocab_size = of.vocab, .max_rows = of.budget + 1, .max_positions = of.prefix + 64 * (of.budget + 1)},
      [&](store&, const device::forward_batch_view& batch, cudaStream_t) {
        return vocab_rows<float>{target.data(), batch.n_outputs, of.vocab};
      });
  {
    store kv(of.layers, of.row_size, 1, of.prefix + of.budget + 2);
    const auto view = kv.view();
    bench::fill_random(
        view.data,
        static_cast<std::size_t>(2 * view.n_layers * view.page_size) * static_cast<std::size_t>(view.row_size), 1, 3,
        nullptr);
    bench::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    device::best_first policy({.budget = of.budget});
    const std::vector<token_id> text(static_cast<std::size_t>(of.prefix + 1), 1);
    bench::round_stations round(block, policy, greedy(), kv, model, text,
                                {.text = {.sampling = {.temperature = 0.0F}}});
    auto race = run.race();
    race.add({.key = "cold", .work = [&](cudaStream_t s) { round.enqueue(s); }});
    race.add({.key = "warm", .work = [&](cudaStream_t s) { round.enqueue(s); }, .cold = false});
    race.run();
    if (round.accepted() != inputs.accepted)
      raise<error>("the round accepts ", round.accepted(), " tokens, and not the ", inputs.accepted,
                   " of the host's tree.");
    const auto& nodes = race.nodes_of("cold");
    run.found.add({.key = "round.whole",
                   .what = "a whole round without the models' passes, B = " + std::to_string(of.budget),
                   .measured = race.of("cold"),
                   .limit = 150,
                   .target = "asked for",
                   .note = std::to_string(inputs.accepted) + " tokens accepted"});
    run.found.add({.key = "round.warm",
                   .what = "the same, with what it has just used in the caches",
                   .measured = race.of("warm")});
    run.found.add("round.kernels", "kernels in the graph of a round", static_cast<double>(nodes.kernels), "kernels");
    run.found.add("round.copies", "copies and memsets in it", static_cast<double>(nodes.copies), "copies");
    run.found.add("round.host", "calls of the host in it", static_cast<double>(nodes.host), "calls");
    const std::string title =
        "A round without the models' passes, B = " + std::to_string(of.budget) + ", " + run.card.name;
    bench::measure_stations(run, round, "round.station", title,
                            run.options.inputs.empty() ? "" : run.options.inputs + "/round.svg");
  }
  measure_decoder(run, of, block, model);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_round", "a whole round without the models' passes", measure);
}
