// SPDX-License-Identifier: BSL-1.0
//
// Measures a hybrid of recurrent layers and attention on the host: passes over trees beside a pass of one row.
//
//   bench_micro_hybrid [--delta] [--hidden N] [--layers N] [--rounds N] [--threads N] [--forms NAME,...]
//
// The weights are random. Prints Markdown: milliseconds of a pass by its rows, the bytes that it must move, and the
// speed at which the machine reads at the same time. Forms take turns; times are processor time divided by the threads,
// so that other programs hardly disturb them.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../program.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "memory_reader.hpp"
#include "model/llama/hybrid_tensors.hpp"

namespace {

using namespace espalier;

struct settings {
  int hidden = 1024, layers = 24, state = 128, vocab = 32000;
  int rounds = 15, threads = 2, context = 256;
  bool delta = false;
  std::vector<std::string> forms = {"f32", "q8_0", "integer"};
};

double milliseconds() {
  return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

double median(std::vector<double> times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

//! Tensors of random numbers, generated when they are read.
class random_tensors : public tensor_source {
 public:
  explicit random_tensors(const model_config& config) {
    hybrid_tensors::for_each(
        config, [&](const std::string& name, const std::vector<std::uint64_t>& shape, float offset, float size) {
          std::uint64_t n = 1;
          for (const std::uint64_t extent : shape)
            n *= extent;
          all_[name] = {{"F32", shape, 0, 4 * n, static_cast<int>(distributions_.size())}, {}};
          distributions_.emplace_back(offset, size);
        });
  }
  const std::string& where() const override { return name_; }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : all_)
      all.push_back(name);
    return all;
  }
  const tensor_entry* find(const std::string& name) const override {
    const auto found = all_.find(name);
    return found == all_.end() ? nullptr : &found->second.first;
  }
  void read(const tensor_entry& entry, std::uint64_t first, void* to, std::size_t n) override {
    const auto [offset, size] = distributions_[static_cast<std::size_t>(entry.file)];
    auto* bytes = static_cast<char*>(to);
    std::uint64_t state = (first + 1) * 0x9E3779B97F4A7C15U + static_cast<std::uint64_t>(entry.file);
    for (std::size_t i = 0; i < n; i += 4) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      // Uniform, with the deviation of a normal one.
      const float value = offset + size * 3.4641F * (static_cast<float>(state >> 40) * 0x1p-24F - 0.5F);
      std::memcpy(bytes + i, &value, 4);
    }
  }

 private:
  std::string name_ = "random weights";
  std::map<std::string, std::pair<tensor_entry, int>> all_;
  std::vector<std::pair<float, float>> distributions_;  // offset and size, by entry.file
};

//! A shape of round: a tree after the pending token, and the part of it that is accepted.
struct round_shape {
  const char* name;
  int rows;      // the pending token included
  int children;  // children of each node, breadth first; 1: a chain
  int accepted;
};

constexpr round_shape shapes[] = {{"1 row", 1, 1, 0},       {"chain of 8", 8, 1, 0},
                                  {"tree of 8", 8, 2, 0},   {"tree of 8, 3 accepted", 8, 2, 2},
                                  {"tree of 16", 16, 2, 0}, {"tree of 64", 64, 3, 0}};

//! One form of the model, its cache, and its measurements.
class form {
 public:
  form(std::string name, const settings& s, const model_config& config) : name_(std::move(name)) {
    llama_options options{.threads = s.threads, .max_rows = 64};
    options.weights = name_ == "f32" ? weight_storage::f32 : weight_storage::q8_0;
    if (name_ == "integer") options.weights = weight_storage::i8_rows, options.arithmetic = matrix_arithmetic::integer;
    random_tensors tensors(config);
    backend_ = std::make_unique<llama_backend>(config, model_weights::load(config, tensors, options.weights), options);
    kv_ = std::make_unique<recurrent_kv>(host_cache(config, 1, config.max_positions, {.rows = 128}));
    for (int i = 0; i < s.context; i += 64)
      pass({"", 64, 1, 63});
  }

  const std::string& name() const { return name_; }
  double weight_megabytes() const { return static_cast<double>(backend_->weight_bytes()) * 1e-6; }

