// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "counted_graph.cuh"
#include "device_text.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/decoder/accepted_path.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/cuda/verifier/verify.cuh"
#include "espalier/decoder/decoder.hpp"
#include "espalier/report/timeline.hpp"
#include "program.cuh"
#include "timed_event.cuh"

namespace bench {

//! The work of one round of the decoder, station by station. Every round begins with the same text: accepted rows join
//! the caches, but the text does not grow. Parts are kept by reference.
template <class DrafterT, class PolicyT, class VerifierT, class KVStoreT, class BackendT>
class round_stations {
  using number = typename BackendT::number;

 public:
  static constexpr const char* names[] = {"open",   "grow the tree", "compile", "target's pass",
                                          "verify", "path",          "compact", "tell drafter and policy"};
  static constexpr std::size_t n_stations = std::size(names);

  round_stations(DrafterT& drafter, PolicyT& policy, VerifierT verifier, KVStoreT& kv, BackendT& backend,
                 std::span<const espalier::token_id> text, const espalier::decoder_options& options)
      : drafter_(drafter),
        policy_(policy),
        kv_(kv),
        backend_(backend),
        budget_(policy.max_nodes()),
        last_(text.back()),
        context_(static_cast<std::int32_t>(text.size()) + budget_ + 1),
        tree_(budget_),
        compiler_(budget_, options.order),
        verification_(std::move(verifier), budget_ + 1, backend.vocab_size()),
        path_(budget_ + 1),
        text_(text, context_ + 1),
        found_(1) {
    const espalier::cuda::stream stream;
    found_.fill_bytes(0, stream.get());
    verification_.sample(0, options.text.sampling, stream.get());
    drafter_.reserve(tree_.capacity(), 1, found_.data());
    const auto size = static_cast<std::int32_t>(text.size());
    kv_.ensure(0, context_, stream.get());
    drafter_.ensure(0, context_, stream.get());
    if (size > 1) espalier::cuda::prefill().run(backend_, kv_, 0, text_.view(), 0, size - 1, stream.get());
    drafter_.begin(0, text_.view(), text, 0, stream.get());
    require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  }

  //! Enqueues a round. Calls after(i) when station i has been enqueued.
  template <class AfterT>
  void enqueue(cudaStream_t s, const AfterT& after) {
    const auto texts = espalier::cuda::text_batch::of(tree_.writer(), text_.view(), context_);
    reset_tree(tree_.writer(), tree_.capacity(), s, last_);
    after(0);
    grow(policy_, texts, drafter_, s);
    after(1);
    const auto batch = compiler_.compile(texts, budget_ + 1, s);
    after(2);
    const espalier::vocab_rows<number> logits = backend_.forward(kv_, batch, s);
    after(3);
    espalier::cuda::text_rows drafted;
    if constexpr (espalier::cuda::StepDrafter<DrafterT>) drafted = drafter_.rows();
    verification_.run(texts, drafted, logits, compiler_.rows(), budget_ + 1, found_.data(), s);
    after(4);
    const espalier::cuda::path_view path =
        path_.find(texts, verification_.decisions(), compiler_.rows(), budget_ + 1, found_.data(), s);
    n_path_ = path.n;
    after(5);
    kv_.commit(texts, {path.base, path.rows, path.n, path.max}, s);
    after(6);
    drafter_.commit(texts, path, s);
    policy_.observe(texts, verification_.decisions(), s);
    after(7);
  }
  void enqueue(cudaStream_t s) {
    enqueue(s, [](std::size_t) {});
  }

  //! Number of drafted tokens that the last round accepted. Synchronises.
  std::int32_t accepted() const {
    std::int32_t n = 0;
    require(cudaMemcpy(&n, n_path_, sizeof n, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return n - 1;
  }

 private:
  DrafterT& drafter_;
  PolicyT& policy_;
  KVStoreT& kv_;
  BackendT& backend_;
  std::int32_t budget_;
  espalier::token_id last_;
  std::int32_t context_;
  espalier::cuda::tree tree_;
  espalier::cuda::tree_compiler compiler_;
  espalier::cuda::verification<VerifierT, number> verification_;
  espalier::cuda::accepted_path path_;
  device_text text_;
  espalier::cuda::device_array<espalier::cuda::fault> found_;
  const std::int32_t* n_path_ = nullptr;
};

//! Measures the stations of such a round; its graph has events between the stations. Adds a figure for each, and draws
//! them to `picture` unless that is empty.
template <class RoundT>
void measure_stations(bench_run& run, RoundT& round, const std::string& key, const std::string& title,
                      const std::string& picture) {
  constexpr std::size_t n = RoundT::n_stations;
  const espalier::cuda::stream stream;
  const timed_event begin;
  std::vector<timed_event> ends(n);
  const counted_graph graph(stream.get(), [&](cudaStream_t s) {
    begin.record_in_graph(s);
    round.enqueue(s, [&](std::size_t i) { ends[i].record_in_graph(s); });
  });
  std::vector<samples> from(n), taken(n), to(n);
  for (int r = 0; r < run.options.repetitions; ++r) {
    run.flush(stream.get());
    graph.replay(stream.get());
    require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    for (std::size_t i = 0; i < n; ++i) {
      const timed_event& before = i == 0 ? begin : ends[i - 1];
      from[i].add(i == 0 ? 0 : before.microseconds_since(begin));
      taken[i].add(ends[i].microseconds_since(before));
      to[i].add(ends[i].microseconds_since(begin));
    }
  }
  std::vector<espalier::timeline_span> spans;
  for (std::size_t i = 0; i < n; ++i) {
    run.found.add({.key = key + "." + std::to_string(i),
                   .what = std::string("station: ") + RoundT::names[i],
                   .measured = taken[i],
                   .note = "with the event behind it"});
    const double start = std::max(0.0, from[i].median());
    spans.push_back({RoundT::names[i], start, std::max(start, to[i].median())});
  }
  if (picture.empty()) return;
  std::ofstream file(picture, std::ios::binary);
  espalier::write_timeline(file, spans, {.title = title});
  if (!file.flush()) espalier::raise<espalier::input_error>(picture, " cannot be written.");
}

}  // namespace bench
