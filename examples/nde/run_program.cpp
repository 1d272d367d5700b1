// SPDX-License-Identifier: BSL-1.0
#include "run_program.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "arguments.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "sampling_setting.hpp"

namespace nde {

namespace {

void add_count(CLI::App& app, const std::string& name, int& value, const std::string& help, int least, int most) {
  app.add_option(name, value, help)->check(CLI::Range(least, most))->capture_default_str();
}

void add_prompts(CLI::App& app, std::string& prompts, int& count) {
  app.add_option("--prompts", prompts, "JSON Lines: strings, or objects with text or tokens, and domain")->required();
  add_count(app, "--count", count, "only so many prompts; 0: all", 0, 1 << 20);
}

void add_samplings(CLI::App& app, std::vector<std::string>& samplings) {
  app.add_option("--samplings", samplings,
                 "temperatures, each alone or with :TOP_P; the prompts of a domain take them in turns")
      ->delimiter(',')
      ->capture_default_str();
}

}  // namespace

void target_arguments::add_to(CLI::App& app) {
  app.add_option("--model", models.model, "folder with target/, draft/ and a tokenizer, or a model")
      ->capture_default_str();
  add_count(app, "--threads", threads, "threads; 0: one a processor", 0, espalier::thread_team::most_threads);
  std::map<std::string, espalier::matrix_arithmetic> forms;
  for (const auto& known : espalier::known_values<espalier::matrix_arithmetic>)
    forms.emplace(known.name, known.value);
  app.add_option("--arithmetic", arithmetic, "products with weights: exact or integer [exact]")
      ->transform(CLI::CheckedTransformer(forms));
}

void model_arguments::add_to(CLI::App& app) {
  target_arguments::add_to(app);
  app.add_option("--draft", models.draft, "the model that drafts; if not given, the one beside the target");
  app.add_option(
      "--head-tokens", models.head_tokens,
      "a file of the tokens that it drafts, or all; if not given, head_tokens.json in its folder, or else all");
}

int target_arguments::n_threads() const {
  return threads > 0 ? threads : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

void collect_arguments::add_to(CLI::App& app) {
  samplings = paper_samplings;
  model_arguments::add_to(app);
  add_prompts(app, prompts, count);
  app.add_option("--out", out, "folder of the traces, one file a prompt; what is there already is left as it is")
      ->required();
  add_count(app, "--parts", parts, "processes that share the prompts; one thread each is the fastest", 1, 1 << 10);
  add_count(app, "--part", part, "the number of this one, from 0 on", 0, 1 << 10);
  add_samplings(app, samplings);
  app.add_option("--verifiers", verifiers, "those whose block efficiency is worked out; if not given, all that can be")
      ->delimiter(',');
  add_count(app, "--tokens", how.tokens, "tokens to write after each prompt", 1, 1 << 20);
  add_count(app, "--spacing", how.spacing, "tokens from one root to the next, and from the prompt to the first", 1,
            1 << 20);
  add_count(app, "--roots", how.roots, "roots of a text at most; 0: as many as there are", 0, 1 << 20);
  add_count(app, "--samples", how.samples, "trees of each action that are drawn at a root", 1, 64);
  app.add_option("--seed", seed, "equal seeds collect equal traces")->capture_default_str();
}

void costs_arguments::add_to(CLI::App& app) {
  model_arguments::add_to(app);
  app.add_option("--map", models.map,
                 "a file that keeps the map between two tokenizers; it is made if it does not exist");
  app.add_option("--out", out, "file to write, JSON")->required();
  app.add_option("--sampling", sampling, "how the draft samples: a temperature, alone or with :TOP_P")
      ->capture_default_str();
  add_count(app, "--rows", rows, "rows of the longest pass", 1, 1 << 12);
  constexpr auto range = espalier::option_of(&espalier::measure_options::seconds);
  app.add_option("--seconds", seconds, std::string(range.help))
      ->check(CLI::Range(range.low, range.high()))
      ->capture_default_str();
}

void inspect_arguments::add_to(CLI::App& app) {
  app.add_option("paths", paths, "traces, or folders of them")->required();
}

void rates_arguments::add_to(CLI::App& app) {
  model_arguments::add_to(app);
  add_prompts(app, prompts, count);
  add_samplings(app, samplings);
  app.add_option("--draws", draws, "numbers of independent draws at a node")
      ->delimiter(',')
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_count(app, "--tokens", tokens, "tokens to write after each prompt", 1, 1 << 20);
  add_count(app, "--spacing", spacing, "tokens from one place to the next, and from the prompt to the first", 1,
            1 << 20);
  app.add_option("--seed", seed, "equal seeds write equal texts")->capture_default_str();
}

void replay_arguments::add_to(CLI::App& app) {
  app.add_option("--texts", texts, "JSON Lines: objects with kind, prompt, and the text that was written after it")
      ->required();
  app.add_option("--tokenizer", tokenizer, "model or folder with the tokenizer of the texts")->capture_default_str();
  add_count(app, "--budget", budget, "drafted tokens of a round at most", 1, 64);
  add_count(app, "--memory", memory, "tokens of earlier texts that the memory holds", 2, 1 << 24);
}

void head_tokens_arguments::add_to(CLI::App& app) {
  app.add_option("--texts", texts, "JSON Lines: strings, or objects with text, whose end is counted, too, or tokens")
      ->required();
  app.add_option("--tokenizer", tokenizer, "model or folder with the tokenizer of the texts")->required();
  add_count(app, "--count", count, "tokens to list", 1, 1 << 20);
  app.add_option("--out", out, "file to write, JSON, as --head-tokens takes it")->required();
}

void write_arguments::add_to(CLI::App& app) {
  target_arguments::add_to(app);
  add_prompts(app, prompts, count);
  app.add_option("--out", out, "file of the texts, JSON Lines; whole lines of it stay, and it goes on there")
      ->required();
  add_samplings(app, samplings);
  add_count(app, "--tokens", tokens, "tokens to write after each prompt, unless the text ends before", 1, 1 << 20);
  add_count(app, "--together", together, "texts that are written at the same time", 1, 1 << 10);
  app.add_option("--seed", seed, "equal seeds write equal texts")->capture_default_str();
}

namespace {

int run(int argc, const char* const* argv, const std::vector<ot_verifier>& own) {
  CLI::App app(
      "What drafting brings: collects traces for the neural selector, measures costs, writes texts, counts in them.");
  app.name("nde");
  app.require_subcommand(1);
  collect_arguments collecting;
  collecting.known = all_ot_verifiers();
  for (const ot_verifier& verifier : own) {
    for (const ot_verifier& other : collecting.known) {
      if (other.name == verifier.name) {
        espalier::raise<espalier::input_error>("a verifier is called ", verifier.name,
                                               ", but that name is taken: it needs another one.");
      }
    }
    collecting.known.push_back(verifier);
  }
  costs_arguments measuring;
  inspect_arguments inspecting;
  std::function<int()> chosen;
  CLI::App* command = app.add_subcommand("collect", "writes texts and works out what each action would have brought");
  collecting.add_to(*command);
  command->callback([&] { chosen = [&] { return collect(collecting); }; });
  command = app.add_subcommand("costs", "measures what passes of the models take on this machine");
  measuring.add_to(*command);
  command->callback([&] { chosen = [&] { return costs(measuring); }; });
  command = app.add_subcommand("inspect", "says what traces hold; 1 if one is damaged");
  inspecting.add_to(*command);
  command->callback([&] { chosen = [&] { return inspect(inspecting); }; });
  rates_arguments rating;
  rating.known = collecting.known;
  command =
      app.add_subcommand("rates", "works out how often verifiers accept a draw, and the highest rate there can be");
  rating.add_to(*command);
  command->callback([&] { chosen = [&] { return rates(rating); }; });
  replay_arguments replaying;
  command =
      app.add_subcommand("replay", "counts the tokens a round that drafters without a model bring in given texts");
  replaying.add_to(*command);
  command->callback([&] { chosen = [&] { return replay(replaying); }; });
  head_tokens_arguments listing;
  command =
      app.add_subcommand("head-tokens", "lists the tokens that texts have most often, for a draft of these alone");
  listing.add_to(*command);
  command->callback([&] { chosen = [&] { return head_tokens(listing); }; });
  write_arguments writing;
  command = app.add_subcommand("write", "writes the target's own texts, for a draft or a head to learn from");
  writing.add_to(*command);
  command->callback([&] { chosen = [&] { return write(writing); }; });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return chosen();
}

}  // namespace

int run_program(int argc, const char* const* argv, const std::vector<ot_verifier>& own) {
  try {
    return run(argc, argv, own);
  } catch (const std::bad_alloc&) {
    std::fputs("nde: there is not enough memory.\n", stderr);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nde: %s\n", error.what());
  }
  return 2;
}

}  // namespace nde
