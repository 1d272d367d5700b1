// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/draft_head_model.hpp"

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

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/parallel_head_model.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "raises.hpp"

// The references were computed in float64 by speculators' own classes, or by the layers of transformers, from the very
// weights in the folders.

namespace {

using namespace espalier;
namespace fs = std::filesystem;

static_assert(FeatureStepDrafter<feature_steps<draft_head_model>, llama_backend>);
static_assert(SharedDrafter<feature_steps<draft_head_model>>);

const std::string models = std::string(ESPALIER_TEST_DATA) + "/golden/", heads = models + "heads";

nlohmann::json json_of(const std::string& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

// The head, whose last logits stay readable.
struct recording_head {
  draft_head_model& model;
  std::vector<float> last{};

  std::int32_t vocab_size() const { return model.vocab_size(); }
  std::int32_t max_positions() const { return model.max_positions(); }
  std::int32_t max_rows() const { return model.max_rows(); }
  std::span<const token_id> tokens() const { return model.tokens(); }
  auto make_context() const { return model.make_context(); }
  void reserve(draft_head_context& context, int nodes) { model.reserve(context, nodes); }
  template <class BackendT>
  void read(draft_head_context& context, const BackendT& backend, std::span<const std::int32_t> rows, int position) {
    model.read(context, backend, rows, position);
  }
  vocab_rows<float> forward(const feature_pass<draft_head_context>& pass) {
    const auto rows = model.forward(pass);
    last.assign(rows.data, rows.at(rows.n_rows));
    return rows;
  }
};

// Passes a text through the target, whose states of its rows are then readable.
void pass_text(llama_backend& target, auto& kv, const std::vector<token_id>& text) {
  kv.truncate(0, 0);
  forward_batch batch;
  batch.begin_sequence(0, 0, static_cast<std::int32_t>(text.size()));
  batch.add_chain(text, 0, 1);
  kv.append(0, static_cast<std::int32_t>(text.size()));
  target.forward(kv, batch.view());
}

// Checks a head beside its golden numbers. The target may be the head's own folder.
void check_golden(const std::string& head, int threads, const std::string& target_folder, const std::string& numbers) {
  INFO(head << ", " << threads << " threads");
  llama_backend target = llama_backend::load(target_folder, {.threads = threads});
  draft_head_model model = draft_head_model::load(head, target);
  const nlohmann::json golden = json_of(numbers);
  const auto text = golden["text"].get<std::vector<token_id>>();
  const auto tokens = golden["tokens"].get<std::vector<token_id>>();
  REQUIRE(std::vector<token_id>(model.tokens().begin(), model.tokens().end()) == tokens);
  recurrent_kv kv = host_cache(target.config(), 1, 32);
  pass_text(target, kv, text);
  std::vector<std::int32_t> rows(text.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<std::int32_t>(i);
  double difference = 0;
  const auto compare = [&](const std::vector<float>& found, const nlohmann::json& row) {
    const auto expected = row.get<std::vector<double>>();
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      difference = (std::max)(difference, std::abs(found[i] - expected[i]));
  };
  feature_steps greedy_drafter(model, {.temperature = 0});
  greedy_drafter.reserve(4);
  // A text that grows by one token at a time, and each path that it has below it.
  for (std::size_t length = 2; length <= text.size(); ++length) {
    const std::vector<token_id> part(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length));
    const auto steps = golden["logits"].size();
    recording_head recorder{model};
    feature_steps each(recorder);
    each.reserve(4);
    each.begin(part);
    greedy_drafter.begin(part);
    each.read(target, std::span<const std::int32_t>(rows).first(length - 1));
    const auto known = static_cast<std::size_t>(greedy_drafter.n_read());
    greedy_drafter.read(target, std::span<const std::int32_t>(rows).subspan(known, length - 1 - known));
    tree<> t(4), drafted(4);
    t.reset(part.back()), drafted.reset(part.back());
    node_id u = root_node, v = root_node;
    std::vector<token_id> path;
    for (std::size_t k = 0; k < steps; ++k) {
      if (length + k <= text.size()) {
        each.propose(t, std::vector<node_id>{u});
        compare(recorder.last, golden["logits"][k][length - 2]);
        if (length + k < text.size()) u = t.append(u, text[length + k], 0);
      }
      greedy_drafter.propose(drafted, std::vector<node_id>{v});
      const auto row = greedy_drafter.rows().row(v);
      path.push_back(static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin()));
      v = drafted.append(v, path.back(), 0);
    }
    CHECK(path == golden["drafts"][length - 2].get<std::vector<token_id>>());
  }
  CHECK(difference < 1e-4);
}

// A copy of a head's folder that a test may damage.
struct damaged {
  fs::path folder;
  explicit damaged(const std::string& name) : folder(fs::temp_directory_path() / ("espalier_head_" + name)) {
    fs::remove_all(folder);
    fs::copy(heads + "/" + name, folder, fs::copy_options::recursive);
  }
  ~damaged() { fs::remove_all(folder); }

