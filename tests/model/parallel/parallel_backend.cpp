// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/parallel/parallel_backend.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../llama/llama_driver.hpp"
#include "catch.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/processor/logit_bias.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "model/llama/model_writer.hpp"
#include "raises.hpp"
#include "thread_ranks.hpp"

namespace {

using namespace espalier;
using llama_driver::row_type;
using thread_ranks::thread_rank;
using backend_type = parallel_backend<thread_rank>;

static_assert(Communicator<thread_rank>);
static_assert(Backend<backend_type, contiguous_kv>);
static_assert(detail::HasMaxRows<backend_type>);

const std::vector<std::string> models = {"llama",
                                         "llama_tied",
                                         "llama_f16",
                                         "llama_int8_rows",
                                         "mistral",
                                         "qwen2",
                                         "qwen3",
                                         "gemma",
                                         "gemma2",
                                         "gemma3",
                                         "gpt_neox",
                                         "gpt_neox_sequential",
                                         "phi3",
                                         "granite",
                                         "smollm3",
                                         "glm4",
                                         "qwen3/model.gguf",
                                         "gpt_neox/model.gguf",
                                         "phi4_mini/model.gguf",
                                         "mixtral",
                                         "qwen3_moe",
                                         "qwen3_moe_plain",
                                         "qwen3_moe/model.gguf",
                                         "gpt_oss",
                                         "gpt_oss/model.gguf",
                                         "gpt_oss_mxfp4"};

// A model whose mlp.down_proj is of any type, with numbers of its own.
class down_of_type : public tensor_source {
 public:
  down_of_type(tensor_source& rest, weight_type type, const model_config& c) : rest_(rest) {
    std::mt19937 random(5);
    const std::size_t size = row_bytes(type, c.intermediate_size), block = static_cast<std::size_t>(block_bytes(type));
    bytes_.resize(static_cast<std::size_t>(c.hidden_size) * size);
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<char>(random() % 256);
      // Numbers of 16 bits, and floats, have their exponents in the last byte: of ordinary size.
      const std::size_t at = i % block;
      const bool is_top = type == weight_type::q4_k ? at == 1 || at == 3 : at == (block > 4 ? 1 : block - 1);
      if (is_top && block > 1) bytes_[i] = block > 4 ? 0x2C : 0x3E;
    }
    for (int row = 0; row < c.hidden_size; ++row)
      scales_.push_back(0.001F * static_cast<float>(row + 1));
    const auto rows = static_cast<std::uint64_t>(c.hidden_size);
    entry_ = {detail::file_name_of(type), {rows, static_cast<std::uint64_t>(c.intermediate_size)}, 0, bytes_.size()};
    scale_entry_ = {"F32", {rows}, 0, 4 * rows};
  }

  std::size_t bytes_read = 0;  // of the matrix

  const std::string& where() const override { return rest_.where(); }
  std::vector<std::string> names() const override { return rest_.names(); }
  const tensor_entry* find(const std::string& name) const override {
    const std::string own = "model.layers.0.mlp.down_proj.weight";
    return name == own ? &entry_ : name == own + "_scale" ? &scale_entry_ : rest_.find(name);
  }
  void read(const tensor_entry& entry, std::uint64_t first, void* to, std::size_t n) override {
    if (&entry == &scale_entry_) {
      std::memcpy(to, reinterpret_cast<const char*>(scales_.data()) + first, n);
    } else if (&entry == &entry_) {
      bytes_read += n;
      std::memcpy(to, bytes_.data() + first, n);
    } else {
      rest_.read(entry, first, to, n);
    }
  }

 private:
  tensor_source& rest_;
  std::vector<char> bytes_;
  std::vector<float> scales_;
  tensor_entry entry_, scale_entry_;
};

std::string path_of(const std::string& model) {
  return std::string(ESPALIER_TEST_DATA) + "/golden/" + model;
}

std::vector<token_id> tokens_of(int vocab, int n) {
  std::mt19937 random(11);
  std::vector<token_id> tokens;
  for (int i = 0; i < n; ++i)
    tokens.push_back(static_cast<token_id>(random() % static_cast<unsigned>(vocab)));
  return tokens;
}

