// SPDX-License-Identifier: BSL-1.0
// Compares ways of decoding without a draft model: chains over prompt look-up and n-grams, chains and trees over
// counts, and policies that adapt, on free text, greedy text, and text that is copied with changes.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "../../examples/generate/priced_models.hpp"
#include "espalier/cost/mean_costs.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/drafter/text_counts.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/target_only.hpp"
#include "markdown_table.hpp"
#include "model_set.hpp"
#include "priced_arguments.hpp"
#include "prompt_set.hpp"
#include "timed_texts.hpp"

namespace {

using tokens = std::vector<espalier::token_id>;

struct arguments : bench::priced_arguments {
  int tokens = 192;
  int measure = 4;
  int repeats = 5;
  int change = 25;
  bool quick = false;
};

// A target whose passes are computed, but whose outcome is dictated: after each position comes the token of a given
// text.
struct dictated_target {
  generate::host_model target;
  std::span<const espalier::token_id> text;
  tokens chosen{};
  std::vector<float> logits{};

  int vocab_size() const { return target.vocab_size(); }
  int max_rows() const { return target.max_rows(); }
  int max_positions() const { return target.max_positions(); }

  template <class KVStoreT>
  espalier::logits_view forward(KVStoreT& kv, const espalier::forward_batch_view& batch) {
    target.forward(kv, batch);
    const auto vocab = static_cast<std::size_t>(vocab_size());
    for (std::size_t i = 0; i < chosen.size(); ++i)
      logits[i * vocab + static_cast<std::size_t>(chosen[i])] = 0;
    chosen.clear();
    logits.resize(std::max(logits.size(), batch.outputs.size() * vocab), 0.0F);
    for (const std::int32_t row : batch.outputs) {
      const auto next = static_cast<std::size_t>(batch.positions[static_cast<std::size_t>(row)]) + 1;
      chosen.push_back(next < text.size() ? text[next] : 0);
      logits[(chosen.size() - 1) * vocab + static_cast<std::size_t>(chosen.back())] = 30;
    }
    return {logits.data(), static_cast<std::int32_t>(batch.outputs.size()), vocab_size()};
  }
};

// Texts of one kind. A dictated text is the prompt and the tokens that follow it.
struct kind {
  std::string name;
  float temperature = 0;
  std::vector<tokens> prompts{};
  std::vector<tokens> dictated{};
};

// What writes: the target, whose passes are counted where there are prices.
struct writer {
  const models::model_set& models;
  generate::priced_models& passes;

