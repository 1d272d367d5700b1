// SPDX-License-Identifier: BSL-1.0
// Measures the k most probable tokens of 15 rows of 151,936 logits with the sums that normalise the rows, and beside it
// a pass that only reads the rows. top_k_torch.py does the same with torch.topk and torch.logsumexp on the same logits.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "inputs.hpp"
#include "program.cuh"

namespace {

namespace device = espalier::cuda;

// The rows in one type of number, and the work that is measured on them.
template <class NumberT>
class rows_of {
 public:
  rows_of(const std::string& name, const std::vector<float>& logits, std::int32_t vocab)
      : name_(name),
        vocab_(vocab),
        n_rows_(static_cast<std::int32_t>(logits.size() / static_cast<std::size_t>(vocab))),
        top_(vocab),
        found_(1),
        sink_(1) {
    std::vector<NumberT> narrow;
    narrow.reserve(logits.size());
    for (const float x : logits)
      narrow.push_back(static_cast<NumberT>(x));
    logits_ = device::device_array<NumberT>(std::span<const NumberT>(narrow));
    tokens_ = device::device_array<espalier::token_id>(static_cast<std::size_t>(n_rows_) * 512);
    log_probs_ = device::device_array<float>(static_cast<std::size_t>(n_rows_) * 512);
    log_totals_ = device::device_array<double>(static_cast<std::size_t>(n_rows_));
    found_.fill_bytes(0, nullptr);
    bench::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  void enter(bench::contest& race, int multiprocessors) const {
    race.add({.key = name_ + ".read", .work = [this, multiprocessors](cudaStream_t s) {
                bench::read_pass(logits_.data(), logits_.size() * sizeof(NumberT), sink_.data(), multiprocessors, s);
              }});
    for (const std::int32_t k : {64, 512}) {
      race.add(
          {.key = name_ + "." + std::to_string(k), .work = [this, k](cudaStream_t s) {
             top_.of_logits(
                 {logits_.data(), n_rows_, vocab_}, 1,
                 {.tokens = tokens_.data(), .log_probs = log_probs_.data(), .log_totals = log_totals_.data(), .k = k},
                 found_.data(), {}, s);
           }});
    }
  }

  void tell(const bench::contest& race, bench::bench_run& run) const {
    const double reading = run.most.reading(static_cast<double>(logits_.size() * sizeof(NumberT)));
    const std::string rows = std::to_string(n_rows_) + " x " + std::to_string(vocab_) + " " + name_;
    run.found.add({.key = "top_k." + name_ + ".read",
                   .what = "reading " + rows,
                   .measured = race.of(name_ + ".read"),
                   .reading = reading});
    for (const std::string k : {"64", "512"}) {
      run.found.add({.key = "top_k." + name_ + "." + k,
                     .what = "top-k and normaliser, " + rows + ", k = " + k,
                     .measured = race.of(name_ + "." + k),
                     .reading = reading,
                     .limit = 3 * reading + run.most.one_launch(),
                     .target = "3 readings and a launch"});
    }
  }

 private:
  std::string name_;
  std::int32_t vocab_, n_rows_;
  device::top_tokens<NumberT> top_;
  device::device_array<NumberT> logits_;
  device::device_array<espalier::token_id> tokens_;
  device::device_array<float> log_probs_;
  device::device_array<double> log_totals_;
  device::device_array<device::fault> found_;
  device::device_array<std::uint32_t> sink_;
};

void measure(bench::bench_run& run) {
  const std::size_t n_rows = run.size<std::size_t>(15, 2), vocab = run.size<std::size_t>(151936, 4096);
  const std::vector<float> logits = bench::bell_logits(n_rows, vocab, 7);
  if (!run.options.inputs.empty()) bench::write_floats(run.options.inputs + "/top_k.logits.f32", logits);
  const auto width = static_cast<std::int32_t>(vocab);
  const rows_of<float> floats("float", logits, width);
  const rows_of<__half> halves("half", logits, width);
  const rows_of<__nv_bfloat16> bfloats("bfloat16", logits, width);
  auto race = run.race();
  floats.enter(race, run.card.multiProcessorCount);
  halves.enter(race, run.card.multiProcessorCount);
  bfloats.enter(race, run.card.multiProcessorCount);
  race.run();
  floats.tell(race, run);
  halves.tell(race, run);
  bfloats.tell(race, run);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_top_k", "the most probable tokens of rows, and what normalises them",
                            measure);
}