  void set(const std::string& key, const nlohmann::json& value) {
    nlohmann::json config = json_of((folder / "config.json").string());
    nlohmann::json::json_pointer at(key);
    config[at] = value;
    std::ofstream(folder / "config.json") << config;
  }
  // Replaces the bytes of a tensor from byte `first` on.
  void write(const std::string& tensor, std::uint64_t first, std::int64_t value, std::size_t n) {
    std::uint64_t offset = 0;
    {
      const safetensors_file file((folder / "model.safetensors").string());
      offset = file.find(tensor)->offset;
    }
    std::fstream file(folder / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(offset + first));
    file.write(reinterpret_cast<const char*>(&value), static_cast<std::streamsize>(n));
  }
  std::string refusal() const {
    llama_backend target = llama_backend::load(heads + "/target", {.threads = 1});
    return message_of<model_error>([&] { draft_head_model::load(folder.string(), target); });
  }
};

}  // namespace

TEST_CASE("a head's logits and greedy drafts are those of speculators, for every layout and switch") {
  for (const int threads : {1, 3}) {
    for (const char* name : {"plain", "midlayer", "each", "together", "mtp"})
      check_golden(heads + "/" + name, threads, heads + "/target", heads + "/" + name + "/golden.json");
    check_golden(heads + "/beside", threads, heads + "/beside", heads + "/beside/golden.json");
  }
}

TEST_CASE("heads in the files of Qwen3-Next and Qwen3.5 give the logits and greedy drafts of their definition") {
  for (const int threads : {1, 3}) {
    for (const char* name : {"qwen3_next", "qwen3_5"})
      check_golden(models + name, threads, models + name, models + name + "/head.json");
  }
}

TEST_CASE("a hybrid writes with trees over its own head what it writes alone") {
  for (const char* name : {"qwen3_next", "qwen3_5"}) {
    INFO(name);
    llama_backend target = llama_backend::load(models + name, {.threads = 2});
    recurrent_kv kv = host_cache(target.config(), 1, 128);
    const auto write = [&](auto&& drafter, auto policy, auto verifier) {
      auto decode = make_decoder(drafter, policy, verifier, kv, target);
      decode.begin(std::vector<token_id>{5, 17, 30, 3}, {.max_tokens = 60});
      while (decode.step()) {
      }
      const auto text = decode.current().tokens();
      return std::vector<token_id>(text.begin(), text.end());
    };
    const std::vector<token_id> plainly = write(no_drafter(), plain(), target_only());
    CHECK(plainly.size() == 64);
    draft_head_model model = draft_head_model::load(models + name, target);
    CHECK(write(feature_steps(model), chain({.length = 4}), greedy()) == plainly);
    CHECK(write(feature_steps(model), dynatree({.budget = 12}), greedy()) == plainly);
  }
}

TEST_CASE("a head that llama.cpp's converter has written as a GGUF file has the rows of its folder") {
  const std::string file = std::string(ESPALIER_TEST_DATA) + "/golden/head_gguf/eagle3.gguf";
  for (const int threads : {1, 3})
    check_golden(file, threads, heads + "/target", heads + "/plain/golden.json");
  CHECK(draft_kind_of(file) == draft_kind::eagle3);
  const draft_head_config config = draft_head_config::load(file);
  CHECK(config.hidden_layers == std::vector<int>{1, 2, 3});
  CHECK(config.head_size == 40);
  CHECK(config.is_gguf());
  llama_backend other = llama_backend::load(heads + "/beside", {.threads = 1});
  CHECK(says(message_of<model_error>([&] { draft_head_model::load(file, other); }),
             "eagle3.gguf: \"eagle_aux_hidden_state_layer_ids\" is 3", heads + "/beside has 2 layers"));
  CHECK(says(message_of<model_error>(
                 [] { draft_head_config::load(std::string(ESPALIER_TEST_DATA) + "/golden/head_gguf/dflash.gguf"); }),
             "\"general.architecture\" is \"dflash\", but must be eagle3"));
}

