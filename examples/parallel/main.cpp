// SPDX-License-Identifier: BSL-1.0
//! mpirun -np 2 espalier_parallel [options]: writes texts with a target over ranks and a whole draft on each. Rank 0
//! prints the texts, the traffic between the ranks, and the speed.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "../models/model_paths.hpp"
#include "../models/model_tokenizer.hpp"
#include "espalier/core/util/stopwatch.hpp"
#include "espalier/cost/measure_costs.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/mpi/mpi_communicator.hpp"
#include "espalier/model/parallel/agreement.hpp"
#include "espalier/model/parallel/parallel_backend.hpp"
#include "espalier/model/parallel/rank_clock.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/verifier/greedy.hpp"

namespace {

using namespace espalier;

struct arguments {
  models::model_paths paths{EXAMPLES_MODELS};
  std::string costs;
  std::vector<std::string> prompts{
      "Question: Tom gets 4 car washes a month. If each car wash costs $15, how much does "
      "he pay in a year?\nAnswer:"};
  int texts = 0, max_tokens = 128, budget = 16, threads = 1, context = 1024;
  bool cost_aware = false, sums = false, maxima = false, one_rank = false, floats = false;
  double timeout = 30;

  int n_texts() const { return texts > 0 ? texts : static_cast<int>(prompts.size()); }
  // Rows of a pass, with those of prompts that are read in the same pass.
  int rows() const { return n_texts() * (budget + 1) + 64; }
  weight_storage weights() const { return floats ? weight_storage::f32 : weight_storage::as_stored; }
};

struct written {
  std::vector<std::vector<token_id>> texts;
  std::int64_t rounds = 0;
  double seconds = 0;
};

// Writes all texts together, greedily. observe(round) is called with each round of each text.
template <class DrafterT, class PolicyT, class BackendT, class KVStoreT, class ObserverT>
written write(const arguments& a, const tokenizer& text, DrafterT& drafter, const PolicyT& policy, BackendT& target,
              KVStoreT& kv, ObserverT&& observe) {
  auto decode = make_batch_decoder(drafter, policy, greedy(), kv, target, {.max_texts = a.n_texts()});
  std::vector<text_id> ids;
  for (int i = 0; i < a.n_texts(); ++i) {
    const std::string& prompt = a.prompts[static_cast<std::size_t>(i) % a.prompts.size()];
    ids.push_back(decode.add(text.encode_prompt(prompt), {.max_tokens = a.max_tokens}));
  }
  written out;
  const double began = monotonic_clock::now();
  while (!decode.idle()) {
    for (const text_event& e : decode.step()) {
      if (e.error) std::rethrow_exception(e.error);
      observe(e.round);
      out.rounds += e.round.committed.empty() ? 0 : 1;
    }
  }
  out.seconds = monotonic_clock::now() - began;
  for (const text_id id : ids) {
    const auto tokens = decode.current(id).written();
    out.texts.emplace_back(tokens.begin(), tokens.end());
  }
  return out;
}

// Writes all texts with the policy that the arguments name. All ranks share the clock.
template <class ClockT, class BackendT, class KVStoreT, class ObserverT>
written write(const arguments& a, const tokenizer& text, BackendT& target, KVStoreT& kv, ClockT clock,
              ObserverT&& observe) {
  llama_backend draft =
      llama_backend::load(a.paths.draft, {.threads = 1, .max_rows = a.rows(), .weights = a.weights()});
  recurrent_kv draft_kv = host_cache(draft.config(), a.n_texts(), a.context);
  auto drafter = autoregressive(draft, draft_kv);
  if (!a.cost_aware) return write(a, text, drafter, best_first({.budget = a.budget}), target, kv, observe);
  const measure_options measured{.most_rows = a.budget + 1, .contexts = {16, a.context / 4}, .seconds = 2};
  const auto quietly = [](double, std::string_view) {};
  const cost_model costs =
      a.costs.empty() ? measure_costs(drafter, target, kv, measured, quietly, clock) : load_costs(a.costs);
  return write(a, text, drafter, cost_aware({.budget = a.budget}, costs), target, kv, observe);
}

void print(const tokenizer& text, const written& out) {
  std::size_t tokens = 0;
  for (const std::vector<token_id>& t : out.texts) {
    std::printf("%s\n\n", text.decode(t).c_str());
    tokens += t.size();
  }
  std::printf("%zu texts, %zu tokens in %lld rounds, %.1f tokens a second\n", out.texts.size(), tokens,
              static_cast<long long>(out.rounds), static_cast<double>(tokens) / out.seconds);
}

void write_with_one(const arguments& a, const tokenizer& text) {
  auto target =
      llama_backend::load(a.paths.model, {.threads = a.threads, .max_rows = a.rows(), .weights = a.weights()});
  recurrent_kv kv = host_cache(target.config(), a.n_texts(), a.context);
  print(text, write(a, text, target, kv, monotonic_clock(), [](const round_record&) {}));
}

void write_with_all(const arguments& a, const tokenizer& text, mpi_communicator& ranks) {
  parallel_options options{.threads = a.threads, .max_rows = a.rows(), .weights = a.weights()};
  options.split = a.sums ? rank_split::sums : rank_split::outputs;
  options.logits = a.maxima ? rank_logits::maxima : rank_logits::rows;
  auto target = parallel_backend<mpi_communicator>::load(a.paths.model, ranks, options);
  contiguous_kv kv(target.layers(), target.cache_row(), a.n_texts(), a.context);
  agreement agree(ranks);
  rank_traffic before{.calls = -1};
  const written out = write(a, text, target, kv, rank_clock(ranks), [&](const round_record& r) {
    if (before.calls < 0) before = ranks.traffic();  // leaves out the traffic of measurements before
    agree(r);
  });
  if (ranks.rank() != 0) return;
  print(text, out);
  const rank_traffic after = ranks.traffic();
  const auto rounds = static_cast<double>(out.rounds);
  std::printf("%d ranks, %zu bytes of weights here; a round: %.1f calls, %.0f bytes sent by rank 0\n", ranks.size(),
              target.weights().bytes(), static_cast<double>(after.calls - before.calls) / rounds,
              static_cast<double>(after.bytes - before.bytes) / rounds);
}

}  // namespace

