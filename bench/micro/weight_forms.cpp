// SPDX-License-Identifier: BSL-1.0
//
// Compares forms of a model's weights on the host: as floats; as stored in the file, multiplied exactly; as bytes with
// one scale an output, multiplied in integers.
//
//   bench_micro_weight_forms [--model PATH] [--rounds N] [--rows N,...] [--threads N] [--text FILE] [--tokens N]
//                            [--llama-cpp FILE,...]
//
// Prints Markdown: for each form the time to load it, its memory, the time of a pass by its rows, beside the speed at
// which the machine reads and multiplies at the same time, and the mean loss on a text. Passes are measured in turns,
// in processor time divided by the threads, so that other programs hardly disturb them. If it is built with llama.cpp,
// llama.cpp runs files of its own choice of weights in the same turns.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../program.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/instruction_set.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/simd.hpp"
#include "espalier/model/llama/thread_team.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "memory_reader.hpp"
#include "reading_pass.hpp"

#if defined(ESPALIER_BENCH_LLAMA_CPP)
#include "espalier/model/llama_cpp/llama_cpp_backend.hpp"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

using namespace espalier;

struct settings {
  std::string model = ESPALIER_BENCH_MODELS "/target";
  std::string text;
  std::vector<std::string> llama_cpp;
  std::vector<int> rows = {1, 2, 4, 8, 16, 32, 64};
  int rounds = 30;
  int context = 64;
  int tokens = 16384;
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
};

double processor_milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

//! A model that can run, and its cache, which holds one text.
template <class BackendT, class StoreT>
struct loaded_model {
  BackendT backend;
  StoreT kv;
  forward_batch batch{};

  //! Runs a pass over a chain of tokens after the cache, which keeps them only if asked to.
  logits_view pass(std::span<const token_id> tokens, bool keep) {
    const int n = static_cast<int>(tokens.size()), first = kv.size(0);
    batch.clear();
    batch.begin_sequence(0, first, n);
    kv.append(0, n);
    batch.add_chain(tokens, first, n);
    const logits_view logits = backend.forward(kv, batch.view());
    std::vector<std::int32_t> kept(keep ? tokens.size() : 0);
    std::iota(kept.begin(), kept.end(), 0);
    kv.commit(0, kept);
    return logits;
  }
};

//! One form of the model, and its measurements.
class form {
 public:
  static constexpr int window = 256;  // tokens of a pass over a text

  form(const char* name, const settings& s, llama_options options) : name_(name) {
    const double begin = processor_milliseconds();
    options.threads = s.threads;
    options.max_rows = longest_pass(s);
    llama_backend backend = llama_backend::load(s.model, options);
    load_seconds_ = (processor_milliseconds() - begin) * 1e-3;
    megabytes_ = static_cast<double>(backend.weight_bytes()) * 1e-6;
    vocab_size_ = backend.vocab_size();
    contiguous_kv kv(backend.config().n_layers, backend.config().kv_size(), 1, capacity(s));
    take(std::make_shared<loaded_model<llama_backend, contiguous_kv>>(std::move(backend), std::move(kv)));
  }

#if defined(ESPALIER_BENCH_LLAMA_CPP)
  form(const std::string& path, const settings& s)
      : name_("llama.cpp, " + std::filesystem::path(path).filename().string()) {
    const double begin = processor_milliseconds();
    const llama_cpp_model model(path, {.threads = s.threads, .max_rows = longest_pass(s)});
    load_seconds_ = (processor_milliseconds() - begin) * 1e-3;
    megabytes_ = static_cast<double>(llama_model_size(model.loaded()->get())) * 1e-6;
    vocab_size_ = model.vocab_size();
    take(std::make_shared<loaded_model<llama_cpp_backend, llama_cpp_kv>>(
        llama_cpp_backend(model), llama_cpp_kv(model, {.capacity = capacity(s)})));
  }
#endif

  const char* name() const {
    return name_.c_str();
  }
  double load_seconds() const {
    return load_seconds_;
  }
  double megabytes() const {
    return megabytes_;
  }

  void forget() {
    forget_();
  }
  logits_view pass(std::span<const token_id> tokens, bool keep = false) {
    return pass_(tokens, keep);
  }

  void measure(int n, int threads) {
    std::vector<token_id> tokens(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i)
      tokens[static_cast<std::size_t>(i)] = (37 * i + 11) % vocab_size_;
    const double begin = processor_milliseconds();
    pass(tokens);
    times_[n].push_back((processor_milliseconds() - begin) / threads);
  }
  double milliseconds(int n) const {
    return median(times_.at(n));
  }

