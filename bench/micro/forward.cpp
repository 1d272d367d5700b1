// SPDX-License-Identifier: BSL-1.0
//
// Measures the forward pass of the host transformer, and its parts.
//
//   bench_micro_forward [--model PATH] [--json FILE] [--rounds N] [--context N] [--threads N]
//
// PATH is a model folder, or a folder with the folders target and draft. Prints Markdown. Everything is measured in
// turns, N rounds, and given as the median. Cold: no weights in a cache before the pass; models larger than the cache
// are always in this state. Warm: after other passes.

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../program.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/product_team.hpp"
#include "espalier/model/llama/weight_matrix.hpp"
#include "matrix_products.hpp"
#include "memory_reader.hpp"

namespace {

using namespace espalier;
using bench::memory_reader;
using clock_type = std::chrono::steady_clock;
using nlohmann::json;

struct settings {
  std::string models = "examples/models";
  std::string json_file;
  int rounds = 30;
  int context = 64;  // the mean of the first 128 tokens
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
};

double milliseconds(const std::function<void()>& work) {
  const auto begin = clock_type::now();
  work();
  return std::chrono::duration<double, std::milli>(clock_type::now() - begin).count();
}

//! Runs every entry in turn, round after round, so that a disturbance of the machine slows all alike.
//!
//! Cold: 256 MB are read before each entry, so that none of its data are in a cache. Warm: the entry runs three times
//! before it is measured, so that its own data are in the caches. Between groups, and between rounds, threads of other
//! libraries get the time to stop spinning.
class interleaved {
 public:
  explicit interleaved(thread_team& team) : evictor_(std::size_t{64} << 20, team) {}

  void add(const std::string& name, std::function<void()> work, const std::string& group = "") {
    entries_.push_back({name, group, std::move(work), {}, {}});
  }

  void run(int rounds, bool warm) {
    for (entry& e : entries_)
      e.work();
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t k = 0; k < entries_.size(); ++k) {
        entry& e = entries_[k];
        const entry& before = entries_[(k == 0 ? entries_.size() : k) - 1];
        if (e.group != before.group) std::this_thread::sleep_for(std::chrono::milliseconds(60));
        evictor_.read();
        e.cold.push_back(milliseconds(e.work));
        for (int i = 0; warm && i < 3; ++i)
          e.work();
        if (warm) e.warm.push_back(milliseconds(e.work));
      }
    }
  }

  double cold(const std::string& name) const { return median(entry_of(name).cold); }
  double warm(const std::string& name) const { return median(entry_of(name).warm); }

 private:
  struct entry {
    std::string name;
    std::string group;
    std::function<void()> work;
    std::vector<double> cold, warm;
  };

  static double median(std::vector<double> times) {
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
    return times[times.size() / 2];
  }

  const entry& entry_of(const std::string& name) const {
    for (const entry& e : entries_) {
      if (e.name == name) return e;
    }
    std::abort();
  }

  memory_reader evictor_;
  std::vector<entry> entries_;
};

//! A model at a given context, ready to score binary trees.
class scene {
 public:
  scene(const std::string& folder, const settings& s)
      : backend_(llama_backend::load(folder, {.threads = s.threads, .weights = weight_storage::f32})),
        kv_(backend_.config().n_layers, backend_.config().kv_size(), 1, backend_.max_positions()) {
    batch_.reserve(backend_.max_rows(), backend_.max_rows());
    while (kv_.size(0) < s.context) {
      const int n = std::min(64, s.context - kv_.size(0)), first = kv_.size(0);
      std::vector<token_id> tokens;
      for (int i = 0; i < n; ++i)
        tokens.push_back((37 * (first + i) + 11) % backend_.vocab_size());
      batch_.clear();
      batch_.begin_sequence(0, first, n);
      kv_.append(0, n);
      batch_.add_chain(tokens, first, 1);
      backend_.forward(kv_, batch_.view());
      std::vector<std::int32_t> kept(tokens.size());
      std::iota(kept.begin(), kept.end(), 0);
      kv_.commit(0, kept);
    }
  }

  llama_backend& backend() { return backend_; }
  contiguous_kv& kv() { return kv_; }

