// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/llama_backend.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "llama_driver.hpp"
#include "model_writer.hpp"

static_assert(espalier::Backend<espalier::llama_backend, espalier::contiguous_kv>);
static_assert(espalier::detail::HasMaxRows<espalier::llama_backend>);
static_assert(espalier::HostKVStore<espalier::contiguous_kv>);

namespace {

using namespace espalier;
using llama_driver::row_type;

llama_backend wide_backend(const llama_options& options = {}) {
  return model_writer::backend(model_writer::wide_config(), model_writer::random_llama(model_writer::wide_config(), 7),
                               options);
}

llama_backend golden_backend(const std::string& folder, const llama_options& options = {}) {
  return llama_backend::load(std::string(ESPALIER_TEST_DATA) + "/golden/" + folder, options);
}

// Grows random trees after a prompt, keeps a random path of each, and compares every row of every tree with plain
// decoding of the same tokens: the numbers must be equal, not close.
void require_invariance(llama_backend& backend, commit_mode mode, unsigned seed, int prompt, int rounds) {
  std::mt19937 random(seed);
  const int capacity = std::min(backend.max_positions(), 200);
  auto kv = llama_driver::cache_for(backend, capacity, 1, mode);
  auto plain_kv = llama_driver::cache_for(backend, capacity);
  std::vector<token_id> text = llama_driver::random_tokens(random, prompt, backend.vocab_size());
  llama_driver::plainly(backend, plain_kv, text);
  std::vector<token_id> pending = text;  // what the tree's cache does not hold yet
  for (int round = 0; round < rounds; ++round) {
    const auto tree = llama_driver::random_tree(random, 1 + static_cast<int>(random() % 24), backend.vocab_size());
    const auto n_pending = static_cast<int>(pending.size()), n_nodes = static_cast<int>(tree.tokens.size());
    const int prefix = kv.size(0), position = prefix + n_pending;
    forward_batch batch;
    REQUIRE(kv.append(0, n_pending + n_nodes) == prefix);
    batch.begin_sequence(0, prefix, n_pending + n_nodes);
    llama_driver::add_whole_chain(batch, pending, prefix);
    for (int u = 0; u < n_nodes; ++u) {
      const auto path = tree.path_to(u);
      const mask_row mask = batch.add_row(tree.tokens[static_cast<std::size_t>(u)],
                                          position + static_cast<int>(path.size()) - 1, n_pending + u, true);
      mask.include_first(n_pending);
      for (const int ancestor : path)
        mask.set(n_pending + ancestor);
    }
    const auto rows = llama_driver::rows_of(backend.forward(kv, batch.view()));
    for (int u = 0; u < n_nodes; ++u) {
      const auto expected = llama_driver::plainly(backend, plain_kv, tree.tokens_to(u));
      REQUIRE(rows[static_cast<std::size_t>(n_pending + u)] == expected.back());
      plain_kv.truncate(0, position);
    }
    const int chosen = static_cast<int>(random() % static_cast<unsigned>(n_nodes));
    std::vector<std::int32_t> kept;
    for (int i = 0; i < n_pending; ++i)
      kept.push_back(i);
    for (const int u : tree.path_to(chosen))
      kept.push_back(n_pending + u);
    const auto accepted = tree.tokens_to(chosen);
    text.insert(text.end(), accepted.begin(), accepted.end());
    llama_driver::plainly(backend, plain_kv, accepted);
    kv.commit(0, kept);
    pending.assign(text.begin() + kv.size(0), text.end());
  }
}

}  // namespace

TEST_CASE("a row's logits are bitwise those of plain decoding, whatever the tree, the slots and the commit mode") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const int threads : {1, 2, 3}) {
      INFO("threads " << threads << ", compacts " << (mode == commit_mode::compact));
      auto wide = wide_backend({.threads = threads});
      require_invariance(wide, mode, 1, 37, threads == 3 ? 2 : 6);
      for (const char* folder : {"llama", "qwen3", "gpt_neox", "mistral", "gemma2", "gemma3", "olmo2", "granite",
                                 "smollm3", "qwen3_moe", "gpt_oss"}) {
        auto backend = golden_backend(folder, {.threads = threads});
        require_invariance(backend, mode, 2, 5, threads == 3 ? 2 : 4);
      }
    }
  }
}

TEST_CASE("the number of threads does not change a bit") {
  std::mt19937 random(3);
  auto one = wide_backend({.threads = 1});
  auto three = wide_backend({.threads = 3});
  const auto tokens = llama_driver::random_tokens(random, 100, one.vocab_size());
  auto kv_one = llama_driver::cache_for(one, 128), kv_three = llama_driver::cache_for(three, 128);
  CHECK(llama_driver::plainly(one, kv_one, tokens) == llama_driver::plainly(three, kv_three, tokens));
}

