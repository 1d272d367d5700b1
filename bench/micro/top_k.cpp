// SPDX-License-Identifier: BSL-1.0
// Measures the cost of finding the k most probable tokens of rows of logits and the sum that normalises each row,
// beside one reading pass over the same floats.
//
//   bench_micro_top_k [ROUNDS]     default: 9
//
// In each round every way goes over four sets of rows, with the reading pass among them, each time over another set
// than the one before; figures are medians. Prints Markdown.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "../program.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/top_tokens.hpp"
#include "reading_pass.hpp"

namespace {

using bench::read_pass;
using bench::touch;
using namespace espalier;
using clock_type = std::chrono::steady_clock;

constexpr std::size_t vocab = 151936;
constexpr std::size_t set_rows = 15;
constexpr std::size_t n_sets = 16;

// Rows that begin on cache lines, as the rows of a backend do.
class row_sets {
 public:
  row_sets() : block_(vocab * set_rows * n_sets, false), rows_(block_.take(vocab * set_rows * n_sets)) {}

  std::span<float> all() { return {rows_, vocab * set_rows * n_sets}; }
  std::span<const float> row(std::size_t set, std::size_t r) const {
    return {rows_ + (set * set_rows + r) * vocab, vocab};
  }

 private:
  espalier::detail::float_block block_;
  float* rows_;
};

// Normally distributed logits of this deviation, and in each row this many tokens that stand out, like those of a
// language model.
void fill(row_sets& rows, float deviation, int n_high) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, deviation);
  std::uniform_real_distribution<float> high(10, 20);
  std::vector<float> numbers(vocab * 5 + 1);
  for (float& x : numbers)
    x = normal(random);
  for (std::size_t i = 0; i < rows.all().size(); ++i)
    rows.all()[i] = numbers[i % numbers.size()];
  for (std::size_t first = 0; first < rows.all().size(); first += vocab) {
    for (int i = 0; i < n_high; ++i)
      rows.all()[first + random() % vocab] = high(random);
  }
}

// The simple way, without the library: probabilities of the whole row, and a sort of its tokens up to the k-th.
class softmax_and_sort {
 public:
  explicit softmax_and_sort(bool select_first)
      : select_first_(select_first), probabilities_(vocab), tokens_(vocab), out_(1024) {}

  void find(std::span<const float> logits, std::size_t k) {
    softmax(logits, 1.0F, probabilities_, 0);
    std::iota(tokens_.begin(), tokens_.end(), 0);
    const auto before = [this](token_id a, token_id b) {
      const float p = probabilities_[static_cast<std::size_t>(a)], q = probabilities_[static_cast<std::size_t>(b)];
      return p > q || (p == q && a < b);
    };
    const auto end = tokens_.begin() + static_cast<std::ptrdiff_t>(k);
    if (select_first_) {
      std::nth_element(tokens_.begin(), end, tokens_.end(), before);
      std::sort(tokens_.begin(), end, before);
    } else {
      std::partial_sort(tokens_.begin(), end, tokens_.end(), before);
    }
    for (std::size_t i = 0; i < k; ++i)
      out_[i] = {tokens_[i], std::log(probabilities_[static_cast<std::size_t>(tokens_[i])])};
    touch(out_.data());
  }

 private:
  bool select_first_;
  std::vector<float> probabilities_;
  std::vector<token_id> tokens_;
  std::vector<ranked_token<float>> out_;
};

class finder {
 public:
  finder() : out_(1024), probable_(1024) { top_.reserve(vocab, 1024); }

  void find(std::span<const float> logits, std::size_t k) {
    top_.of_logits(logits, std::span(out_).first(k), 0);
    touch(out_.data());
  }
  void find_probable(std::span<const float> row, std::size_t k) {
    top_.of_probabilities(row, std::span(probable_).first(k));
    touch(probable_.data());
  }
  void insert(std::span<const float> row, std::size_t k) {
    top_k(row, std::span(probable_).first(k));
    touch(probable_.data());
  }

 private:
  top_tokens<float> top_;
  std::vector<ranked_token<float>> out_;
  std::vector<candidate<float>> probable_;
};

