// SPDX-License-Identifier: BSL-1.0
// Chances, drafters, stores and backends that are wrong in a way that biases texts: the checks of each concept, with
// their defaults, must find every one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <numeric>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing.hpp"
#include "text_models.hpp"
#include "zoo/zoo.hpp"

using namespace espalier;

namespace {

// A chance that is wrong.
enum class luck {
  fine,
  zero_accepted,
  modulo,
  flat,
  no_slot,
  no_node,
  no_stream,
  no_length,
  float_sum,
  key_sum,       // node and slot are added
  packed_key,    // a node has room for 16 slots
  byte_length,   // the length is kept in a byte
  short_stream,  // the stream is kept in 16 bits
  short_seed     // the seed is kept in 32 bits
};

struct flawed_chance {
  philox_chance inner;
  luck wrong;

  chance_key key(chance_key at) const {
    if (wrong == luck::no_slot) at.slot = 0;
    if (wrong == luck::no_node) at.node = 0;
    if (wrong == luck::key_sum) at = {at.node + at.slot, 0, at.use};
    if (wrong == luck::packed_key) at = {16 * at.node + at.slot, 0, at.use};
    return at;
  }
  bool accept(double p, double q, chance_key at) const {
    const double u = inner.uniform(key(at));
    return wrong == luck::zero_accepted ? u * q <= p + 0.01 : u * q < p;
  }
  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key at) const {
    if (wrong == luck::fine) return inner.pick(weights, key(at));
    const double u = inner.uniform(key(at));
    double total = 0;
    for (std::size_t i = 0; i < weights.size(); ++i)
      total += static_cast<double>(weights[i]);
    const double r = u * (wrong == luck::float_sum ? total * 1.02 : total);
    double sum = 0;
    std::int32_t last = -1;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!(weights[i] > 0)) continue;
      last = static_cast<std::int32_t>(i);
      sum += static_cast<double>(weights[i]);
      if (r < sum) return last;
    }
    return last;
  }
  std::int32_t index(std::int32_t n, chance_key at) const {
    if (wrong == luck::modulo) return static_cast<std::int32_t>(inner.uniform(key(at)) * 16) % n;
    if (wrong == luck::flat) return 0;
    return inner.index(n, key(at));
  }
};

// A drafter whose rows are not what its model gives.
enum class rows_of { model, next_token, before, root, cold, stale };

struct flawed_drafter : autoregressive<text_backend<models::text_model>, token_kv> {
  using base = autoregressive<text_backend<models::text_model>, token_kv>;
  rows_of wrong;
  std::vector<float> data{};
  std::vector<std::int32_t> row_of{};

  flawed_drafter(text_backend<models::text_model> backend, token_kv kv, sampling_options sampling, rows_of w)
      : base(std::move(backend), std::move(kv), sampling), wrong(w) {}

  void propose(tree_view tree, std::span<const node_id> nodes) {
    base::propose(tree, nodes);
    const auto right = base::rows();
    if (nodes.size() == 1 && nodes[0] == root_node) {
      row_of.assign(64, -1);
      data.clear();
    }
    const auto vocab = static_cast<std::size_t>(vocab_size());
    for (const node_id u : nodes) {
      const node_id from = wrong == rows_of::before && u != root_node ? tree.parent[u]
                           : wrong == rows_of::root                   ? root_node
                                                                      : u;
      std::vector<float> row(right.row(from).begin(), right.row(from).end());
      // A table that maps the draft's tokens to the target's, off by one.
      if (wrong == rows_of::next_token) std::rotate(row.begin(), row.end() - 1, row.end());
      if (wrong == rows_of::cold) {
        float total = 0;
        for (float& p : row)
          total += p *= p;
        for (float& p : row)
          p /= total;
      }
      row_of[static_cast<std::size_t>(u)] = static_cast<std::int32_t>(data.size() / vocab);
      data.insert(data.end(), row.begin(), row.end());
    }
  }
  node_rows<float> rows() const {
    const auto vocab = static_cast<std::size_t>(vocab_size());
    return {{data.data(), static_cast<std::int32_t>(data.size() / vocab), vocab_size()}, row_of.data()};
  }
  void commit(tree_view tree, verdict v) {
    base::commit(tree, wrong == rows_of::stale ? verdict{v.accepted, v.token == 0 ? 1 : 0} : v);
  }
};