TEST_CASE("two over the same weights do not disturb one another") {
  std::mt19937 random(5);
  auto one = wide_backend();
  llama_backend other(one.config(), one.weights(), {.threads = 1, .max_rows = 8});
  CHECK(other.weights() == one.weights());
  auto kv = llama_driver::cache_for(one, 64), other_kv = llama_driver::cache_for(other, 64);
  for (int i = 0; i < 3; ++i) {
    // What the one said stays while the other runs over another text.
    const auto step = [&](llama_backend& backend, recurrent_kv& cache) {
      forward_batch batch;
      cache.append(0, 8);
      batch.begin_sequence(0, cache.size(0), 8);
      llama_driver::add_whole_chain(batch, llama_driver::random_tokens(random, 8, one.vocab_size()), cache.size(0));
      const logits_view logits = backend.forward(cache, batch.view());
      llama_driver::commit_first(cache, 0, 8);
      return logits;
    };
    const logits_view first = step(one, kv);
    const auto rows = llama_driver::rows_of(first);
    const auto others = llama_driver::rows_of(step(other, other_kv));
    CHECK(llama_driver::rows_of(first) == rows);
    CHECK(others != rows);
  }
}

TEST_CASE("a chunk of a prompt gives bitwise what its tokens give one by one, up to max_rows") {
  std::mt19937 random(4);
  auto backend = wide_backend({.max_rows = 200});
  const auto tokens = llama_driver::random_tokens(random, backend.max_rows(), backend.vocab_size());
  auto kv = llama_driver::cache_for(backend, 256), plain_kv = llama_driver::cache_for(backend, 256);
  forward_batch batch;
  kv.append(0, backend.max_rows());
  batch.begin_sequence(0, 0, backend.max_rows());
  llama_driver::add_whole_chain(batch, tokens, 0);
  CHECK(llama_driver::rows_of(backend.forward(kv, batch.view())) == llama_driver::plainly(backend, plain_kv, tokens));
}

TEST_CASE("sequences of a batch do not touch one another") {
  std::mt19937 random(5);
  auto backend = wide_backend();
  auto together = llama_driver::cache_for(backend, 128, 3), alone = llama_driver::cache_for(backend, 128, 3);
  forward_batch batch;
  std::vector<row_type> expected;
  for (const int sequence : {2, 0, 1}) {
    const auto prompt = llama_driver::random_tokens(random, 3 + 20 * sequence, backend.vocab_size());
    llama_driver::plainly(backend, together, prompt, sequence);
    llama_driver::plainly(backend, alone, prompt, sequence);
  }
  for (const int sequence : {2, 0, 1}) {
    const auto next = llama_driver::random_tokens(random, 4 + sequence, backend.vocab_size());
    const int size = together.size(sequence);
    together.append(sequence, static_cast<int>(next.size()));
    batch.begin_sequence(sequence, size, static_cast<int>(next.size()));
    llama_driver::add_whole_chain(batch, next, size);
    for (row_type& row : llama_driver::plainly(backend, alone, next, sequence))
      expected.push_back(std::move(row));
  }
  CHECK(llama_driver::rows_of(backend.forward(together, batch.view())) == expected);
}

TEST_CASE("scratch of earlier passes is seen where the mask says so") {
  // A tree forwarded level by level, as a drafter does, gives what it gives at once.
  std::mt19937 random(6);
  auto backend = wide_backend();
  const llama_driver::tree tree{{5, 9, 9, 17, 4, 30}, {-1, 0, 0, 1, 1, 2}};
  const auto prompt = llama_driver::random_tokens(random, 20, backend.vocab_size());
  auto kv = llama_driver::cache_for(backend, 64), whole_kv = llama_driver::cache_for(backend, 64);
  llama_driver::plainly(backend, kv, prompt);
  llama_driver::plainly(backend, whole_kv, prompt);
  forward_batch whole;
  whole_kv.append(0, 6);
  whole.begin_sequence(0, 20, 6);
  llama_driver::add_tree(whole, tree, 20);
  const auto expected = llama_driver::rows_of(backend.forward(whole_kv, whole.view()));
  for (const auto& [first, last] : {std::pair(0, 1), std::pair(1, 3), std::pair(3, 6)}) {
    forward_batch level;
    REQUIRE(kv.append(0, last - first) == 20 + first);
    level.begin_sequence(0, 20, 6);
    for (int u = first; u < last; ++u) {
      const auto path = tree.path_to(u);
      const mask_row mask =
          level.add_row(tree.tokens[static_cast<std::size_t>(u)], 19 + static_cast<int>(path.size()), u, true);
      for (const int ancestor : path)
        mask.set(ancestor);
    }
    const auto rows = llama_driver::rows_of(backend.forward(kv, level.view()));
    for (int u = first; u < last; ++u) {
      CHECK(rows[static_cast<std::size_t>(u - first)] == expected[static_cast<std::size_t>(u)]);
    }
  }
}

