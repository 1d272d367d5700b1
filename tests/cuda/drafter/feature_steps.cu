// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/drafter/feature_steps.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/device_trees.cuh"
#include "cuda/drafter/block_scene.cuh"
#include "cuda/drafter/three_texts.cuh"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/draft_head_model.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/cascade.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "model/llama/batch_writer.hpp"
#include "raises.hpp"

// The references are those of the host's tests: computed in float64 by speculators' own classes, or by the layers of
// transformers, from the very weights in the folders.

using namespace block_scene;
using llama_driver::device_rows;

namespace {

template <class NumberT>
using head_type = gpu::draft_head_model<NumberT>;
using drafter_type = gpu::feature_steps<head_type<float>&>;
static_assert(gpu::StepDrafter<drafter_type>);
static_assert(gpu::RenumberingDrafter<drafter_type>);
static_assert(gpu::DepthLimitedDrafter<drafter_type>);
static_assert(!gpu::DepthLimitedDrafter<gpu::no_drafter>);
static_assert(gpu::FeatureDrafter<drafter_type, target_type<float>>);

const std::string heads = golden + "heads/";

// The target of a head, which keeps the states that the head reads.
template <class NumberT>
target_type<NumberT> target_of(const std::string& head, const std::string& folder = heads + "target") {
  draft_head_config config = draft_head_config::load(head);
  config.require_target(model_files::open(folder).config, folder);
  return target_type<NumberT>::load(folder, {.max_rows = 65, .hidden_layers = config.hidden_layers});
}

// A head whose last logits, and number of rows, stay readable.
template <class NumberT>
struct recording_head {
  using number = float;

  head_type<NumberT>& model;
  std::vector<row_type> last{};
  std::int32_t n_rows = 0;