 private:
  static int longest_pass(const settings& s) {
    return std::max(window, *std::max_element(s.rows.begin(), s.rows.end()));
  }
  static int capacity(const settings& s) {
    return std::max(s.context + longest_pass(s), window);
  }

  template <class ModelT>
  void take(const std::shared_ptr<ModelT>& model) {
    pass_ = [model](std::span<const token_id> tokens, bool keep) { return model->pass(tokens, keep); };
    forget_ = [model] { model->kv.truncate(0, 0); };
  }

  std::string name_;
  std::function<logits_view(std::span<const token_id>, bool)> pass_;
  std::function<void()> forget_;
  std::int32_t vocab_size_ = 0;
  double load_seconds_ = 0.0, megabytes_ = 0.0;
  std::map<int, std::vector<double>> times_;
};

constexpr int chains = 12, steps = 2'000'000;  // sums that do not wait for each other, and terms of each

void add_floats() {
  detail::simd_float sum[chains] = {}, value = detail::simd_broadcast(0.5F);
  bench::touch(&value);
  for (int i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (detail::simd_float& to : sum)
      to = detail::multiply_add(value, value, to);
  }
  bench::touch(sum);
}

#if defined(__x86_64__)
[[gnu::target("avx512f,avx512bw,avx512vl,avx512vnni")]] void add_bytes() {
  __m512i sum[chains] = {}, value = {1};
  bench::touch(&value);
  for (int i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (__m512i& to : sum)
      to = _mm512_dpbusd_epi32(to, value, value);
  }
  bench::touch(sum);
}
#endif

//! The best speeds of the machine, measured between the passes.
class ceilings {
 public:
  explicit ceilings(int threads) : team_(thread_team::shared(threads)), reader_(floats, team_) {}

  void measure() {
    add(read_, [&] { reader_.read(); });
    add(floats_, [&] { team_.run([](int) { add_floats(); }); });
#if defined(__x86_64__)
    if (detail::processor_has(detail::instruction_set::avx512)) {
      add(bytes_, [&] { team_.run([](int) { add_bytes(); }); });
    }
#endif
  }

  double milliseconds_to_read(double megabytes) const {
    return megabytes / (floats * 4e-6) * median(read_);
  }

  void print(const std::vector<form>& forms, const settings& s) const {
    const double weights = forms[0].megabytes() / 4;  // millions
    std::printf("\nMemory is read at %.1f GB/s. Of that, one row takes its weights at", floats * 4e-6 / median(read_));
    for (const form& f : forms)
      std::printf(" %.0f %% (%s)", 100 * milliseconds_to_read(f.megabytes()) / f.milliseconds(s.rows[0]), f.name());
    std::printf(".\nThe multiply-adds of a row alone take %.2f ms in floats",
                weights * 1e6 / s.threads / (1.0 * chains * steps * detail::simd_lanes) * median(floats_));
    if (!bytes_.empty())
      std::printf(" and %.2f ms in bytes", weights * 1e6 / s.threads / (64.0 * chains * steps) * median(bytes_));
    std::printf(", %d threads.\n", s.threads);
  }

 private:
  static constexpr std::size_t floats = std::size_t{64} << 20;

  template <class WorkT>
  void add(std::vector<double>& times, const WorkT& work) const {
    const double begin = processor_milliseconds();
    work();
    times.push_back((processor_milliseconds() - begin) / team_.n_threads());
  }

  thread_team& team_;
  bench::memory_reader reader_;
  std::vector<double> read_, floats_, bytes_;
};

void measure_passes(std::vector<form>& forms, const settings& s) {
  ceilings most(s.threads);
  for (form& f : forms) {
    std::vector<token_id> context(static_cast<std::size_t>(s.context), 5);
    f.pass(context, true);
  }
  for (int round = 0; round < s.rounds; ++round) {
    most.measure();
    for (const int n : s.rows) {
      for (form& f : forms)
        f.measure(n, s.threads);
    }
  }
  std::printf("\n%d threads, context %d, median of %d; integers by %s:\n\n| weights | MB | load, s |", s.threads,
              s.context, s.rounds, detail::name_of(detail::best_instruction_set()));
  for (const int n : s.rows)
    std::printf(" %d rows, ms (of F32; of 1 row) |", n);
  std::printf("\n|---|--:|--:|");
  for (std::size_t i = 0; i < s.rows.size(); ++i)
    std::printf("--:|");
  std::printf("\n");
  for (const form& f : forms) {
    std::printf("| %s | %.1f | %.2f |", f.name(), f.megabytes(), f.load_seconds());
    for (const int n : s.rows) {
      std::printf(" %.2f (%.2f; %.2f) |", f.milliseconds(n), f.milliseconds(n) / forms[0].milliseconds(n),
                  f.milliseconds(n) / f.milliseconds(s.rows[0]));
    }
    std::printf("\n");
  }
  if (s.rows[0] == 1) most.print(forms, s);
}

