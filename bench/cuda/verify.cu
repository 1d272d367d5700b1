// SPDX-License-Identifier: BSL-1.0
// Measures the verification of a tree of 64 drawn tokens over a vocabulary of 151,936, by verifier, and beside it the
// reading of the rows that the verifier visits. These are the rows that the host's verifier asks for, given the same
// rows and random numbers. Measures also the change of rows by masks, penalties and biases before
// verification.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "device_text.cuh"
#include "drafted_scene.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/decoder/text_processors.cuh"
#include "espalier/cuda/verifier/verify.cuh"
#include "espalier/decoder/text.hpp"
#include "espalier/processor/constrained.hpp"
#include "espalier/processor/logit_bias.hpp"
#include "espalier/processor/penalties.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/multi_path_block.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "program.cuh"
#include "recorded_rows.hpp"
#include "three_of_four.hpp"
#include "tree_upload.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;
using bench::drafted_as;

constexpr std::uint64_t seed = 5;

// A drafted_scene in the memory of the device.
struct device_scene {
  bench::drafted_scene host;
  device::tree tree;
  device::device_array<float> target, draft;
  device::device_array<std::int32_t> rows;  // the row of node u is u
  device::device_array<device::fault> found{1};
  bench::device_text text{100, 200};

  device_scene(std::int32_t budget, std::size_t vocab, drafted_as how, std::uint32_t with)
      : host(budget, vocab, how, with),
        tree(bench::uploaded(host.drawn)),
        target(std::span<const float>(host.target_logits)),
        draft(std::span<const float>(host.draft_rows)) {
    std::vector<std::int32_t> same;
    for (std::int32_t u = 0; u <= budget; ++u)
      same.push_back(u);
    rows = device::device_array<std::int32_t>(std::span<const std::int32_t>(same));
    found.fill_bytes(0, nullptr);
    bench::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
};

template <class VerifierT>
class verified {
 public:
  verified(std::string name, const device_scene& scene, std::size_t vocab, float temperature)
      : name_(std::move(name)),
        scene_(scene),
        vocab_(static_cast<std::int32_t>(vocab)),
        options_{.temperature = temperature},
        work_(VerifierT(), n_rows(), vocab_) {
    work_.sample(0, options_, nullptr);
  }

  void enter(bench::contest& race) {
    race.add({.key = name_, .work = [this](cudaStream_t s) {
                work_.run(device::text_batch::of(scene_.tree.writer(), scene_.text.view()),
                          {{scene_.draft.data(), n_rows(), vocab_}, scene_.rows.data(), n_rows()},
                          {scene_.target.data(), n_rows(), vocab_}, scene_.rows.data(), n_rows(), scene_.found.data(),
                          s);
              }});
  }

  void tell(const bench::contest& race, bench::bench_run& run) {
    std::set<node_id> of_target, of_draft;
    lazy_rows<float> rows(options_);
    rows.reserve(n_rows(), vocab_);
    std::vector<std::int32_t> same(static_cast<std::size_t>(n_rows()));
    for (std::size_t u = 0; u < same.size(); ++u)
      same[u] = static_cast<std::int32_t>(u);
    rows.open({scene_.host.target_logits.data(), n_rows(), vocab_}, same, 0);
    VerifierT verifier;
    if constexpr (requires { verifier.reserve(n_rows(), vocab_); }) verifier.reserve(n_rows(), vocab_);
    philox_chance chance(seed, 0, 0);
    bench::recorded_target target{&rows, &of_target};
    const bench::recorded_draft draft{&scene_.host.draft_rows, static_cast<std::size_t>(vocab_), &of_draft};
    const verdict v = verifier.verify(scene_.host.drawn.view(), draft, target, chance);
    const double bytes = static_cast<double>(of_target.size() + of_draft.size()) * 4.0 * vocab_;
    const double reading = run.most.reading(bytes);
    char visited[96];
    std::snprintf(visited, sizeof visited, "%zu rows of the target and %zu of the draft; %d accepted", of_target.size(),
                  of_draft.size(), scene_.host.drawn.view().depth[v.accepted]);
    run.found.add(
        {.key = "verify." + name_,
         .what = "verification, " + std::to_string(n_rows() - 1) + " nodes x " + std::to_string(vocab_) + ", " + name_,
         .measured = race.of(name_),
         .reading = reading,
         .limit = 2 * reading + run.most.one_launch(),
         .target = "2 readings of the visited rows and a launch",
         .note = visited});
  }

 private:
  std::int32_t n_rows() const { return scene_.host.drawn.size(); }

