// SPDX-License-Identifier: BSL-1.0
// The bundled models write a text that is longer than they have positions, in a window: with speculation as without.
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/sink_window.hpp"
#include "espalier/model/llama/key_turner.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"

using namespace espalier;

namespace {

#if defined(NDEBUG)
constexpr std::int32_t max_tokens = 1200;
#else
constexpr std::int32_t max_tokens = 250;  // a build with sanitizers looks for other faults
#endif

constexpr sink_window_options window{.sinks = 4, .window = 128, .block = 32, .scratch = 256};
const std::vector<token_id> prompt{1, 676, 938, 4002, 4045, 1121, 339, 328};  // "He bought 3 apples for $"

llama_backend load(const std::string& part) {
  return llama_backend::load(std::string(MODELS_FOLDER "/") + part,
                             {.threads = 1, .max_rows = 64, .max_positions = 420, .weights = weight_storage::f32});
}

sink_window_kv<key_turner> window_of(const llama_backend& model) {
  return {model.config().n_layers, model.config().kv_size(), 1, window, key_turner(model.config())};
}

template <class DrafterT, class PolicyT>
std::vector<token_id> write(llama_backend& target, DrafterT drafter, PolicyT policy) {
  auto kv = window_of(target);
  auto decode = make_decoder(drafter, policy, target_only(), kv, target,
                             {.text = {.sampling = {.temperature = 0.8F}, .seed = 7}});
  decode.begin(prompt, {.max_tokens = max_tokens});
  decode.step();
  const allocation_count allocations;
  while (decode.step()) {
  }
  CHECK(allocations.so_far() == 0);
  CHECK(kv.size(0) == std::ssize(prompt) + max_tokens - 1);
  CHECK(kv.held(0) < window.sinks + window.window + window.block);
  std::cout << max_tokens << " tokens in a window of " << window.window << ": " << decode.current().round()
            << " rounds\n";
  return {decode.current().tokens().begin(), decode.current().tokens().end()};
}

}  // namespace

TEST_CASE("a text beyond the last position is, with speculation, the one of plain decoding", "[models][windows]") {
  llama_backend target = load("target"), draft = load("draft");
  const std::vector<token_id> expected = write(target, no_drafter(), plain());
  CHECK(write(target, autoregressive(draft, window_of(draft)), dynatree({.budget = 16})) == expected);
}