TEST_CASE("texts that a target writes with trees over a head are those that it writes alone") {
  llama_backend target = llama_backend::load(heads + "/target", {.threads = 2});
  const model_config& c = target.config();
  contiguous_kv kv(c.n_layers, c.kv_size(), 1, 128);
  const std::vector<token_id> prompt{5, 17, 80, 3};
  const auto write = [&](auto&& drafter, auto policy, auto verifier) {
    auto decode = make_decoder(drafter, policy, verifier, kv, target);
    decode.begin(prompt, {.max_tokens = 60});
    while (decode.step()) {
    }
    const auto text = decode.current().tokens();
    return std::vector<token_id>(text.begin(), text.end());
  };
  const auto plainly = write(no_drafter(), plain(), target_only());
  CHECK(plainly.size() == 64);
  for (const char* name : {"plain", "each", "together", "mtp"}) {
    draft_head_model model = draft_head_model::load(heads + "/" + name, target);
    CHECK(write(feature_steps(model), chain({.length = 4}), greedy()) == plainly);
    CHECK(write(feature_steps(model), best_first({.budget = 12}), greedy()) == plainly);
    CHECK(write(feature_steps(model), dynatree({.budget = 12}), greedy()) == plainly);
  }
  for (const char* name : {"peagle", "peagle_each"}) {
    parallel_head_model model = parallel_head_model::load(heads + "/" + name, target);
    CHECK(write(block_diffusion(model), chain({.length = 4}), greedy()) == plainly);
    CHECK(write(block_diffusion(model), best_first({.budget = 12}), greedy()) == plainly);
    CHECK(write(factorised(block_diffusion(model)), dynatree({.budget = 12}), greedy()) == plainly);
  }
}

TEST_CASE("a round over a head allocates nothing, from the first on") {
  for (const int threads : {1, 2}) {
    llama_backend target = llama_backend::load(heads + "/target", {.threads = threads});
    draft_head_model model = draft_head_model::load(heads + "/plain", target);
    contiguous_kv kv(target.config().n_layers, target.config().kv_size(), 1, 32);
    const std::vector<token_id> text{5, 17, 80, 3, 41, 41, 62, 9};
    const std::vector<std::int32_t> rows{0, 1, 2, 3, 4, 5, 6};
    const std::vector<node_id> root{0}, some{1, 2, 3}, further{4, 5};
    pass_text(target, kv, text);
    tree<> t(5);
    t.reset(9);
    for (const node_id parent : {0, 0, 1, 2, 3})
      t.append(parent, 7 + t.size(), 0);
    feature_steps drafter(model);
    drafter.reserve(5);
    drafter.begin(std::span<const token_id>(text).first(1));
    const allocation_count count;
    drafter.begin(text);
    drafter.read(target, rows);
    for (const auto& nodes : {&root, &some, &further})
      drafter.propose(t, *nodes);
    drafter.commit(t, {0, 3});
    const std::int64_t allocations = count.so_far();
    CHECK(allocations == 0);
    CHECK(drafter.n_read() == 7);
  }
}

TEST_CASE("a head makes the target keep the states that it reads, and no other backend's numbers change") {
  llama_backend target = llama_backend::load(heads + "/target", {.threads = 1, .hidden_layers = {6}});
  CHECK(target.hidden_layers() == std::vector<int>{6});
  const auto model = draft_head_model::load(heads + "/plain", target);
  CHECK(target.hidden_layers() == std::vector<int>{6, 1, 2, 3});
  CHECK(model.config().hidden_layers == std::vector<int>{1, 2, 3});
  CHECK(target.hidden_size() == 32);
  target.keep_hidden(std::vector<int>{3, 1});
  CHECK(target.hidden_layers() == std::vector<int>{6, 1, 2, 3});
  CHECK(says(message_of<option_error>([&] { target.keep_hidden(std::vector<int>{7}); }), "hidden_layers", "7"));
  CHECK(target.hidden_layers() == std::vector<int>{6, 1, 2, 3});
}

TEST_CASE("what a model drafts from is told by its files") {
  CHECK(draft_kind_of(heads + "/plain") == draft_kind::eagle3);
  CHECK(draft_kind_of(heads + "/midlayer") == draft_kind::eagle3);
  CHECK(draft_kind_of(heads + "/mtp") == draft_kind::mtp);
  CHECK(draft_kind_of(heads + "/target") == draft_kind::language_model);
  CHECK(draft_kind_of(heads + "/target/model.safetensors") == draft_kind::language_model);
  CHECK_FALSE(has_head_beside(heads + "/target"));
  CHECK_FALSE(has_head_beside(heads + "/mtp"));
  CHECK(has_head_beside(heads + "/beside"));
  damaged head("midlayer");
  std::ofstream(head.folder / "config.json") << R"({"architectures": ["LlamaForCausalLMEagle3"]})";
  CHECK(draft_kind_of(head.folder.string()) == draft_kind::eagle3);
  std::ofstream(head.folder / "config.json") << R"({"model_type": "espalier_block"})";
  CHECK(draft_kind_of(head.folder.string()) == draft_kind::block);
  std::ofstream(head.folder / "config.json") << "[]";
  CHECK_THROWS_AS(draft_kind_of(head.folder.string()), model_error);
}