  generate::host_model target() const { return generate::host_model(passes.target); }
};

struct method {
  std::string name;
  bool is_static;
  std::function<espalier::statistics(const writer&, const kind&, std::size_t prompt, int n_tokens)> write;
};

template <class BackendT, class DrafterT, class PolicyT>
espalier::statistics write_over(BackendT&& target, const writer& by, const tokens& prompt, float temperature,
                                int n_tokens, DrafterT drafter, PolicyT policy, tokens* text) {
  espalier::recurrent_kv kv = by.models.make_cache(by.models.target);
  auto decode = espalier::make_decoder(drafter, policy, espalier::target_only(), kv, target,
                                       {.text = {.sampling = {.temperature = temperature}, .seed = 7}});
  espalier::statistics stats;
  const auto written = decode.generate(prompt, {.max_tokens = n_tokens},
                                       [&](const espalier::round_record& round) { stats(by.passes.priced(round)); });
  if (text != nullptr) text->assign(written.begin(), written.end());
  return stats;
}

// The method of these parts. make() gives a drafter and policy() a policy; both are made anew for each text.
template <class MakeT, class PolicyT>
method over(std::string name, bool is_static, MakeT make, PolicyT policy) {
  return {std::move(name), is_static, [=](const writer& by, const kind& of, std::size_t p, int n_tokens) {
            if (of.dictated.empty()) {
              return write_over(by.target(), by, of.prompts[p], of.temperature, n_tokens, make(), policy(), nullptr);
            }
            return write_over(dictated_target{by.target(), of.dictated[p]}, by, of.prompts[p], 0,
                              static_cast<int>(of.dictated[p].size() - of.prompts[p].size()), make(), policy(),
                              nullptr);
          }};
}

std::vector<method> methods_of(const espalier::cost_model& costs, std::int32_t vocab) {
  std::vector<method> list;
  list.push_back(over(
      "plain", true, [] { return espalier::no_drafter(); }, [] { return espalier::plain(); }));
  const auto add = [&](const std::string& name, const auto& make) {
    for (const std::int32_t length : {1, 2, 4, 8, 16, 32}) {
      list.push_back(over(fmt::format("chain {}, {}", length, name), true, make,
                          [=] { return espalier::chain({.length = length}); }));
    }
    list.push_back(over("adaptive chain, " + name, false, make, [] { return espalier::adaptive_chain(); }));
    list.push_back(over("cost-aware, " + name, false, make, [&costs] { return espalier::cost_aware({}, costs); }));
  };
  add("look-up", [] { return espalier::prompt_lookup({.capacity = 2048}); });
  add("n-grams", [] { return espalier::ngram({.capacity = 2048}); });
  const auto counts = [vocab] { return espalier::text_counts(vocab, {.capacity = 2048}); };
  for (const std::int32_t length : {2, 4, 8}) {
    list.push_back(over(fmt::format("chain {}, counts", length), true, counts,
                        [=] { return espalier::chain({.length = length}); }));
  }
  for (const std::int32_t budget : {4, 8, 16}) {
    list.push_back(over(fmt::format("best first {}, counts", budget), true, counts,
                        [=] { return espalier::best_first({.budget = budget}); }));
  }
  list.push_back(over("cost-aware, counts", false, counts,
                      [free = costs.without_draft()] { return espalier::cost_aware({}, free); }));
  return list;
}

// The texts of all kinds: prompts of all domains; and copies, in which the target's text at temperature 1 is repeated
// with a few other tokens.
std::vector<kind> kinds_of(models::model_set& models, const writer& by, const arguments& a) {
  std::vector<kind> kinds{{"free, temperature 1", 1}, {"greedy", 0}, {"copied with changes", 0}};
  std::mt19937 random(11);
  for (const bench::prompt_domain& domain : bench::read_prompt_domains(a.prompts, models, a.domains, 2 * a.tokens)) {
    for (std::size_t p = 0; p < domain.prompts.size() && p < static_cast<std::size_t>(a.measure); ++p) {
      tokens passage;
      write_over(by.target(), by, domain.prompts[p], 1, a.tokens, espalier::no_drafter(), espalier::plain(), &passage);
      tokens prompt = domain.prompts[p];
      prompt.insert(prompt.end(), passage.begin(), passage.end());
      kinds[0].prompts.push_back(domain.prompts[p]);
      kinds[1].prompts.push_back(domain.prompts[p]);
      kinds[2].prompts.push_back(prompt);
      for (espalier::token_id& t : passage) {
        if (random() % static_cast<unsigned>(a.change) == 0)
          t = static_cast<espalier::token_id>(random() % static_cast<unsigned>(models.text.size()));
      }
      prompt.insert(prompt.end(), passage.begin(), passage.end());
      kinds[2].dictated.push_back(prompt);
    }
  }
  return kinds;
}

// The mean of several measurements, since other programs of the machine change from second to second.
espalier::cost_model costs_of(models::model_set& models, int times) {
  std::vector<espalier::cost_model> all;
  for (int i = 0; i < times; ++i) {
    bench::progress(fmt::format("measuring costs, {} of {}", i + 1, times));
    espalier::recurrent_kv kv = models.make_cache(models.target);
    all.push_back(
        espalier::measure_costs(models.target, kv, {.most_rows = 33, .contexts = {64, 256, 448}, .seconds = 2}));
  }
  return espalier::mean_costs(all);
}

// Prints the results.
class report {
 public:
  report(const std::vector<method>& methods, const std::vector<kind>& kinds, const bench::timed_texts& texts,
         const espalier::cost_model& costs, const arguments& a)
      : methods_(methods), kinds_(kinds), texts_(texts), costs_(costs), a_(a) {}