// A store that keeps or gives other rows.
enum class store { fine, first_rows, swapped, other_sequence, short_truncate };

struct flawed_kv : token_kv {
  store wrong;
  flawed_kv(std::int32_t capacity, std::int32_t n, store w) : token_kv(capacity, commit_mode::compact, n), wrong(w) {}

  std::int32_t commit(std::int32_t s, std::span<const std::int32_t> kept) {
    std::vector<std::int32_t> other(kept.begin(), kept.end());
    if (wrong == store::first_rows && kept.size() == 4) std::iota(other.begin(), other.end(), 0);
    const std::int32_t n_before = size(s);
    const std::int32_t n = token_kv::commit(s, other);
    if (wrong == store::swapped && n > 2) std::swap(token_kv::token(s, n_before), token_kv::token(s, n_before + 1));
    return n;
  }
  void truncate(std::int32_t s, std::int32_t n) {
    token_kv::truncate(s, wrong == store::short_truncate && n > 1 ? n - 1 : n);
  }
  token_id& token(std::int32_t s, std::int32_t slot) {
    return token_kv::token(wrong == store::other_sequence && slot > 3 ? 0 : s, slot);
  }
};

struct token_access {
  void write(flawed_kv& kv, std::int32_t s, std::int32_t slot, int number) const { kv.token(s, slot) = number; }
  int read(flawed_kv& kv, std::int32_t s, std::int32_t slot) const { return kv.token(s, slot); }
};

// A backend whose rows depend on more than their paths, or on less.
enum class pass { fine, sees_siblings, counts_rows, next_row, cuts_prefix, mixes_sequences };

struct flawed_backend {
  text_backend<models::text_model> inner{7, models::text_model{.seed = 61}};
  pass wrong = pass::fine;
  std::vector<float> logits{};

  std::int32_t vocab_size() const { return 7; }
  logits_view forward(token_kv& kv, forward_batch_view batch) {
    const logits_view right = inner.forward(kv, batch);
    logits.assign(right.data, right.data + static_cast<std::ptrdiff_t>(right.n_rows) * right.vocab);
    const auto row = [&](std::int32_t r) { return logits.data() + static_cast<std::ptrdiff_t>(r) * right.vocab; };
    for (std::int32_t r = 0; r < right.n_rows; ++r) {
      const std::int32_t next = r + 1 < right.n_rows ? r + 1 : r;
      if (wrong == pass::sees_siblings && next != r) row(r)[0] += 0.01F * right.row(next)[0];
      if (wrong == pass::counts_rows) row(r)[1] += 0.001F * static_cast<float>(batch.n_rows());
      if (wrong == pass::next_row) std::copy_n(right.row(next).data(), right.vocab, row(r));
      if (wrong == pass::cuts_prefix && batch.sequences[0].prefix > 12) row(r)[2] += 1;
      if (wrong == pass::mixes_sequences && batch.sequences.size() > 1) row(r)[3] += 1;
    }
    return {logits.data(), right.n_rows, right.vocab};
  }
};

}  // namespace