// A chain of tokens in one pass, and then a token with two children in the next.
template <class BackendT, class KVStoreT>
std::vector<row_type> two_passes(BackendT& backend, KVStoreT& kv) {
  const auto tokens = tokens_of(backend.vocab_size(), 12);
  std::vector<row_type> rows;
  forward_batch batch;
  kv.append(0, 9);
  batch.begin_sequence(0, 0, 9);
  for (int i = 0; i < 9; ++i)
    batch.add_row(tokens[static_cast<std::size_t>(i)], i, i, i % 2 == 0).include_first(i + 1);
  for (row_type& row : llama_driver::rows_of(backend.forward(kv, batch.view())))
    rows.push_back(std::move(row));
  llama_driver::commit_first(kv, 0, 9);
  forward_batch tree;
  kv.append(0, 3);
  tree.begin_sequence(0, 9, 3);
  for (int i = 0; i < 3; ++i) {
    const mask_row mask = tree.add_row(tokens[static_cast<std::size_t>(9 + i)], i == 0 ? 9 : 10, i, true);
    mask.set(0);
    mask.set(i);
  }
  for (row_type& row : llama_driver::rows_of(backend.forward(kv, tree.view())))
    rows.push_back(std::move(row));
  return rows;
}

std::vector<row_type> rows_of_one(const std::string& path, matrix_arithmetic arithmetic = matrix_arithmetic::exact) {
  auto backend = llama_backend::load(path, {.threads = 1, .max_rows = 16, .arithmetic = arithmetic});
  auto kv = llama_driver::cache_for(backend, 32);
  return two_passes(backend, kv);
}

std::vector<std::vector<row_type>> rows_of_ranks(const std::string& path, int n, const parallel_options& options,
                                                 std::vector<rank_traffic>* traffic = nullptr) {
  std::vector<std::vector<row_type>> rows(static_cast<std::size_t>(n));
  if (traffic) traffic->resize(rows.size());
  const auto errors = thread_ranks::run(n, [&](thread_rank& rank) {
    auto backend = backend_type::load(path, rank, options);
    contiguous_kv kv(backend.layers(), backend.cache_row(), 1, 32);
    rows[static_cast<std::size_t>(rank.rank())] = two_passes(backend, kv);
    if (traffic) (*traffic)[static_cast<std::size_t>(rank.rank())] = rank.traffic();
  });
  for (const std::string& error : errors)
    REQUIRE(error == "");
  return rows;
}

}  // namespace

TEST_CASE("ranks that divide outputs have the bits of one rank") {
  for (const std::string& model : models) {
    INFO(model);
    const auto expected = rows_of_one(path_of(model));
    for (const int n : {1, 2, 3, 4}) {
      INFO(n << " ranks");
      for (const auto& rows : rows_of_ranks(path_of(model), n, {.max_rows = 16}))
        REQUIRE((rows == expected));
    }
  }
}

TEST_CASE("threads of ranks and integer products change no bit") {
  const std::string path = std::string(ESPALIER_TEST_MODELS) + "/draft";
  const auto expected = rows_of_one(path, matrix_arithmetic::integer);
  for (const int threads : {1, 2}) {
    const parallel_options options{.threads = threads, .max_rows = 16, .arithmetic = matrix_arithmetic::integer};
    for (const auto& rows : rows_of_ranks(path, 2, options))
      REQUIRE((rows == expected));
  }
}

TEST_CASE("ranks that divide sums agree with one another, and nearly with one rank") {
  for (const std::string& model : models) {
    INFO(model);
    const auto expected = rows_of_one(path_of(model));
    for (const int n : {1, 2, 3}) {
      const auto rows = rows_of_ranks(path_of(model), n, {.max_rows = 16, .split = rank_split::sums});
      double difference = 0.0, largest = 0.0;
      for (const auto& of_rank : rows)
        REQUIRE((of_rank == rows.front()));
      for (std::size_t r = 0; r < expected.size(); ++r) {
        for (std::size_t i = 0; i < expected[r].size(); ++i) {
          difference = std::max(difference, std::abs(double{rows[0][r][i]} - double{expected[r][i]}));
          largest = std::max(largest, std::abs(double{expected[r][i]}));
        }
      }
      INFO(n << " ranks, difference " << difference << " of " << largest);
      REQUIRE(difference <= 1e-4 * largest);
      // The outputs of experts are added up before they are added to the stream.
      if (n == 1 && !model_files::open(path_of(model)).config.has_mixtures()) REQUIRE((rows.front() == expected));
    }
  }
}

