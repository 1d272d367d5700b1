// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/small/small_llama.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../llama/llama_driver.hpp"
#include "../llama/model_writer.hpp"
#include "catch.hpp"

using namespace espalier;

namespace {

constexpr small_shape target_shape{
    .vocab = 512, .hidden = 96, .layers = 3, .heads = 3, .kv_heads = 1, .head_dim = 32, .inner = 144, .positions = 256};
constexpr small_shape draft_shape{
    .vocab = 512, .hidden = 32, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 16, .inner = 48, .positions = 256};
using target_model = small_llama<target_shape, 24>;
using draft_model = small_llama<draft_shape, 24>;

static_assert(Backend<target_model, contiguous_kv> && detail::HasMaxRows<target_model> &&
              detail::HasMaxPositions<target_model>);
static_assert(!small_shape{}.is_sound() && target_shape.is_sound() && target_shape.n_turns() == 8);

// The pair of examples/embedded, at an address that is a multiple of 8.
struct pair_file {
  pair_file() {
    std::ifstream file(ESPALIER_TEST_MODELS "/../embedded/pair.bin", std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    n = text.size();
    words.resize(n / 8 + 1);
    std::memcpy(words.data(), text.data(), n);
  }
  std::span<const std::byte> bytes() const { return {reinterpret_cast<const std::byte*>(words.data()), n}; }
  std::span<const std::byte> draft() const { return bytes().subspan(small_weights(bytes()).bytes()); }

  std::vector<std::uint64_t> words;
  std::size_t n = 0;
};

contiguous_kv cache_for(const small_shape& shape, int capacity = 200) {
  return {shape.layers, shape.kv_size(), 1, capacity};
}

// Trees and chains after a text: every row must have the bits that one token a pass gives.
template <class ModelT>
void require_invariance(ModelT& model, const small_shape& shape, unsigned seed) {
  std::mt19937 random(seed);
  auto kv = cache_for(shape), plain_kv = cache_for(shape);
  const auto text = llama_driver::random_tokens(random, 50, shape.vocab);
  const auto expected = llama_driver::plainly(model, plain_kv, text);
  for (std::size_t begin = 0, size = 1; begin < text.size(); ++size) {  // chunks of 1, 2, 3, ... rows
    const std::size_t n = std::min(text.size() - begin, size);
    forward_batch batch;
    const int prefix = kv.append(0, static_cast<int>(n));
    batch.begin_sequence(0, prefix, static_cast<int>(n));
    llama_driver::add_whole_chain(batch, std::span(text).subspan(begin, n), prefix);
    const auto rows = llama_driver::rows_of(model.forward(kv, batch.view()));
    REQUIRE(rows.size() == n);
    for (std::size_t i = 0; i < n; ++i)
      REQUIRE(rows[i] == expected[begin + i]);
    llama_driver::commit_first(kv, 0, static_cast<int>(n));
    begin += n;
  }
  for (int n_nodes = 1; n_nodes <= 24; ++n_nodes) {
    const auto tree = llama_driver::random_tree(random, n_nodes, shape.vocab);
    forward_batch batch;
    const int prefix = kv.append(0, n_nodes);
    batch.begin_sequence(0, prefix, n_nodes);
    llama_driver::add_tree(batch, tree, prefix);
    const auto rows = llama_driver::rows_of(model.forward(kv, batch.view()));
    for (int u = 0; u < n_nodes; ++u) {
      REQUIRE(rows[static_cast<std::size_t>(u)] == llama_driver::plainly(model, plain_kv, tree.tokens_to(u)).back());
      plain_kv.truncate(0, prefix);
    }
    kv.commit(0, {});
  }
}

// The same weights in the library's transformer, as floats.
llama_backend float_model(const small_weights& weights) {
  const small_shape& s = weights.shape();
  model_config config;
  config.vocab_size = s.vocab;
  config.hidden_size = s.hidden;
  config.n_layers = s.layers;
  config.n_heads = s.heads;
  config.n_kv_heads = s.kv_heads;
  config.head_dim = config.rotary_dims = s.head_dim;
  config.intermediate_size = s.inner;
  config.max_positions = s.positions;
  config.norm_epsilon = weights.epsilon();
  config.tied_embeddings = true;
  model_writer::file_text file;
  const auto add = [&](const std::string& name, const small_weights::matrix_type& m, int first, int rows) {
    std::vector<float> values;
    for (int i = first * m.inputs; i < (first + rows) * m.inputs; ++i)
      values.push_back(static_cast<float>(m.rows[i]) * m.scales[i / m.inputs]);
    file.add(name, {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(m.inputs)}, values);
  };
  const auto add_norm = [&](const std::string& name, const float* scale) {
    file.add(name, {static_cast<std::uint64_t>(s.hidden)}, {scale, scale + s.hidden});
  };
  add("model.embed_tokens.weight", weights.embedding(), 0, s.vocab);
  add_norm("model.norm.weight", weights.final_norm());
  for (int i = 0; i < s.layers; ++i) {
    const std::string base = "model.layers." + std::to_string(i) + ".";
    const small_weights::layer_type layer = weights.layer(i);
    add_norm(base + "input_layernorm.weight", layer.attention_norm);
    add_norm(base + "post_attention_layernorm.weight", layer.mlp_norm);
    add(base + "self_attn.q_proj.weight", layer.query_key_value, 0, s.query_size());
    add(base + "self_attn.k_proj.weight", layer.query_key_value, s.query_size(), s.kv_size());
    add(base + "self_attn.v_proj.weight", layer.query_key_value, s.query_size() + s.kv_size(), s.kv_size());
    add(base + "self_attn.o_proj.weight", layer.out, 0, s.hidden);
    add(base + "mlp.gate_proj.weight", layer.gate_up, 0, s.inner);
    add(base + "mlp.up_proj.weight", layer.gate_up, s.inner, s.inner);
    add(base + "mlp.down_proj.weight", layer.down, 0, s.hidden);
  }
  return model_writer::backend(config, file);
}

// Rounding of activations is all that parts them: the mean and the greatest difference of a logit, in standard
// deviations of the logits of a row.
template <class ModelT>
void require_close(ModelT& model, std::span<const std::byte> image, double mean, double greatest) {
  const small_weights weights(image);
  auto reference = float_model(weights);
  auto kv = cache_for(weights.shape()), reference_kv = cache_for(weights.shape());
  std::vector<token_id> text{1};
  double total = 0, most = 0;
  for (int i = 0; i < 150; ++i) {  // the text that floats write
    const auto expected = llama_driver::plainly(reference, reference_kv, std::span(text).last(1)).front();
    const auto given = llama_driver::plainly(model, kv, std::span(text).last(1)).front();
    double variance = 0, sum = 0, own = 0;
    for (std::size_t t = 0; t < expected.size(); ++t) {
      variance += static_cast<double>(expected[t]) * static_cast<double>(expected[t]);
      sum += static_cast<double>(expected[t]);
      const double difference = std::abs(static_cast<double>(expected[t]) - static_cast<double>(given[t]));
      own = std::max(own, difference);
      total += difference / 150 / static_cast<double>(expected.size());
    }
    const auto n = static_cast<double>(expected.size());
    const double deviation = std::sqrt(variance / n - sum / n * sum / n);
    REQUIRE(deviation > 0.5);
    most = std::max(most, own / deviation);
    text.push_back(static_cast<token_id>(std::max_element(expected.begin(), expected.end()) - expected.begin()));
    if (i % 8 == 7) text.back() = i;  // no loops
  }
  CHECK(total < mean);
  CHECK(most < greatest);
}

// An image with random weights.
std::vector<std::uint64_t> random_image(const small_shape& s, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers;
  std::vector<std::int8_t> integers;
  const auto add = [&](int outputs, int inputs, float deviation) {
    numbers.insert(numbers.end(), static_cast<std::size_t>(outputs), deviation / 73.0F);
    for (int i = 0; i < outputs * inputs; ++i)
      integers.push_back(static_cast<std::int8_t>(static_cast<int>(random() % 255) - 127));
  };
  for (int bit = 0; bit < s.n_turns(); ++bit) {
    for (int i = 0; i < s.head_dim; ++i) {
      const double angle = std::exp2(bit) * std::pow(10000.0, -2.0 * (i % (s.head_dim / 2)) / s.head_dim);
      numbers.push_back(static_cast<float>(i < s.head_dim / 2 ? std::cos(angle) : std::sin(angle)));
    }
  }
  numbers.insert(numbers.end(), static_cast<std::size_t>(s.hidden), 1.0F);
  add(s.vocab, s.hidden, 1.0F);
  for (int i = 0; i < s.layers; ++i) {
    numbers.insert(numbers.end(), static_cast<std::size_t>(2 * s.hidden), 1.0F);
    add(s.query_size() + 2 * s.kv_size(), s.hidden, 1.0F / std::sqrt(static_cast<float>(s.hidden)));
    add(s.hidden, s.query_size(), 1.0F / std::sqrt(static_cast<float>(s.query_size())));
    add(2 * s.inner, s.hidden, 1.0F / std::sqrt(static_cast<float>(s.hidden)));
    add(s.hidden, s.inner, 1.0F / std::sqrt(static_cast<float>(s.inner)));
  }
  const auto n = static_cast<std::uint32_t>(48 + 4 * numbers.size() + integers.size());
  std::vector<std::uint64_t> image(n / 8 + 1);
  auto* const bytes = reinterpret_cast<std::byte*>(image.data());
  const std::uint32_t head[] = {0, 1, n};
  const float epsilon = 1e-5F;
  std::memcpy(bytes, head, sizeof head);
  std::memcpy(bytes, "ESPL", 4);
  std::memcpy(bytes + 12, &s, sizeof s);
  std::memcpy(bytes + 44, &epsilon, 4);
  std::memcpy(bytes + 48, numbers.data(), 4 * numbers.size());
  std::memcpy(bytes + 48 + 4 * numbers.size(), integers.data(), integers.size());
  return image;
}

// Heads of its groups are looked at together, three at most.
template <int Heads, int KvHeads>
void require_groups() {
  static constexpr small_shape shape{.vocab = 160,
                                     .hidden = 32,
                                     .layers = 2,
                                     .heads = Heads,
                                     .kv_heads = KvHeads,
                                     .head_dim = 8,
                                     .inner = 48,
                                     .positions = 256};
  const auto image = random_image(shape, 5);
  const std::span<const std::byte> bytes = std::as_bytes(std::span(image));
  auto model = std::make_unique<small_llama<shape, 24>>(bytes);
  REQUIRE(model->fault() == nullptr);
  require_invariance(*model, shape, 3);
  require_close(*model, bytes, 0.06, 0.4);
}

}  // namespace

TEST_CASE("a row of a small model has the same bits alone, in a chunk and in a tree") {
  const pair_file pair;
  auto target = std::make_unique<target_model>(pair.bytes());
  auto draft = std::make_unique<draft_model>(pair.draft());
  REQUIRE(target->fault() == nullptr);
  REQUIRE(draft->fault() == nullptr);
  require_invariance(*target, target_shape, 1);
  require_invariance(*draft, draft_shape, 2);
}

TEST_CASE("logits of a small model are near those of its weights as floats") {
  const pair_file pair;
  auto target = std::make_unique<target_model>(pair.bytes());
  auto draft = std::make_unique<draft_model>(pair.draft());
  require_close(*target, pair.bytes(), 0.06, 0.25);
  require_close(*draft, pair.draft(), 0.06, 0.25);
}

TEST_CASE("heads of groups of one, two, four and five agree with those of floats") {
  require_groups<2, 2>();
  require_groups<4, 2>();
  require_groups<4, 1>();
  require_groups<5, 1>();
}

TEST_CASE("products of integers are exact on machines of 32 and of 64 bits, for any number of rows") {
  std::mt19937 random(3);
  for (const int inputs : {8, 48, 144, 256}) {
    for (int rows = 1; rows <= 14; ++rows) {
      const int outputs = 8;
      std::vector<float> x(static_cast<std::size_t>(rows * inputs));
      std::vector<std::int8_t> weights(static_cast<std::size_t>(outputs * inputs));
      const bool extreme = rows % 3 == 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const int row = static_cast<int>(i) / inputs;
        const bool is_small = rows % 5 == 1 && row + 1 < rows;  // beside a last one that is not
        x[i] = extreme ? (row % 2 == 0 ? 127.0F : -127.0F) : static_cast<float>(static_cast<int>(random() % 255) - 127);
        if (is_small) x[i] = static_cast<float>(static_cast<int>(random() % 21) - 10);
      }
      for (int row = 0; row < rows; ++row)
        x[static_cast<std::size_t>(row * inputs)] = row % 2 == 0 ? 127.0F : -127.0F;  // the scale is 1
      for (std::int8_t& w : weights)
        w = static_cast<std::int8_t>(extreme ? -128 : static_cast<int>(random() % 256) - 128);
      const std::vector<float> scales(static_cast<std::size_t>(outputs), 1.0F);
      const small_weights::matrix_type matrix{weights.data(), scales.data(), outputs, inputs};
      std::vector<float> expected(static_cast<std::size_t>(rows * outputs));
      for (int r = 0; r < rows; ++r) {
        for (int o = 0; o < outputs; ++o) {
          for (int i = 0; i < inputs; ++i)
            expected[static_cast<std::size_t>(r * outputs + o)] +=
                x[static_cast<std::size_t>(r * inputs + i)] *
                static_cast<float>(weights[static_cast<std::size_t>(o * inputs + i)]);
        }
      }
      std::vector<std::int64_t> memory(detail::packed_products::bytes(detail::packed_products::most, inputs) / 8);
      std::vector<float> words(expected.size()), packs(expected.size(), 5.0F);
      detail::multiply_rows<detail::word_products>(matrix, x.data(), rows, words.data(), false, memory.data());
      detail::multiply_rows<detail::packed_products>(matrix, x.data(), rows, packs.data(), true, memory.data());
      CHECK(words == expected);
      for (float& value : packs)
        value -= 5.0F;
      CHECK(packs == expected);
    }
  }
}