TEST_CASE("a head that does not fit its target or itself is refused by both files' names and the number") {
  const std::string target = heads + "/target";
  {
    damaged head("plain");
    head.set("/transformer_layer_config/hidden_size", 64);
    CHECK(says(head.refusal(), head.folder.string(), "\"hidden_size\" is 64", target, "32"));
  }
  {
    damaged head("plain");
    head.set("/target_hidden_size", 48);
    CHECK(says(head.refusal(), head.folder.string(), "\"target_hidden_size\" is 48", target, "32"));
  }
  {
    damaged head("plain");
    head.set("/transformer_layer_config/vocab_size", 100);
    CHECK(says(head.refusal(), head.folder.string(), "\"vocab_size\" is 100", target, "96"));
  }
  {
    damaged head("together");
    head.set("/eagle_aux_hidden_state_layer_ids", {1, 4, 9});
    CHECK(says(head.refusal(), head.folder.string(), "\"eagle_aux_hidden_state_layer_ids\" is 9", target, "7 layers"));
    head.set("/eagle_aux_hidden_state_layer_ids", {0, 4, 6});
    CHECK(says(head.refusal(), "[0,4,6]", "from 1 on"));
    head.set("/eagle_aux_hidden_state_layer_ids", {1, 4});
    CHECK(says(head.refusal(), "fc.weight", "[32, 96]", "[32, 64]"));
    // Its embedding is the target's, which another width does not fit.
    head.set("/eagle_aux_hidden_state_layer_ids", {1, 4, 6});
    head.set("/target_hidden_size", 32);
    head.set("/transformer_layer_config/hidden_size", 64);
    CHECK(says(head.refusal(), head.folder.string(), "lacks an embedding of its own", target,
               "32 numbers a token, not 64"));
  }
  {
    damaged head("plain");
    head.write("d2t", 8, 95, 8);
    CHECK(says(head.refusal(), "d2t", "moves row 1 by 95, to no token of the vocabulary of 96"));
    head.write("d2t", 8, -2, 8);
    CHECK(says(head.refusal(), "d2t", "moves row 1 by -2"));
  }
  {
    damaged head("plain");
    head.write("t2d", 0, 0x0101010101010101, 8);
    CHECK(says(head.refusal(), "t2d", "\"d2t\" do not agree on whether token "));
  }
  {
    damaged head("plain");
    head.set("/draft_vocab_size", 41);
    CHECK(says(head.refusal(), "lm_head.weight", "[40, 32]", "[41, 32]"));
    head.set("/draft_vocab_size", 97);
    CHECK(says(head.refusal(), "\"draft_vocab_size\" is 97"));
  }
  {
    damaged head("each");
    head.set("/fc_norm", false);
    CHECK(says(head.refusal(), "fc_norm.0.weight", "\"fc_norm\" is not true"));
    head.set("/fc_norm", true);
    head.set("/norm_before_fc", true);
    CHECK(says(head.refusal(), "exclude one another"));
    head.set("/speculators_model_type", "xpress");
    CHECK(says(head.refusal(), "\"speculators_model_type\" is \"xpress\", but must be \"eagle3\", \"peagle\" or"));
  }
  {
    damaged head("midlayer");
    fs::resize_file(head.folder / "model.safetensors", fs::file_size(head.folder / "model.safetensors") - 10);
    CHECK(says(head.refusal(), "model.safetensors"));
    fs::rename(head.folder / "model.safetensors", head.folder / "pytorch_model.bin");
    CHECK(says(head.refusal(), "pytorch_model.bin but no model.safetensors"));
  }
  {
    damaged head("mtp");
    head.set("/num_nextn_predict_layers", 2);
    CHECK(says(head.refusal(), head.folder.string(), "\"num_nextn_predict_layers\" is 2, but must be 1"));
    head.set("/num_nextn_predict_layers", 1);
    head.set("/transformer_layer_config/hidden_size", 64);
    CHECK(says(head.refusal(), head.folder.string(), "\"hidden_size\" is 64", target, "32"));
    head.set("/transformer_layer_config/hidden_size", 32);
    head.set("/transformer_layer_config/vocab_size", 100);
    CHECK(says(head.refusal(), head.folder.string(), "\"vocab_size\" is 100", target, "96"));
  }
  {
    llama_backend whole = llama_backend::load(heads + "/target", {.threads = 1});
    CHECK(says(message_of<model_error>([&] { draft_head_model::load(heads + "/target", whole); }),
               "is of no draft head that is read"));
  }
}