  std::string name_;
  const device_scene& scene_;
  std::int32_t vocab_;
  sampling_options options_;
  device::verification<VerifierT, float> work_;
};

// The target's rows of the nodes of a tree, changed by a processor after a prompt of 1,000 tokens.
template <class ProcessorT>
class changed_rows {
 public:
  changed_rows(std::string name, const device_scene& scene, std::size_t vocab, const ProcessorT& processor)
      : name_(std::move(name)),
        scene_(scene),
        vocab_(static_cast<std::int32_t>(vocab)),
        logits_(std::span<const float>(scene.host.target_logits)),
        work_(n_rows(), n_rows(), vocab_, 1) {
    std::vector<token_id> prompt;
    for (std::int32_t i = 0; i < 1000; ++i)
      prompt.push_back(i * 7919 % vocab_);
    text written;
    written.begin(prompt, {}, {}, 1100, vocab_);
    work_.follow(0, written, processor, nullptr);
    const std::int32_t place = 0;
    (void)work_.prepare(std::span(&place, 1));
    bench::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void enter(bench::contest& race) {
    race.add({.key = name_, .work = [this](cudaStream_t s) {
                work_.run(device::text_batch::of(scene_.tree.writer(), text_.view()),
                          {n_rows(), scene_.rows.data(), nullptr, 0},
                          vocab_rows<float>{logits_.data(), n_rows(), vocab_}, scene_.found.data(), s);
              }});
  }

  // `written`: the share of the numbers that are written; every number is read.
  void tell(const bench::contest& race, bench::bench_run& run, const std::string& what, double written) const {
    run.found.add({.key = "verify." + name_,
                   .what = what + ", " + std::to_string(n_rows()) + " rows x " + std::to_string(vocab_),
                   .measured = race.of(name_),
                   .reading = run.most.reading((1 + written) * 4.0 * n_rows() * vocab_),
                   .note = "with the call on the host that finds them"});
  }

 private:
  std::int32_t n_rows() const { return scene_.host.drawn.size(); }

  std::string name_;
  const device_scene& scene_;
  std::int32_t vocab_;
  bench::device_text text_{1000, 1100};
  device::device_array<float> logits_;
  device::detail::text_processors<ProcessorT> work_;
};

void measure(bench::bench_run& run) {
  const std::int32_t budget = run.size(64, 12);
  const std::size_t vocab = run.size<std::size_t>(151936, 3000);
  const device_scene single(budget, vocab, drafted_as::single_path, 1),
      paths(budget, vocab, drafted_as::independent, 2), distinct(budget, vocab, drafted_as::without_replacement, 3);
  verified<greedy> by_greedy("greedy", distinct, vocab, 0);
  verified<target_only> by_target("target_only", distinct, vocab, 1);
  verified<naive> by_naive("naive", single, vocab, 1);
  verified<naive_tree> by_naive_tree("naive_tree", paths, vocab, 1);
  verified<spectr> by_spectr("spectr", paths, vocab, 1);
  verified<specinfer> by_specinfer("specinfer", paths, vocab, 1);
  verified<khisti> by_khisti("khisti", paths, vocab, 1);
  verified<block_verification> by_block("block_verification", single, vocab, 1);
  verified<multi_path_block> by_paths("multi_path_block", paths, vocab, 1);
  verified<traversal> by_traversal("traversal", paths, vocab, 1);
  verified<traversal_without_replacement> by_distinct("traversal_without_replacement", distinct, vocab, 1);
  verified<residual_walk> by_walk("residual_walk", distinct, vocab, 1);
  auto race = run.race();
  const auto each = [&](const auto& work) {
    work(by_greedy), work(by_target), work(by_naive), work(by_naive_tree), work(by_spectr), work(by_specinfer);
    work(by_khisti), work(by_block), work(by_paths), work(by_traversal), work(by_distinct);
    work(by_walk);
  };
  const auto tokens = static_cast<std::int32_t>(vocab);
  std::vector<token_bias> biased;
  for (std::int32_t i = 0; i < 300; ++i)
    biased.push_back({i * 31 % tokens, 1});
  changed_rows masks("masks", distinct, vocab, constrained(bench::three_of_four(tokens)));
  changed_rows penalised("penalties", distinct, vocab, penalties({.repetition = 1.1, .presence = 0.5}));
  changed_rows biases("biases", distinct, vocab, logit_bias(biased, tokens));
  each([&](auto& one) { one.enter(race); });
  masks.enter(race), penalised.enter(race), biases.enter(race);
  race.run();
  each([&](auto& one) { one.tell(race, run); });
  masks.tell(race, run, "a mask for each row", 0.25);
  penalised.tell(race, run, "penalties of 1,000 tokens", 1000.0 / tokens);
  biases.tell(race, run, "300 biases", 300.0 / tokens);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_verify", "verification of 64 nodes, by verifier", measure);
}