//! The mean loss over the tokens of a window but the first, in nats, and how far the losses of the forms lie apart.
void measure_loss(std::vector<form>& forms, const settings& s) {
  std::ifstream file(s.text, std::ios::binary);
  if (!file) raise<model_error>(s.text, " cannot be read.");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::vector<token_id> tokens = tokenizer::load(s.model).encode(text.substr(0, std::size_t{8} * s.tokens));
  tokens.resize(std::min(tokens.size(), static_cast<std::size_t>(s.tokens)) / form::window * form::window);
  std::vector<std::vector<double>> losses(forms.size());
  for (form& f : forms)
    f.forget();
  std::size_t equal_rows = 0, rows = 0;
  for (std::size_t first = 0; first < tokens.size(); first += form::window) {
    const auto window = std::span<const token_id>(tokens).subspan(first, form::window);
    const logits_view floats = forms[0].pass(window);
    for (std::size_t f = 0; f < forms.size(); ++f) {
      const logits_view logits = f == 0 ? floats : forms[f].pass(window);
      for (int i = 0; i + 1 < form::window; ++i) {
        const std::span<const float> row = logits.row(i);
        if (f == 1) ++rows, equal_rows += std::memcmp(row.data(), floats.row(i).data(), row.size_bytes()) == 0;
        const double most = *std::max_element(row.begin(), row.end());
        double sum = 0.0;
        for (const float logit : row)
          sum += std::exp(static_cast<double>(logit) - most);
        losses[f].push_back(most + std::log(sum) - static_cast<double>(row[static_cast<std::size_t>(window[i + 1])]));
      }
    }
  }
  std::printf("\n%zu tokens of %s, windows of %d; %zu of %zu rows of logits of %s are bitwise those of %s:\n\n",
              tokens.size(), s.text.c_str(), form::window, equal_rows, rows, forms[1].name(), forms[0].name());
  std::printf("| weights | loss, nats | more than F32 | standard error of that |\n|---|--:|--:|--:|\n");
  for (std::size_t f = 0; f < forms.size(); ++f) {
    const auto n = static_cast<double>(losses[f].size());
    double sum = 0.0, more = 0.0, squares = 0.0;
    for (std::size_t i = 0; i < losses[f].size(); ++i) {
      const double difference = losses[f][i] - losses[0][i];
      sum += losses[f][i], more += difference, squares += difference * difference;
    }
    std::printf("| %s | %.4f | %.5f | %.5f |\n", forms[f].name(), sum / n, more / n,
                std::sqrt(std::max(0.0, squares / n - more * more / n / n) / n));
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_micro_weight_forms", "The forms of a model's weights: time, memory and loss.");
  settings s;
  program.add("--model", s.model, "GGUF file or folder of a model; with --text, one with its tokenizer");
  program.add("--rounds", s.rounds, "times that each pass is measured; the median counts");
  program.add("--rows", s.rows, "rows of the passes", 1, 1024);
  program.add("--context", s.context, "tokens before a pass", 1);
  program.add("--threads", s.threads, "threads of a forward pass", 1, thread_team::most_threads);
#if defined(ESPALIER_BENCH_LLAMA_CPP)
  program.add("--llama-cpp", s.llama_cpp, "GGUF files that llama.cpp runs in the same turns");
#endif
  program.add("--text", s.text, "file of held-out text to measure the loss on");
  program.add("--tokens", s.tokens, "tokens of it", form::window);
  return program.run(argc, argv, [&] {
    std::vector<form> forms;
    forms.emplace_back("F32", s, llama_options{.weights = weight_storage::f32});
    forms.emplace_back("as stored, exact", s, llama_options{.weights = weight_storage::as_stored});
    forms.emplace_back("bytes, integer", s, llama_options{.arithmetic = matrix_arithmetic::integer});
#if defined(ESPALIER_BENCH_LLAMA_CPP)
    for (const std::string& path : s.llama_cpp)
      forms.emplace_back(path, s);
#endif
    measure_passes(forms, s);
    if (!s.text.empty()) measure_loss(forms, s);
    return 0;
  });
}