TEST_CASE("an image that is none of a small model's is refused") {
  const pair_file pair;
  auto words = pair.words;
  auto* const bytes = reinterpret_cast<std::byte*>(words.data());
  const auto fault_of = [&](std::size_t begin, std::size_t n) {
    const char* fault = small_weights({bytes + begin, n}).fault();
    return std::string(fault == nullptr ? "" : fault);
  };
  const auto with = [&](std::size_t word, std::uint32_t value) {
    std::uint32_t old = 0;
    std::memcpy(&old, bytes + 4 * word, 4);
    std::memcpy(bytes + 4 * word, &value, 4);
    const std::string fault = fault_of(0, pair.n);
    std::memcpy(bytes + 4 * word, &old, 4);
    return fault;
  };
  CHECK(fault_of(0, pair.n).empty());
  CHECK(fault_of(0, 20) == "the image of the model ends within its first 48 bytes.");
  CHECK(fault_of(0, 1000) == "the image of the model is cut short.");
  CHECK(fault_of(2, 1000) == "the image of the model must begin at a multiple of 4.");
  CHECK(with(0, 0) == "the image of the model does not begin with ESPL.");
  CHECK(with(1, 2) == "the image of the model has another version than 1.");
  CHECK(with(2, 100) == "the image of the model has not the bytes that its sizes take.");
  CHECK(with(4, 0xFFFFFFFF) == "the image of the model has sizes that no model has.");
  CHECK(with(10, 255) == "the image of the model has sizes that no model has.");

  auto draft = std::make_unique<draft_model>(pair.bytes());
  CHECK(std::string_view(draft->fault()) == "the image of the model is of another shape.");
  auto kv = cache_for(draft_shape);
  forward_batch batch;
  kv.append(0, 1);
  batch.begin_sequence(0, 0, 1);
  batch.add_row(1, 0, 0, true);
  CHECK(draft->forward(kv, batch.view()).n_rows == 0);
}

