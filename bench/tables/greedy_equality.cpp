// SPDX-License-Identifier: BSL-1.0
// Checks greedy equality: every method writes, token for token, the text of plain decoding.
#include <fmt/format.h>

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/registry.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "prompt_set.hpp"
#include "report_file.hpp"
#include "table_arguments.hpp"
#include "text_writer.hpp"

namespace {

struct arguments : bench::table_arguments {
  int tokens = 32;
  bool all_orders = false;
};

// A way of decoding greedily.
struct method {
  std::string name;
  std::function<std::vector<espalier::token_id>(bench::text_writer&, std::span<const espalier::token_id>,
                                                const bench::text_options&)>
      write;
};

struct setting {
  std::size_t method;
  espalier::commit_mode commit;
  espalier::node_order order;

  std::string commit_name() const { return commit == espalier::commit_mode::compact ? "compact" : "truncate"; }
  std::string order_name() const {
    constexpr const char* names[] = {"insertion", "breadth first", "depth first", "heavy path"};
    return names[static_cast<int>(order)];
  }
};

struct tally {
  std::int64_t texts = 0, equal_texts = 0;
  std::int64_t tokens = 0, equal_tokens = 0;  // equal: those before the first difference of their text

  void add(const std::vector<espalier::token_id>& text, const std::vector<espalier::token_id>& expected) {
    const auto equal = std::mismatch(text.begin(), text.end(), expected.begin(), expected.end()).first - text.begin();
    ++texts;
    equal_texts += text == expected ? 1 : 0;
    tokens += static_cast<std::int64_t>(expected.size());
    equal_tokens += equal;
  }
};

// The method of these parts. make_drafter(writer) gives a new drafter for each text.
template <class PolicyT, class MakeDrafterT>
method over(std::string name, PolicyT policy, MakeDrafterT make_drafter) {
  return {std::move(name), [policy, make_drafter](bench::text_writer& writer, auto prompt, const auto& how) mutable {
            return writer.write(make_drafter(writer), policy, espalier::greedy(), prompt, how).tokens;
          }};
}

// Every policy of the registry, with trees of at most this many nodes if it has a budget.
constexpr std::int32_t most_nodes = 16;

std::vector<method> methods_of(const models::model_set& models) {
  std::vector<method> list;
  const auto draft = [](bench::text_writer& writer) { return writer.draft(); };
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(PartT policy) {
    if constexpr (requires { policy.options.budget; })
      policy.options.budget = std::min<std::int32_t>(policy.options.budget, most_nodes);
    if constexpr (espalier::drafts<typename PartT::type>) {
      list.push_back(over(std::string(policy.name), policy.make(), draft));
    } else {
      list.push_back(over(std::string(policy.name), policy.make(), [](auto&) { return espalier::no_drafter(); }));
    }
  });
  const espalier::chain chain({.length = 15});
  const espalier::best_first best_first({.budget = most_nodes});
  if (models.block) {
    const auto block = [](auto& writer) { return writer.block(); };
    list.push_back(over("chain, block draft", chain, block));
    list.push_back(over("best-first, block draft", best_first, block));
    list.push_back(over("dyspec-greedy, block draft", espalier::dyspec_greedy({.budget = most_nodes}),
                        [block](auto& writer) { return espalier::factorised(block(writer)); }));
  }
  list.push_back(over("chain, prompt look-up", chain, [](auto&) { return espalier::prompt_lookup(); }));
  list.push_back(over("chain, n-grams", chain, [](auto&) { return espalier::ngram(); }));
  list.push_back(over("cascade of best-first and prompt look-up",
                      espalier::cascade(espalier::best_first({.budget = most_nodes}), espalier::chain({.length = 8})),
                      [draft](auto& writer) { return espalier::joint(draft(writer), espalier::prompt_lookup()); }));
  return list;
}

std::vector<setting> settings_of(std::size_t n_methods, bool all_orders) {
  using espalier::node_order;
  std::vector<setting> settings;
  for (std::size_t m = 0; m < n_methods; ++m) {
    for (const auto commit : {espalier::commit_mode::compact, espalier::commit_mode::truncate}) {
      for (const auto order :
           {node_order::insertion, node_order::breadth_first, node_order::depth_first, node_order::heavy_path}) {
        if (order == node_order::insertion || all_orders) settings.push_back({m, commit, order});
      }
    }
  }
  return settings;
}

