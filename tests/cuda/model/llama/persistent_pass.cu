// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/llama/persistent_pass.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/model/llama/host_llama.hpp"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/model/llama/llama_scenes.cuh"
#include "cuda/support.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_EMULATES
#endif

using namespace espalier;
namespace gpu = espalier::cuda;
using llama_driver::device_batch;
using llama_driver::device_rows;
using llama_driver::difference;
using llama_driver::row_type;
using llama_scenes::cache_for;
using llama_scenes::one_tree;
using llama_scenes::rounding;

namespace {

// A random model's folder. A small one runs in one cluster, a large one on the whole device.
class random_folder {
 public:
  explicit random_folder(int head_dim, bool is_large = false) {
#if defined(ESPALIER_TEST_EMULATES)
    emulator::device().multiProcessorCount = 3;  // each thread has a stack
#endif
    model_config c = wide_llama(head_dim);
    c.vocab_size = 208;
    c.intermediate_size = 152;
    c.max_positions = 512;
    if (is_large) c.vocab_size = 1024, c.hidden_size = 512, c.intermediate_size = 1016;
    path = (std::filesystem::temp_directory_path() / "espalier_persistent_pass").string();
    write_random_llama(path, c, 21);
  }
  random_folder(const random_folder&) = delete;
  random_folder& operator=(const random_folder&) = delete;
  ~random_folder() {
    std::filesystem::remove_all(path);
#if defined(ESPALIER_TEST_EMULATES)
    emulator::device().multiProcessorCount = 132;
#endif
  }

  std::string path;
};

template <class NumberT>
using model = gpu::llama_backend<NumberT>;

// Tokens of a chain from `first` on, all of which ask for logits.
forward_batch chain_of(const std::vector<token_id>& text, int first, int n) {
  forward_batch batch;
  batch.begin_sequence(0, first, n);
  llama_driver::add_whole_chain(
      batch, std::span(text).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n)), first);
  return batch;
}

// A tree after `first` tokens of a text, in which the text's next `depth` tokens are one path; [depth] the path's rows.
struct tree_with_text {
  forward_batch batch;
  std::vector<std::size_t> rows;

  tree_with_text(const std::vector<token_id>& text, int first, int depth, int others, unsigned seed) {
    std::mt19937 random(seed);
    llama_driver::tree t;
    std::vector<int> on_path;
    const int n = depth + others;
    while (static_cast<int>(t.tokens.size()) < n) {
      const int u = static_cast<int>(t.tokens.size()), on = static_cast<int>(on_path.size());
      const bool goes_on =
          u == 0 || (on < depth && static_cast<int>(random() % static_cast<unsigned>(n - u)) < depth - on);
      if (goes_on) {
        t.tokens.push_back(text[static_cast<std::size_t>(first + on)]);
        t.parents.push_back(u == 0 ? -1 : on_path.back());
        on_path.push_back(u);
        rows.push_back(static_cast<std::size_t>(u));
      } else {
        t.tokens.push_back(static_cast<int>(random() % 200));
        t.parents.push_back(static_cast<int>(random() % static_cast<unsigned>(u)));
      }
    }
    batch.begin_sequence(0, first, n);
    llama_driver::add_tree(batch, t, first);
  }
};

