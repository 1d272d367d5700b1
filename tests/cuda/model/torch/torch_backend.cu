// SPDX-License-Identifier: BSL-1.0
// A module of PyTorch on a GPU: what it writes by trees is what it writes plainly.
#include "espalier/cuda/model/torch/torch_backend.cuh"

#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;
namespace device = espalier::cuda;

namespace {

const std::string folder = std::string(ESPALIER_TEST_DATA) + "/golden/llama";

struct torch_model {
  device::torch_backend backend;
  device::contiguous_kv<float> kv;

  torch_model() : backend(torch_module::load(folder + "/model.pt", at::Device(at::kCUDA, 0))), kv(backend.cache()) {}
};

template <class DrafterT, class PolicyT>
std::vector<token_id> written(DrafterT&& drafter, PolicyT policy, torch_model& target, int& rounds) {
  auto decode = device::make_decoder(std::forward<DrafterT>(drafter), std::move(policy), greedy(), target.kv,
                                     target.backend, {.text = {.sampling = {.temperature = 0.0F}}, .replay = false});
  const auto text =
      decode.generate(std::vector<token_id>{1, 17, 5, 42}, {.max_tokens = 40}, [&](const round_record&) { ++rounds; });
  return {text.begin(), text.end()};
}

}  // namespace

TEST_CASE("a module of PyTorch writes on the device by trees what it writes plainly") {
  torch_model target, draft;
  int plain_rounds = 0, tree_rounds = 0;
  const auto plainly = written(device::no_drafter(), device::plain(), target, plain_rounds);
  const auto by_trees =
      written(device::autoregressive(draft.backend, draft.kv), device::dynatree(), target, tree_rounds);
  CHECK(plainly.size() == 40);
  CHECK(by_trees == plainly);
  CHECK(2 * tree_rounds < plain_rounds);
}

TEST_CASE("a cache without room for padding, and a module on the host, are refused") {
  torch_model target;
  const torch_shape& shape = target.backend.module().shape();
  device::contiguous_kv<float> exact(shape.n_layers, shape.row_size, 1, shape.max_positions);
  CHECK_THROWS_AS(target.backend.forward(exact, device::forward_batch_view{}, nullptr), input_error);
  CHECK_THROWS_AS(device::torch_backend(torch_module::load(folder + "/model.pt")), option_error);
}
