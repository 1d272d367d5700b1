// SPDX-License-Identifier: BSL-1.0
// Asks what the papers say of hardware, at the prices of machines that are not at hand: texts are real, and seconds are
// those of tables of prices.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
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
#include "interval.hpp"
#include "markdown_table.hpp"
#include "price_table.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "table_arguments.hpp"
#include "timed_texts.hpp"

namespace {

using bench::interval;

struct arguments : bench::table_arguments {
  std::string prices = ESPALIER_BENCH_PRICES;
  std::vector<std::string> ask{"width", "budget", "offloaded", "selector"};
  int tokens = 96;
  int measure = 2;
  bool integer = false;
  bool quick = false;
};

// A method with the options that differ from its own.
struct contestant {
  std::string name;
  std::string method;
  std::vector<std::pair<std::string, std::string>> options{};  // flags without hyphens in front, and their values
  models::drafter_kind drafter = models::drafter_kind::model;
  std::string verifier{};  // empty: the first that fits
};

contestant sized(const std::string& name, const std::string& method, const char* option, int size,
                 models::drafter_kind drafter = models::drafter_kind::model) {
  return {fmt::format("{} {}", name, size), method, {{option, std::to_string(size)}}, drafter};
}

// What a list of methods wrote at the prices of one table. Plain decoding is the first.
struct result {
  std::vector<contestant> list;
  bench::timed_texts texts;

  // The speed over plain decoding, the mean of the kinds of prompts.
  interval speedup(std::size_t m) const { return speedup(m, 0); }
  // Likewise over another method, prompt by prompt.
  interval speedup(std::size_t m, std::size_t over) const { return texts.speedups(m, over).back(); }
  espalier::statistics total(std::size_t m) const { return texts.total(m); }

  // The fastest of those whose names begin so; plain decoding if there is none.
  std::size_t best(std::string_view beginning) const {
    std::size_t found = 0;
    for (std::size_t m = 1; m < list.size(); ++m) {
      if (list[m].name.starts_with(beginning) && (found == 0 || speedup(m).mean > speedup(found).mean)) found = m;
    }
    return found;
  }
};

class measurement {
 public:
  measurement(const arguments& a, std::int32_t rows)
      : a_(a),
        parts_(generate::library_parts()),
        models_(models::model_set::load(a.models, {.threads = a.threads,
                                                   .max_rows = rows,
                                                   .arithmetic = a.integer ? espalier::matrix_arithmetic::integer
                                                                           : espalier::matrix_arithmetic::exact})),
        kinds_(read_prompts(rows)) {}

  result write(const char* what, const std::string& price_file, float temperature, std::vector<contestant> list) {
    const auto price = std::make_shared<const models::price_table>(models::price_table::load(price_file));
    if (captions_.empty() || captions_.back() != price->in_words()) captions_.push_back(price->in_words());
    list.insert(list.begin(), {"plain", "plain"});
    std::vector<generate::arguments> how;
    std::vector<std::string> verifiers;
    for (const contestant& c : list) {
      how.push_back(arguments_of(c, temperature));
      how.back().price = price;
      const generate::method& grown = generate::find_method(how.back().parts, c.method);
      verifiers.push_back(c.verifier.empty() || temperature == 0
                              ? generate::verifiers_for(how.back().parts, grown, temperature > 0).front()
                              : c.verifier);
    }
    bench::timed_texts texts(list.size(), kinds_, 1, what, [&](std::size_t m, std::size_t k, std::size_t p) {
      models_.forget_texts();
      return generate::write(models_, how[m], list[m].method, verifiers[m], kinds_[k].prompts[p],
                             [](const espalier::round_record&) {})
          .statistics;
    });
    return {std::move(list), std::move(texts)};
  }

  std::string setting() const {
    std::size_t n = 0;
    for (const bench::prompt_domain& kind : kinds_)
      n += kind.prompts.size();
    return fmt::format("Texts: `{}` with its drafts, {} prompts of {} kinds, up to {} tokens each; written on {}",
                       a_.models.model, n, kinds_.size(), a_.tokens,
                       espalier::hardware_name(models_.target.n_threads()));
  }

  // Sentences about the tables of prices that were used, in their order, each once.
  std::vector<std::string> captions() const {
    std::vector<std::string> once;
    for (const std::string& caption : captions_)
      if (std::find(once.begin(), once.end(), caption) == once.end()) once.push_back(caption);
    return once;
  }

  bool has_block() const { return models_.block.has_value(); }

