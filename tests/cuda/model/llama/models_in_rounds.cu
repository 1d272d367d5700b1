// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/decoder/text_model.cuh"
#include "cuda/model/llama/host_llama.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/cuda/backend/on_host.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/on_host_kv.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/traversal.hpp"

namespace device = espalier::cuda;
using namespace espalier;
using espalier_test::text_model;

namespace {

using text_type = std::vector<token_id>;

template <class DecoderT>
text_type write(DecoderT& decode, const text_type& prompt, int n) {
  const auto written = decode.generate(prompt, {.max_tokens = n});
  return {written.begin(), written.end()};
}

// Plain greedy decoding on the host.
text_type plain_text(const std::string& folder, text_type text, int n) {
  host_llama host(folder, 1, 64);
  const auto begin = static_cast<std::ptrdiff_t>(text.size());
  std::int32_t done = 0;
  for (int i = 0; i < n; ++i) {
    forward_batch batch;
    const auto rows = static_cast<std::int32_t>(text.size()) - done;
    batch.begin_sequence(0, done, rows);
    batch.add_chain(std::span<const token_id>(text).subspan(static_cast<std::size_t>(done)), done, 1);
    const auto logits = host.forward(batch.view()).back();
    host.commit_first(0, rows);
    done += rows;
    text.push_back(static_cast<token_id>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  return {text.begin() + begin, text.end()};
}

}  // namespace

TEST_CASE("A round on the device over models of the host writes the host's text") {
  constexpr std::int32_t vocab = 23;
  const text_type prompt{3, 1, 4, 1, 5};
  const decoder_options options{.text = {.sampling = {.temperature = 1}, .seed = 5}};
  const iid_paths_options paths{.paths = 3, .length = 4};
  text_backend target(vocab, text_model{.salt = 1}), draft(vocab, text_model{.salt = 2});
  text_type expected;
  {
    token_kv kv(120), draft_kv(120);
    auto decode = make_decoder(autoregressive(draft, draft_kv, {.temperature = 1}), iid_paths(paths), traversal(), kv,
                               target, options);
    expected = write(decode, prompt, 60);
  }
  token_kv kv(120), draft_kv(120);
  device::on_host_kv device_kv(kv), device_draft_kv(draft_kv);
  device::on_host device_target(target, {.max_rows = 32, .max_columns = 64});
  device::on_host device_draft(draft, {.max_rows = 32, .max_columns = 64});
  auto decode = device::make_decoder(device::autoregressive(device_draft, device_draft_kv, {.temperature = 1}),
                                     device::iid_paths(paths), traversal(), device_kv, device_target, options);
  CHECK(write(decode, prompt, 60) == expected);
}

TEST_CASE("A transformer on the device writes its plain text with a draft and a tree, and so does the host's") {
  const std::string golden = std::string(ESPALIER_TEST_DATA) + "/golden/";
  const text_type prompt{5, 17, 3, 40};
  const text_type expected = plain_text(golden + "llama", prompt, 30);
  auto target = device::llama_backend<float>::load(golden + "llama", {.max_rows = 17});
  auto draft = device::llama_backend<float>::load(golden + "llama_int8_rows", {.max_rows = 17});
  {
    device::contiguous_kv<float> kv(2, 16, 1, 64);
    auto decode = device::make_decoder(device::no_drafter(), device::plain(), greedy(), kv, target);
    CHECK(write(decode, prompt, 30) == expected);
  }
  device::contiguous_kv<float> kv(2, 16, 1, 64), draft_kv(2, 16, 1, 64);
  auto decode =
      device::make_decoder(device::autoregressive(draft, draft_kv), device::chain({.length = 4}), greedy(), kv, target);
  CHECK(write(decode, prompt, 30) == expected);
  CHECK(decode.current().round() < 30);
  // A draft of half of these tokens alone.
  const std::set<token_id> written(expected.begin(), expected.end());
  const std::vector<token_id> some(written.begin(), std::next(written.begin(), std::ssize(written) / 2));
  auto few = device::llama_backend<float>::load(golden + "llama_int8_rows", {.max_rows = 17, .head_tokens = some});
  device::contiguous_kv<float> few_kv(2, 16, 1, 64);
  auto decode_few =
      device::make_decoder(device::autoregressive(few, few_kv), device::dynatree({.budget = 8}), greedy(), kv, target);
  CHECK(write(decode_few, prompt, 30) == expected);
  CHECK(decode_few.current().round() < 30);
}

TEST_CASE("With batch_invariant greedy texts of 16-bit models are those of plain decoding") {
  const std::string folder = (std::filesystem::temp_directory_path() / "espalier_cuda_greedy_equality").string();
  const bool has_experts = GENERATE(false, true);
  if (has_experts) {
    write_random_gpt_oss(folder, 21);
  } else {
    write_random_llama(folder, wide_llama(64), 21);
  }
  // Logits of 16 bits are often equal; the draft differs from the target by its rounding alone.
  auto target =
      device::llama_backend<__nv_bfloat16, __nv_bfloat16>::load(folder, {.max_rows = 33, .batch_invariant = true});
  auto draft = device::llama_backend<__half>::load(folder, {.max_rows = 33});
  const auto& config = target.config();
  text_type prompt(70);
  for (std::size_t i = 0; i < prompt.size(); ++i)
    prompt[i] = static_cast<token_id>(i * i % static_cast<std::size_t>(config.vocab_size));
  const auto written = [&](auto drafter, auto policy) {
    device::contiguous_kv<__nv_bfloat16> kv(config.n_layers, config.kv_size(), 1, 200);
    auto decode = device::make_decoder(std::move(drafter), std::move(policy), greedy(), kv, target);
    return write(decode, prompt, 80);
  };
  const text_type expected = written(device::no_drafter(), device::plain());
  device::contiguous_kv<__half> draft_kv(config.n_layers, config.kv_size(), 1, 200);
  INFO("experts " << has_experts);
  CHECK(written(device::autoregressive(draft, draft_kv), device::chain({.length = 5})) == expected);
  CHECK(written(device::autoregressive(draft, draft_kv), device::dynatree({.budget = 24})) == expected);
  std::filesystem::remove_all(folder);
}
