// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama_cpp/llama_cpp_backend.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/testing/backend_laws.hpp"
#include "espalier/testing/kv_store_laws.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model/llama_cpp/tiny_gguf.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

std::string tiny(const tiny_gguf& shape, const std::string& name = "tiny") {
  const std::string file = std::string(ESPALIER_TEST_WORK) + "/" + name + ".gguf";
  shape.write(file);
  return file;
}

// Two passes over the same tokens differ by what llama.cpp rounds, most of it in its cache of 16 bits.
constexpr float tolerance = 0.02F;

// The committed rows of a sequence, all at once: the logits of one more token. Nearly equal ones are equal.
struct committed_rows {
  std::vector<float> logits;

  bool operator==(const committed_rows& other) const {
    return std::equal(logits.begin(), logits.end(), other.logits.begin(), other.logits.end(),
                      [](float a, float b) { return std::abs(a - b) <= tolerance; });
  }
};

committed_rows read_rows(llama_cpp_kv& kv, std::int32_t s) {
  forward_batch batch;
  const std::int32_t n = kv.size(s), column = kv.append(s, 1) - n;
  batch.begin_sequence(s, n, column + 1);
  batch.add_row(5, n, column, true);
  const logits_view logits = kv.pass(batch.view());
  committed_rows rows{{logits.row(0).begin(), logits.row(0).end()}};
  kv.truncate(s, n);
  return rows;
}

std::vector<token_id> counted(std::int32_t n) {
  std::vector<token_id> tokens(static_cast<std::size_t>(n));
  std::iota(tokens.begin(), tokens.end(), 1);
  return tokens;
}

std::vector<token_id> written(std::span<const token_id> text) {
  return {text.begin(), text.end()};
}

void add_chain(forward_batch& batch, llama_cpp_kv& kv, std::int32_t s, const std::vector<token_id>& tokens) {
  const auto n = static_cast<std::int32_t>(tokens.size());
  const std::int32_t prefix = kv.append(s, n);
  batch.begin_sequence(s, prefix, n);
  batch.add_chain(tokens, prefix, 1);
}

}  // namespace

namespace {

// Numbers in llama.cpp's own cells: a number is a token, and is read from the first layer's key, whose pairs of numbers
// are turned by their position and keep their length.
class number_cells {
 public:
  static constexpr bool keeps_paths = true;

  explicit number_cells(const llama_cpp_model& model) : last_(static_cast<std::size_t>(model.vocab_size()), -1) {
    llama_cpp_kv kv(model, {.capacity = model.vocab_size()});
    for (std::int32_t first = 0; first < model.vocab_size(); first += 256) {
      forward_batch batch;
      kv.append(0, 256);
      batch.begin_sequence(0, first, 256);
      std::vector<token_id> tokens(256);
      std::iota(tokens.begin(), tokens.end(), first);
      batch.add_chain(tokens, first, 0);
      kv.pass(batch.view());
      std::vector<std::int32_t> all(256);
      std::iota(all.begin(), all.end(), 0);
      kv.commit(0, all);
    }
    keys_.resize(last_.size());
    for (const cell& one : cells(kv, 0))
      keys_[static_cast<std::size_t>(one.position)] = one.key;
  }

  void write(llama_cpp_kv& kv, std::int32_t s, std::int32_t slot, int number) {
    const auto token = static_cast<token_id>(static_cast<std::size_t>(number) % last_.size());
    last_[static_cast<std::size_t>(token)] = number;
    forward_batch batch;
    const std::int32_t n = kv.size(s);
    batch.begin_sequence(s, n, slot - n + 1);
    batch.add_row(token, slot, slot - n, false).include_first(slot - n);
    kv.pass(batch.view());
  }

  int read(llama_cpp_kv& kv, std::int32_t s, std::int32_t slot) {
    for (const cell& one : cells(kv, s)) {
      if (one.position == slot) return last_[token_of(one.key)];
    }
    return -1;
  }

 private:
  using key_lengths = std::array<float, tiny_gguf::head_size / 2>;

  struct cell {
    std::int32_t position;
    key_lengths key;
  };