void add_arguments(bench::program& program, arguments& a) {
  a.add_to(program);
  program.add("--tokens", a.tokens, "tokens to write after each prompt");
  program.add("--all-orders", a.all_orders, "also the other three orders of the tree's rows");
}

int run(const arguments& a) {
  auto models = models::model_set::load(a.models, {.threads = a.threads, .max_rows = 320});
  const auto domains = bench::read_prompt_domains(a.prompts, models, a.domains, a.tokens);
  bench::text_writer writer(models);
  const std::vector<method> methods = methods_of(models);
  const std::vector<setting> settings = settings_of(methods.size(), a.all_orders);
  std::vector<tally> tallies(settings.size());
  std::string first_difference;
  std::size_t n_prompts = 0, done = 0;
  for (const auto& domain : domains)
    n_prompts += domain.prompts.size();
  for (const auto& domain : domains) {
    for (std::size_t p = 0; p < domain.prompts.size(); ++p) {
      bench::progress(fmt::format("{} of {} prompts", done++, n_prompts));
      const auto expected =
          writer.write(espalier::no_drafter(), espalier::plain(), espalier::greedy(), domain.prompts[p], {a.tokens})
              .tokens;
      for (std::size_t i = 0; i < settings.size(); ++i) {
        const setting& s = settings[i];
        const auto text = methods[s.method].write(writer, domain.prompts[p], {a.tokens, {.order = s.order}, s.commit});
        tallies[i].add(text, expected);
        if (text == expected || !first_difference.empty()) continue;
        const auto at = std::mismatch(text.begin(), text.end(), expected.begin(), expected.end()).first - text.begin();
        first_difference =
            fmt::format("{}, prompt {}: token {} of {} ({}, {}) differs from plain decoding's.", domain.name, p + 1,
                        at + 1, methods[s.method].name, s.commit_name(), s.order_name());
      }
    }
  }
  bench::progress("");

  std::string table = fmt::format(
      "## Greedy equality\n\nEvery policy of the registry over the smaller model, and others over other drafters, "
      "trees of up "
      "to {} nodes; {} prompts, {} tokens each, against plain decoding with a compacting cache.\n\n"
      "| method | commit | order | texts | equal | tokens | equal |\n|---|---|---|--:|--:|--:|--:|\n",
      most_nodes, n_prompts, a.tokens);
  nlohmann::json rows = nlohmann::json::array();
  tally all;
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const tally& t = tallies[i];
    table += fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", methods[settings[i].method].name,
                         settings[i].commit_name(), settings[i].order_name(), t.texts, t.equal_texts, t.tokens,
                         t.equal_tokens);
    rows.push_back({{"method", methods[settings[i].method].name},
                    {"commit", settings[i].commit_name()},
                    {"order", settings[i].order_name()},
                    {"texts", t.texts},
                    {"equal_texts", t.equal_texts},
                    {"tokens", t.tokens},
                    {"equal_tokens", t.equal_tokens}});
    all.texts += t.texts, all.equal_texts += t.equal_texts;
    all.tokens += t.tokens, all.equal_tokens += t.equal_tokens;
  }
  table += fmt::format("\n{} of {} texts are equal ({:.3f} %), {} tokens compared. {}\n", all.equal_texts, all.texts,
                       100.0 * static_cast<double>(all.equal_texts) / static_cast<double>(all.texts), all.tokens,
                       first_difference.empty() ? "No difference." : "First difference: " + first_difference);
  bench::report(table, a.markdown);
  if (!a.json.empty()) {
    bench::write_file(a.json, nlohmann::json{{"bench", "greedy_equality"},
                                             {"prompts", n_prompts},
                                             {"tokens_each", a.tokens},
                                             {"settings", rows},
                                             {"first_difference", first_difference}}
                                  .dump(1));
  }
  return all.equal_texts == all.texts ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_tables_greedy_equality",
                         "Greedy equality: every method writes, token for token, what plain decoding writes.\n"
                         "Exits with 1 if one does not, and names the first difference.");
  arguments a;
  add_arguments(program, a);
  return program.run(argc, argv, [&] { return run(a); });
}
