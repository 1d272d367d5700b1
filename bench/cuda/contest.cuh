// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cache_flush.cuh"
#include "counted_graph.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "samples.hpp"
#include "timed_event.cuh"

namespace bench {

//! A piece of work that is measured: everything that it enqueues is captured once and replayed as a graph.
struct entry {
  std::string key;
  std::function<void(cudaStream_t)> work;
  std::function<void(cudaStream_t)> prepare{};  //!< enqueued before each repetition, not measured
  bool cold = true;  //!< before each repetition the caches are filled with other data; if false, with the data of this
                     //!< work
  int times = 1;     //!< replays in a row that share one measurement
};

//! Measures entries in turns: each repetition goes over all of them, so that a disturbance of the device slows all of
//! them alike.
class contest {
 public:
  contest(const cache_flush& flush, int repetitions) : flush_(flush), repetitions_(repetitions) {}

  void add(entry e) {
    for (int i = 0; i < 2; ++i) {  // the first calls load code and allocate memory, which is not to be captured
      if (e.prepare) e.prepare(stream_.get());
      e.work(stream_.get());
    }
    require(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    graphs_.emplace_back(stream_.get(), e.work);
    entries_.push_back(std::move(e));
    times_.emplace_back();
    begins_.emplace_back(), ends_.emplace_back();
  }

  //! Measures all repetitions. Synchronises once in each.
  void run() {
    constexpr int warm_up = 3;
    for (int r = repetitions_ < 2 ? 0 : -warm_up; r < repetitions_; ++r) {
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        const entry& e = entries_[i];
        // The flush keeps the device busy while the host enqueues what follows.
        flush_(stream_.get());
        if (!e.cold) {
          if (e.prepare) e.prepare(stream_.get());
          graphs_[i].replay(stream_.get());
        }
        if (e.prepare) e.prepare(stream_.get());
        begins_[i].record(stream_.get());
        for (int t = 0; t < e.times; ++t)
          graphs_[i].replay(stream_.get());
        ends_[i].record(stream_.get());
      }
      require(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
      if (r < 0) continue;
      for (std::size_t i = 0; i < entries_.size(); ++i)
        times_[i].add(ends_[i].microseconds_since(begins_[i]) / entries_[i].times);
    }
  }

  const samples& of(const std::string& key) const { return times_[index_of(key)]; }
  //! The contents of the entry's graph.
  const graph_nodes& nodes_of(const std::string& key) const { return graphs_[index_of(key)].nodes(); }

  cudaStream_t in() const { return stream_.get(); }

 private:
  std::size_t index_of(const std::string& key) const {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].key == key) return i;
    }
    espalier::raise<espalier::input_error>("nothing named ", key, " was measured.");
  }

  const cache_flush& flush_;
  int repetitions_;
  espalier::cuda::stream stream_;
  std::vector<entry> entries_;
  std::vector<counted_graph> graphs_;
  std::vector<samples> times_;
  std::vector<timed_event> begins_, ends_;
};

}  // namespace bench