  // What llama_state_seq_get_data() writes of a sequence, as far as the first layer's keys.
  static std::vector<cell> cells(llama_cpp_kv& kv, std::int32_t s) {
    const llama_seq_id id = kv.trunk(s);
    std::vector<std::uint8_t> bytes(llama_state_seq_get_size(kv.context(), id));
    REQUIRE(llama_state_seq_get_data(kv.context(), bytes.data(), bytes.size(), id) == bytes.size());
    const std::uint8_t* at = bytes.data() + 2 * sizeof(std::uint32_t);  // a magic number, the sequence
    const auto take = [&]<class NumberT>(NumberT number) {
      std::memcpy(&number, at, sizeof number);
      at += sizeof number;
      return number;
    };
    REQUIRE(take(std::uint32_t{}) == 1);  // streams
    std::vector<cell> read(take(std::uint32_t{}));
    for (cell& one : read) {
      one.position = take(std::int32_t{});
      at += take(std::uint32_t{}) * sizeof(llama_seq_id);
    }
    if (read.empty()) return read;
    at += 2 * sizeof(std::uint32_t);  // the layout of values, the number of layers
    REQUIRE(take(std::int32_t{}) == GGML_TYPE_F16);
    REQUIRE(take(std::uint64_t{}) == tiny_gguf::head_size * sizeof(ggml_fp16_t));
    for (cell& one : read) {
      for (float& length : one.key) {
        const float x = ggml_fp16_to_fp32(take(ggml_fp16_t{})), y = ggml_fp16_to_fp32(take(ggml_fp16_t{}));
        length = std::sqrt(x * x + y * y);
      }
    }
    return read;
  }

