// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/device_trees.cuh"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/model/llama/block_draft_model.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/model/llama/block_draft_config.hpp"
#include "model/llama/batch_writer.hpp"

//! Block drafts and draft heads on the device over the golden models, and the texts and trees that they draft for.
namespace block_scene {

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using llama_driver::device_batch;
using llama_driver::device_kv;
using llama_driver::row_type;

inline const std::string golden = std::string(ESPALIER_TEST_DATA) + "/golden/";

template <class NumberT>
using target_type = gpu::llama_backend<NumberT>;
template <class NumberT>
using model_type = gpu::block_draft_model<NumberT>;

inline nlohmann::json json_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

//! A text on the device, or several that begin alike.
struct device_text {
  explicit device_text(const std::vector<token_id>& all, std::vector<std::int32_t> sizes = {1})
      : capacity(static_cast<std::int32_t>(all.size())), state(sizes.size()) {
    std::vector<token_id> copies;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      copies.insert(copies.end(), all.begin(), all.end());
      copies.push_back(-7);
    }
    tokens = to_device(copies);
    set_sizes(sizes);
  }

  void set_size(std::int32_t size) const { set_sizes({size}); }
  void set_sizes(const std::vector<std::int32_t>& sizes) const {
    std::vector<gpu::text_state> now;
    for (const std::int32_t size : sizes)
      now.push_back({size, size});
    state.upload(std::span<const gpu::text_state>(now), nullptr);
    gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  gpu::text_batch texts() const {
    auto batch = gpu::text_batch::of({}, {tokens.data(), state.data(), capacity});
    batch.n = static_cast<std::int32_t>(state.size());
    batch.max_context = capacity;
    return batch;
  }

  //! The texts with this tree for the first one, which the caller keeps.
  gpu::text_batch with(const espalier_test::device_sequences& trees) const {
    gpu::text_batch batch = texts();
    const gpu::text_batch other = trees.texts();
    batch.trees = other.trees, batch.tree_words = other.tree_words;
    return batch;
  }

  std::int32_t capacity;

  gpu::device_array<token_id> tokens;
  gpu::device_array<gpu::text_state> state;
};

//! The target's pass over tokens [first, end) of a text.
template <class BackendT, class KVStoreT>
void pass_over(BackendT& target, KVStoreT& kv, const std::vector<token_id>& text, int first, int end) {
  forward_batch batch;
  batch.begin_sequence(0, first, end - first);
  batch.add_chain(std::span(text).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)),
                  first, 0);
  target.forward(kv, device_batch(batch.view(), 1).view(), nullptr);
}

template <class NumberT>
device_kv<NumberT> target_cache(const target_type<NumberT>& target) {
  return device_kv<NumberT>(target.config().n_layers, target.config().kv_size(), 1, 64);
}

//! The target of the published heads, which keeps the states that a block reads.
template <class NumberT>
target_type<NumberT> target_of_heads(const block_draft_config& config) {
  return target_type<NumberT>::load(golden + "heads/target", {.max_rows = 65, .hidden_layers = config.hidden_layers});
}

//! A folder with the weights of a published draft and another config.json.
class changed_folder {
 public:
  changed_folder(const std::string& folder, const nlohmann::json& change) {
    nlohmann::json config = json_of(folder + "/config.json");
    config.merge_patch(change);
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / "config.json") << config;
    std::filesystem::copy_file(folder + "/model.safetensors", path_ / "model.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
  }
  ~changed_folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("espalier_cuda_variant_" + std::to_string(getpid()));
};

//! Reads, for a drafter of one text, the states of the tokens before the one at `position`, in parts.
template <class DrafterT, class NumberT>
void read_before(DrafterT& drafter, target_type<NumberT>& target, const std::vector<token_id>& text, int position) {
  const auto read = [&](auto kv) {
    for (int first = 0; first < position; first += 5) {
      const int n = std::min(5, position - first);
      pass_over(target, kv, text, first, first + n);
      drafter.read(target, 0, first, n, nullptr);
    }
  };
  target.config().is_hybrid() ? read(gpu::device_cache<NumberT>(target.config(), 1, 64))
                              : read(target_cache<NumberT>(target));
}

//! The rows of the first n nodes of the text in place 0; empty for a node without one.
inline std::vector<row_type> rows_of_nodes(const gpu::text_rows& rows, std::int32_t n) {
  const auto row_of = espalier_test::to_host(rows.row_of, static_cast<std::size_t>(rows.n_nodes));
  std::vector<row_type> found;
  for (std::int32_t u = 0; u < n; ++u) {
    const std::int32_t row = row_of[static_cast<std::size_t>(u)];
    if (row < 0) {
      found.emplace_back();
    } else {
      found.push_back(espalier_test::to_host(rows.rows.at(row), static_cast<std::size_t>(rows.rows.vocab)));
    }
  }
  return found;
}

//! The greatest difference between two rows.
inline double most_apart(const row_type& a, const row_type& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

//! The n tokens that a decoder writes after a prompt.
std::vector<token_id> written(auto decode, const std::vector<token_id>& prompt, int n) {
  const auto text = decode.generate(prompt, {.max_tokens = n});
  return {text.begin(), text.end()};
}

}  // namespace block_scene