  std::int32_t vocab_size() const { return model.vocab_size(); }
  std::int32_t columns() const { return model.columns(); }
  const token_id* tokens() const { return model.tokens(); }
  std::int32_t max_positions() const { return model.max_positions(); }
  std::int32_t max_rows() const { return model.max_rows(); }
  auto make_context(std::int32_t texts, std::int32_t columns) const { return model.make_context(texts, columns); }
  template <class ContextT, class BackendT>
  void read(ContextT& context, const BackendT& backend, const gpu::state_rows& rows, cudaStream_t stream) {
    model.read(context, backend, rows, stream);
  }
  template <class ContextT>
  vocab_rows<float> forward(ContextT& context, const gpu::forward_batch_view& batch, cudaStream_t stream,
                            const std::int32_t* reads = nullptr) {
    const auto logits = model.forward(context, batch, stream, reads);
    last = device_rows(logits);
    n_rows = batch.n_rows;
    return logits;
  }
};

// Asks a drafter about a node of the one text's tree.
template <class DrafterT>
void ask(DrafterT& drafter, const gpu::text_batch& texts, const std::vector<node_id>& nodes) {
  const auto list = to_device(nodes);
  drafter.propose(texts, {list.data(), static_cast<std::int32_t>(nodes.size()), 0}, nullptr);
  gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

// The greatest difference between a head's logits and its golden ones, for texts of each length and a path below each.
// Checks its greedy drafts as well if `drafts`.
template <class NumberT>
double difference_of_head(const std::string& head, const std::string& folder, const std::string& numbers, bool drafts) {
  auto target = target_of<NumberT>(head, folder);
  auto model = head_type<NumberT>::load(head, target);
  const nlohmann::json cases = json_of(numbers);
  const auto text = cases["text"].get<std::vector<token_id>>();
  const auto tokens = cases["tokens"].get<std::vector<token_id>>();
  CHECK(model.vocab_size() == target.vocab_size());
  CHECK((model.tokens() == nullptr) == tokens.empty());
  if (!tokens.empty()) CHECK(espalier_test::to_host(model.tokens(), tokens.size()) == tokens);
  const std::size_t steps = cases["logits"].size();
  const auto found = to_device(std::vector<gpu::fault>(1));
  double difference = 0;
  for (std::size_t length = 2; length <= text.size(); ++length) {
    const auto size = static_cast<std::int32_t>(length);
    const std::vector<token_id> part(text.begin(), text.begin() + size);
    const device_text on_device(text, {size});
    recording_head<NumberT> recorder{model};
    gpu::feature_steps each(recorder);
    gpu::feature_steps greedy_drafter(model, {.temperature = 0});
    tree<> along(4), drafted(4);
    along.reset(part.back()), drafted.reset(part.back());
    each.reserve(4, 1, found.data()), greedy_drafter.reserve(4, 1, found.data());
    read_before(each, target, text, size - 1), read_before(greedy_drafter, target, text, size - 1);
    each.begin(0, on_device.texts().text(0), part, 0, nullptr);
    greedy_drafter.begin(0, on_device.texts().text(0), part, 0, nullptr);
    node_id u = root_node, v = root_node;
    std::vector<token_id> path;
    for (std::size_t k = 0; k < steps; ++k) {
      if (length + k <= text.size()) {
        const espalier_test::device_sequence there(along.view(), size, 4);
        ask(each, on_device.with(there), {u});
        const auto expected = cases["logits"][k][length - 2].get<std::vector<double>>();
        REQUIRE(recorder.last.size() == 1);
        REQUIRE(recorder.last[0].size() == expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i)
          difference = std::max(difference, std::abs(static_cast<double>(recorder.last[0][i]) - expected[i]));
        if (length + k < text.size()) u = along.append(u, text[length + k], 0);
      }
      const espalier_test::device_sequence there(drafted.view(), size, 4);
      ask(greedy_drafter, on_device.with(there), {v});
      const row_type row = rows_of_nodes(greedy_drafter.rows(), v + 1).back();
      REQUIRE(row.size() == static_cast<std::size_t>(target.vocab_size()));
      path.push_back(static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin()));
      v = drafted.append(v, path.back(), 0);
    }
    if (drafts) CHECK(path == cases["drafts"][length - 2].get<std::vector<token_id>>());
  }
  return difference;
}

// A backend whose hidden states are zeros.
struct zero_backend {
  gpu::device_array<float> zeros = to_device(std::vector<float>(32));
  const float* hidden(int) const { return zeros.data(); }
};

std::vector<token_id> text_of(const std::string& name) {
  return json_of(heads + name + "/golden.json")["text"].get<std::vector<token_id>>();
}

}  // namespace

TEST_CASE("A head's logits and greedy drafts on the device are those of speculators, for every layout and switch") {
  for (const char* name : {"plain", "midlayer", "each", "together", "mtp", "beside"}) {
    INFO(name);
    const std::string head = heads + name, folder = name == std::string("beside") ? head : heads + "target";
    CHECK(difference_of_head<float>(head, folder, head + "/golden.json", true) < 1e-4);
    if (name == std::string("plain") || name == std::string("beside"))
      CHECK(difference_of_head<__nv_bfloat16>(head, folder, head + "/golden.json", false) < 0.3);
  }
  CHECK(difference_of_head<float>(golden + "head_gguf/eagle3.gguf", heads + "target", heads + "plain/golden.json",
                                  true) < 1e-4);
}

TEST_CASE("Heads with gates, and with a mixture of experts and a shared one, give the numbers of their definition") {
  for (const char* name : {"qwen3_next", "qwen3_5"}) {
    INFO(name);
    const std::string folder = golden + name;
    CHECK(difference_of_head<float>(folder, folder, folder + "/head.json", true) < 1e-4);
    CHECK(difference_of_head<__nv_bfloat16>(folder, folder, folder + "/head.json", false) < 0.3);
  }
}

