// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "timed_event.cuh"

namespace bench {

//! The number of nodes of each kind in a graph.
struct graph_nodes {
  std::size_t kernels = 0;
  std::size_t copies = 0;  //!< copies and memsets
  std::size_t host = 0;    //!< calls of the host: a round must have none
  std::size_t others = 0;
};

//! Owns a graph of the work that a function enqueued, which can be replayed, and counts its nodes.
class counted_graph {
 public:
  counted_graph() = default;
  //! Captures work(stream), which enqueues and does not wait.
  template <class WorkT>
  counted_graph(cudaStream_t s, WorkT&& work) {
    require(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    work(s);
    cudaGraph_t captured = nullptr;
    require(cudaStreamEndCapture(s, &captured), "cudaStreamEndCapture");
    count(captured);
    const cudaError_t status = cudaGraphInstantiate(&handle_, captured, 0);
    (void)cudaGraphDestroy(captured);
    require(status, "cudaGraphInstantiate");
  }
  counted_graph(counted_graph&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), nodes_(other.nodes_) {}
  counted_graph& operator=(counted_graph other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(nodes_, other.nodes_);
    return *this;
  }
  ~counted_graph() {
    if (handle_ != nullptr) (void)cudaGraphExecDestroy(handle_);
  }

  void replay(cudaStream_t s) const { require(cudaGraphLaunch(handle_, s), "cudaGraphLaunch"); }
  const graph_nodes& nodes() const { return nodes_; }

 private:
  void count(cudaGraph_t captured) {
    std::size_t n = 0;
    require(cudaGraphGetNodes(captured, nullptr, &n), "cudaGraphGetNodes");
    std::vector<cudaGraphNode_t> nodes(n);
    if (n > 0) require(cudaGraphGetNodes(captured, nodes.data(), &n), "cudaGraphGetNodes");
    for (const cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
      if (cudaGraphNodeGetType(node, &type) != cudaSuccess)
        (void)cudaGetLastError();  // such a node counts as another
                                   // kind
      if (type == cudaGraphNodeTypeKernel) {
        ++nodes_.kernels;
      } else if (type == cudaGraphNodeTypeMemcpy || type == cudaGraphNodeTypeMemset) {
        ++nodes_.copies;
      } else if (type == cudaGraphNodeTypeHost) {
        ++nodes_.host;
      } else {
        ++nodes_.others;
      }
    }
  }

  cudaGraphExec_t handle_ = nullptr;
  graph_nodes nodes_;
};

}  // namespace bench
