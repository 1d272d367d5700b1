// SPDX-License-Identifier: BSL-1.0
// Measures trees on the device: best_first from given lists, and the compilation of the tree in every order.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device_text.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "inputs.hpp"
#include "program.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;

struct asked {
  std::int32_t budget;
  double tree, compile;  // microseconds
};

void measure_one(bench::bench_run& run, const asked& of) {
  constexpr std::int32_t n_rows = 15, prefix = 1000;
  const bench::token_lists host(n_rows, static_cast<std::size_t>(of.budget), run.size<std::size_t>(20000, 2000), 11);
  const device::device_array<token_id> tokens{std::span<const token_id>(host.tokens)};
  const device::device_array<float> log_probs{std::span<const float>(host.log_probs)};
  const device::prefix_lists lists{
      .tokens = tokens.data(), .log_probs = log_probs.data(), .n_rows = n_rows, .n_ranks = of.budget};
  const bench::device_text text(prefix, prefix + 2048);

  const device::best_first policy({.budget = of.budget});
  const device::tree grown(of.budget);
  struct ordered {
    const char* name;
    device::tree_compiler compiler;
  };
  std::array<ordered, 4> orders{ordered{"insertion", {of.budget, node_order::insertion}},
                                ordered{"breadth_first", {of.budget, node_order::breadth_first}},
                                ordered{"depth_first", {of.budget, node_order::depth_first}},
                                ordered{"heavy_path", {of.budget, node_order::heavy_path}}};

  auto race = run.race();
  // In a round the lists have just been written at this point, so the caches hold them.
  race.add({.key = "best_first",
            .work = [&](cudaStream_t s) { policy.take_best(device::text_batch::of(grown.writer(), {}), lists, s); },
            .prepare = [&](cudaStream_t s) { bench::reset_tree(grown.writer(), of.budget, s); },
            .cold = false});
  // A tree that is not grown again.
  const device::tree compiled(of.budget);
  bench::reset_tree(compiled.writer(), of.budget, race.in());
  const auto texts = device::text_batch::of(compiled.writer(), text.view(), prefix + of.budget + 1);
  policy.take_best(texts, lists, race.in());
  for (const ordered& o : orders) {
    race.add({.key = o.name,
              .work = [&](cudaStream_t s) { (void)o.compiler.compile(texts, of.budget + 1, s); },
              .cold = false});
  }
  race.run();
  const std::string n = std::to_string(of.budget);
  run.found.add({.key = "tree." + n,
                 .what = "best_first from lists, B = " + n,
                 .measured = race.of("best_first"),
                 .limit = of.tree,
                 .target = "asked for"});
  for (const ordered& o : orders) {
    run.found.add({.key = "compile." + n + "." + o.name,
                   .what = "compile, B = " + n + ", " + o.name,
                   .measured = race.of(o.name),
                   .limit = of.compile,
                   .target = "asked for"});
  }
}

void measure(bench::bench_run& run) {
  const std::vector<asked> all{{64, 25, 5}, {512, 80, 10}, {1024, 60, 20}};
  for (const asked& of : all)
    measure_one(run, run.options.tiny ? asked{of.budget / 8, of.tree, of.compile} : of);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_tree", "best_first from lists, and the compilation of trees", measure);
}