TEST_CASE("a batch that does not fit a small model gives no rows") {
  const pair_file pair;
  auto target = std::make_unique<target_model>(pair.bytes());
  const auto n_rows = [&](contiguous_kv& kv, int n, token_id token, int position) {
    forward_batch batch;
    const int prefix = kv.append(0, n);
    batch.begin_sequence(0, prefix, n);
    for (int i = 0; i < n; ++i)
      batch.add_row(token, position + i, i, true).include_first(i);
    const int rows = target->forward(kv, batch.view()).n_rows;
    kv.commit(0, {});
    return rows;
  };
  auto kv = cache_for(target_shape), other = cache_for(draft_shape), longer = cache_for(target_shape, 257);
  CHECK(n_rows(kv, 24, 511, 0) == 24);
  CHECK(n_rows(kv, 25, 1, 0) == 0);
  CHECK(n_rows(kv, 1, 512, 0) == 0);
  CHECK(n_rows(kv, 1, -1, 0) == 0);
  CHECK(n_rows(kv, 2, 1, 255) == 0);
  CHECK(n_rows(other, 1, 1, 0) == 0);
  CHECK(n_rows(longer, 1, 1, 0) == 0);
  CHECK(n_rows(kv, 2, 1, 0) == 2);
  // Rows of sequences that the store does not have, or that are not in the batch.
  forward_batch batch;
  batch.begin_sequence(0, kv.append(0, 2), 2);
  for (int i = 0; i < 2; ++i)
    batch.add_row(1, i, i, true).include_first(i);
  const auto rows_of = [&](batch_sequence changed) {
    forward_batch_view view = batch.view();
    view.sequences = {&changed, 1};
    return target->forward(kv, view).n_rows;
  };
  const batch_sequence good = batch.view().sequences.front();
  const auto with = [&](auto change) {
    batch_sequence s = good;
    change(s);
    return rows_of(s);
  };
  CHECK(rows_of(good) == 2);
  CHECK(with([](batch_sequence& s) { s.sequence = 1; }) == 0);
  CHECK(with([](batch_sequence& s) { s.sequence = -1; }) == 0);
  CHECK(with([](batch_sequence& s) { s.row_end = 3; }) == 0);
  CHECK(with([](batch_sequence& s) { s.row_begin = -1; }) == 0);
}