  void score_tree(int n) {
    const int first = kv_.size(0);
    kv_.append(0, n);
    batch_.clear();
    batch_.begin_sequence(0, first, n);
    for (int u = 0; u < n; ++u) {
      int depth = 0;
      for (int v = u; v > 0; v = (v - 1) / 2)
        ++depth;
      const mask_row mask = batch_.add_row((u * 91 + 5) % backend_.vocab_size(), first + depth, u, true);
      for (int v = u; v > 0; v = (v - 1) / 2)
        mask.set((v - 1) / 2);
    }
    backend_.forward(kv_, batch_.view());
    kv_.commit(0, {});
  }

 private:
  llama_backend backend_;
  contiguous_kv kv_;
  forward_batch batch_;
};

struct shape {
  int outputs, inputs;
};

std::vector<shape> shapes_of(const model_config& c) {
  std::vector<shape> shapes;
  for (int i = 0; i < c.n_layers; ++i) {
    shapes.push_back({c.query_size() + 2 * c.kv_size(), c.hidden_size});
    shapes.push_back({c.hidden_size, c.query_size()});
    if (c.gated_mlp) shapes.push_back({c.intermediate_size, c.hidden_size});
    shapes.push_back({c.intermediate_size, c.hidden_size});
    shapes.push_back({c.hidden_size, c.intermediate_size});
  }
  shapes.push_back({c.vocab_size, c.hidden_size});
  return shapes;
}

//! The library's own matrix product, driven as the transformer drives it.
class ours {
 public:
  static constexpr const char* name = "weight_matrix";
  ours(int outputs, int inputs, const float* weights) : matrix_(outputs, inputs), weights_(matrix_.storage_floats()) {
    matrix_.place(weights_.data());
    for (int o = 0; o < outputs; ++o)
      matrix_.set_row(o, weight_row::of(weights + static_cast<std::ptrdiff_t>(o) * inputs, inputs));
  }
  void run(thread_team& team, const float* x, int rows, float* y) {
    if (rows > rows_) products_ = {team, rows_ = rows, matrix_.inputs(), matrix_arithmetic::exact};
    team.run([&](int thread) { products_.multiply(thread, matrix_, {x, matrix_.inputs(), rows}, y, false, matrix_); });
  }

 private:
  weight_matrix matrix_;
  products::huge_floats weights_;
  detail::product_team products_;
  int rows_ = 0;
};

constexpr int product_rows[] = {1, 8, 16, 32};

template <class ProductT>
void add_products(interleaved& runs, std::vector<std::string>& names, const std::vector<shape>& shapes,
                  thread_team& team, const std::vector<float>& x, std::vector<float>& y) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> weights;
  auto products = std::make_shared<std::vector<std::unique_ptr<ProductT>>>();
  for (const shape& s : shapes) {
    weights.resize(static_cast<std::size_t>(s.outputs) * static_cast<std::size_t>(s.inputs));
    for (float& w : weights)
      w = normal(random);
    products->push_back(std::make_unique<ProductT>(s.outputs, s.inputs, weights.data()));
  }
  names.push_back(ProductT::name);
  for (const int rows : product_rows) {
    runs.add(
        ProductT::name + std::to_string(rows),
        [products, rows, &team, &x, &y] {
          for (auto& product : *products)
            product->run(team, x.data(), rows, y.data());
        },
        ProductT::name);
  }
}