 private:
  std::vector<bench::prompt_domain> read_prompts(std::int32_t rows) const {
    const generate::arguments asked;
    auto kinds = bench::read_prompt_domains(
        a_.prompts, models_, a_.domains, a_.tokens + std::min(rows, 64),
        [&](const std::string& text) { return generate::prompt_tokens(asked, models_.text, text); });
    for (bench::prompt_domain& kind : kinds)
      kind.prompts.resize(std::min(kind.prompts.size(), static_cast<std::size_t>(a_.measure)));
    return kinds;
  }

  generate::arguments arguments_of(const contestant& c, float temperature) const {
    generate::arguments how;
    how.parts = parts_;
    how.models = a_.models;
    how.max_tokens = a_.tokens;
    how.drafter = c.drafter;
    how.target.text.sampling.temperature = temperature;
    for (const auto& [flag, value] : c.options) {
      for (const models::text_option& option : how.parts.methods.find(c.method)->options())
        if (models::flag_name("", option.name) == "--" + flag) option.read("--" + flag, value);
    }
    return how;
  }

  const arguments& a_;
  generate::parts parts_;
  models::model_set models_;
  std::vector<bench::prompt_domain> kinds_;
  std::vector<std::string> captions_;
};

// A question to the papers, and its answer here.
struct answer {
  std::string question, paper, here;
  bool in_kind = false;
};

struct report {
  std::vector<answer> answers{};
  std::string tables{};
  nlohmann::json json = nlohmann::json::array();

