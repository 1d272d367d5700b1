// SPDX-License-Identifier: BSL-1.0
// Each suite of laws, run for each model of its concept that needs nothing but the standard library.
#include <boost/hana/for_each.hpp>
#include <iostream>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/callable.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/forward/checked_forward.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/backend_laws.hpp"
#include "espalier/testing/kv_store_laws.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "espalier/testing/tree_policy_laws.hpp"
#include "espalier/testing/verifier_laws.hpp"
#include "raises.hpp"
#include "text_models.hpp"

using namespace espalier;

namespace {

struct token_access {
  void write(token_kv& kv, std::int32_t s, std::int32_t slot, int number) const { kv.token(s, slot) = number; }
  int read(token_kv& kv, std::int32_t s, std::int32_t slot) const { return kv.token(s, slot); }
};

// Every float of every layer bears the number, so that a row half moved is seen.
struct row_access {
  static void each(contiguous_kv& kv, std::int32_t s, std::int32_t slot, const auto& f) {
    for (int layer = 0; layer < kv.n_layers(); ++layer) {
      for (int i = 0; i < kv.row_size(); ++i) {
        f(kv.key(layer, s, slot)[i], layer * 100 + i);
        f(kv.value(layer, s, slot)[i], -layer * 100 - i - 1);
      }
    }
  }
  void write(contiguous_kv& kv, std::int32_t s, std::int32_t slot, int number) const {
    each(kv, s, slot, [&](float& x, int place) { x = static_cast<float>(number * 1000 + place); });
  }
  int read(contiguous_kv& kv, std::int32_t s, std::int32_t slot) const {
    const int number = static_cast<int>(kv.key(0, s, slot)[0]) / 1000;
    bool whole = true;
    each(kv, s, slot, [&](float& x, int place) { whole = whole && x == static_cast<float>(number * 1000 + place); });
    return whole ? number : -1;
  }
};

dynatree_options first_paper(std::int32_t budget) {
  dynatree_options o = dynatree_options::first_paper();
  o.budget = budget;
  return o;
}

// A stack of one's own behind one call: sums of tokens, where a token stands in the path.
logits_view sum_model(token_kv& kv, forward_batch_view batch, std::vector<float>& out) {
  out.assign(batch.outputs.size() * 6, 0.0F);
  std::size_t next = 0;
  for (const batch_sequence& s : batch.sequences) {
    for (std::int32_t r = s.row_begin; r < s.row_end; ++r)
      kv.token(s.sequence, batch.slots[static_cast<std::size_t>(r)]) = batch.tokens[static_cast<std::size_t>(r)];
    for (; next < batch.outputs.size() && batch.outputs[next] < s.row_end; ++next) {
      const std::int32_t r = batch.outputs[next];
      std::int64_t sum = 17 * batch.positions[static_cast<std::size_t>(r)];
      for (std::int32_t i = 0; i < s.prefix; ++i)
        sum = (sum * 3 + kv.token(s.sequence, i)) % 1009;
      for (std::int32_t j = 0; j < s.mask_words * 32; ++j) {
        if ((batch.mask_of(s, r)[static_cast<std::size_t>(j / 32)] >> (j % 32) & 1U) != 0)
          sum = (sum * 3 + kv.token(s.sequence, s.prefix + j)) % 1009;
      }
      for (std::size_t v = 0; v < 6; ++v)
        out[next * 6 + v] = static_cast<float>((sum * static_cast<std::int64_t>(v + 2)) % 13);
    }
  }
  return {out.data(), static_cast<std::int32_t>(batch.outputs.size()), 6};
}

}  // namespace

TEST_CASE("KVStore laws: token_kv and contiguous_kv, both commit modes, one and three sequences") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    for (const std::int32_t n : {1, 3}) {
      token_kv tokens(23, mode, n);
      CHECK(tokens.compacts() == (mode == commit_mode::compact));
      testing::check_kv_store(tokens, n, token_access());
      contiguous_kv rows(3, 5, n, 23, mode);
      CHECK(rows.compacts() == (mode == commit_mode::compact));
      testing::check_kv_store(rows, n, row_access());
    }
  }
}

TEST_CASE("Backend laws: text_backend and callable_backend, both commit modes") {
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    const auto make_kv = [mode](std::int32_t n) { return token_kv(64, mode, n); };
    const auto read = [](token_kv& kv, std::int32_t s, std::int32_t slot) { return kv.token(s, slot); };
    text_backend text(7, models::text_model{.seed = 61});
    testing::check_backend(text, make_kv, read);
    std::vector<float> out;
    callable_backend callable(6, [&out](token_kv& kv, forward_batch_view batch) { return sum_model(kv, batch, out); });
    testing::check_backend(callable, make_kv, read);
  }
}