json compare_products(const char* title, const std::vector<shape>& shapes, const settings& s) {
  thread_team& team = thread_team::shared(s.threads);
  std::size_t widest = 0;
  double weights = 0.0;
  for (const shape& each : shapes) {
    widest = std::max({widest, static_cast<std::size_t>(each.inputs), static_cast<std::size_t>(each.outputs)});
    weights += static_cast<double>(each.inputs) * each.outputs;
  }
  const std::vector<float> x(32 * widest, 0.5F);
  std::vector<float> y(32 * widest);
  interleaved runs(team);
  std::vector<std::string> names;
  add_products<ours>(runs, names, shapes, team, x, y);
  add_products<products::eigen>(runs, names, shapes, team, x, y);
#if defined(ESPALIER_BENCH_OPENBLAS)
  add_products<products::openblas<true>>(runs, names, shapes, team, x, y);
  add_products<products::openblas<false>>(runs, names, shapes, team, x, y);
#endif
#if defined(ESPALIER_BENCH_ONEDNN)
  add_products<products::onednn>(runs, names, shapes, team, x, y);
#endif
  runs.run(s.rounds, false);
  std::printf("\n## Matrix products: %s, %.1f MB\n\n", title, weights * 4e-6);
  std::printf("| product | 1 row, ms | 8 rows | 16 rows | 32 rows | 32 rows, GFLOP/s |\n|---|---|---|---|---|---|\n");
  json result;
  double best = 1e30;
  for (const std::string& name : names) {
    std::printf("| %s |", name.c_str());
    for (const int rows : product_rows) {
      const double ms = runs.cold(name + std::to_string(rows));
      std::printf(" %.2f |", ms);
      result[name][std::to_string(rows)] = ms;
    }
    const double at_32 = runs.cold(name + "32");
    if (name != ours::name) best = std::min(best, at_32);
    std::printf(" %.0f |\n", 2.0 * weights * 32 / at_32 * 1e-6);
  }
  const double rate = best / runs.cold(std::string(ours::name) + "32");
  std::printf("\nweight_matrix at 32 rows: %.2f times the rate of the best other.\n", rate);
  result["rate_at_32_rows_by_best_other"] = rate;
  return result;
}

json measure_model(const std::string& title, const std::string& folder, const settings& s) {
  scene model(folder, s);
  thread_team& team = thread_team::shared(s.threads);
  const std::size_t weights = model.backend().weight_bytes();
  memory_reader memory(weights / sizeof(float), team);
  const int counts[] = {1, 2, 4, 8, 16, 32, 64};
  interleaved runs(team);
  runs.add("read", [&] { memory.read(); });
  for (const int n : counts) {
    runs.add(std::to_string(n), [&, n] { model.score_tree(n); });
  }
  runs.run(s.rounds, true);
  const model_config& c = model.backend().config();
  const double cache = 2.0 * c.n_layers * c.kv_size() * s.context * 4;
  const auto megabytes = static_cast<double>(weights) * 1e-6;
  std::printf("\n## Forward pass: %s, %.1f MB of weights, context %d, %d threads\n\n", title.c_str(), megabytes,
              s.context, s.threads);
  json result = {{"weight_bytes", weights}, {"context", s.context}, {"threads", s.threads}};
  const auto report = [&](const char* state, const auto& time_of) {
    const double read = time_of("read"), one = time_of("1"), bandwidth = megabytes / read;
    const double share = (megabytes + cache * 1e-6) / one / bandwidth;
    std::printf(
        "%s: memory read at %.1f GB/s (%.3f ms for as much as the weights); one row %.3f ms, %.0f %% of that.\n", state,
        bandwidth, read, one, 100.0 * share);
    json& to = result[state];
    to = {{"read_gb_s", bandwidth}, {"one_row_ms", one}, {"one_row_share_of_bandwidth", share}};
    for (const int n : counts) {
      const double ms = time_of(std::to_string(n));
      to["rows"][std::to_string(n)] = {{"ms", ms}, {"ratio", ms / one}};
    }
  };
  report("Cold", [&](const std::string& name) { return runs.cold(name); });
  report("Warm", [&](const std::string& name) { return runs.warm(name); });
  std::printf("\n| rows | cold, ms | times one row | warm, ms | times one row |\n|---|---|---|---|---|\n");
  for (const int n : counts) {
    const std::string rows = std::to_string(n);
    std::printf("| %d | %.3f | %.2f | %.3f | %.2f |\n", n, runs.cold(rows), runs.cold(rows) / runs.cold("1"),
                runs.warm(rows), runs.warm(rows) / runs.warm("1"));
  }
  return result;
}

long peak_kilobytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

//! Bytes of the process's memory that hold the code of the program and its libraries, which the system reads in when it
//! first runs. 0 if the system does not tell.
long code_kilobytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::atol(line.c_str() + 8);
  }
  return 0;
}