  void add(const std::string& title, const std::string& file, float temperature, const result& r) {
    bench::markdown_table table(
        title, {"speedup", "seconds a token", "tokens a round", "drafted a round", "share of drafting"});
    nlohmann::json methods;
    for (std::size_t m = 0; m < r.list.size(); ++m) {
      const espalier::statistics s = r.total(m);
      const double drafting = s.seconds.draft_forward / s.seconds.total();
      table.row(r.list[m].name,
                {bench::in_words(r.speedup(m), 2), fmt::format("{:.5f}", 1 / s.throughput()),
                 fmt::format("{:.2f}", s.tokens_per_round()), fmt::format("{:.1f}", s.drafted_per_round()),
                 fmt::format("{:.0f} %", 100 * drafting)});
      methods[r.list[m].name] = {{"speedup", {r.speedup(m).mean, r.speedup(m).half_width}},
                                 {"seconds_per_token", 1 / s.throughput()},
                                 {"tokens_per_round", s.tokens_per_round()},
                                 {"drafted_per_round", s.drafted_per_round()}};
    }
    tables += table.text();
    json.push_back({{"title", title}, {"price", file}, {"temperature", temperature}, {"methods", methods}});
  }
};

// Does a tree beat the best chain where width is free, and where it is not?
void ask_width(measurement& m, const arguments& a, report& out) {
  std::vector<contestant> list;
  for (const int length : {2, 3, 4, 5, 6, 8, 12})
    list.push_back(sized("chain", "chain", "length", length));
  list.push_back({"DynaTree", "dynatree"});
  list.push_back({"DynaTree, first paper", "dynatree-first"});
  list.push_back({"DynaTree, fixed tree",
                  "dynatree-first",
                  {{"max-depth", "5"},
                   {"base-depth", "5"},
                   {"max-breadth", "2"},
                   {"mid-breadth", "2"},
                   {"min-breadth", "2"},
                   {"prune-probability", "0.05"}}});
  for (const int budget : {16, 32, 64})
    list.push_back(sized("best-first", "best-first", "budget", budget));
  list.push_back({"cost-aware", "cost-aware"});
  list.push_back(sized("cost-aware", "cost-aware", "budget", 64));
  for (const char* file :
       {"h100_qwen3_8b.json", "offloaded_llama2_70b.json", "phone_smollm2_1.7b.json", "epyc_smollm2_135m.json"}) {
    const std::string path = a.prices + "/" + file;
    const result r = m.write("width", path, 0, list);
    out.add(fmt::format("Width: greedy, {}", file), path, 0, r);
    const std::size_t chain = r.best("chain"), tree = r.best("DynaTree"), first = r.best("best-first");
    const auto is_slower = [&](std::size_t x, std::size_t y) { return r.speedup(x).mean < r.speedup(y).mean; };
    const interval gain = r.speedup(tree, chain);
    const interval chosen = r.speedup(r.best("cost-aware"), std::max({chain, tree, first}, is_slower));
    out.answers.push_back(
        {fmt::format("Does DynaTree beat the best chain? ({})", file),
         "1.65 over plain, 1.30 over the chain of 5 (WikiText-2)",
         fmt::format("{}: {} over plain, {} over {}; {}: {}; cost-aware {} of the best", r.list[tree].name,
                     bench::in_words(r.speedup(tree), 2), bench::in_words(gain, 2), r.list[chain].name,
                     r.list[first].name, bench::in_words(r.speedup(first), 2), bench::in_words(chosen, 2)),
         gain.mean > 1});
  }
}

// Which budget of the tree over a block is best?
void ask_budget(measurement& m, const arguments& a, report& out) {
  std::vector<contestant> list{sized("chain of the block", "chain", "length", 16, models::drafter_kind::block)};
  for (const int budget : {8, 16, 32, 64, 128, 256, 512, 1024})
    list.push_back(sized("DDTree", "best-first", "budget", budget, models::drafter_kind::block));
  const std::string file = "h100_qwen3_8b_block.json", path = a.prices + "/" + file;
  for (const float temperature : {0.0F, 1.0F}) {
    const result r = m.write("budget", path, temperature, list);
    out.add(fmt::format("Budgets over a block: temperature {:g}, {}", temperature, file), path, temperature, r);
    const std::size_t best = r.best("DDTree");
    const espalier::statistics s = r.total(best), chain = r.total(1);
    out.answers.push_back({fmt::format("Is DDTree's best budget 256 to 512? (temperature {:g})", temperature),
                           temperature == 0 ? "256 to 512; 7.52 over plain, tau 10.73; the chain 5.56, 7.79 (MATH-500)"
                                            : "6.59 over plain, tau 9.54; the chain 4.56, 6.46 (MATH-500)",
                           fmt::format("{}: {} over plain, tau {:.2f}; the chain {}, {:.2f}", r.list[best].name,
                                       bench::in_words(r.speedup(best), 2), s.tokens_per_round(),
                                       bench::in_words(r.speedup(1), 2), chain.tokens_per_round()),
                           r.list[best].name == "DDTree 256" || r.list[best].name == "DDTree 512"});
  }
}

// Does DySpec's tree beat Sequoia's and SpecInfer's where the target's weights come over a bus?
void ask_offloaded(measurement& m, const arguments& a, report& out) {
  std::vector<contestant> list;
  for (const int budget : {64, 768}) {
    list.push_back(sized("DySpec, greedy", "dyspec-greedy", "budget", budget));
    list.push_back(sized("DySpec, threshold", "dyspec-adaptive", "budget", budget));
    list.push_back(sized("Sequoia", "sequoia", "budget", budget));
  }
  list.push_back({"SpecInfer, 60 draws", "specinfer-static"});
  list.push_back(sized("chain", "chain", "length", 16));
  list.push_back(sized("cost-aware", "cost-aware", "budget", 64));
  const std::string file = "offloaded_llama2_70b.json", path = a.prices + "/" + file;
  for (const float temperature : {0.0F, 0.6F}) {
    for (contestant& c : list) {
      c.verifier = c.method == "chain" || c.method == "cost-aware" ? "target-only"
                   : c.method == "specinfer-static"                ? "specinfer"
                                                                   : "residual-walk";
    }
    const result r = m.write("offloaded", path, temperature, list);
    out.add(fmt::format("The target offloaded: temperature {:g}, {}", temperature, file), path, temperature, r);
    const std::size_t dyspec = r.best("DySpec"), sequoia = r.best("Sequoia"), specinfer = r.best("SpecInfer");
    const auto cell = [&](std::size_t i) {
      return fmt::format("{} {:.2f} s ({:.2f})", r.list[i].name, 1 / r.total(i).throughput(),
                         r.total(i).tokens_per_round());
    };
    out.answers.push_back(
        {fmt::format("DySpec's row of 70B: is it before Sequoia and SpecInfer? (temperature {:g})", temperature),
         temperature == 0
             ? "64: 0.54 s (9.10), Sequoia 0.89 (6.08), SpecInfer 1.14 (4.67); 768: 0.42 (16.04), 0.63 (9.40) (C4)"
             : "64: 0.79 s (6.21), Sequoia 0.95 (5.72), SpecInfer 0.93 (5.75); 768: 0.88 (7.14), 0.66 (8.96) (C4)",
         fmt::format("{}, {}, {}; plain {:.2f} s", cell(dyspec), cell(sequoia), cell(specinfer),
                     1 / r.total(0).throughput()),
         r.speedup(dyspec).mean > std::max(r.speedup(sequoia).mean, r.speedup(specinfer).mean)});
  }
}

// Do trees that a network chooses in each round beat the best one that does not change?
void ask_selector(measurement& m, const arguments& a, report& out) {
  std::vector<contestant> list;
  const auto add = [&](const std::string& name, int paths, int trunk, int length, const std::string& verifier) {
    list.push_back(
        {fmt::format("{} {},{},{}", name, paths, trunk, length),
         "delayed",
         {{"paths", std::to_string(paths)}, {"trunk", std::to_string(trunk)}, {"length", std::to_string(length)}},
         models::drafter_kind::model,
         verifier});
  };
  for (const int paths : {2, 4}) {
    for (const int length : {2, 4, 6}) {
      add("undelayed", paths, 0, length, "specinfer");
      add("traversal", paths, 0, length, "traversal");
    }
    for (const int trunk : {1, 2, 4})
      add("delayed", paths, trunk, 4, "specinfer");
  }
  list.push_back({"NDE", "neural-delayed", {}, models::drafter_kind::model, "specinfer"});
  const std::string file = "h100_qwen3_8b.json", path = a.prices + "/" + file;
  for (const float temperature : {0.6F, 1.0F}) {
    const result r = m.write("selector", path, temperature, list);
    out.add(fmt::format("The selector: temperature {:g}, {}", temperature, file), path, temperature, r);
    const std::size_t nde = r.best("NDE"), undelayed = r.best("undelayed"), delayed = r.best("delayed"),
                      traversal = r.best("traversal");
    const interval over = r.speedup(nde, undelayed);
    out.answers.push_back(
        {fmt::format("Does the neural selector beat static trees? (SpecInfer, temperature {:g})", temperature),
         "1.25 over the best undelayed tree on average, 1.05 over Traversal",
         fmt::format("{} over {}, {} over {}, {} over {}", bench::in_words(over, 2), r.list[undelayed].name,
                     bench::in_words(r.speedup(nde, delayed), 2), r.list[delayed].name,
                     bench::in_words(r.speedup(nde, traversal), 2), r.list[traversal].name),
         over.mean > 1});
  }
}

int run(const arguments& a) {
  constexpr std::int32_t most_rows = 1024 + 64 + 1;
  measurement m(a, most_rows);
  report out;
  for (const std::string& question : a.ask) {
    if (question == "width") {
      ask_width(m, a, out);
    } else if (question == "budget") {
      if (!m.has_block()) {
        espalier::raise<espalier::input_error>("the model ", a.models.model, " has no block draft, of which --ask ",
                                               "budget is: --block names one.");
      }
      ask_budget(m, a, out);
    } else if (question == "offloaded") {
      ask_offloaded(m, a, out);
    } else if (question == "selector") {
      ask_selector(m, a, out);
    } else {
      espalier::raise<espalier::input_error>("--ask must name width, budget, offloaded or selector, but names ",
                                             question, ".");
    }
  }
  std::string text = fmt::format(
      "## The papers' claims about hardware, at the prices of machines that are not here\n\n{}. **Seconds are not that "
      "machine's: every pass is counted at the price of a table**, and all else costs nothing but the table's opening "
      "of a round. ± is the 95 % interval over prompts. What is called best is the best on these very texts.\n",
      m.setting());
  bench::markdown_table summary("Answers", {"the paper", "here", "in kind"}, "question");
  nlohmann::json answers = nlohmann::json::array();
  for (const answer& each : out.answers) {
    summary.row(each.question, {each.paper, each.here, each.in_kind ? "yes" : "no"});
    answers.push_back(
        {{"question", each.question}, {"paper", each.paper}, {"here", each.here}, {"in_kind", each.in_kind}});
  }
  text += summary.text() + out.tables + "\n";
  for (const std::string& caption : m.captions())
    text += "- " + caption + "\n";
  bench::report(text, a.markdown);
  if (!a.json.empty()) {
    const nlohmann::json all = {{"bench", "priced"},
                                {"setting", m.setting()},
                                {"prices", m.captions()},
                                {"answers", answers},
                                {"tables", out.json}};
    bench::write_file(a.json, all.dump(1));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program(
      "bench_tables_priced",
      "The papers' claims about hardware, tried with texts that are written here and seconds of tables of prices:\n"
      "an H100 with Qwen3-8B's shape, 70B offloaded, a phone, this kind of machine.");
  arguments a;
  a.add_to(program);
  program.add("--prices", a.prices, "folder of the tables of prices");
  program.add("--ask", a.ask, "only these questions");
  program.add("--tokens", a.tokens, "tokens of a text at most", 2);
  program.add("--measure", a.measure, "prompts of each kind at most");
  program.add("--integer", a.integer, "products in integers, of weights in 8 or fewer bits");
  program.add("--quick", a.quick, "one prompt a kind, 24 tokens");
  return program.run(argc, argv, [&] {
    if (a.quick) a.measure = 1, a.tokens = 24;
    return run(a);
  });
}