  std::string markdown() const {
    std::string text = fmt::format(
        "## Decoding without a draft model\n\n{} tokens after each of {} prompts, of {} runs the one of median "
        "duration; methods take turns prompt by prompt. Times are of what follows the first round. *Free*: the target "
        "samples at temperature 1, the same text for each method. *Greedy*: temperature 0. *Copied*: the prompt ends "
        "with {} tokens of the target's, and what is written is dictated: these again, each replaced with "
        "probability 1/{}; passes are the target's own. cost-aware has its defaults, and the costs of --price "
        "or, by the clock, the mean of {} measurements of what passes cost: rows of 1, 2, 4, 8, 16 and 32 take {} of a "
        "row after 256 tokens.\n",
        a_.tokens, kinds_[0].prompts.size(), a_.repeats, a_.tokens, a_.change, n_costs, row_prices());
    bench::markdown_table table("Speedup over plain decoding, and tokens a round", names());
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      std::vector<std::string> cells;
      for (std::size_t k = 0; k < kinds_.size(); ++k)
        cells.push_back(fmt::format("{:.3f} ({:.2f})", speedup(m, k), texts_.total(m, k).tokens_per_round()));
      table.row(methods_[m].name, cells);
    }
    bench::markdown_table own("cost-aware over the best static setting of each kind, on these very texts", names());
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      if (methods_[m].name.find("cost-aware") == std::string::npos) continue;
      std::vector<std::string> cells;
      for (std::size_t k = 0; k < kinds_.size(); ++k) {
        const std::size_t best = best_static(m, k);
        cells.push_back(fmt::format("{:.3f} ({})", speedup(m, k) / speedup(best, k), methods_[best].name));
      }
      own.row(methods_[m].name, cells);
    }
    return text + table.text() + own.text();
  }

  nlohmann::json json() const {
    nlohmann::json rows = nlohmann::json::array();
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      for (std::size_t k = 0; k < kinds_.size(); ++k) {
        rows.push_back({{"method", methods_[m].name},
                        {"kind", kinds_[k].name},
                        {"speedup", speedup(m, k)},
                        {"tokens_per_round", texts_.total(m, k).tokens_per_round()},
                        {"drafted_per_round", texts_.total(m, k).drafted_per_round()}});
      }
    }
    return {{"bench", "lookup"}, {"tokens", a_.tokens}, {"repeats", a_.repeats}, {"rows", rows}};
  }

  static constexpr int n_costs = 6;

 private:
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const kind& k : kinds_)
      all.push_back(k.name);
    return all;
  }

  std::string row_prices() const {
    std::vector<std::string> all;
    for (const int rows : {1, 2, 4, 8, 16, 32})
      all.push_back(fmt::format("{:.2f}", costs_.target_pass(rows, 256) / costs_.target_pass(1, 256)));
    return fmt::format("{}", fmt::join(all, ", "));
  }

  double speedup(std::size_t m, std::size_t k) const {
    return texts_.total(0, k).time_per_token() / texts_.total(m, k).time_per_token();
  }

  // The best of plain decoding and the chains over the same drafter.
  std::size_t best_static(std::size_t of, std::size_t k) const {
    const std::string drafter = methods_[of].name.substr(methods_[of].name.find(", "));
    std::size_t best = 0;
    for (std::size_t m = 0; m < methods_.size(); ++m) {
      if (methods_[m].is_static && methods_[m].name.ends_with(drafter) && speedup(m, k) > speedup(best, k)) best = m;
    }
    return best;
  }

  const std::vector<method>& methods_;
  const std::vector<kind>& kinds_;
  const bench::timed_texts& texts_;
  const espalier::cost_model& costs_;
  const arguments& a_;
};

int run(const arguments& a) {
  const auto price = a.load_price(false);
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320});
  generate::priced_models passes(models, price.get());
  const writer by{models, passes};
  const std::vector<kind> kinds = kinds_of(models, by, a);
  const espalier::cost_model costs =
      price ? price->costs.without_draft() : costs_of(models, a.quick ? 1 : report::n_costs);
  const std::vector<method> methods = methods_of(costs, models.target.vocab_size());
  std::vector<bench::prompt_domain> domains;
  for (const kind& k : kinds)
    domains.push_back({k.name, k.prompts, k.temperature});
  const bench::timed_texts texts(
      methods.size(), domains, a.repeats, "look-up",
      [&](std::size_t m, std::size_t k, std::size_t p) { return methods[m].write(by, kinds[k], p, a.tokens); });
  const report made(methods, kinds, texts, costs, a);
  bench::deliver(made, a, price.get());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_tables_lookup",
                         "Chains over prompt look-up and n-grams beside the policies that adapt, on free text, greedy\n"
                         "text, and text that is copied with changes.");
  arguments a;
  a.add_to(program);
  program.add("--tokens", a.tokens, "tokens to write after each prompt", 16);
  program.add("--measure", a.measure, "prompts of each domain at most", 1);
  program.add("--repeats", a.repeats, "runs of each method after each prompt; the median one counts", 1);
  program.add("--change", a.change, "one copied token in so many is another", 2);
  program.add("--quick", a.quick, "one prompt a domain, once");
  return program.run(argc, argv, [&] {
    if (a.quick) a.measure = 1, a.repeats = 1;
    return run(a);
  });
}