TEST_CASE("logits come only for the rows asked for, in their order") {
  auto backend = golden_backend("llama");
  const std::vector<token_id> tokens = {3, 1, 4, 1, 5};
  auto kv = llama_driver::cache_for(backend, 16), plain_kv = llama_driver::cache_for(backend, 16);
  const auto expected = llama_driver::plainly(backend, plain_kv, tokens);
  forward_batch batch;
  kv.append(0, 5);
  batch.begin_sequence(0, 0, 5);
  for (int i = 0; i < 5; ++i) {
    batch.add_row(tokens[static_cast<std::size_t>(i)], i, i, i == 1 || i == 4).include_first(i);
  }
  const auto rows = llama_driver::rows_of(backend.forward(kv, batch.view()));
  REQUIRE(rows.size() == 2);
  CHECK(rows[0] == expected[1]);
  CHECK(rows[1] == expected[4]);
  CHECK(backend.forward(kv, forward_batch_view{}).n_rows == 0);
}

TEST_CASE("logits are as many as are asked for: of tokens that the model has not, minus infinity") {
  llama_backend own = wide_backend();
  const int vocab = own.vocab_size();
  const std::vector<token_id> text{1, 5, 2, 7};
  auto kv = llama_driver::cache_for(own, 32);
  const auto expected = llama_driver::plainly(own, kv, text);
  for (const int n : {vocab + 9, vocab - 3}) {
    llama_backend sized = wide_backend({.vocab_size = n});
    CHECK(sized.vocab_size() == n);
    auto sized_kv = llama_driver::cache_for(sized, 32);
    const auto rows = llama_driver::plainly(sized, sized_kv, text);
    REQUIRE(rows.size() == expected.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      REQUIRE(rows[r].size() == static_cast<std::size_t>(n));
      const auto both = static_cast<std::ptrdiff_t>(std::min(n, vocab));
      CHECK(std::equal(rows[r].begin(), rows[r].begin() + both, expected[r].begin()));
      for (auto i = both; i < std::ssize(rows[r]); ++i)
        CHECK(rows[r][static_cast<std::size_t>(i)] == -std::numeric_limits<float>::infinity());
    }
  }
  // A token that only the target has is read as token 0.
  llama_backend sized = wide_backend({.vocab_size = vocab + 9});
  auto one_kv = llama_driver::cache_for(sized, 32), other_kv = llama_driver::cache_for(sized, 32);
  CHECK(llama_driver::plainly(sized, one_kv, std::vector<token_id>{1, vocab + 8}) ==
        llama_driver::plainly(sized, other_kv, std::vector<token_id>{1, 0}));
}

TEST_CASE("with tokens of the head's own, logits are those of these tokens, and everything else is as it was") {
  const std::vector<token_id> text{1, 5, 2, 7};
  const std::vector<std::vector<token_id>> lists{{2, 3, 39}, {0}};
  const auto check = [&](const std::string& folder, llama_options options) {
    INFO(folder);
    llama_backend all = golden_backend(folder, options);
    auto kv = llama_driver::cache_for(all, 32);
    const auto expected = llama_driver::plainly(all, kv, text);
    CHECK(all.tokens().empty());
    for (const std::vector<token_id>& tokens : lists) {
      options.head_tokens = tokens;
      llama_backend few = golden_backend(folder, options);
      CHECK(std::ranges::equal(few.tokens(), tokens));
      CHECK(few.vocab_size() == all.vocab_size());
      auto few_kv = llama_driver::cache_for(few, 32);
      const auto rows = llama_driver::plainly(few, few_kv, text);
      REQUIRE(rows.size() == expected.size());
      for (std::size_t r = 0; r < rows.size(); ++r) {
        REQUIRE(rows[r].size() == tokens.size());
        for (std::size_t i = 0; i < tokens.size(); ++i)
          CHECK(rows[r][i] == expected[r][static_cast<std::size_t>(tokens[i])]);
      }
    }
  };
  for (const char* folder : {"llama", "llama_tied", "llama_int8_rows", "gemma2"})
    check(folder, {.weights = weight_storage::as_stored});
  // A tied embedding is rounded to 8 bits only where it is the output matrix, too.
  check("llama", {.arithmetic = matrix_arithmetic::integer});
}