TEST_CASE("In a round the accepted path's states take the place of the drafted ones, captured or not") {
  const auto text = text_of("each");
  auto target = target_of<float>(heads + "each");
  auto model = head_type<float>::load(heads + "each", target);
  const auto found = to_device(std::vector<gpu::fault>(1));
  const int pending = 5;
  const device_text on_device(text);
  tree<> root_only(6);
  root_only.reset(text[8]);
  const espalier_test::device_sequence later(root_only.view(), 9, 6);

  // As it should come out: all states from one pass.
  drafter_type expected(model);
  expected.reserve(6, 1, found.data());
  read_before(expected, target, text, 8);
  on_device.set_size(9);
  expected.begin(0, on_device.texts().text(0), std::span(text).first(9), 0, nullptr);
  ask(expected, on_device.with(later), {root_node});
  const row_type wanted = rows_of_nodes(expected.rows(), 1)[0];

  // A tree whose nodes 0, 2 and 5 are the text's tokens 5, 6 and 7.
  const llama_driver::tree shape{{text[5], 3, text[6], 60, 61, text[7], 62}, {-1, 0, 0, 1, 2, 2, 5}};
  forward_batch batch;
  batch.begin_sequence(0, pending, 7);
  llama_driver::add_tree(batch, shape, pending);
  const device_batch uploaded(batch.view(), 2);
  tree<> drafted(6);
  drafted.reset(text[5]);
  for (std::size_t u = 1; u < 7; ++u)
    drafted.append(shape.parents[u], shape.tokens[u], 0);
  const espalier_test::device_sequence grown(drafted.view(), pending + 1, 6);
  const auto rows = to_device(std::vector<std::int32_t>{0, 2, 5, 77, 78, 79, 80});
  const auto n = to_device(std::vector<std::int32_t>{3});
  const gpu::path_view path{nullptr, nullptr, rows.data(), n.data(), nullptr, 7};
  const std::vector<node_id> levels[] = {{root_node}, {1, no_node, 2}, {3, 4, 5}, {6}};
  const gpu::stream stream;
  for (const bool captured : {false, true}) {
    drafter_type drafter(model);
    drafter.reserve(6, 1, found.data());
    auto kv = target_cache<float>(target);
    pass_over(target, kv, text, 0, pending);
    // As a prompt's pass, or as a chunk of another text's round, which may have had more rows.
    const auto chunks = to_device(std::vector<gpu::prompt_chunk>{{0, 0, pending, 0}});
    if (captured) {
      drafter.read(target, 0, 0, pending, nullptr);
    } else {
      drafter.read(target, chunks.data(), 1, pending + 3, nullptr);
    }
    on_device.set_size(pending + 1);
    drafter.begin(0, on_device.texts().text(0), std::span(text).first(pending + 1), 0, nullptr);
    std::vector<gpu::device_array<node_id>> lists;
    for (const auto& level : levels)
      lists.push_back(to_device(level));
    const auto round = [&](cudaStream_t s) {
      const gpu::text_batch texts = on_device.with(grown);
      for (const auto& list : lists)
        drafter.propose(texts, {list.data(), static_cast<std::int32_t>(list.size()), 0}, s);
      target.forward(kv, uploaded.view(), s);
      drafter.read(target, texts, path, uploaded.view().sequences, s);
      drafter.commit(texts, path, s);
    };
    gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (captured) {
      const gpu::graph graph(stream.get(), [&] { round(stream.get()); });
      graph.launch(stream.get());
      gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    } else {
      round(nullptr);
    }
    const auto drawn = rows_of_nodes(drafter.rows(), 7);
    CHECK(std::none_of(drawn.begin(), drawn.end(), [](const row_type& row) { return row.empty(); }));
    on_device.set_size(9);
    ask(drafter, on_device.with(later), {root_node});
    CHECK(most_apart(rows_of_nodes(drafter.rows(), 1)[0], wanted) < 1e-6);
    drafter.commit(on_device.with(later), path, nullptr);

    // The text goes on elsewhere: scratch rows lie where its rows are to be.
    auto longer = text;
    longer.insert(longer.end(), text.rbegin(), text.rend());
    const auto size = static_cast<std::int32_t>(longer.size());
    const device_text more(longer, {size});
    tree<> last(6);
    last.reset(longer.back());
    const espalier_test::device_sequence end(last.view(), size, 6);
    drafter_type fresh(model);
    fresh.reserve(6, 1, found.data());
    read_before(fresh, target, longer, size - 1);
    fresh.begin(0, more.texts().text(0), longer, 0, nullptr);
    ask(fresh, more.with(end), {root_node});
    auto whole_kv = target_cache<float>(target);
    pass_over(target, whole_kv, longer, 0, 8);
    pass_over(target, whole_kv, longer, 8, size - 1);
    drafter.read(target, 0, 8, size - 1 - 8, nullptr);
    drafter.begin(0, more.texts().text(0), longer, 8, nullptr);
    ask(drafter, more.with(end), {root_node});
    CHECK(most_apart(rows_of_nodes(drafter.rows(), 1)[0], rows_of_nodes(fresh.rows(), 1)[0]) < 1e-6);
  }
}

