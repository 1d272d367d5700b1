// SPDX-License-Identifier: BSL-1.0
// Measures a model that people use, on questions of six kinds: every method that generate knows over every drafter,
// greedy and sampled; llama.cpp's plain decoding of the same or other files, if it is built in; and running servers of
// llama.cpp, with their own drafts.
#include "real_models.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../examples/generate/arguments.hpp"
#include "../../examples/generate/chat_prompt.hpp"
#include "../../examples/generate/methods.hpp"
#include "../../examples/generate/pairings.hpp"
#include "espalier/core/error.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "real_models_report.hpp"
#include "report_file.hpp"
#include "timed_texts.hpp"

#if defined(ESPALIER_BENCH_LLAMA_CPP)
#include <filesystem>

#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/model/llama_cpp/llama_cpp_backend.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"
#endif

#if defined(ESPALIER_BENCH_HTTP)
#include "llama_server.hpp"
#endif

namespace {

using tokens = std::vector<espalier::token_id>;

struct arguments : bench::priced_arguments {
  arguments() {
    models.model.clear();
    prompts = ESPALIER_BENCH_MODELS "/smollm2/prompts.jsonl";
  }

  int tokens = 96;
  int measure = 4;
  int repeats = 1;
  generate::parts parts;  // all that the program offers
  std::vector<std::string> methods;
  std::vector<std::string> verifiers;
  std::string plot;
  bool integer = false;
  bool quick = false;
  bool greedy = false;
  std::string selectors;
  std::vector<std::string> llama_cpp, llama_servers;
};

struct contestant {
  bench::named_method named{};
  std::int32_t rows = 0;  // rows of its longest pass
  std::function<generate::written_text(models::model_set&, std::span<const espalier::token_id>)> write{};
};

contestant by(std::string name, const generate::arguments& how, const generate::pairing& parts) {
  generate::check_pairing(how, parts);
  bench::method_group group = bench::method_group::tree;
  if (parts.method == "plain") group = bench::method_group::plain;
  if (parts.method.ends_with("chain")) group = bench::method_group::chain;
  if (parts.method.starts_with("cost-aware")) group = bench::method_group::cost_aware;
  return {{std::move(name), group},
          generate::longest_pass(how, parts.method),
          [=](models::model_set& models, std::span<const espalier::token_id> prompt) {
            models.forget_texts();
            return generate::write(models, how, parts.method, parts.verifier, prompt,
                                   [](const espalier::round_record&) {});
          }};
}

// The option that makes a method's trees larger, for methods that are tried in several sizes; null for others.
const char* size_option(std::string_view method) {
  if (method == "chain") return "length";
  return method == "best-first" ? "budget" : nullptr;
}

void resize(generate::arguments& how, std::string_view method, std::int32_t size) {
  for (const models::text_option& option : how.parts.methods.find(method)->options())
    if (option.name == size_option(method)) option.read("--" + std::string(option.name), std::to_string(size));
}

// Plain decoding first, and then every method over every drafter that there is.
std::vector<contestant> contestants(const arguments& a, const models::model_paths& paths, float temperature,
                                    const std::shared_ptr<const models::price_table>& price) {
  generate::arguments how;
  how.price = price;
  how.parts = a.parts;
  how.models = paths;
  how.max_tokens = a.tokens;
  how.selectors = a.selectors;
  how.target.text.sampling.temperature = temperature;
  how.compare = true;
  how.verifiers = a.verifiers;
  const generate::method& plain = generate::find_method(how.parts, "plain");
  std::vector<contestant> list{
      by("plain", how, {"plain", generate::verifiers_for(how.parts, plain, temperature > 0).front()})};
  const auto add = [&](models::drafter_kind drafter, const std::string& name) {
    how.drafter = drafter;
    for (const generate::pairing& parts : generate::pairings(how)) {
      const bool is_wanted =
          a.methods.empty() || std::find(a.methods.begin(), a.methods.end(), parts.method) != a.methods.end();
      if (parts.method == "plain" || !is_wanted) continue;
      const std::string with = a.verifiers.empty() ? "" : " with " + parts.verifier;
      if (size_option(parts.method) == nullptr) {
        list.push_back(by(fmt::format("{}{}, {}", parts.method, with, name), how, parts));
        continue;
      }
      for (const std::int32_t size : {2, 4, 8, 16}) {
        generate::arguments sized = how;
        resize(sized, parts.method, size);
        list.push_back(by(fmt::format("{} {}{}, {}", parts.method, size, with, name), sized, parts));
      }
    }
  };
  add(models::drafter_kind::text, "text");
  // Each model alone, and beside the text: cost-aware drafts from the text only where that is worth its time.
  for (const char* text_method : {"", "cost-aware"}) {
    how.text_method = text_method;
    const std::string end = how.text_method.empty() ? "" : " and text";
    if (!paths.draft.empty()) add(models::drafter_kind::model, "draft" + end);
    if (!paths.head.empty()) add(models::drafter_beside(paths), "head" + end);
    if (!paths.block.empty()) add(models::drafter_kind::block, "block draft" + end);
  }
  return list;
}

#if defined(ESPALIER_BENCH_LLAMA_CPP)
// llama.cpp's passes over a file, without drafts.
class other_engine {
 public:
  other_engine(const std::string& path, const models::model_set& models)
      : model_(path, {.threads = models.target.n_threads()}),
        kv_(model_, {.capacity = std::min(models.context(), 4096)}) {
    if (model_.vocab_size() != models.target.vocab_size()) {
      espalier::raise<espalier::input_error>("--llama-cpp ", path, " has a vocabulary of ", model_.vocab_size(),
                                             ", but the model one of ", models.target.vocab_size(),
                                             ": files of the same model are compared.");
    }
  }

