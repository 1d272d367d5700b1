// SPDX-License-Identifier: BSL-1.0
// Measuring against a clock that models turn on: what they cost is known.
#include "espalier/cost/measure_costs.hpp"

#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/paged.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

// Time passes only in forward passes.
struct pass_clock {
  static inline std::chrono::nanoseconds elapsed{};
  static double now() { return std::chrono::duration<double>(elapsed).count(); }
};

const void* last_model = nullptr;

// Logits that are all the same. A pass takes `base` ns, `a_row` for each row and `a_token` for each row and token
// before it, and `cold` where another model ran last.
struct timed_model {
  std::int32_t vocab = 8;
  std::int64_t base = 0, a_row = 0, a_token = 0, cold = 0;
  std::int32_t most_rows = 1 << 20;
  int passes = 0;
  std::int32_t largest = 0;
  std::vector<float> logits{};

  std::int32_t vocab_size() const { return vocab; }
  std::int32_t max_rows() const { return most_rows; }

  template <class KVStoreT>
  logits_view forward(KVStoreT&, const forward_batch_view& batch) {
    const std::int64_t n = batch.n_rows();
    REQUIRE(n <= most_rows);
    pass_clock::elapsed += std::chrono::nanoseconds(base + n * a_row + n * a_token * batch.sequences[0].prefix +
                                                    (last_model == this ? 0 : cold));
    last_model = this;
    largest = std::max(largest, batch.n_rows());
    ++passes;
    logits.assign(batch.outputs.size() * static_cast<std::size_t>(vocab), 0.0F);
    return {logits.data(), static_cast<std::int32_t>(batch.outputs.size()), vocab};
  }
};

constexpr auto quietly = [](double, std::string_view) {};

struct measured_pair {
  timed_model target{.base = 1'000'000, .a_row = 20'000, .a_token = 100, .cold = 50'000};
  timed_model draft{.base = 50'000, .a_row = 1'000, .a_token = 10, .cold = 30'000};
  token_kv kv{1024}, draft_kv{1024};
  autoregressive<timed_model&, token_kv&> drafter{draft, draft_kv};

  cost_model measure(const measure_options& options = {.seconds = 0}) {
    return measure_costs(drafter, target, kv, options, quietly, pass_clock());
  }
};

}  // namespace

TEST_CASE("what passes take is found by rows and context") {
  measured_pair pair;
  const cost_model costs = pair.measure({.target = "large", .draft = "small", .hardware = "a clock", .seconds = 0});
  CHECK(costs.hardware == "a clock");
  CHECK(costs.target == "large");
  CHECK(costs.draft == "small");
  CHECK(pair.target.largest == 256);
  for (const std::int32_t rows : {1, 2, 5, 64, 100, 256}) {
    for (const std::int32_t context : {16, 255, 500, 767, 1000}) {
      INFO(rows << " rows after " << context);
      CHECK(costs.target_pass(rows, context) == Approx(1e-3 + rows * (20e-6 + 100e-9 * context)));
      // Nodes are asked about with the pending token in the cache.
      CHECK(costs.draft_pass(rows, context) == Approx(50e-6 + rows * (1e-6 + 10e-9 * (context + 1))));
    }
  }
  CHECK(costs.opening == Approx(80e-6).epsilon(1e-3));  // the draft's, and the target's after it
  CHECK(pair.kv.size(0) == 0);
}

TEST_CASE("a target is measured alone, for drafters without a model") {
  measured_pair pair;
  const cost_model costs = measure_costs(pair.target, pair.kv, {.target = "large", .hardware = "a clock", .seconds = 0},
                                         quietly, pass_clock());
  CHECK(costs.target == "large");
  CHECK(costs.draft.empty());
  CHECK(pair.draft.passes == 0);
  CHECK(costs.opening == 0);
  for (const std::int32_t rows : {1, 2, 5, 64, 256}) {
    CHECK(costs.target_pass(rows, 500) == Approx(1e-3 + rows * (20e-6 + 100e-9 * 500)));
    CHECK(costs.draft_pass(rows, 500) == 0);
  }
}

TEST_CASE("measuring spends the time that it is given") {
  measured_pair pair;
  pass_clock::elapsed = {};
  pair.measure();
  const auto least = pass_clock::elapsed;
  pass_clock::elapsed = {};
  pair.measure({.seconds = 30});
  CHECK(least < std::chrono::seconds(5));
  CHECK(pass_clock::elapsed >= std::chrono::seconds(30));
  CHECK(pass_clock::elapsed < std::chrono::seconds(33));
}

TEST_CASE("the two largest passes differ enough to tell what a row costs") {
  measured_pair pair;
  const cost_model costs = pair.measure({.most_rows = 33, .contexts = {10}, .seconds = 1});
  const auto rows = costs.target_pass.rows();
  CHECK(std::vector<std::int32_t>(rows.begin(), rows.end()) ==
        std::vector<std::int32_t>{1, 2, 3, 4, 6, 8, 12, 16, 24, 33});
}