TEST_CASE("tokens of the head that are none, or that do not ascend, are refused") {
  const int vocab = golden_backend("llama").vocab_size();
  for (const std::vector<token_id>& tokens : {std::vector<token_id>{-1}, {3, 3}, {4, 2}, {1, vocab}}) {
    const auto load = [&] { golden_backend("llama", {.head_tokens = tokens}); };
    CHECK_THROWS_WITH(
        load(), Catch::Matchers::StartsWith("option head_tokens has token ") &&
                    Catch::Matchers::EndsWith(": tokens must ascend, from 0 to " + std::to_string(vocab - 1) + "."));
  }
}

TEST_CASE("tokens of the head beyond the vocabulary that is asked for are refused") {
  const auto load = [] { golden_backend("llama", {.vocab_size = 30, .head_tokens = {3, 30}}); };
  CHECK_THROWS_WITH(load(), "option head_tokens has token 30, but option vocab_size ends the vocabulary at 29.");
}

TEST_CASE("NaN weights give NaN logits, for the sampler to find") {
  const auto config = model_writer::wide_config();
  auto file = model_writer::random_llama(config, 8);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto first = file.header["model.layers.1.self_attn.v_proj.weight"]["data_offsets"][0].get<std::size_t>();
  std::memcpy(file.data.data() + first, &nan, sizeof nan);
  auto backend = model_writer::backend(config, file);
  auto kv = llama_driver::cache_for(backend, 16);
  const auto rows = llama_driver::plainly(backend, kv, std::vector<token_id>{1, 2});
  for (const float logit : rows.back())
    CHECK(std::isnan(logit));
}

TEST_CASE("a cache made for another model is refused before a row is written") {
  using Catch::Matchers::ContainsSubstring;
  auto backend = golden_backend("llama");
  const auto& config = backend.config();
  forward_batch batch;
  batch.begin_sequence(0, 0, 1);
  batch.add_row(1, 0, 0, true);
  contiguous_kv few_layers(config.n_layers - 1, config.kv_size(), 1, 8), short_rows(config.n_layers, 4, 1, 8);
  CHECK_THROWS_WITH(backend.forward(few_layers, batch.view()), ContainsSubstring("the cache has 1 layers of"));
  CHECK_THROWS_WITH(backend.forward(short_rows, batch.view()),
                    ContainsSubstring("layers of 4 floats a row, but the model"));
  contiguous_kv kv(config.n_layers, config.kv_size(), 1, 8);
  batch.clear();
  batch.begin_sequence(1, 0, 1);
  batch.add_row(1, 0, 0, true);
  CHECK_THROWS_WITH(backend.forward(kv, batch.view()), ContainsSubstring("sequence 1 does not exist"));
}

TEST_CASE("a bad batch is refused with a sentence, and nothing has happened then") {
  using Catch::Matchers::ContainsSubstring;
  auto backend = golden_backend("llama", {.max_rows = 4});
  auto kv = llama_driver::cache_for(backend, 8);
  const auto one_row = [&](token_id token, int position, int column) {
    forward_batch batch;
    batch.begin_sequence(0, 0, 8);
    batch.add_row(token, position, column, true);
    return batch;
  };
  const auto refused = [&](const forward_batch& batch, const char* words) {
    CHECK_THROWS_WITH(backend.forward(kv, batch.view()), ContainsSubstring(words));
    CHECK_THROWS_AS(backend.forward(kv, batch.view()), input_error);
  };
  refused(one_row(72, 0, 0), "token 72, but the vocabulary has 72");
  refused(one_row(-1, 0, 0), "token -1");
  refused(one_row(1, 64, 0), "position 64, but the model has 64");
  refused(one_row(1, -1, 0), "position -1");
  forward_batch long_batch;
  long_batch.begin_sequence(0, 0, 8);
  llama_driver::add_whole_chain(long_batch, std::vector<token_id>{1, 2, 3, 4, 5}, 0);
  refused(long_batch, "5 rows, but the backend was built for at most 4");
  forward_batch beyond;
  beyond.begin_sequence(0, 3, 8);
  beyond.add_row(1, 3, 5, true);
  refused(beyond, "cache slot 8");

  const forward_batch good = one_row(1, 0, 0);
  forward_batch_view view = good.view();
  const auto refused_view = [&](const forward_batch_view& v, const char* words) {
    CHECK_THROWS_WITH(backend.forward(kv, v), ContainsSubstring(words));
  };
  const std::uint32_t no_bits[] = {0};
  view.mask = no_bits;
  refused_view(view, "does not see itself");
  const std::uint32_t far_bits[] = {0x80000001U};
  view.mask = far_bits;
  refused_view(view, "sees cache slot 31, but there are 8");
  view.mask = {};
  refused_view(view, "mask of sequence 0");
  view = good.view();
  view.positions = {};
  refused_view(view, "1 tokens, 0 positions");
  view = good.view();
  view.sequences = {};
  refused_view(view, "its sequences have 0");
  const std::int32_t outputs[] = {0, 0};
  view = good.view();
  view.outputs = outputs;
  refused_view(view, "outputs must ascend");
  const batch_sequence gap[] = {{.row_begin = 1, .row_end = 1}};
  view = good.view();
  view.sequences = gap;
  refused_view(view, "must begin at 0");
  CHECK(backend.forward(kv, good.view()).n_rows == 1);
}