struct entry {
  std::string name;
  std::function<void(std::size_t set)> work;
  std::vector<double> seconds{};

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

enum class row_kind { logits, logits_with_peers, probabilities };

void measure(const row_sets& rows, int rounds, bool from_memory, row_kind kind, const char* title) {
  const auto over_rows = [&](std::size_t set, const auto& work) {
    for (std::size_t r = 0; r < set_rows; ++r)
      work(from_memory ? rows.row(set, r) : rows.row(0, 0));
  };
  finder one, first, second;
  softmax_and_sort partial(false), selected(true);
  std::vector<entry> entries;
  entries.push_back({"reading pass", [&](std::size_t set) { over_rows(set, read_pass); }});
  if (kind == row_kind::probabilities) {
    for (const std::size_t k : {1U, 8U, 64U, 1024U}) {
      const std::string name = ", k = " + std::to_string(k);
      if (k <= 64)
        entries.push_back({"top_k" + name, [&, k](std::size_t set) {
                             over_rows(set, [&](std::span<const float> row) { one.insert(row, k); });
                           }});
      entries.push_back({"top_tokens" + name, [&, k](std::size_t set) {
                           over_rows(set, [&](std::span<const float> row) { one.find_probable(row, k); });
                         }});
    }
  } else {
    for (const std::size_t k : {64U, 256U, 1024U}) {
      entries.push_back({"top_tokens, k = " + std::to_string(k), [&, k](std::size_t set) {
                           over_rows(set, [&](std::span<const float> row) { one.find(row, k); });
                         }});
    }
    entries.push_back({"top_tokens, k = 1024, two threads, one started for it", [&](std::size_t set) {
                         const auto part = [&](finder& f, std::size_t begin, std::size_t end) {
                           for (std::size_t r = begin; r < end; ++r)
                             f.find(from_memory ? rows.row(set, r) : rows.row(0, 0), 1024);
                         };
                         std::thread other([&] { part(second, set_rows / 2, set_rows); });
                         part(first, 0, set_rows / 2);
                         other.join();
                       }});
  }
  if (kind == row_kind::logits_with_peers) {
    entries.push_back({"softmax, partial_sort, k = 1024", [&](std::size_t set) {
                         over_rows(set, [&](std::span<const float> row) { partial.find(row, 1024); });
                       }});
    entries.push_back({"softmax, nth_element, sort, k = 1024", [&](std::size_t set) {
                         over_rows(set, [&](std::span<const float> row) { selected.find(row, 1024); });
                       }});
  }
  std::size_t calls = 0;
  for (int round = -1; round < rounds; ++round) {
    // Calls in a row go over all sets, so that none is in the caches when it comes again.
    for (std::size_t i = 0; i < 4; ++i) {
      for (entry& e : entries) {
        const std::size_t set = calls++ * 3 % n_sets;
        const auto start = clock_type::now();
        e.work(set);
        const double seconds = std::chrono::duration<double>(clock_type::now() - start).count();
        if (round >= 0) e.seconds.push_back(seconds);
      }
    }
  }
  const double read = entries.front().median();
  std::printf(
      "\n### %s\n\nOne reading pass over %zu rows: %.3f ms, %.1f GB/s.\n\n| | ms | in reading passes "
      "|\n|---|--:|--:|\n",
      title, set_rows, read * 1e3, static_cast<double>(vocab * set_rows) * 4e-9 / read);
  for (std::size_t i = 1; i < entries.size(); ++i) {
    const double seconds = entries[i].median();
    std::printf("| %s | %.3f | %.2f |\n", entries[i].name.c_str(), seconds * 1e3, seconds / read);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_micro_top_k", "The k most probable tokens of rows of logits.");
  int rounds = 9;
  program.add("--rounds", rounds, "times that each is measured; the median counts");
  return program.run(argc, argv, [&] {
    std::printf(
        "## The k most probable tokens of %zu rows of logits, with log probabilities\n\n"
        "Rows of %zu floats; one thread where nothing else is said; medians of %d rounds of 4 sets of rows. From "
        "memory: "
        "%zu "
        "sets in turn, %.0f MB. Peaked rows are a bell of deviation 2.5 and 30 tokens that stand out, flat ones a bell "
        "of "
        "deviation 0.3.\n",
        set_rows, vocab, rounds, n_sets, static_cast<double>(vocab * set_rows * n_sets) * 4e-6);
    row_sets rows;
    fill(rows, 2.5F, 30);
    measure(rows, rounds, true, row_kind::logits_with_peers, "Peaked rows, from memory");
    measure(rows, rounds, false, row_kind::logits, "One peaked row again and again, from the caches");
    for (float& x : rows.all())
      x = std::exp(x - 20);
    measure(rows, rounds, true, row_kind::probabilities, "Peaked rows of probabilities, from memory");
    measure(rows, rounds, false, row_kind::probabilities, "One peaked row of probabilities, from the caches");
    fill(rows, 0.3F, 0);
    measure(rows, rounds, true, row_kind::logits, "Flat rows, from memory");
    return 0;
  });
}