  void pass(const round_shape& shape) {
    tree_.reset(7, 64);
    for (int u = 1; u < shape.rows; ++u)
      tree_.append((u - 1) / shape.children, (37 * u + 11) % backend_->vocab_size(), 0.0F);
    order_.compute(tree_.view(), node_order::insertion);
    const int first = kv_->append(0, shape.rows);
    batch_.clear();
    batch_.begin_sequence(0, first, shape.rows);
    const token_id pending[] = {7};
    batch_.add_chain(pending, first, 1);
    batch_.add_tree(tree_.view(), order_, 0);
    backend_->forward(*kv_, batch_.view());
    std::vector<std::int32_t> kept = {0};
    for (int i = 0; i < shape.accepted; ++i)
      kept.push_back(kept.back() * shape.children + 1);
    kv_->commit(0, kept);
  }

  void measure(const round_shape& shape, int threads) {
    pass(shape);  // the state that it leaves is the state before the next one
    const double begin = milliseconds();
    pass(shape);
    times_[shape.name].push_back((milliseconds() - begin) / threads);
  }
  double time(const round_shape& shape) const { return median(times_.at(shape.name)); }

 private:
  std::string name_;
  std::unique_ptr<llama_backend> backend_;
  std::unique_ptr<recurrent_kv> kv_;
  tree<> tree_{64};
  tree_order order_{65};
  forward_batch batch_;
  std::map<std::string, std::vector<double>> times_;
};

int measure(const settings& s) {
  const std::string text = hybrid_tensors::config_text(
      s.vocab, s.hidden, s.layers, s.hidden / 64, s.hidden / 256, s.hidden * 11 / 4, s.hidden / 32, s.state, 4096,
      s.delta ? recurrence_kind::gated_delta : recurrence_kind::mamba2);
  const model_config config = model_config::parse(text, "hybrid");
  std::vector<form> forms;
  for (const std::string& name : s.forms)
    forms.emplace_back(name, s, config);
  constexpr std::size_t read_floats = std::size_t{64} << 20;
  bench::memory_reader reader(read_floats, thread_team::shared(s.threads));
  std::vector<double> reading;
  for (int i = 0; i < s.rounds; ++i) {
    for (form& f : forms) {
      for (const round_shape& shape : shapes)
        f.measure(shape, s.threads);
    }
    const double begin = milliseconds();
    reader.read();
    reading.push_back((milliseconds() - begin) / s.threads);
  }
  const recurrent_shape recurrent = config.recurrent_shape();
  const double state_megabytes = 4e-6 * recurrent.layers * recurrent.state_size;
  const double gigabytes_a_second = read_floats * 4e-6 / median(reading);
  std::printf("%d layers, %d of them attention, %d wide; states of %d heads of %d x %d; %d threads.\n", config.n_layers,
              config.n_attention_layers(), config.hidden_size, config.recurrence.heads, config.recurrence.head_dim,
              config.recurrence.state, s.threads);
  std::printf("States are %.1f MB, read and written once a pass. Memory is read at %.1f GB/s.\n\n| weights | MB |",
              state_megabytes, gigabytes_a_second);
  for (const round_shape& shape : shapes)
    std::printf(" %s |", shape.name);
  std::printf("\n|---|--:|");
  for (std::size_t i = 0; i < std::size(shapes); ++i)
    std::printf("--:|");
  for (const form& f : forms) {
    std::printf("\n| %s | %.0f |", f.name().c_str(), f.weight_megabytes());
    for (const round_shape& shape : shapes)
      std::printf(" %.2f (%.2f) |", f.time(shape), f.time(shape) / f.time(shapes[0]));
  }
  std::printf("\n\nTo move the bytes of one row takes, of its pass:");
  for (const form& f : forms)
    std::printf(" %.0f %% (%s)",
                100 * (f.weight_megabytes() + 2 * state_megabytes) / gigabytes_a_second / f.time(shapes[0]),
                f.name().c_str());
  std::printf("\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  bench::program program("bench_micro_hybrid",
                         "Times passes over trees of a hybrid of recurrent layers and attention.");
  program.add("--delta", s.delta, "gated delta networks, not Mamba-2");
  program.add("--hidden", s.hidden, "width, a multiple of 256", 256, 1 << 13);
  program.add("--layers", s.layers, "layers, of which every fourth has attention", 2, 256);
  program.add("--state", s.state, "numbers of a channel's state", 1, 1024);
  program.add("--vocab", s.vocab, "tokens of the vocabulary", 16, 1 << 18);
  program.add("--context", s.context, "tokens before the passes", 0, 1024);
  program.add("--rounds", s.rounds, "passes of each shape");
  program.add("--threads", s.threads, "threads of a pass", 1, 256);
  program.add("--forms", s.forms, "forms of the weights: f32, q8_0, integer");
  return program.run(argc, argv, [&] { return measure(s); });
}