TEST_CASE("maxima are those of whole rows, and nothing else travels") {
  const std::string path = path_of("llama");
  const auto expected = rows_of_one(path);
  for (const int n : {1, 2, 3}) {
    for (const auto& rows : rows_of_ranks(path, n, {.max_rows = 16, .logits = rank_logits::maxima})) {
      REQUIRE(rows.size() == expected.size());
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto greatest = std::max_element(expected[r].begin(), expected[r].end());
        const auto found = std::max_element(rows[r].begin(), rows[r].end());
        REQUIRE(found - rows[r].begin() == greatest - expected[r].begin());
        REQUIRE(*found == *greatest);
        REQUIRE(std::count_if(rows[r].begin(), rows[r].end(), [](float x) { return std::isfinite(x); }) <= n);
      }
    }
  }
}

TEST_CASE("each rank has a part of every expert, and of its heads' sinks") {
  model_config config = model_config::load(path_of("gpt_oss"));
  config.hidden_size = 96;
  config.head_dim = config.rotary_dims = 32;
  config.intermediate_size = config.mixture.size = 160;
  const std::string file = model_writer::random_gpt_oss(config, 7).text();
  auto whole = model_writer::open(file);
  llama_backend one(config, model_weights::load(config, whole), {.threads = 1, .max_rows = 16});
  auto one_kv = llama_driver::cache_for(one, 32);
  const auto expected = two_passes(one, one_kv);
  for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
    for (const int threads : {1, 2}) {
      std::vector<std::vector<row_type>> rows(2);
      std::vector<std::int64_t> taken(2);
      const auto errors = thread_ranks::run(2, [&](thread_rank& rank) {
        auto own = model_writer::open(file);
        backend_type backend(config, own, rank, {.threads = threads, .max_rows = 16, .split = split});
        contiguous_kv kv(backend.layers(), backend.cache_row(), 1, 32);
        rows[static_cast<std::size_t>(rank.rank())] = two_passes(backend, kv);
        taken[static_cast<std::size_t>(rank.rank())] = backend.weights().weights_taken();
      });
      REQUIRE(errors == std::vector<std::string>(2));
      REQUIRE((rows[0] == rows[1]));
      double difference = 0.0;
      for (std::size_t r = 0; r < expected.size(); ++r) {
        for (std::size_t i = 0; i < expected[r].size(); ++i)
          difference = std::max(difference, std::abs(double{rows[0][r][i]} - double{expected[r][i]}));
      }
      CHECK(difference <= (split == rank_split::outputs ? 0.0 : 1e-4));
      // Both have the whole router, and nothing else twice.
      CHECK(taken[0] + taken[1] == one.weights()->weights_taken() +
                                       std::int64_t{config.n_layers} * config.mixture.experts * config.hidden_size);
    }
  }
}

TEST_CASE("what ranks send is what the documented formula says") {
  const std::string path = std::string(ESPALIER_TEST_MODELS) + "/draft";
  const model_config c = model_config::load(path);
  const std::int64_t rows = 12, outputs = 8, layer = 4 * c.n_layers;
  for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
    for (const int n : {2, 4}) {
      std::vector<rank_traffic> traffic;
      rows_of_ranks(path, n, {.max_rows = 16, .split = split}, &traffic);
      std::int64_t sent = 0;
      for (const rank_traffic& of_rank : traffic) {
        REQUIRE(of_rank.calls == 2 * (3 + layer));
        sent += of_rank.bytes;
      }
      const std::int64_t each =
          split == rank_split::sums ? 4 * c.hidden_size : c.query_size() + 2 * c.hidden_size + c.intermediate_size;
      const std::int64_t floats = rows * (c.hidden_size + c.n_layers * each) + outputs * c.vocab_size;
      REQUIRE(sent == (n - 1) * (4 * floats + 2 * n * 16));
    }
  }
}