  std::size_t token_of(const key_lengths& key) {
    const auto [known, is_new] = known_.try_emplace(key, 0);
    if (is_new) {
      const auto distance = [&](const key_lengths& other) {
        return std::transform_reduce(key.begin(), key.end(), other.begin(), 0.0F, std::plus<>(),
                                     [](float a, float b) { return (a - b) * (a - b); });
      };
      const auto nearest = std::min_element(keys_.begin(), keys_.end(),
                                            [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
      known->second = static_cast<std::size_t>(nearest - keys_.begin());
    }
    return known->second;
  }

  std::vector<key_lengths> keys_;  // [vocab]
  std::vector<int> last_;          // [vocab] the last number that was written as this token
  std::map<key_lengths, std::size_t> known_;
};

}  // namespace

TEST_CASE("KVStore laws: llama_cpp_kv, in llama.cpp's own cells") {
  const llama_cpp_model model(tiny({}), {.threads = 1});
  llama_cpp_kv kv(model, {.capacity = 16, .n_sequences = 3});
  testing::check_kv_store(kv, 3, number_cells(model));
}

TEST_CASE("Backend laws: llama_cpp_backend, to the rounding of its cache") {
  const llama_cpp_model model(tiny({}), {.threads = 1});
  llama_cpp_backend backend(model);
  const auto make_kv = [&](std::int32_t n) { return llama_cpp_kv(model, {.capacity = 96, .n_sequences = n}); };
  testing::check_backend(
      backend, make_kv, [](llama_cpp_kv& kv, std::int32_t s, std::int32_t) { return read_rows(kv, s); }, tolerance);
}

TEST_CASE("llama_cpp_backend: greedy texts over a draft of llama.cpp, alone and many at once") {
  const std::string file = tiny({});
  const llama_cpp_model model(file, {.threads = 1}), other(tiny({.seed = 2}, "other"), {.threads = 1});
  llama_cpp_backend target(model);
  llama_cpp_kv cache(model, {.capacity = 256});
  const std::vector<token_id> prompt = counted(9);
  const stop_conditions stop{.max_tokens = 60};
  auto plain_decode = make_decoder(no_drafter(), plain(), greedy(), cache, target);
  const std::vector<token_id> expected = written(plain_decode.generate(prompt, stop));
  REQUIRE(expected.size() == 60);

  const auto require_equal = [&](const llama_cpp_model& draft, auto policy, int at_most) {
    llama_cpp_kv kv(model, {.capacity = 256});
    auto decode = make_decoder(autoregressive(llama_cpp_backend(draft), llama_cpp_kv(draft, {.capacity = 256})), policy,
                               greedy(), kv, target);
    int rounds = 0;
    REQUIRE(written(decode.generate(prompt, stop, [&](const round_record&) { ++rounds; })) == expected);
    REQUIRE(rounds <= at_most);
    // All that is in the cache is the text, under one id.
    REQUIRE(llama_memory_seq_pos_max(llama_get_memory(kv.context()), kv.trunk(0)) == kv.size(0) - 1);
    REQUIRE(kv.engine_seconds() > 0);
  };
  require_equal(model, chain({.length = 5}), 20);
  require_equal(model, fixed({.depth = 3, .breadth = 3, .budget = 30}), 60);
  require_equal(model, dynatree({.budget = 40}), 60);
  require_equal(other, fixed({.depth = 3, .breadth = 3, .budget = 30}), 60);

  // The next turn finds the text's beginning in the cache.
  const double before = cache.engine_seconds();
  REQUIRE(written(plain_decode.generate(prompt, {.max_tokens = 1})) == written(std::span(expected).first(1)));
  REQUIRE(cache.engine_seconds() > before);

  llama_cpp_kv many(model, {.capacity = 256, .n_sequences = 3});
  autoregressive drafter(llama_cpp_backend(model), llama_cpp_kv(model, {.capacity = 256, .n_sequences = 3}));
  auto decode = make_batch_decoder(drafter, fixed({.depth = 2, .breadth = 3, .budget = 12}), greedy(), many, target,
                                   {.max_texts = 3});
  const std::vector<text_id> ids{decode.add(prompt, stop), decode.add(prompt, stop), decode.add(prompt, stop)};
  std::vector<std::vector<token_id>> texts(ids.size());
  while (!decode.idle()) {
    for (const text_event& e : decode.step()) {
      std::vector<token_id>& text = texts[static_cast<std::size_t>(e.id)];
      text.insert(text.end(), e.round.committed.begin(), e.round.committed.end());
    }
  }
  for (const std::vector<token_id>& text : texts)
    REQUIRE(text == expected);
}

TEST_CASE("llama_cpp_kv: commits and truncations against caches that were filled plainly, a window among them") {
  const bool slides = GENERATE(false, true);
  INFO("slides: " << slides);
  const llama_cpp_model model(slides ? tiny({.architecture = "gemma2"}, "sliding") : tiny({}), {.threads = 1});
  REQUIRE((llama_model_n_swa(model.loaded()->get()) == 8) == slides);
  llama_cpp_kv kv(model, {.capacity = 128, .n_sequences = 2});
  std::mt19937 random(3);
  const auto below = [&](std::int32_t n) { return static_cast<std::int32_t>(random() % static_cast<unsigned>(n)); };
  std::vector<std::vector<token_id>> texts(2);
  for (int step = 0; step < 150; ++step) {
    const std::int32_t s = below(2);
    std::vector<token_id>& text = texts[static_cast<std::size_t>(s)];
    const auto n = static_cast<std::int32_t>(text.size());
    if (below(5) == 0 || n > 100) {
      const std::int32_t left = n - below((std::min)(n, 24) + 1);
      kv.truncate(s, left);
      text.resize(static_cast<std::size_t>(kv.size(s)));
      REQUIRE((kv.size(s) == left || (slides && kv.size(s) == 0)));
    } else {
      // A random tree in two passes, and a path of it.
      std::vector<std::int32_t> parents;
      std::vector<token_id> tokens;
      for (int part = 0; part < 2; ++part) {
        const auto first = static_cast<std::int32_t>(tokens.size());
        forward_batch batch;
        REQUIRE(kv.append(s, 4) == n + first);
        batch.begin_sequence(s, n, first + 4);
        for (std::int32_t i = first; i < first + 4; ++i) {
          parents.push_back(below(i + 1) - 1);
          tokens.push_back(below(model.vocab_size()));
          std::int32_t depth = 0;
          for (std::int32_t a = parents.back(); a >= 0; a = parents[static_cast<std::size_t>(a)])
            ++depth;
          const mask_row mask = batch.add_row(tokens.back(), n + depth, i, i % 2 == 0);
          for (std::int32_t a = parents.back(); a >= 0; a = parents[static_cast<std::size_t>(a)])
            mask.set(a);
        }
        REQUIRE(kv.pass(batch.view()).n_rows == 2);
      }
      std::vector<std::int32_t> kept;
      for (std::int32_t a = below(9) - 1; a >= 0; a = parents[static_cast<std::size_t>(a)])
        kept.insert(kept.begin(), a);
      REQUIRE(kv.commit(s, kept) == static_cast<std::int32_t>(kept.size()));
      for (const std::int32_t k : kept)
        text.push_back(tokens[static_cast<std::size_t>(k)]);
    }
    REQUIRE(kv.size(s) == static_cast<std::int32_t>(text.size()));
    llama_cpp_kv fresh(model, {.capacity = 128});
    if (!text.empty()) {
      forward_batch batch;
      add_chain(batch, fresh, 0, text);
      fresh.pass(batch.view());
      std::vector<std::int32_t> all(text.size());
      std::iota(all.begin(), all.end(), 0);
      fresh.commit(0, all);
    }
    REQUIRE(read_rows(kv, s) == read_rows(fresh, 0));
  }
}

TEST_CASE("llama_cpp_kv: what it does not take leaves it as it was") {
  const llama_cpp_model model(tiny({}), {.threads = 1, .max_rows = 300});
  llama_cpp_kv kv(model, {.capacity = 400});
  forward_batch batch;
  add_chain(batch, kv, 0, counted(6));
  kv.pass(batch.view());
  REQUIRE(kv.commit(0, std::vector<std::int32_t>{0, 1, 2, 3, 4, 5}) == 6);
  const committed_rows before = read_rows(kv, 0);

  const auto refused = [&](const forward_batch& rows) {
    const std::string message = message_of<input_error>([&] { kv.pass(rows.view()); });
    kv.truncate(0, 6);
    REQUIRE(read_rows(kv, 0) == before);
    return message;
  };
  batch.clear();
  add_chain(batch, kv, 0, {1, 4096});
  REQUIRE(says(refused(batch), "row 1", "token 4096", "ends at 4095"));
  batch.clear();
  add_chain(batch, kv, 0, counted(301));
  REQUIRE(says(refused(batch), "301 rows", "max_rows, 300"));
  batch.clear();
  batch.begin_sequence(0, 6, 1);
  batch.add_row(1, 6, 0, true);
  REQUIRE(says(refused(batch), "slot 6", "not appended"));
  batch.clear();
  batch.begin_sequence(0, 5, 1);
  batch.add_row(1, 5, 0, true);
  REQUIRE(says(refused(batch), "5 committed rows", "6"));
  // 257 leaves, of which there may be 256; 256 are fine.
  for (const std::int32_t leaves : {257, 256}) {
    batch.clear();
    REQUIRE(kv.append(0, leaves) == 6);
    batch.begin_sequence(0, 6, leaves);
    for (std::int32_t i = 0; i < leaves; ++i)
      batch.add_row(i, 6, i, true);
    if (leaves == 257) {
      REQUIRE(says(refused(batch), "256 sequence ids", "more leaves"));
    } else {
      REQUIRE(kv.pass(batch.view()).n_rows == 256);
    }
  }
  REQUIRE(says(message_of<input_error>([&] { kv.commit(0, std::vector<std::int32_t>{3, 4}); }), "scratch row 4"));
  REQUIRE(kv.commit(0, std::vector<std::int32_t>{200}) == 1);
  REQUIRE(kv.size(0) == 7);

  REQUIRE(says(message_of<option_error>([&] { llama_cpp_kv(model, {.capacity = 0}); }), "capacity", "0"));
  REQUIRE(says(message_of<option_error>([&] { llama_cpp_kv(model, {.n_sequences = 256}); }), "n_sequences", "255"));
}

TEST_CASE("llama_cpp_backend: a context that is too short") {
  const llama_cpp_model model(tiny({.context = 16}, "short"), {.threads = 1});
  auto decode = make_decoder(no_drafter(), plain(), greedy(), llama_cpp_kv(model), llama_cpp_backend(model));
  REQUIRE(says(message_of<input_error>([&] { decode.generate(counted(20)); }), "20", "16"));
  REQUIRE(decode.generate(counted(10)).size() == 6);
  REQUIRE(decode.current().state() == status::context_full);
  auto narrow =
      make_decoder(no_drafter(), plain(), greedy(), llama_cpp_kv(model, {.capacity = 12}), llama_cpp_backend(model));
  REQUIRE(narrow.generate(counted(10)).size() == 2);
}

TEST_CASE("llama_cpp_model: files that are no models, and models that have no such cache") {
  REQUIRE(says(message_of<model_error>([] { llama_cpp_model("nowhere.gguf"); }), "nowhere.gguf", "cannot be read"));
  const std::string broken = std::string(ESPALIER_TEST_WORK) + "/broken.gguf";
  std::ofstream(broken) << "GGUF, but not really";
  REQUIRE(says(message_of<model_error>([&] { llama_cpp_model model(broken); }), "broken.gguf", "no model that"));
  const std::string unknown = tiny({.architecture = "unheard_of"}, "unknown");
  REQUIRE(says(message_of<model_error>([&] { llama_cpp_model model(unknown); }), "unknown.gguf", "unheard_of"));
  const std::string recurrent = tiny({.architecture = "mamba"}, "recurrent");
  REQUIRE(says(message_of<model_error>([&] { llama_cpp_model model(recurrent); }), "recurrent.gguf is recurrent",
               "a row for each token"));
  REQUIRE(says(message_of<option_error>([&] { llama_cpp_model(tiny({}), {.threads = -1}); }), "threads", "-1"));
}
