// SPDX-License-Identifier: BSL-1.0
//! mpirun -np 2 espalier_parallel [options]: a target over ranks, with a whole draft on each. Rank 0 prints the
//! text, what went between the ranks, and how fast it was.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/host_cache.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/parallel/agreement.hpp"
#include "espalier/model/parallel/mpi_communicator.hpp"
#include "espalier/model/parallel/parallel_backend.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/verifier/greedy.hpp"

namespace {

using namespace espalier;
using clock_type = std::chrono::steady_clock;

struct arguments {
  std::string model = EXAMPLES_MODELS "/target", draft = EXAMPLES_MODELS "/draft";
  std::vector<int> prompt{1, 300, 500, 700};
  int max_tokens = 128, budget = 16, threads = 1, context = 1024;
  bool sums = false, maxima = false, one_rank = false, floats = false;
  double timeout = 30;
};

// Writes the text, and gives rounds and seconds by the way.
template <class BackendT, class KVStoreT, class ObserverT>
std::vector<token_id> write(const arguments& a, BackendT& target, KVStoreT& kv, ObserverT&& observer, double& seconds) {
  llama_backend model = llama_backend::load(
      a.draft,
      {.threads = 1, .max_rows = a.budget + 1, .weights = a.floats ? weight_storage::f32 : weight_storage::as_stored});
  recurrent_kv cache = host_cache(model.config(), 1, a.context);
  auto drafter = autoregressive(model, cache);
  auto decode = make_decoder(drafter, best_first({.budget = a.budget}), greedy(), kv, target);
  const std::vector<token_id> prompt(a.prompt.begin(), a.prompt.end());
  decode.begin(prompt, {.max_tokens = a.max_tokens});
  const auto began = clock_type::now();
  while (decode.step())
    observer(decode.last_round());
  seconds = std::chrono::duration<double>(clock_type::now() - began).count();
  const auto text = decode.current().written();
  return {text.begin(), text.end()};
}

void print(const std::vector<token_id>& text, double seconds) {
  for (const token_id token : text)
    std::printf("%d ", token);
  std::printf("\n%zu tokens, %.1f tokens a second\n", text.size(), static_cast<double>(text.size()) / seconds);
}

int run(const arguments& a, mpi_communicator& ranks) {
  const weight_storage weights = a.floats ? weight_storage::f32 : weight_storage::as_stored;
  double seconds = 0;
  if (a.one_rank) {
    auto target = llama_backend::load(a.model, {.threads = a.threads, .max_rows = a.budget + 8, .weights = weights});
    recurrent_kv kv = host_cache(target.config(), 1, a.context);
    const auto text = write(
        a, target, kv, [](const round_record&) {}, seconds);
    print(text, seconds);
    return 0;
  }
  parallel_options options;
  options.threads = a.threads, options.max_rows = a.budget + 8, options.weights = weights;
  options.split = a.sums ? rank_split::sums : rank_split::outputs;
  options.logits = a.maxima ? rank_logits::maxima : rank_logits::rows;
  auto target = parallel_backend<mpi_communicator>::load(a.model, ranks, options);
  contiguous_kv kv(target.layers(), target.cache_row(), 1, a.context);
  agreement agree(ranks);
  const rank_traffic before = ranks.traffic();
  std::int64_t rounds = 0;
  const auto text = write(
      a, target, kv,
      [&](const round_record& r) {
        agree(r);
        ++rounds;
      },
      seconds);
  if (ranks.rank() != 0) return 0;
  print(text, seconds);
  const rank_traffic after = ranks.traffic();
  std::printf("%d ranks, %zu bytes of weights here; a round: %.1f calls, %.0f bytes sent by rank 0\n", ranks.size(),
              target.weights().bytes(), static_cast<double>(after.calls - before.calls) / static_cast<double>(rounds),
              static_cast<double>(after.bytes - before.bytes) / static_cast<double>(rounds));
  return 0;
}

}  // namespace

int main(int count, char** values) {
  arguments a;
  CLI::App app("Writes a text with a target that is divided over ranks. Start it with mpirun -np N.");
  app.add_option("--model", a.model, "GGUF file or folder of the target")->capture_default_str();
  app.add_option("--draft", a.draft, "GGUF file or folder of the draft")->capture_default_str();
  app.add_option("--prompt", a.prompt, "tokens of the prompt");
  app.add_option("--max-tokens", a.max_tokens, "tokens to write")->capture_default_str();
  app.add_option("--budget", a.budget, "drafted tokens a round")->capture_default_str();
  app.add_option("--threads", a.threads, "threads of each rank")->capture_default_str();
  app.add_option("--context", a.context, "tokens of the cache")->capture_default_str();
  app.add_option("--timeout", a.timeout, "seconds that ranks wait for one another")->capture_default_str();
  app.add_flag("--sums", a.sums, "divide sums, too: fewer bytes, other last bits");
  app.add_flag("--maxima", a.maxima, "send the greatest logits alone");
  app.add_flag("--floats", a.floats, "hold matrices as floats");
  app.add_flag("--one-rank", a.one_rank, "the whole model on each rank, to compare with");
  CLI11_PARSE(app, count, values);
  MPI_Init(nullptr, nullptr);
  int result = 1;
  bool broken = false;
  try {
    mpi_communicator ranks(MPI_COMM_WORLD, {.timeout = a.timeout});
    try {
      result = run(a, ranks);
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
    }
    broken = ranks.broken() || result != 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    broken = true;
  }
  if (broken) std::_Exit(result);
  MPI_Finalize();
  return result;
}