TEST_CASE("each rank has the hidden states of one rank, in models of every kind") {
  const std::vector<int> layers{0, 1};
  for (const std::string& model : models) {
    INFO(model);
    const std::string path = path_of(model);
    auto one = llama_backend::load(path, {.threads = 1, .max_rows = 16, .hidden_layers = layers});
    auto one_kv = llama_driver::cache_for(one, 32);
    two_passes(one, one_kv);
    const auto errors = thread_ranks::run(2, [&](thread_rank& rank) {
      auto backend = backend_type::load(path, rank, {.max_rows = 16, .hidden_layers = layers});
      contiguous_kv kv(backend.layers(), backend.cache_row(), 1, 32);
      two_passes(backend, kv);
      for (const int layer : layers) {
        for (int row = 0; row < 3; ++row) {
          const auto expected = one.hidden(layer, row), found = backend.hidden(layer, row);
          if (!std::equal(found.begin(), found.end(), expected.begin(), expected.end()))
            raise<input_error>("layer ", layer, " of row ", row, " differs.");
        }
      }
    });
    for (const std::string& error : errors)
      CHECK(error == "");
  }
}

TEST_CASE("a rank reads and holds its part alone") {
  const std::string path = std::string(ESPALIER_TEST_MODELS) + "/target";
  const model_files one = model_files::open(path);
  for (const rank_split split : {rank_split::outputs, rank_split::sums}) {
    const model_weights whole = load_rank_weights(one.config, *one.tensors, rank_part(one.config, 0, 1), split);
    std::int64_t taken = 0;
    for (int r = 0; r < 3; ++r) {
      const model_files files = model_files::open(path);
      const rank_part part(files.config, r, 3);
      const model_weights own = load_rank_weights(files.config, *files.tensors, part, split);
      REQUIRE(own.bytes() < whole.bytes() * 4 / 10);
      taken += own.weights_taken();
    }
    REQUIRE(taken == whole.weights_taken());
  }
}

TEST_CASE("ranks have the numbers of long rows that their file quantises, or that are rounded as they are read") {
  model_config config;
  config.vocab_size = config.hidden_size = 32;
  config.n_layers = 1;
  config.n_heads = config.n_kv_heads = 2;
  config.head_dim = config.rotary_dims = 16;
  config.intermediate_size = 66560;  // a third of it is no whole number of blocks of 256
  config.max_positions = 8;
  config.tied_embeddings = true;
  auto rest = model_writer::open(model_writer::random_llama(config, 3).text());
  const std::pair<weight_type, weight_storage> cases[] = {
      {weight_type::f32, weight_storage::as_stored},     {weight_type::f32, weight_storage::q8_0},
      {weight_type::bf16, weight_storage::q4_0},         {weight_type::q8_0, weight_storage::as_stored},
      {weight_type::i8_rows, weight_storage::as_stored}, {weight_type::q4_k, weight_storage::as_stored},
      {weight_type::q4_k, weight_storage::f32}};
  for (const auto& [type, storage] : cases) {
    INFO(name_of(type) << ", held as " << static_cast<int>(storage));
    const auto load = [&, type = type, storage = storage](int rank, int ranks, std::size_t& read) {
      down_of_type file(rest, type, config);
      auto own = load_rank_weights(config, file, rank_part(config, rank, ranks), rank_split::sums, storage);
      read = file.bytes_read;
      return own;
    };
    std::size_t all = 0, by_parts = 0;
    const model_weights whole = load(0, 1, all);
    for (int r = 0; r < 3; ++r) {
      std::size_t read = 0;
      const model_weights own = load(r, 3, read);
      by_parts += read;
      const rank_part::range part = rank_part(config, r, 3).intermediate;
      std::vector<float> expected(static_cast<std::size_t>(config.intermediate_size)),
          found(static_cast<std::size_t>(part.size()));
      for (int row = 0; row < config.hidden_size; ++row) {
        whole.layers[0].down.matrix.get_row(row, expected.data());
        own.layers[0].down.matrix.get_row(row, found.data());
        REQUIRE(std::equal(found.begin(), found.end(), expected.begin() + part.begin));
      }
    }
    CHECK(by_parts < all * 11 / 10);
  }
}