//! Measures the memory of a fresh process: before, after loading, after a prompt that fills the cache, and after trees
//! of every size with the logits of each node.
int report_memory(const std::string& folder, const settings& s) {
  const long before = peak_kilobytes(), code_before = code_kilobytes();
  settings full = s;
  full.context = model_config::load(folder).max_positions - 64;
  scene model(folder, full);
  for (const int n : {1, 8, 64})
    model.score_tree(n);
  const model_config& c = model.backend().config();
  const double cache = 2.0 * c.n_layers * c.kv_size() * model.kv().capacity() * 4, logits = 64.0 * c.vocab_size * 4;
  std::printf("%ld %ld %zu %.0f %.0f %ld\n", before, peak_kilobytes(), model.backend().weight_bytes(), cache, logits,
              code_kilobytes() - code_before);
  return 0;
}

json measure_memory(const char* program, const std::string& title, const std::string& folder, const settings& s) {
  const std::string command =
      "'" + std::string(program) + "' --memory-of '" + folder + "' --threads " + std::to_string(s.threads);
  std::FILE* pipe = popen(command.c_str(), "r");
  long before = 0, peak = 0, code = 0;
  std::size_t weights = 0;
  double cache = 0.0, logits = 0.0;
  if (!pipe || std::fscanf(pipe, "%ld %ld %zu %lf %lf %ld", &before, &peak, &weights, &cache, &logits, &code) != 6) {
    std::fprintf(stderr, "The process that measures memory failed.\n");
    std::exit(1);
  }
  pclose(pipe);
  const double held = static_cast<double>(weights) + cache;
  const double ratio = static_cast<double>(peak - before) * 1024.0 / held;
  std::printf("| %s | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.3f |\n", title.c_str(),
              static_cast<double>(weights) * 1e-6, cache * 1e-6, static_cast<double>(before) * 1.024e-3,
              static_cast<double>(peak) * 1.024e-3, logits * 1e-6, static_cast<double>(code) * 1.024e-3, ratio);
  return {{"weight_bytes", weights}, {"cache_bytes", cache}, {"before_kb", before}, {"peak_kb", peak},
          {"logits_bytes", logits},  {"code_kb", code},      {"ratio", ratio}};
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  bench::program program("bench_micro_forward", "Forward passes of the host transformer, and its matrix products.");
  settings s;
  std::string memory_of;
  program.add("--model", s.models, "folder of a model, or with target/ and draft/");
  program.add("--json", s.json_file, "also write every figure to this file");
  program.add("--rounds", s.rounds, "times that each is measured; the median counts");
  program.add("--context", s.context, "tokens before a pass", 0);
  program.add("--threads", s.threads, "threads of a forward pass", 1, 256);
  program.add("--memory-of", memory_of, "print only what memory a pass of this model takes");
  return program.run(argc, argv, [&] {
    if (!memory_of.empty()) return report_memory(memory_of, s);
    std::vector<std::pair<std::string, std::string>> folders;
    for (const char* name : {"target", "draft"}) {
      const std::string folder = s.models + "/" + name;
      if (std::filesystem::exists(folder + "/config.json")) folders.emplace_back(name, folder);
    }
    if (folders.empty()) folders.emplace_back("model", s.models);
    json result;
    std::printf("# Forward pass of the host transformer\n");
    for (const auto& [title, folder] : folders)
      result["forward"][title] = measure_model(title, folder, s);
    result["products"]["model"] =
        compare_products("the shapes of the model", shapes_of(model_config::load(folders.front().second)), s);
    result["products"]["16 of 1536 x 512"] =
        compare_products("16 of 1536 x 512", std::vector<shape>(16, {1536, 512}), s);
    std::printf("\n## Peak memory, in a fresh process that fills the cache\n\n");
    std::printf(
        "| model | weights, MB | cache | before loading | peak | of it logits of 64 rows | of it code run since | "
        "(peak - before) / (weights + cache) |\n");
    std::printf("|---|---|---|---|---|---|---|---|\n");
    for (const auto& [title, folder] : folders)
      result["memory"][title] = measure_memory(argv[0], title, folder, s);
    if (!s.json_file.empty()) std::ofstream(s.json_file) << result.dump(2) << "\n";
    return 0;
  });
}