TEST_CASE("slow models are measured in few passes") {
  measured_pair pair;
  pair.target.base = 1'000'000'000;
  pass_clock::elapsed = {};
  const cost_model costs = pair.measure({.most_rows = 8, .contexts = {4, 16}, .seconds = 2});
  // The prompt, a first pass, and 4 sizes and plain rounds after both contexts in two turns: once each.
  CHECK(pair.target.passes == 1 + 1 + 2 * 2 * (4 + 1));
  CHECK(costs.target_pass(8, 16) == Approx(1 + 8 * (20e-6 + 100e-9 * 16)));
}

TEST_CASE("what the cache holds is not computed again") {
  measured_pair pair;
  pair.target.base = 1'000'000'000;
  std::vector<std::int32_t> rows(500);
  std::iota(rows.begin(), rows.end(), 0);
  pair.kv.append(0, 500);
  pair.kv.commit(0, rows);
  const cost_model costs = pair.measure({.most_rows = 8, .contexts = {4, 500}, .seconds = 2});
  CHECK(pair.target.passes == 1 + 2 * 2 * (4 + 1));
  CHECK(costs.target_pass(8, 500) == Approx(1 + 8 * (20e-6 + 100e-9 * 500)));
  CHECK(pair.kv.size(0) == 0);
}

TEST_CASE("progress rises to 1 and says what is measured") {
  measured_pair pair;
  double last = 0;
  bool falls = false, names_largest = false, tells_much = false;
  const auto hear = [&](double share, std::string_view what) {
    falls = falls || share < last;
    tells_much = tells_much || (share > 0.25 && share < 0.5);
    last = share;
    names_largest = names_largest || what == "passes of 256 rows after 767 tokens";
  };
  measure_costs(pair.drafter, pair.target, pair.kv, {.seconds = 0.5}, hear, pass_clock());
  CHECK_FALSE(falls);
  CHECK(last == 1);
  CHECK(names_largest);
  CHECK(tells_much);
}

TEST_CASE("no pass is larger than models and caches take") {
  measured_pair bounded;
  bounded.target.most_rows = 40;
  bounded.draft.most_rows = 16;
  const cost_model costs = bounded.measure();
  CHECK(bounded.target.largest <= 40);
  CHECK(costs.target_pass.rows().back() == 40);

  timed_model target{.base = 1000}, draft{.base = 100};
  paged_kv kv(1, 1, 1, 40, 4), draft_kv(1, 1, 1, 33, 4);
  autoregressive drafter(draft, draft_kv);
  const cost_model small = measure_costs(drafter, target, kv, {.seconds = 0}, quietly, pass_clock());
  const auto rows = small.target_pass.rows(), contexts = small.target_pass.contexts();
  CHECK(rows.back() > 10);
  CHECK(rows.back() + contexts.back() < 33);
}

TEST_CASE("contexts may be chosen") {
  measured_pair pair;
  const cost_model costs = pair.measure({.most_rows = 6, .contexts = {50, 10, 50}, .seconds = 1});
  CHECK(std::vector<std::int32_t>(costs.draft_pass.contexts().begin(), costs.draft_pass.contexts().end()) ==
        std::vector<std::int32_t>{10, 50});
  CHECK(std::vector<std::int32_t>(costs.draft_pass.rows().begin(), costs.draft_pass.rows().end()) ==
        std::vector<std::int32_t>{1, 2, 3, 4, 6});
}

TEST_CASE("what cannot be measured is refused") {
  measured_pair pair;
  const auto refusal = [&](const measure_options& options) {
    return message_of<option_error>([&] { pair.measure(options); });
  };
  CHECK(says(refusal({.most_rows = 0}), "most_rows", "0"));
  CHECK(says(refusal({.seconds = -1}), "seconds", "-1"));
  CHECK(says(refusal({.contexts = {900}}), "contexts", "900", "767"));
  CHECK(says(refusal({.contexts = {0}}), "contexts"));
  token_kv tiny(3);
  CHECK(says(message_of<option_error>([&] { measure_costs(pair.drafter, pair.target, tiny); }), "tokens", "3"));
  timed_model other{.vocab = 9};
  CHECK(says(message_of<input_error>([&] { measure_costs(pair.drafter, other, pair.kv); }), "8 tokens", "9"));
}

TEST_CASE("hardware is named by its processor and its threads") {
  CHECK(detail::processor_in("processor\t: 0\nmodel name\t:  Some  CPU @ 3.00GHz \nmodel name\t: other\n") ==
        "Some CPU @ 3.00GHz");
  CHECK(detail::processor_in("model name: At the end") == "At the end");
  CHECK(detail::processor_in("processor : 0\nBogoMIPS : 50.00\n").empty());
  CHECK(hardware_name(1).ends_with(", 1 thread"));
  CHECK(hardware_name(3).ends_with(", 3 threads"));
  CHECK(hardware_name() == hardware_name());
}