TEST_CASE("decoders on all ranks write the text of one") {
  const std::string folder = ESPALIER_TEST_MODELS;
  const auto prompt = std::vector<token_id>{1, 300, 500, 700};
  const auto write = [&](auto& target, auto& kv, auto&& observer) {
    auto draft = llama_backend::load(folder + "/draft", {.threads = 1, .max_rows = 272});
    auto draft_kv = llama_driver::cache_for(draft, 600);
    auto drafter = autoregressive(draft, draft_kv);
    auto decode = make_decoder(drafter, dynatree(), greedy(), kv, target);
    const auto text = decode.generate(prompt, {.max_tokens = 24}, observer);
    return std::vector<token_id>(text.begin(), text.end());
  };
  auto one = llama_backend::load(folder + "/target", {.threads = 1, .max_rows = 272});
  auto one_kv = llama_driver::cache_for(one, 600);
  const auto expected = write(one, one_kv, [](const round_record&) {});
  for (const rank_logits logits : {rank_logits::rows, rank_logits::maxima}) {
    const auto errors = thread_ranks::run(2, [&](thread_rank& rank) {
      auto target = backend_type::load(folder + "/target", rank, {.max_rows = 272, .logits = logits});
      contiguous_kv kv(target.layers(), target.cache_row(), 1, 600);
      agreement agree(rank);
      if (write(target, kv, agree) != expected) throw error("another text");
    });
    REQUIRE(errors == std::vector<std::string>(2));
  }
}

TEST_CASE("a model with recurrent layers is refused") {
  for (const auto& [model, words] : {std::pair("bamba", "recurrent layers (bamba) cannot be divided over ranks"),
                                     std::pair("qwen3_5", "recurrent layers (qwen3_5_text) cannot be divided over")}) {
    const std::string path = path_of(model);
    const auto errors = thread_ranks::run(2, [&](thread_rank& rank) { backend_type::load(path, rank, {}); });
    for (const std::string& error : errors)
      REQUIRE(error.find(words) != std::string::npos);
  }
}

TEST_CASE("a model with gates behind attention or with a shared expert is refused") {
  model_config gates, shared;
  gates.attention_gate = true;
  shared.mixture.shared_size = 64;
  for (const int size : {1, 2}) {
    CHECK(says(message_of<model_error>([&] { (void)rank_part(gates, 0, size); }),
               "gates behind attention (llama) cannot be divided over ranks: llama_backend runs it"));
    CHECK(says(message_of<model_error>([&] { (void)rank_part(shared, 0, size); }),
               "a shared expert (llama) cannot be divided over ranks: llama_backend runs it"));
  }
}

TEST_CASE("a model that normalises all heads together runs on one rank, and is refused on more") {
  const auto rows = rows_of_ranks(path_of("olmo2"), 1, {.max_rows = 16});
  REQUIRE((rows.front() == rows_of_one(path_of("olmo2"))));
  const auto errors = thread_ranks::run(2, [](thread_rank& rank) { backend_type::load(path_of("olmo2"), rank, {}); });
  for (const std::string& error : errors)
    REQUIRE(error.find("all heads of the queries and of the keys (olmo2) cannot be divided over") != std::string::npos);
}

TEST_CASE("a decoder over the greatest logits alone takes greedy, and nothing that reads more of a row") {
  const std::string path = path_of("llama");
  const auto errors = thread_ranks::run(1, [&](thread_rank& rank) {
    auto maxima = backend_type::load(path, rank, {.max_rows = 16, .logits = rank_logits::maxima});
    contiguous_kv kv(maxima.layers(), maxima.cache_row(), 1, 32);
    auto greedy_decoder = make_decoder(no_drafter(), plain(), greedy(), kv, maxima);
    const std::vector<token_id> prompt = tokens_of(maxima.vocab_size(), 3);
    CHECK(
        says(message_of<option_error>([&] { greedy_decoder.begin(prompt, {}, {.log_probs = 0}); }), "log_probs is 0"));
    CHECK(greedy_decoder.generate(prompt, {.max_tokens = 4}).size() == 4);
    const auto refused = [&](auto&& make) { return says(message_of<option_error>(make), "the greatest logits alone"); };
    CHECK(refused([&] { (void)make_decoder(no_drafter(), plain(), target_only(), kv, maxima); }));
    CHECK(refused([&] { (void)make_decoder(no_drafter(), plain(), greedy(), kv, maxima, {}, logit_bias()); }));
    CHECK(
        refused([&] { (void)make_batch_decoder(no_drafter(), plain(), target_only(), kv, maxima, {.max_texts = 1}); }));
    auto rows = backend_type::load(path, rank, {.max_rows = 16});
    contiguous_kv other_kv(rows.layers(), rows.cache_row(), 1, 32);
    (void)make_decoder(no_drafter(), plain(), target_only(), other_kv, rows);
  });
  CHECK(errors.front() == "");
}