  generate::written_text write(const espalier::tokenizer& text, std::span<const espalier::token_id> prompt,
                               const espalier::decoder_options& how, int max_tokens) {
    kv_.truncate(0, 0);
    espalier::llama_cpp_backend backend(model_);
    auto decode =
        espalier::make_decoder(espalier::no_drafter(), espalier::plain(), espalier::target_only(), kv_, backend, how);
    espalier::stop_conditions stop{.max_tokens = max_tokens, .tokens = text.ends_of_text()};
    generate::written_text result;
    const auto written = decode.generate(prompt, stop, std::ref(result.statistics));
    result.tokens.assign(written.begin(), written.end());
    return result;
  }

 private:
  espalier::llama_cpp_model model_;
  espalier::llama_cpp_kv kv_;
};

contestant llama_cpp(const std::string& path, const std::shared_ptr<other_engine>& engine, int max_tokens,
                     float temperature) {
  contestant plain;
  plain.named = {fmt::format("llama.cpp, plain, {}", std::filesystem::path(path).filename().string()),
                 bench::method_group::other_engine};
  plain.write = [=](models::model_set& models, std::span<const espalier::token_id> prompt) {
    return engine->write(models.text, prompt, {.text = {.sampling = {.temperature = temperature}}}, max_tokens);
  };
  return plain;
}
#endif

#if defined(ESPALIER_BENCH_HTTP)
// A running server that is given as NAME=URL.
contestant served(const std::string& named, int max_tokens, float temperature) {
  const std::size_t middle = named.rfind('=');
  if (middle == std::string::npos || middle == 0 || !named.substr(middle + 1).starts_with("http://")) {
    espalier::raise<espalier::input_error>("--llama-server ", named,
                                           " must be NAME=http://HOST:PORT, of a llama-server that runs.");
  }
  const auto server = std::make_shared<bench::llama_server>(named.substr(middle + 1));
  contestant result;
  result.named = {named.substr(0, middle), bench::method_group::other_engine};
  result.write = [=](models::model_set& models, std::span<const espalier::token_id> prompt) {
    return server->write(prompt, max_tokens, temperature, models.text.ends_of_text());
  };
  return result;
}
#endif

bench::real_model_texts measure(const std::string& name, const std::vector<contestant>& list, models::model_set& models,
                                const std::vector<bench::prompt_domain>& kinds, const arguments& a, bool draws) {
  // A first text that is not counted, in which everything is set up.
  for (const contestant& c : list) {
    if (c.named.group == bench::method_group::plain || c.named.group == bench::method_group::other_engine)
      c.write(models, kinds.front().prompts.front());
  }
  tokens expected;
  std::vector<std::set<std::pair<std::size_t, std::size_t>>> differing(list.size());
  bench::timed_texts texts(list.size(), kinds, a.repeats, name.c_str(),
                           [&](std::size_t m, std::size_t k, std::size_t p) {
                             const generate::written_text written = list[m].write(models, kinds[k].prompts[p]);
                             // Each run of a prompt begins with plain decoding, whose text all must write.
                             if (m == 0) expected = written.tokens;
                             if (written.tokens != expected) differing[m].emplace(k, p);
                             return written.statistics;
                           });
  bench::real_model_texts result{name, std::move(texts)};
  for (std::size_t m = 0; m < list.size() && !draws; ++m)
    result.differing.push_back(differing[m].size());
  return result;
}

int run(const arguments& a) {
  if (a.models.model.empty()) {
    espalier::raise<espalier::input_error>(
        "no model is named; --model names a GGUF file or a folder. ./run bench bench_tables_real_models fetches "
        "SmolLM2-135M-Instruct and names it.");
  }
  for (const std::string& method : a.methods)
    (void)generate::find_method(a.parts, method);
  for (const std::string& verifier : a.verifiers) {
    if (a.parts.verifiers.find(verifier) == nullptr)
      espalier::raise<espalier::input_error>("there is no verifier ", verifier, ".");
  }
  const auto price = a.load_price();
  const std::vector<float> temperatures = a.greedy ? std::vector<float>{0} : std::vector<float>{0, 0.7F};
  const models::model_paths paths = a.models.resolved();
  std::vector<std::vector<contestant>> lists;
  std::int32_t rows = 0;
  for (const float temperature : temperatures) {
    lists.push_back(contestants(a, paths, temperature, price));
    for (const contestant& c : lists.back())
      rows = std::max(rows, c.rows);
  }
  const auto arithmetic = a.integer ? espalier::matrix_arithmetic::integer : espalier::matrix_arithmetic::exact;
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = rows, .arithmetic = arithmetic});
  const generate::arguments asked;
  auto kinds = bench::read_prompt_domains(a.prompts, models, a.domains, a.tokens + rows, [&](const std::string& text) {
    return generate::prompt_tokens(asked, models.text, text);
  });
  for (bench::prompt_domain& kind : kinds)
    kind.prompts.resize(std::min(kind.prompts.size(), static_cast<std::size_t>(a.measure)));
  if (price && !(a.llama_cpp.empty() && a.llama_servers.empty())) {
    espalier::raise<espalier::input_error>(
        "--price counts this library's passes: neither --llama-cpp nor --llama-server goes with it.");
  }