TEST_CASE("chances, drafters, stores and backends that bias texts are found") {
  int found = 0;
  const auto lucky = [](luck wrong) {
    testing::check_chance([wrong](std::uint64_t seed, std::uint32_t stream, std::uint32_t length) {
      if (wrong == luck::no_stream) stream = 0;
      if (wrong == luck::no_length) length = 0;
      if (wrong == luck::byte_length) length %= 256;
      if (wrong == luck::short_stream) stream %= 65'536;
      if (wrong == luck::short_seed) seed %= std::uint64_t{1} << 32;
      return flawed_chance{philox_chance(seed, stream, length), wrong};
    });
  };
  CHECK_NOTHROW(lucky(luck::fine));
  CHECK_NOTHROW(testing::check_chance([](auto... of) { return philox_chance(of...); }));
  const auto find_luck = [&](const char* bias, luck wrong, const char* told) {
    found += find_bias(bias, told, [&] { lucky(wrong); });
  };
  find_luck("accepts what has no probability", luck::zero_accepted, "accept(0, 1) holds");
  find_luck("indices by modulo", luck::modulo, "index(3) returns");
  find_luck("the first index", luck::flat, "index(3) returns");
  find_luck("the sum of the weights is a little too large", luck::float_sum, "pick() returns");
  const char* const same = "the same outcome in all of 64 rounds";
  find_luck("numbers that do not depend on the slot", luck::no_slot, same);
  find_luck("numbers that do not depend on the node", luck::no_node, same);
  find_luck("numbers that do not depend on the stream", luck::no_stream, same);
  find_luck("numbers that do not depend on the length", luck::no_length, same);
  find_luck("node and slot are added", luck::key_sum, same);
  find_luck("a node has room for 16 slots", luck::packed_key, same);
  find_luck("the length is kept in a byte", luck::byte_length, same);
  find_luck("the stream is kept in 16 bits", luck::short_stream, same);
  find_luck("the seed is kept in 32 bits", luck::short_seed, same);

  const models::text_model model{.seed = 62};
  const auto expected = [&](const std::vector<token_id>& text) {
    std::vector<float> logits(5), row(5);
    model(text, logits);
    sampler({.temperature = 1}).probabilities(logits, row, 0);
    return row;
  };
  const auto draft = [&](rows_of wrong) {
    testing::check_step_drafter(
        [&] {
          return flawed_drafter(text_backend<models::text_model>(5, model), token_kv(120), {.temperature = 1}, wrong);
        },
        expected);
  };
  CHECK_NOTHROW(draft(rows_of::model));
  const auto find_rows = [&](const char* bias, rows_of wrong) {
    found += find_bias(bias, "the row of node", [&] { draft(wrong); });
  };
  find_rows("a table from draft to target tokens that is off by one", rows_of::next_token);
  find_rows("the row of the parent", rows_of::before);
  find_rows("the row of the root", rows_of::root);
  find_rows("rows of another temperature", rows_of::cold);
  find_rows("rows of a text that was not written", rows_of::stale);

  const auto keep = [](store wrong) {
    flawed_kv kv(23, 2, wrong);
    testing::check_kv_store(kv, 2, token_access());
  };
  CHECK_NOTHROW(keep(store::fine));
  const auto find_store = [&](const char* bias, store wrong, const char* told) {
    found += find_bias(bias, told, [&] { keep(wrong); });
  };
  find_store("keeps the first rows instead of the accepted ones", store::first_rows, "does not hold what was written");
  find_store("swaps two accepted rows", store::swapped, "does not hold what was written");
  find_store("gives rows of another sequence", store::other_sequence, "does not hold what was written");
  find_store("drops a row too many", store::short_truncate, "rows are committed");

  const auto pass_of = [](pass wrong) {
    flawed_backend backend{.wrong = wrong};
    testing::check_backend(
        backend, [](std::int32_t n) { return token_kv(64, commit_mode::compact, n); },
        [](token_kv& kv, std::int32_t s, std::int32_t slot) { return kv.token(s, slot); });
  };
  CHECK_NOTHROW(pass_of(pass::fine));
  const auto find_pass = [&](const char* bias, pass wrong, const char* told) {
    found += find_bias(bias, told, [&] { pass_of(wrong); });
  };
  find_pass("a row that depends on its neighbour", pass::sees_siblings, "the logits of node");
  find_pass("rows that depend on the size of the pass", pass::counts_rows, "the logits of node");
  find_pass("the logits of the next row", pass::next_row, "the logits of node");
  find_pass("rows that change with a long cache", pass::cuts_prefix, "the logits of node");
  find_pass("rows that depend on another sequence", pass::mixes_sequences, "two sequences in one pass");
  std::cout << found << " flawed chances, drafters, stores and backends found\n";
  CHECK(found == 27);
}