TEST_CASE("hidden states are those of the last batch, and of no row that it did not have") {
  using Catch::Matchers::ContainsSubstring;
  llama_backend backend = wide_backend({.max_rows = 8, .hidden_layers = {0}});
  auto kv = llama_driver::cache_for(backend, 64);
  CHECK_THROWS_WITH(backend.hidden(0, 0), ContainsSubstring("row 0 is none of the last pass, which had 0 rows"));
  for (const int n : {5, 2}) {
    forward_batch batch;
    batch.begin_sequence(0, kv.append(0, n), n);
    for (int i = 0; i < n; ++i)
      batch.add_row(1, kv.size(0) + i, i, true).include_first(i);
    backend.forward(kv, batch.view());
    CHECK(backend.hidden(0, n - 1).size() == static_cast<std::size_t>(backend.config().hidden_size));
    for (const int row : {-1, n, 7}) {
      CHECK_THROWS_AS(backend.hidden(0, row), input_error);
      CHECK_THROWS_WITH(backend.hidden(0, row), ContainsSubstring("had " + std::to_string(n) + " rows"));
    }
    kv.commit(0, {});
  }
}

TEST_CASE("the first layers are a model whose later layers add nothing, and need fewer layers of a cache") {
  const model_config config = model_writer::wide_config();
  model_writer::file_text file = model_writer::random_llama(config, 7);
  llama_backend whole = model_writer::backend(config, file);
  for (const char* name : {"model.layers.1.self_attn.o_proj.weight", "model.layers.1.mlp.down_proj.weight"}) {
    const auto& range = file.header.at(name).at("data_offsets");
    std::fill(file.data.begin() + range.at(0).get<std::ptrdiff_t>(),
              file.data.begin() + range.at(1).get<std::ptrdiff_t>(), '\0');
  }
  llama_backend cut = model_writer::backend(config, file), first(config, whole.weights(), {.layers = 1});
  CHECK(first.config().n_layers == 1);
  const auto rows_of = [](llama_backend& backend) {
    std::mt19937 random(5);
    auto kv = llama_driver::cache_for(backend, 64);
    forward_batch batch;
    batch.begin_sequence(0, kv.append(0, 8), 8);
    llama_driver::add_whole_chain(batch, llama_driver::random_tokens(random, 8, backend.vocab_size()), 0);
    return llama_driver::rows_of(backend.forward(kv, batch.view()));
  };
  CHECK(rows_of(first) == rows_of(cut));
  CHECK(rows_of(first) != rows_of(whole));
  CHECK_THROWS_WITH(llama_backend(config, whole.weights(), {.layers = 3}),
                    Catch::Matchers::ContainsSubstring("option layers is 3"));
}

TEST_CASE("options out of range name themselves") {
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(golden_backend("llama", {.max_rows = 0}), ContainsSubstring("option max_rows is 0"));
  CHECK_THROWS_WITH(golden_backend("llama", {.threads = -1}), ContainsSubstring("option threads is -1"));
  CHECK_THROWS_WITH(golden_backend("llama", {.threads = 257}), ContainsSubstring("option threads is 257"));
  CHECK_THROWS_WITH(golden_backend("llama", {.max_positions = 65}), ContainsSubstring("option max_positions is 65"));
  CHECK_THROWS_WITH(golden_backend("llama", {.hidden_layers = {2}}), ContainsSubstring("option hidden_layers is 2"));
  CHECK_THROWS_WITH(golden_backend("llama").hidden(0, 0), ContainsSubstring("does not list layer 0"));
  CHECK_THROWS_AS(golden_backend("no such folder"), model_error);
}