#if defined(ESPALIER_BENCH_LLAMA_CPP)
  std::vector<std::string> files = a.llama_cpp;
  if (!price && files.empty() && std::filesystem::is_regular_file(models.paths.model))
    files.push_back(models.paths.model);
  for (const std::string& path : files) {
    const auto engine = std::make_shared<other_engine>(path, models);
    for (std::size_t i = 0; i < lists.size(); ++i)
      lists[i].push_back(llama_cpp(path, engine, a.tokens, temperatures[i]));
  }
#endif
#if defined(ESPALIER_BENCH_HTTP)
  for (const std::string& server : a.llama_servers) {
    for (std::size_t i = 0; i < lists.size(); ++i)
      lists[i].push_back(served(server, a.tokens, temperatures[i]));
  }
#endif
  std::vector<bench::real_model_texts> regimes;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::string name = i == 0 ? "greedy" : fmt::format("temperature {:.1f}", temperatures[i]);
    regimes.push_back(measure(name, lists[i], models, kinds, a, i > 0));
  }
  std::vector<bench::named_method> methods;
  for (const contestant& c : lists.front())
    methods.push_back(c.named);
  const auto drafting = [](const char* what, const std::string& path) {
    return path.empty() ? std::string() : fmt::format(", {} `{}`", what, path);
  };
  const bench::real_models_report report(
      fmt::format("`{}`, {:.0f} MB of weights as held, {} products{}{}; {}. {} prompts a kind at most, up to {} tokens "
                  "each or to the end of the answer, {} runs of each, of which the one of median duration counts.",
                  models.paths.model, static_cast<double>(models.target.weight_bytes()) / 1e6,
                  a.integer ? "integer" : "exact", drafting("draft", models.paths.draft),
                  drafting("head", models.paths.head) + drafting("block draft", models.paths.block),
                  espalier::hardware_name(models.target.n_threads()), a.measure, a.tokens, a.repeats),
      methods, kinds, regimes);
  bench::deliver(report, a, a.plot, price.get());
  return 0;
}

}  // namespace

int bench::real_models(int argc, char** argv, const generate::parts& own) {
  bench::program program("bench_tables_real_models",
                         "A model that people use, on questions of six kinds: every method over the text itself\n"
                         "and what --draft and --block name, greedy and at temperature 0.7.");
  arguments a;
  a.add_to(program);
  program.add("--tokens", a.tokens, "tokens of a text at most", 2);
  program.add("--measure", a.measure, "prompts of each kind at most");
  program.add("--repeats", a.repeats, "runs of each method after each prompt; the one of median duration counts");
  program.add("--methods", a.methods, "only these methods, beside plain; none: all that generate knows");
  program.add("--verifiers", a.verifiers, "only these verifiers, with every method that they suit; none: its best one");
  program.add("--integer", a.integer, "products in integers, weights in 8 bits");
  program.add("--plot", a.plot, "also draw the speedups to this file, as SVG");
  program.add("--greedy", a.greedy, "greedy alone, nothing at temperature 0.7");
  program.add("--selectors", a.selectors, "networks for neural-delayed; if not given, those that generate takes");
#if defined(ESPALIER_BENCH_LLAMA_CPP)
  program.add("--llama-cpp", a.llama_cpp, "GGUF files that llama.cpp runs, too; if not given, that of the model");
#endif
#if defined(ESPALIER_BENCH_HTTP)
  program.add("--llama-server", a.llama_servers, "NAME=URL of llama.cpp's servers that are to write the texts, too");
#endif
  program.add("--quick", a.quick, "one prompt a kind, 32 tokens");
  return program.run(argc, argv, [&] {
    if (a.quick) a.measure = 1, a.tokens = 32, a.repeats = 1;
    a.parts = generate::all_parts(own);
    return run(a);
  });
}