TEST_CASE("a pass is checked for the shape of what comes back") {
  const std::vector<float> some(12, 0.0F);
  logits_view answer;
  callable_backend backend(6, [&](token_kv&, forward_batch_view) { return answer; });
  token_kv kv(4);
  forward_batch batch;
  batch.begin_sequence(0, 0, 1);
  batch.add_row(0, 0, 0, true);
  for (const logits_view wrong : {logits_view{some.data(), 2, 6}, logits_view{some.data(), 1, 5}, logits_view{}}) {
    answer = wrong;
    CHECK(says(message_of<input_error>([&] { checked_forward(backend, kv, batch.view()); }), "asked for 1 rows of 6"));
  }
  answer = {some.data(), 1, 6};
  CHECK(backend.forward(kv, batch.view()).data == some.data());
}

TEST_CASE("sizes of stores and backends out of range are errors that name them") {
  const auto message = [](auto make) { return message_of<option_error>(make); };
  for (const std::int32_t bad : {0, -1}) {
    const std::string value = " is " + std::to_string(bad) + ",";
    CHECK(says(message([=] { token_kv kv(bad); }), "cache capacity" + value));
    CHECK(says(message([=] { token_kv kv(4, commit_mode::compact, bad); }), "number of sequences" + value));
    CHECK(says(message([=] { contiguous_kv kv(1, 1, 1, bad); }), "cache capacity" + value));
    CHECK(says(message([=] { contiguous_kv kv(1, 1, bad, 1); }), "number of sequences" + value));
    CHECK(says(message([=] { contiguous_kv kv(1, bad, 1, 1); }), "cache row size" + value));
    CHECK(says(message([=] { contiguous_kv kv(bad, 1, 1, 1); }), "number of layers" + value));
    CHECK(says(message([=] { text_backend b(bad, models::text_model{}); }), "vocabulary size" + value));
    CHECK(says(message([=] { callable_backend b(bad, [](token_kv&, forward_batch_view) { return logits_view{}; }); }),
               "vocabulary size" + value));
  }
}

TEST_CASE("Drafter laws: autoregressive, both commit modes, bounded or not") {
  const models::text_model model{.seed = 62};
  const sampling_options sampling{.temperature = 0.8F, .top_k = 4};
  const auto expected = [&](const std::vector<token_id>& text) {
    std::vector<float> logits(5), row(5);
    model(text, logits);
    sampler(sampling).probabilities(logits, row, 0);
    return row;
  };
  for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
    const auto make = [&] { return autoregressive(models::probe_backend(5, model), token_kv(120, mode), sampling); };
    testing::check_step_drafter(make, expected);
    const auto make_bounded = [&] {
      return autoregressive(models::bounded_probe(5, model, 2), token_kv(120, mode), sampling);
    };
    testing::check_step_drafter(make_bounded, expected);
    // In another sequence of a store that is shared.
    const auto make_third = [&] {
      return autoregressive(models::probe_backend(5, model), token_kv(120, mode, 3), sampling, 2);
    };
    testing::check_step_drafter(make_third, expected);
  }
}

TEST_CASE("TreePolicy laws: every policy, and other settings than its own") {
  boost::hana::for_each(tree_policies, [](const auto& part) {
    INFO(part.name);
    testing::check_tree_policy(part.make());
  });
  testing::check_tree_policy(chain({.length = 1}));
  testing::check_tree_policy(sampled_chain({.length = 1}));
  testing::check_tree_policy(iid_paths({.paths = 7, .length = 3}));
  testing::check_tree_policy(delayed({.paths = 3, .trunk = 0, .length = 2}));
  testing::check_tree_policy(delayed({.paths = 3, .trunk = 4, .length = 0}));
  testing::check_tree_policy(fixed({.depth = 2, .breadth = 7, .budget = 33}));
  testing::check_tree_policy(dynatree({.budget = 5}));
  testing::check_tree_policy(dynatree(first_paper(17)));
}

TEST_CASE("Verifier laws: every verifier") {
  testing::coverage all;
  boost::hana::for_each(verifiers, [&](const auto& part) {
    INFO(part.name);
    all += testing::check_verifier(part.make());
  });
  std::cout << all;
  CHECK(all.n_outcomes > 100000);
}