int main(int count, char** values) {
  arguments a;
  CLI::App app("Writes texts with a target that is divided over ranks. Start it with mpirun -np N.");
  app.add_option("--model", a.paths.model, "GGUF file or folder of the target, or a folder with target/ and draft/")
      ->capture_default_str();
  app.add_option("--draft", a.paths.draft, "GGUF file or folder of the draft (default: the one beside the target)");
  app.add_option("--prompt", a.prompts, "texts to go on from, one or several");
  app.add_option("--texts", a.texts, "how many to write together, prompts in turn (default: one of each prompt)");
  app.add_option("--max-tokens", a.max_tokens, "tokens to write of each")->capture_default_str();
  app.add_option("--budget", a.budget, "drafted tokens a round")->capture_default_str();
  app.add_flag("--cost-aware", a.cost_aware, "draft what is worth its time, by costs that the ranks measure together");
  app.add_option("--costs", a.costs, "the same by a file of costs, which each rank reads");
  app.add_option("--threads", a.threads, "threads of each rank")->capture_default_str();
  app.add_option("--context", a.context, "tokens of the cache for each text")->capture_default_str();
  app.add_option("--timeout", a.timeout, "seconds that ranks wait for one another")->capture_default_str();
  app.add_flag("--sums", a.sums, "divide sums, too: fewer bytes, other last bits");
  app.add_flag("--maxima", a.maxima, "send the greatest logits alone");
  app.add_flag("--floats", a.floats, "hold matrices as floats");
  app.add_flag("--one-rank", a.one_rank, "the whole model on each rank, to compare with");
  CLI11_PARSE(app, count, values);
  a.cost_aware = a.cost_aware || !a.costs.empty();
  MPI_Init(nullptr, nullptr);
  int result = 1;
  bool broken = true;
  try {
    mpi_communicator ranks(MPI_COMM_WORLD, {.timeout = a.timeout});
    try {
      const std::string given = a.paths.model;
      a.paths = a.paths.resolved();
      if (a.paths.draft.empty())
        raise<model_error>("the model ", given, " has no draft model beside it; --draft names one.");
      const tokenizer text = models::model_tokenizer(given, a.paths);
      a.one_rank ? write_with_one(a, text) : write_with_all(a, text, ranks);
      result = 0;
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    broken = ranks.broken() || result != 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  std::fflush(stdout);
  if (broken) std::_Exit(result);
  MPI_Finalize();
  return result;
}