// The same bits.
bool equal(const row_type& a, const row_type& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

template <class NumberT>
void check_rows_depend_on_their_text_alone(const std::string& folder, int length, unsigned seed) {
  INFO(folder << ", " << length << " tokens");
  std::mt19937 random(seed);
  auto backend = model<NumberT>::load(folder, {.max_rows = 400});
  const auto text = llama_driver::random_tokens(random, length, 200);
  auto whole_kv = cache_for(backend, 1, 512, 16), kv = cache_for(backend, 1, 512, 16);
  const auto expected =
      device_rows(backend.forward(whole_kv, device_batch(chain_of(text, 0, length).view()).view(), nullptr));
  const auto check = [&](const std::vector<row_type>& found, std::size_t row, int position) {
    INFO("token " << position);
    CHECK(equal(found[row], expected[static_cast<std::size_t>(position)]));
  };
  // The same text in chunks, some with padding.
  int done = 0;
  for (int n = 1; done + n + 12 < length; n = n * 3 % 37 + 1) {
    const device_batch batch(chain_of(text, done, n).view(), n % 4);
    const auto found = device_rows(backend.forward(kv, batch.view(), nullptr));
    check(found, static_cast<std::size_t>(n - 1), done + n - 1);
    done += n;
  }
  // Its end as a path of trees, whose rows stay in nobody's way.
  for (const int others : {0, 3, 40}) {
    for (unsigned order = 0; order < 3; ++order) {
      INFO(others << " other nodes, order " << order);
      const tree_with_text tree(text, done, 9, others, seed + order);
      const auto found = device_rows(backend.forward(kv, device_batch(tree.batch.view(), 5).view(), nullptr));
      for (std::size_t i = 0; i < tree.rows.size(); ++i)
        check(found, tree.rows[i], done + static_cast<int>(i));
    }
  }
  // And one by one, as plain decoding goes.
  for (int i = done; i < length; ++i)
    check(device_rows(backend.forward(kv, device_batch(chain_of(text, i, 1).view()).view(), nullptr)), 0, i);
  const auto found = kv.contents(), all = whole_kv.contents();
  const auto slots = static_cast<std::size_t>(length);
  std::size_t differing = 0;
  const gpu::kv_view<NumberT> places = whole_kv.view();
  std::vector<std::int32_t> pages = espalier_test::to_host(places.pages, static_cast<std::size_t>(places.max_pages));
  gpu::kv_view<NumberT> on_host = places;
  on_host.pages = pages.data();
  for (std::int32_t layer = 0; layer < places.n_layers; ++layer) {
    for (std::size_t slot = 0; slot < slots; ++slot) {
      const auto at = static_cast<std::size_t>(on_host.key(layer, 0, static_cast<std::int32_t>(slot)) - places.data);
      const auto bytes = static_cast<std::size_t>(places.row_size) * sizeof(NumberT);
      const auto value = at + static_cast<std::size_t>(places.page_size) * static_cast<std::size_t>(places.row_size);
      differing += std::memcmp(&found[at], &all[at], bytes) != 0 ? 1U : 0U;
      differing += std::memcmp(&found[value], &all[value], bytes) != 0 ? 1U : 0U;
    }
  }
  CHECK(differing == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("The persistent pass gives the host's logits, hidden states and cache rows", "", __half,
                   __nv_bfloat16) {
  for (const int head_dim : {32, 64}) {
    const random_folder folder(head_dim);
    llama_scenes::compare_with_host<model<TestType>>(folder.path, 0, 30, rounding<TestType>);
    llama_scenes::compare_with_host<model<TestType>>(folder.path, 16, 31, rounding<TestType>);
  }
  const random_folder large(64, true);
  llama_scenes::compare_with_host<model<TestType>>(large.path, 16, 32, rounding<TestType>);
}

TEST_CASE("With tokens of the head's own, the persistent pass gives the logits of these tokens") {
  const random_folder folder(64);
  std::vector<token_id> tokens;
  for (token_id token = 3; tokens.size() < 24; token += 7)
    tokens.push_back(token);
  auto all = model<__half>::load(folder.path, {.max_rows = 16});
  auto few = model<__half>::load(folder.path, {.max_rows = 16, .head_tokens = tokens});
  auto kv = cache_for(all, 1, 16), few_kv = cache_for(few, 1, 16);
  std::mt19937 random(6);
  const llama_driver::device_batch batch(one_tree(random, all.vocab_size(), 0, 7).view());
  const auto expected = llama_driver::device_rows(all.forward(kv, batch.view(), nullptr));
  const auto rows = llama_driver::device_rows(few.forward(few_kv, batch.view(), nullptr));
  for (std::size_t r = 0; r < rows.size(); ++r) {
    REQUIRE(rows[r].size() == tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i)
      CHECK(rows[r][i] == expected[r][static_cast<std::size_t>(tokens[i])]);
  }
}

TEST_CASE("In the persistent pass a row's bits depend on its text alone") {
  {
    const random_folder folder(32);
    check_rows_depend_on_their_text_alone<__nv_bfloat16>(folder.path, 60, 1);
    check_rows_depend_on_their_text_alone<__half>(folder.path, 330, 2);
  }
  const random_folder large(64, true);
  check_rows_depend_on_their_text_alone<__nv_bfloat16>(large.path, 75, 3);
}

TEST_CASE("A captured persistent pass computes what is there when it is replayed") {
  const random_folder folder(64);
  std::mt19937 random(6);
  host_llama host(folder.path, 1, 96);
  auto device = model<__nv_bfloat16>::load(folder.path, {.max_rows = 33});
  auto kv = cache_for(device, 1, 96, 16);
  const gpu::stream stream;
  const forward_batch first = one_tree(random, 200, 0, 12), second = one_tree(random, 200, 0, 12);
  device_batch batch(first.view(), 5);
  vocab_rows<float> logits;
  const gpu::graph graph(stream.get(), [&] { logits = device.forward(kv, batch.view(), stream.get()); });
  for (const forward_batch* now : {&first, &second}) {
    batch.update(now->view());
    graph.launch(stream.get());
    gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    CHECK(difference(device_rows(logits), host.forward(now->view())) < rounding<__nv_bfloat16>);
    host.commit_first(0, 0);
  }
}

TEST_CASE("The persistent pass is one launch") {
#if defined(ESPALIER_TEST_EMULATES)
  const random_folder folder(64);
  auto device = model<__half>::load(folder.path, {.max_rows = 33});
  auto kv = cache_for(device, 1, 96);
  std::mt19937 random(8);
  const device_batch batch(one_tree(random, 200, 0, 20).view(), 3);
  emulator::reset();
  device.forward(kv, batch.view(), nullptr);
  CHECK(emulator::calls("cudaLaunchKernelEx") == 1);
  CHECK(emulator::calls("cublasLtMatmul") == 0);
#endif
}

TEST_CASE("A token or position that does not exist gives NaN logits in the persistent pass") {
  const random_folder folder(32);
  auto backend = model<__nv_bfloat16>::load(folder.path, {.max_positions = 20});
  auto kv = cache_for(backend, 1, 32);
  for (const auto& [token, position] : {std::pair(208, 0), std::pair(-1, 0), std::pair(3, 20), std::pair(3, -1)}) {
    forward_batch batch;
    batch.begin_sequence(0, 0, 1);
    batch.add_row(token, position, 0, true);
    const auto rows = device_rows(backend.forward(kv, device_batch(batch.view()).view(), nullptr));
    CHECK(std::all_of(rows[0].begin(), rows[0].end(), [](float logit) { return std::isnan(logit); }));
  }
}

TEMPLATE_TEST_CASE("In the persistent pass what is not finite reaches no row that does not see it", "", __half,
                   __nv_bfloat16) {
  const random_folder folder(64);
  auto backend = model<TestType>::load(folder.path, {.max_rows = 60});
  auto kv = cache_for(backend, 3, 64);
  std::mt19937 random(12);
  const std::vector<int> prefixes = {20, 5, 33};
  for (int s = 0; s < 3; ++s) {
    const int n = prefixes[static_cast<std::size_t>(s)];
    forward_batch batch;
    batch.begin_sequence(s, 0, n);
    batch.add_chain(llama_driver::random_tokens(random, n, 200), 0, 0);
    backend.forward(kv, device_batch(batch.view()).view(), nullptr);
  }
  // A chain and two trees, more rows than blocks: a unit of attention holds rows of several texts and branches.
  forward_batch batch;
  batch.begin_sequence(0, prefixes[0], 15);
  llama_driver::add_whole_chain(batch, llama_driver::random_tokens(random, 15, 200), prefixes[0]);
  for (const int s : {1, 2}) {
    const int prefix = prefixes[static_cast<std::size_t>(s)];
    batch.begin_sequence(s, prefix, 19);
    llama_driver::add_tree(batch, llama_driver::random_tree(random, 19, 200), prefix);
  }
  const forward_batch_view view = batch.view();
  const auto run = [&](int unknown_token) {
    std::vector<token_id> tokens(view.tokens.begin(), view.tokens.end());
    if (unknown_token >= 0) tokens[static_cast<std::size_t>(unknown_token)] = -1;
    forward_batch_view changed = view;
    changed.tokens = tokens;
    return device_rows(backend.forward(kv, device_batch(changed).view(), nullptr));
  };
  const std::vector<row_type> expected = run(-1);
  // concerns(sequence, row in it): the row sees what is not finite.
  const auto check = [&](const std::vector<row_type>& found, const auto& concerns) {
    for (const batch_sequence& s : view.sequences) {
      for (int row = s.row_begin; row < s.row_end; ++row) {
        INFO("row " << row);
        const row_type& of = found[static_cast<std::size_t>(row)];
        if (concerns(s, row)) {
          CHECK(std::none_of(of.begin(), of.end(), [](float logit) { return std::isfinite(logit); }));
        } else {
          CHECK(equal(of, expected[static_cast<std::size_t>(row)]));
        }
      }
    }
  };
  for (const int unknown : {0, 4, 13, 15, 17, 22, 35, 40}) {
    INFO("token " << unknown << " is unknown");
    check(run(unknown), [&](const batch_sequence& s, int row) {
      const int column = unknown - s.row_begin;
      if (column < 0 || unknown >= s.row_end) return false;
      const int word = s.mask_begin + (row - s.row_begin) * s.mask_words + column / 32;
      return (view.mask[static_cast<std::size_t>(word)] >> (column % 32) & 1U) != 0;
    });
  }
  const TestType infinite(INFINITY);
  for (const int last : {0, 1}) {
    INFO("values of texts 0 to " << last << " are infinite");
    const int slot = prefixes[static_cast<std::size_t>(last)] - 1;
    gpu::require(
        cudaMemcpyAsync(kv.view().value(0, last, slot), &infinite, sizeof infinite, cudaMemcpyHostToDevice, nullptr),
        "cudaMemcpyAsync");
    check(run(-1), [&](const batch_sequence& s, int) { return s.sequence <= last; });
  }
}

TEST_CASE("Products of the persistent pass cover all columns and rows once") {
  for (const int units : {1, 24, 96, 256, 512, 4000}) {
    for (const int rows : {1, 16, 17, 65, 257, 512}) {
      for (const int blocks : {1, 3, 16, 132}) {
        INFO(units << " units, " << rows << " rows, " << blocks << " blocks");
        const auto p = gpu::detail::plan_product({units, 384}, rows, blocks);
        CHECK(p.tile_units * p.n_tiles >= units);
        CHECK(p.tile_units * (p.n_tiles - 1) < units);
        CHECK(p.tile_units <= gpu::detail::pass_max_units);
        CHECK(p.tile_blocks * p.group_blocks <= blocks);
        CHECK(static_cast<std::size_t>(p.tile_units * p.n_chunks() * 512) <= gpu::detail::pass_weight_bytes);
      }
    }
  }
}