TEST_CASE("Rows of several texts in one pass are those of each alone, and follow their nodes' new numbers") {
  const auto text = text_of("together");
  auto target = target_of<float>(heads + "together");
  auto model = head_type<float>::load(heads + "together", target);
  const std::vector<std::int32_t> sizes{2, static_cast<std::int32_t>(text.size()), 1};
  const auto found = to_device(std::vector<gpu::fault>(3));
  drafter_type together(model);
  together.reserve(6, 3, found.data());
  std::vector<row_type> expected[3];
  const std::vector<node_id> levels[] = {{root_node}, {2, no_node, 1}, {3}};
  espalier_test::device_sequences trees(3, 6);
  for (std::int32_t place = 0; place < 3; ++place) {
    const std::int32_t size = sizes[static_cast<std::size_t>(place)];
    tree<> t(6);
    t.reset(text[static_cast<std::size_t>(size) - 1]);
    t.append(root_node, 7, 0), t.append(root_node, 9, 0), t.append(1, 11, 0);
    trees.set(place, t.view(), size);
    const espalier_test::device_sequence one_tree(t.view(), size, 6);
    const device_text one(text, {size});
    const auto context = std::span(text).first(static_cast<std::size_t>(size));
    drafter_type alone(model);
    alone.reserve(6, 1, found.data());
    auto kv = target_cache<float>(target);
    if (size > 1) pass_over(target, kv, text, 0, size - 1);
    if (size > 1) alone.read(target, 0, 0, size - 1, nullptr), together.read(target, place, 0, size - 1, nullptr);
    alone.begin(0, one.texts().text(0), context, 0, nullptr);
    together.begin(place, one.texts().text(0), context, 0, nullptr);
    for (const auto& level : levels)
      ask(alone, one.with(one_tree), level);
    expected[place] = rows_of_nodes(alone.rows(), 4);
    gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  const device_text all(text, sizes);
  const gpu::text_batch texts = all.with(trees);
  for (const auto& level : levels)
    ask(together, texts, level);
  const auto rows_at = [&](std::int32_t place) {
    gpu::text_rows rows = together.rows();
    rows.row_of += place * rows.n_nodes;
    return rows_of_nodes(rows, 4);
  };
  for (std::int32_t place = 0; place < 3; ++place) {
    const auto rows = rows_at(place);
    for (std::size_t u = 0; u < 4; ++u)
      CHECK(most_apart(rows[u], expected[place][u]) < 1e-6);
  }
  // Nodes 1 and 3 go; node 2 becomes node 1.
  const std::vector<node_id> was{0, 2, no_node, no_node, no_node, no_node, no_node};
  std::vector<node_id> of_all;
  for (int place = 0; place < 3; ++place)
    of_all.insert(of_all.end(), was.begin(), was.end());
  const auto moved = to_device(of_all);
  together.renumber(texts, {moved.data(), 7}, nullptr);
  CHECK(most_apart(rows_at(1)[1], expected[1][2]) < 1e-6);
  CHECK(rows_at(1)[2].empty());
  for (const gpu::fault& f : espalier_test::to_host(found))
    CHECK(f.what == gpu::fault::kind::none);
}

TEST_CASE("The row of a text of one token is read beside a state of zeros") {
  const auto text = text_of("plain");
  auto target = target_of<float>(heads + "plain");
  auto model = head_type<float>::load(heads + "plain", target);
  const auto found = to_device(std::vector<gpu::fault>(1));
  std::vector<row_type> rows;
  for (const std::int32_t size : {1, 2}) {
    // The same last token, alone or behind another one whose state is zeros.
    const std::vector<token_id> tokens = size == 1 ? std::vector{text[3]} : std::vector{text[0], text[3]};
    const device_text on_device(tokens, {size});
    tree<> t(4);
    t.reset(tokens.back());
    t.append(root_node, 7, 0);
    const espalier_test::device_sequence there(t.view(), size, 4);
    drafter_type drafter(model);
    drafter.reserve(4, 1, found.data());
    if (size == 2) drafter.read(zero_backend(), 0, 0, 1, nullptr);
    drafter.begin(0, on_device.texts().text(0), tokens, 0, nullptr);
    ask(drafter, on_device.with(there), {root_node});
    ask(drafter, on_device.with(there), {1});
    for (const row_type& row : rows_of_nodes(drafter.rows(), 2))
      rows.push_back(row);
  }
  CHECK(rows[0] == rows[2]);
  CHECK(rows[1] == rows[3]);
  CHECK(rows[0] != rows[1]);
}

TEST_CASE("The root's pass has a row for each token that a round may accept, however many nodes a policy asks about") {
  const auto text = text_of("plain");
  const auto size = static_cast<std::int32_t>(text.size());
  auto target = target_of<float>(heads + "plain");
  auto model = head_type<float>::load(heads + "plain", target);
  recording_head<float> recorder{model};
  const auto found = to_device(std::vector<gpu::fault>(1));
  const device_text on_device(text, {size});
  tree<> t(16);
  t.reset(text.back());
  const espalier_test::device_sequence there(t.view(), size, 16);
  const auto rows_of = [&](auto&& drafter, const auto& policy) {
    gpu::reserve_draft(drafter, policy, 1, found.data());
    auto& head = espalier::part_of(drafter, part_index<0>());
    read_before(head, target, text, size - 1);
    head.begin(0, on_device.texts().text(0), text, 0, nullptr);
    ask(head, on_device.with(there), {root_node});
    return recorder.n_rows;
  };
  const auto deep = [] { return gpu::best_first({.budget = 8, .max_depth = 3}); };
  CHECK(rows_of(gpu::feature_steps(recorder), deep()) == 4);
  CHECK(rows_of(gpu::joint(gpu::feature_steps(recorder), gpu::prompt_lookup()),
                gpu::cascade{deep(), gpu::chain({.length = 10})}) == 11);
}

TEST_CASE("Trees over a head write the target's text, greedily and with a temperature") {
  const std::vector<token_id> prompt{5, 17, 30, 3};
  for (const std::string name :
       {"heads/plain", "heads/each", "heads/together", "heads/mtp", "heads/beside", "qwen3_next", "qwen3_5"}) {
    INFO(name);
    const std::string head = golden + name;
    const bool is_beside = name == "heads/beside" || name.starts_with("qwen");
    auto target = target_of<float>(head, is_beside ? head : heads + "target");
    auto model = head_type<float>::load(head, target);
    auto kv = gpu::device_cache<float>(target.config(), 1, 64);
    const auto plainly = written(gpu::make_decoder(gpu::no_drafter(), gpu::plain(), greedy(), kv, target), prompt, 10);
    const auto write = [&](auto policy) {
      return written(gpu::make_decoder(gpu::feature_steps(model), std::move(policy), greedy(), kv, target), prompt, 10);
    };
    CHECK(write(gpu::chain({.length = 3})) == plainly);
    CHECK(write(gpu::best_first({.budget = 6, .max_depth = 4})) == plainly);
    CHECK(write(gpu::dynatree({.budget = 8})) == plainly);
    if (name != "heads/plain") continue;
    const decoder_options drawn{.text = {.sampling = {.temperature = 1}, .seed = 3}};
    const auto draw = [&](auto drafter, auto policy, auto verifier) {
      return written(gpu::make_decoder(std::move(drafter), std::move(policy), verifier, kv, target, drawn), prompt, 8);
    };
    const auto sampled = draw(gpu::no_drafter(), gpu::plain(), target_only());
    CHECK(sampled != std::vector<token_id>(plainly.begin(), plainly.begin() + 8));
    CHECK(draw(gpu::feature_steps(model), gpu::dynatree({.budget = 8}), target_only()) == sampled);
    // Sampled paths have a row for each node, with zeros where the head has no column.
    CHECK(draw(gpu::feature_steps(model), gpu::iid_paths({.paths = 2, .length = 3}), traversal()).size() == 8);
  }
}

TEST_CASE("A head drafts for many texts, in a joint and for texts that begin alike, and each is plain decoding's") {
  auto target = target_of<float>(heads + "plain");
  auto model = head_type<float>::load(heads + "plain", target);
  const espalier_test::three_texts texts(target);
  texts.check_together(target, gpu::feature_steps(model), gpu::dynatree({.budget = 8}));

  const auto& c = target.config();
  gpu::contiguous_kv<float> one_kv(c.n_layers, c.kv_size(), 1, 128);
  auto again = gpu::make_decoder(gpu::feature_steps(model), gpu::chain({.length = 4}), greedy(), one_kv, target);
  auto merged =
      gpu::make_decoder(gpu::joint(gpu::feature_steps(model), gpu::prompt_lookup()),
                        gpu::cascade{gpu::best_first({.budget = 8, .max_depth = 4}), gpu::chain({.length = 6})},
                        greedy(), one_kv, target);
  for (const std::size_t i : {0U, 2U, 1U}) {
    const auto text = again.generate(texts.prompts[i], {.max_tokens = 10});
    CHECK(std::vector<token_id>(text.begin(), text.end()) == texts.plainly[i]);
    const auto other = merged.generate(texts.prompts[i], {.max_tokens = 10});
    CHECK(std::vector<token_id>(other.begin(), other.end()) == texts.plainly[i]);
  }
}

TEST_CASE("A head that does not fit the target, or that the device does not compute, is refused by a sentence") {
  auto target = target_of<float>(heads + "plain");
  CHECK(says(
      message_of<model_error>([&] { head_type<float>::load(heads + "peagle", target); }),
      "peagle/config.json is of a P-EAGLE head, which drafts all tokens in one pass: parallel_head_model reads it."));
  CHECK(message_of<option_error>([&] { head_type<float>::load(heads + "together", target); }) ==
        "option hidden_layers of the target does not list layer 0, which the draft head reads; it must list 0, 3, 5.");
  CHECK(says(message_of<model_error>([&] { head_type<float>::load(heads + "target", target); }),
             "is of no draft head that is read"));
  auto other = target_type<float>::load(heads + "beside");
  CHECK(says(message_of<model_error>([&] { head_type<float>::load(heads + "plain", other); }),
             "plain/config.json does not say which states it reads", "the target in use has only 2 layers"));
  CHECK(message_of<option_error>([&] { head_type<float>::load(heads + "plain", target, 4); }) ==
        "option max_rows of a draft head is 4, but must lie between 8 and 65536.");
  auto model = head_type<float>::load(heads + "plain", target, 8);
  drafter_type drafter(model);
  CHECK(
      says(message_of<option_error>([&] { drafter.reserve(4, 2, nullptr); }), "max_rows of the draft head is 8", "10"));
  CHECK_THROWS_AS(drafter.begin(0, {}, {}, 0, nullptr), input_error);
}
