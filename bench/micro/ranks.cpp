// SPDX-License-Identifier: BSL-1.0
// Computes the cost of a round over up to 64 ranks from measured parts, and measures passes over the ranks that there
// are.
//
//   mpirun -np R bench_micro_ranks [--models FOLDER] [--prompts N] [--tokens N] [--passes] [--nanoseconds N]
//                                  [--megabytes N]
//
// Measured are: the products of one rank, by bytes of weights and rows (in integers, larger than the caches); calls
// between these R ranks, as a time for each call and a time for each byte; and the gain of best-first trees over the
// bundled pair, in tokens and draft passes a round. The time of a pass over R ranks is then the products of the rank
// with the most weights, plus its calls. The time of a call that no byte causes grows with the logarithm of R. The draft
// runs whole on each rank. Attention over the text, norms, and waiting for a slower rank are left out. A single rank
// makes no calls: it takes the times of --nanoseconds and --megabytes, or leaves calls out. Rank 0 prints Markdown.
#include <mpi.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../program.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/files/rounded_row.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/mpi/mpi_communicator.hpp"
#include "espalier/model/parallel/parallel_backend.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model_set.hpp"
#include "prompts_file.hpp"

namespace {

using namespace espalier;
using clock_type = std::chrono::steady_clock;

// The median time of several calls.
template <class FunctionT>
double seconds_of(int calls, const FunctionT& function) {
  std::vector<double> samples;
  for (int i = 0; i < calls; ++i) {
    const auto began = clock_type::now();
    function();
    samples.push_back(std::chrono::duration<double>(clock_type::now() - began).count());
  }
  const auto middle = samples.begin() + std::ssize(samples) / 2;
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

// A function that is linear between points, proportional before the first point, and continues the last slope beyond
// the last point.
struct line {
  std::vector<std::pair<double, double>> points;

  double operator()(double x) const {
    std::size_t i = 1;
    while (i + 1 < points.size() && points[i].first < x)
      ++i;
    const auto [x0, y0] = points[i - 1];
    const auto [x1, y1] = points[i];
    return y0 + (x - x0) * (y1 - y0) / (x1 - x0);
  }
};

constexpr int row_counts[] = {1, 2, 4, 8, 16, 32, 64};

// Measures the seconds that a weight takes, by rows.
line measure_products() {
  constexpr int outputs = 8192, inputs = 4096;
  thread_team team(1);
  detail::product_team products(team, 64, inputs, matrix_arithmetic::integer);
  weight_matrix matrix(outputs, inputs);
  matrix.expect_rows(0, outputs, weight_type::i8_rows);
  detail::float_block block(matrix.storage_floats(), true);
  matrix.place(block.take(matrix.storage_floats()));
  std::mt19937 random(5);
  std::normal_distribution<float> bell;
  std::vector<float> row(inputs), x(64 * inputs), y(64 * outputs);
  for (float& value : x)
    value = bell(random);
  rounded_row rounded;
  for (int o = 0; o < outputs; ++o) {
    if (o < 64)
      for (float& value : row)
        value = bell(random);
    matrix.set_row(o, rounded({weight_type::f32, std::as_bytes(std::span(row)), inputs}, weight_type::i8_rows));
  }
  line found;
  for (const int rows : row_counts) {
    const double seconds = seconds_of(
        9, [&] { products.multiply(0, matrix, products.prepare(0, matrix, x.data(), rows), y.data(), false, matrix); });
    found.points.emplace_back(rows, seconds / outputs / inputs);
  }
  return found;
}

struct call_cost {
  double call, byte;  // seconds of a call, and of each byte

  double operator()(int ranks, double calls, double bytes) const {
    if (ranks == 1) return 0;
    return calls * call * std::bit_width(static_cast<unsigned>(ranks - 1)) + byte * bytes * (ranks - 1) / ranks;
  }
};

call_cost measure_calls(mpi_communicator& ranks) {
  if (ranks.size() == 1) return {0, 0};
  const auto seconds = [&](std::size_t bytes) {
    std::vector<std::size_t> counts(static_cast<std::size_t>(ranks.size()), bytes / ranks.size());
    std::vector<std::byte> data(bytes);
    return seconds_of(301, [&] { ranks.all_gather(data.data(), counts); });
  };
  constexpr double large = 1 << 20;
  const double small = seconds(64 * static_cast<std::size_t>(ranks.size()));
  const int steps = std::bit_width(static_cast<unsigned>(ranks.size() - 1));
  return {small / steps, (seconds(1 << 20) - small) / large * ranks.size() / (ranks.size() - 1)};
}

struct tree_gain {
  line tokens, passes;  // means of a round, by number of drafted tokens
};

tree_gain measure_trees(models::model_set& models, const std::vector<std::vector<token_id>>& prompts, int n) {
  tree_gain gain{{{{0, 1}}}, {{{0, 0}}}};
  for (const int budget : {1, 3, 7, 15, 31, 63}) {
    recurrent_kv kv = models.make_cache(models.target), draft_kv = models.make_cache(models.draft_model());
    auto drafter = autoregressive(models.draft_model(), draft_kv);
    auto decode = make_decoder(drafter, best_first({.budget = budget}), greedy(), kv, models.target);
    double tokens = 0, passes = 0, rounds = 0;
    for (const std::vector<token_id>& prompt : prompts) {
      decode.generate(prompt, {.max_tokens = n}, [&](const round_record& r) {
        ++rounds, tokens += static_cast<double>(r.committed.size());
        passes += *std::max_element(r.tree.depth, r.tree.depth + r.tree.n_nodes);
      });
    }
    gain.tokens.points.emplace_back(budget, tokens / rounds);
    gain.passes.points.emplace_back(budget, passes / rounds);
  }
  return gain;
}

// The weights of the products that one rank computes.
double weights_of(const model_config& c, int rank, int ranks) {
  const rank_part part(c, rank, ranks);
  const double layer = static_cast<double>(c.hidden_size) * (part.queries(c).size() + 2 * part.kv_size(c)) +
                       static_cast<double>(part.hidden.size()) * (c.query_size() + c.intermediate_size) +
                       (c.gated_mlp ? 2.0 : 1.0) * part.intermediate.size() * c.hidden_size;
  return c.n_layers * layer + static_cast<double>(part.vocabulary.size()) * c.hidden_size;
}
double most_weights(const model_config& c, int ranks) {
  double most = 0;
  for (int r = 0; r < ranks; ++r)
    most = (std::max)(most, weights_of(c, r, ranks));
  return most;
}

// Seconds of the calls in a pass of n rows, and in the agreement of its round; maxima are exchanged in place of rows of
// logits.
double seconds_between(const model_config& c, int ranks, int n, const call_cost& cost) {
  const double row =
      c.hidden_size + double{1} * c.n_layers * (c.query_size() + 2 * c.hidden_size + c.intermediate_size);
  return cost(ranks, 4 * c.n_layers + 4, 4.0 * n * (row + 2 * ranks) + 32.0 * ranks);
}

model_config shape(const char* name, int hidden, int layers, int heads, int kv_heads, int dim, int wide, int vocab) {
  model_config c;
  c.family = name, c.hidden_size = hidden, c.n_layers = layers, c.n_heads = heads, c.n_kv_heads = kv_heads;
  c.head_dim = dim, c.intermediate_size = wide, c.vocab_size = vocab;
  return c;
}

struct best_round {
  int drafted = 0;
  double seconds = 0, rate = 0;
};

// The tree of 0 to 63 drafted tokens that writes most tokens a second. pass(n) gives the seconds of the target's pass
// of n rows.
template <class PassT>
best_round best_of(const tree_gain& gain, double draft_pass, const PassT& pass) {
  best_round best;
  for (int n = 0; n <= 63; ++n) {
    const double seconds = pass(n + 1) + gain.passes(n) * draft_pass;
    if (const double rate = gain.tokens(n) / seconds; rate > best.rate) best = {n, seconds, rate};
  }
  return best;
}

void print_shape(const model_config& c, double draft_weights, const line& products, const call_cost& cost,
                 const tree_gain& gain) {
  std::printf("\n### %s, %.1f million weights, a draft of %.1f million\n\n", c.family.c_str(), most_weights(c, 1) / 1e6,
              draft_weights / 1e6);
  std::printf(
      "| ranks | share of most | plain pass ms | of it between ranks | best tree | round ms | tokens a second | of 1 "
      "rank | best tree, free draft | tokens a second |\n|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
  double alone = 0;
  for (const int ranks : {1, 2, 4, 8, 16, 32, 64}) {
    if (ranks > 1 && cost.call == 0) break;  // no calls were measured, since there is one rank alone
    const double most = most_weights(c, ranks);
    const auto pass = [&](int rows) { return most * products(rows) + seconds_between(c, ranks, rows, cost); };
    const best_round best = best_of(gain, draft_weights * products(1), pass), free = best_of(gain, 0, pass);
    if (ranks == 1) alone = best.rate;
    std::printf("| %d | %.3f | %.2f | %.2f | %d | %.2f | %.2f | %.1f | %d | %.2f |\n", ranks, most / most_weights(c, 1),
                1e3 * pass(1), seconds_between(c, ranks, 1, cost) / pass(1), best.drafted, 1e3 * best.seconds,
                best.rate, best.rate / alone, free.drafted, free.rate);
  }
}

// Measures passes of the bundled target over these ranks, and prints beside them the time computed from the products of
// one rank.
void print_passes(const std::string& folder, mpi_communicator& ranks, const call_cost& cost) {
  auto one = llama_backend::load(folder + "/target", {.threads = 1, .max_rows = 64, .weights = weight_storage::f32});
  auto all = parallel_backend<mpi_communicator>::load(
      folder + "/target", ranks, {.max_rows = 64, .logits = rank_logits::maxima, .weights = weight_storage::f32});
  recurrent_kv one_kv = host_cache(one.config(), 1, 256);
  contiguous_kv all_kv(all.layers(), all.cache_row(), 1, 256);
  const auto pass = [](auto& target, auto& kv, int rows) {
    forward_batch batch;
    kv.truncate(0, 0);
    kv.append(0, rows);
    batch.begin_sequence(0, 0, rows);
    for (int i = 0; i < rows; ++i)
      batch.add_row(i, i, i, true).include_first(i + 1);
    target.forward(kv, batch.view());
  };
  if (ranks.rank() == 0)
    std::printf(
        "\n### Passes of the bundled target, %d ranks\n\n| rows | 1 rank ms | reckoned ms | measured ms |\n"
        "|--:|--:|--:|--:|\n",
        ranks.size());
  for (const int rows : {1, 4, 16, 32}) {
    const double alone = seconds_of(41, [&] { pass(one, one_kv, rows); });
    const double measured = seconds_of(41, [&] { pass(all, all_kv, rows); });
    const double share = most_weights(one.config(), ranks.size()) / most_weights(one.config(), 1);
    if (ranks.rank() == 0)
      std::printf("| %d | %.3f | %.3f | %.3f |\n", rows, 1e3 * alone,
                  1e3 * (share * alone + seconds_between(one.config(), ranks.size(), rows, cost)), 1e3 * measured);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  std::string folder = ESPALIER_BENCH_MODELS;
  int tokens = 96, n_prompts = 6, nanoseconds = 0, megabytes = 0;
  bool passes_alone = false;
  bench::program program("bench_micro_ranks", "The cost of a round over ranks, reckoned from measured parts.");
  program.add("--models", folder, "folder with target/, draft/ and prompts.jsonl");
  program.add("--tokens", tokens, "tokens of each text that trees are measured with", 8, 2048);
  program.add("--prompts", n_prompts, "texts that trees are measured with");
  program.add("--passes", passes_alone, "measure calls and passes of the bundled target, and reckon nothing else");
  program.add("--nanoseconds", nanoseconds, "a step of a call on another network, instead of what is measured", 0);
  program.add("--megabytes", megabytes, "that such a network moves in a second", 0);
  const int result = program.run(argc, argv, [&] {
    mpi_communicator ranks(MPI_COMM_WORLD, {.timeout = 600});
    call_cost cost = measure_calls(ranks);
    if (ranks.rank() == 0 && ranks.size() > 1)
      std::printf("A step of a call between %d ranks: %.1f us, and %.2f GB/s.\n", ranks.size(), 1e6 * cost.call,
                  1e-9 / cost.byte);
    if (ranks.size() > 1) print_passes(folder, ranks, cost);
    if (ranks.rank() != 0 || passes_alone) return 0;
    if (nanoseconds > 0) cost.call = 1e-9 * nanoseconds;
    if (megabytes > 0) cost.byte = 1e-6 / megabytes;
    const line products = measure_products();
    std::printf("\nProducts, ns of a thousand weights:");
    for (const auto& [rows, seconds] : products.points)
      std::printf(" %.0f rows %.0f;", rows, 1e12 * seconds);
    models::model_set models = models::model_set::load({folder}, {.threads = 1, .max_rows = 128});
    std::vector<std::vector<token_id>> prompts;
    for (const models::prompt& p : models::read_prompts(folder + "/prompts.jsonl")) {
      if (static_cast<int>(prompts.size()) == n_prompts) break;
      prompts.push_back(p.tokens.empty() ? models.text.encode_prompt(p.text) : p.tokens);
    }
    const tree_gain gain = measure_trees(models, prompts, tokens);
    std::printf("\n\nTrees, tokens and draft passes of a round:");
    for (std::size_t i = 0; i < gain.tokens.points.size(); ++i)
      std::printf(" %.0f drafted %.2f, %.2f;", gain.tokens.points[i].first, gain.tokens.points[i].second,
                  gain.passes.points[i].second);
    std::printf("\n");
    model_config bundled = models.target.config();
    bundled.family = "The bundled target";
    print_shape(bundled, most_weights(models.draft_model().config(), 1), products, cost, gain);
    const model_config small = shape("SmolLM2-135M", 576, 30, 9, 3, 64, 1536, 49152);
    print_shape(small, most_weights(small, 1) / 20, products, cost, gain);
    // Llama-3.2-1B drafts for it.
    print_shape(shape("Llama-3-70B", 8192, 80, 64, 8, 128, 28672, 128256), 1.236e9, products, cost, gain);
    return 0;
  });
  std::fflush(stdout);
  if (result != 0) std::_Exit(result);
  MPI_Finalize();
  return result;
}
