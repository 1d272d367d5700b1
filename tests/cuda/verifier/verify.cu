// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/verifier/verify.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/device_trees.cuh"
#include "cuda/support.cuh"
#include "cuda/verifier/scene.hpp"
#include "espalier/cuda/decoder/accepted_path.cuh"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/multi_path_block.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;
using namespace espalier_test;
namespace device = espalier::cuda;

namespace {

template <class LogitT>
LogitT rounded(float x) {
  if constexpr (std::is_same_v<LogitT, __half>) return __float2half(x);
  if constexpr (std::is_same_v<LogitT, __nv_bfloat16>) return __float2bfloat16(x);
  if constexpr (std::is_same_v<LogitT, float>) return x;
}
float widened(float x) {
  return x;
}
float widened(__half x) {
  return __half2float(x);
}
float widened(__nv_bfloat16 x) {
  return __bfloat162float(x);
}

// Rows of the logits stand in another order than the nodes.
std::vector<std::int32_t> rows_backwards(std::int32_t n) {
  std::vector<std::int32_t> row_of(static_cast<std::size_t>(n));
  std::iota(row_of.rbegin(), row_of.rend(), 0);
  return row_of;
}

// One scene on host and device.
template <class LogitT>
class both_sides {
 public:
  explicit both_sides(const scene& of)
      : scene_(of),
        row_of_(rows_backwards(of.tree.size())),
        identity_(row_of_.rbegin(), row_of_.rend()),
        sequence_(of.tree.view(), 1),
        draft_(to_device(of.draft)),
        row_of_node_(to_device(row_of_)),
        draft_row_of_(to_device(identity_)) {
    const auto n = static_cast<std::size_t>(of.vocab);
    std::vector<LogitT> logits(row_of_.size() * n);
    host_.resize(logits.size());
    for (std::size_t u = 0; u < row_of_.size(); ++u) {
      const std::size_t to = static_cast<std::size_t>(row_of_[u]) * n;
      for (std::size_t t = 0; t < n; ++t) {
        logits[to + t] = rounded<LogitT>(of.logits[u * n + t]);
        host_[to + t] = widened(logits[to + t]);
      }
    }
    logits_ = to_device(logits);
  }

  template <class VerifierT>
  verdict by_host(VerifierT verifier, sampling_options sampling, std::uint32_t round) const {
    lazy_rows<float> target(sampling);
    target.reserve(n_nodes(), scene_.vocab);
    target.open({host_.data(), n_nodes(), scene_.vocab}, row_of_, 3);
    const sampled_rows<float> draft{{{scene_.draft.data(), n_nodes(), scene_.vocab}, identity_.data()}};
    philox_chance chance(11, 3, round);
    return verifier.verify(scene_.tree.view(), draft, target, chance);
  }

  std::int32_t max_nodes = 0;  // nodes of the largest tree that there is room for, if they are more than the scene's

  struct answer {
    verdict decision;
    device::fault found;
    std::int32_t path_length;
  };

  template <class VerifierT>
  answer by_device(VerifierT verifier, sampling_options sampling, std::uint32_t round,
                   device::verify_tuning tuning) const {
    const std::int32_t most = (std::max)(n_nodes(), max_nodes);
    device::verification<VerifierT, LogitT> verification(verifier, most, scene_.vocab, 1, tuning);
    verification.sample(0, sampling, nullptr);
    const auto state = to_device(std::vector<device::text_state>{{static_cast<std::int32_t>(round), 1 << 20, 3, 11}});
    const auto found = to_device(std::vector<device::fault>(1));
    const device::accepted_path path(n_nodes());
    device::text_batch texts = sequence_.texts(0, 3);
    texts.texts.state = state.data();
    verification.run(texts, {{draft_.data(), n_nodes(), scene_.vocab}, draft_row_of_.data(), n_nodes()},
                     {logits_.data(), n_nodes(), scene_.vocab}, row_of_node_.data(), n_nodes(), found.data(), nullptr);
    const device::path_view accepted =
        path.find(texts, verification.decisions(), row_of_node_.data(), n_nodes(), found.data(), nullptr);
    return {to_host(verification.decisions(), 1)[0], to_host(found)[0], to_host(accepted.n, 1)[0]};
  }

 private:
  std::int32_t n_nodes() const { return scene_.tree.size(); }

  const scene& scene_;
  std::vector<std::int32_t> row_of_, identity_;
  std::vector<float> host_;
  device_sequence sequence_;
  device::device_array<float> draft_;
  device::device_array<std::int32_t> row_of_node_, draft_row_of_;
  device::device_array<LogitT> logits_;
};

// Some, one and no rows of the target are looked at beforehand.
std::vector<device::verify_tuning> tunings() {
  if (device::detail::row_tuning_here(1 << 20).blocks == 1) return {{{512, 1}, {512, 1}, 5}, {{512, 1}, {512, 1}, 0}};
  return {{{256, 8}, {256, 2}, 5}, {{512, 1}, {512, 1}, 0}, {{256, 2}, {256, 4}, 1}};
}

struct counts {
  int verdicts = 0, accepted = 0;
};

template <class VerifierT, class LogitT>
void compare(const both_sides<LogitT>& sides, VerifierT verifier, sampling_options sampling, std::uint32_t round,
             device::verify_tuning tuning, counts& n) {
  const verdict expected = sides.by_host(verifier, sampling, round);
  const auto answer = sides.by_device(verifier, sampling, round, tuning);
  REQUIRE(answer.found.what == device::fault::kind::none);
  REQUIRE(answer.decision.accepted == expected.accepted);
  REQUIRE(answer.decision.token == expected.token);
  ++n.verdicts;
  n.accepted += answer.path_length - 1;
}

// Every verifier that is lossless for the scene's regime.
template <class LogitT>
void compare_all(const scene& of, regime how, sampling_options sampling, std::uint32_t round,
                 device::verify_tuning tuning, counts& n, std::int32_t max_nodes = 0) {
  both_sides<LogitT> sides(of);
  sides.max_nodes = max_nodes;
  const auto each = [&](auto... verifiers) {
    (((compatible(how, decltype(verifiers)::lossless) ? compare(sides, verifiers, sampling, round, tuning, n)
                                                      : void())),
     ...);
  };
  each(target_only(), naive(), naive_tree(), spectr(), specinfer(), khisti(), espalier::block_verification(),
       multi_path_block(), traversal(), traversal_without_replacement(), residual_walk());
  compare(sides, greedy(), {}, round, tuning, n);
}

// Scenes with these vocabularies.
void check_verdicts(std::initializer_list<std::int32_t> vocabularies) {
  counts n;
  std::uint32_t seed = 0;
  for (const regime how : {regime::iid, regime::without_replacement, regime::single_path}) {
    for (const std::int32_t vocab : vocabularies) {
      for (const float unlike : {0.0F, 1.0F}) {
        for (const std::int32_t zeros : {0, vocab / 2}) {
          for (const auto& tuning : tunings()) {
            INFO("seed " << seed << ", vocabulary " << vocab << ", unlike " << unlike << ", " << zeros << " zeros, "
                         << tuning.walk.blocks << " blocks");
            const std::int32_t draws = how == regime::without_replacement && vocab == 5 ? 8 : 16;
            const std::int32_t holes = seed % 3 == 0 ? vocab : 0;
            const scene of({how, vocab, draws, seed % 2 == 0 ? 0.3 : 0.8, unlike, zeros, holes}, seed);
            compare_all<float>(of, how, {.temperature = 1.0F}, seed, tuning, n);
            ++seed;
          }
        }
      }
    }
  }
  CHECK(n.accepted > n.verdicts / 2);
  CHECK(n.accepted < 12 * n.verdicts);
}

}  // namespace

TEST_CASE("verifiers on the device give the host's verdicts") {
  check_verdicts({33});
}

TEST_CASE("verifiers on the device give the host's verdicts over smaller and larger vocabularies", "[long]") {
  check_verdicts({5, 33, 1000});
}

TEST_CASE("khisti's winners on the device are the host's, whatever the window", "[long]") {
  counts n;
  std::uint32_t seed = 500;
  for (const std::int32_t vocab : {2, 40, 1024, 1025, 3000}) {
    for (const std::int32_t window : {0, 1, 5, 15}) {
      for (const auto& tuning : tunings()) {
        INFO("seed " << seed << ", vocabulary " << vocab << ", window " << window << ", " << tuning.walk.blocks
                     << " blocks");
        // Few children with many draws each: several stages a node, and equal draws among them.
        const scene of({.vocab = vocab,
                        .draws = 16,
                        .lean = 0.1,
                        .unlike = seed % 2 == 0 ? 0.2F : 2.0F,
                        .zeros = seed % 3 == 0 ? vocab / 2 : 0,
                        .holes = seed % 5 == 0 ? vocab / 2 : 0},
                       seed);
        const both_sides<float> sides(of);
        for (const float temperature : {0.4F, 1.0F, 3.0F})
          compare(sides, khisti({.window = window}), {.temperature = temperature}, seed, tuning, n);
        ++seed;
      }
    }
  }
  CHECK(n.accepted > n.verdicts / 4);
}

TEST_CASE("khisti ranks equal keys as on the host, whoever sums up") {
  counts n;
  std::uint32_t seed = 600;
  for (const std::int32_t vocab : {300, 2000, 20000}) {
    for (const auto& tuning : tunings()) {
      scene of({.vocab = vocab, .draws = 12, .lean = 0.1, .unlike = 0}, seed);
      // Four values, so that most ranks have many tokens, and windows end among equals.
      for (std::size_t i = 0; i < of.logits.size(); ++i)
        of.logits[i] = static_cast<float>(i * 7919 % 4);
      for (std::int32_t u = 0; u <= 12; ++u) {
        const std::size_t n_row = static_cast<std::size_t>(vocab);
        espalier::softmax(std::span<const float>(of.logits).subspan(of.size(u), n_row), 1.0F,
                          std::span(of.draft).subspan(of.size(u), n_row), u);
      }
      const both_sides<float> sides(of);
      for (const std::uint32_t round : {0U, 1U, 2U, 3U})
        compare(sides, khisti({.window = 7}), {.temperature = round % 2 == 0 ? 1.0F : 0.5F}, round, tuning, n);
      ++seed;
    }
  }
  CHECK(n.verdicts > 0);
}

TEST_CASE("verifiers on the device read halves, and sample as they are told") {
  counts n;
  for (std::uint32_t seed = 100; seed < 106; ++seed) {
    const scene of({.how = regime::iid, .vocab = 700, .draws = 10}, seed);
    const auto tuning = tunings()[seed % tunings().size()];
    const both_sides<__half> halves(of);
    compare(halves, traversal(), {.temperature = 0.7F}, seed, tuning, n);
    compare(halves, greedy(), {}, seed, tuning, n);
    const both_sides<__nv_bfloat16> short_floats(of);
    compare(short_floats, specinfer(), {.temperature = 1.3F, .min_p = 0.02F}, seed, tuning, n);
    compare(short_floats, khisti({.window = 3}), {.temperature = 1.3F, .top_k = 50}, seed, tuning, n);
    compare(short_floats, greedy(), {}, seed, tuning, n);
    compare_all<float>(of, regime::iid, {.temperature = 1.0F, .top_k = 20}, seed, tuning, n);
    compare_all<float>(of, regime::iid, {.temperature = 1.0F, .top_p = 0.8F}, seed, tuning, n);
  }
  CHECK(n.accepted > 0);
}

TEST_CASE("verifiers on the device give the host's verdicts over a whole vocabulary") {
  counts n;
  std::uint32_t seed = 200;
  for (const regime how : {regime::iid, regime::without_replacement, regime::single_path}) {
    const scene of({how, 151936, 4, 0.5, 1.0F, 0}, seed);
    const unsigned blocks = device::detail::row_tuning_here(of.vocab).blocks;
    compare_all<float>(of, how, {.temperature = 0.8F}, seed++, {{256, blocks > 1 ? 16U : 1U}, {512, blocks}, 3}, n);
  }
  CHECK(n.verdicts > 0);
}

TEST_CASE("verifiers with trees of 1024 nodes fit the shared memory of every device", "[long]") {
  const emulated_capability capability(8);
  counts n;
  std::uint32_t seed = 250;
  for (const std::int32_t vocab : {128256, 151936, 262144}) {
    for (const regime how : {regime::iid, regime::without_replacement, regime::single_path}) {
      for (const std::int32_t max_nodes : {65, 300, 1024}) {
        if (vocab != 151936 && max_nodes != 1024) continue;
        INFO("vocabulary " << vocab << ", " << max_nodes << " nodes");
        const scene of({how, vocab, 2, 0.5, 1.0F, 0}, seed);
        const sampling_options sampling{.temperature = 0.8F, .top_k = seed % 2 == 0 ? 1024 : 0, .top_p = 0.95F};
        compare_all<float>(of, how, sampling, seed++, device::verify_tuning::here(vocab), n, max_nodes);
      }
    }
  }
  CHECK(n.verdicts > 0);
}

TEST_CASE("verifiers on the device go down paths that are longer than the rows they keep") {
  counts n;
  for (const std::uint32_t seed : {300U, 301U}) {
    for (const regime how : {regime::single_path, regime::without_replacement}) {
      const scene of({how, 40, 90, 0.97, 0.2F, 0}, seed);
      compare_all<float>(of, how, {.temperature = 1.0F}, seed, tunings()[seed % tunings().size()], n);
    }
  }
  CHECK(n.accepted > 33 * 2);
}

TEST_CASE("verifiers on the device go through trees that shared memory does not hold") {
  counts n;
  std::uint32_t seed = 400;
  const device::verify_tuning tuning{{256, 1}, {256, 1}, 5};
  for (const std::int32_t draws : {200, 1100}) {
    const scene path({regime::single_path, 5, draws, 1, 0.1F, 0}, seed);
    compare_all<float>(path, regime::single_path, {.temperature = 1.0F}, seed++, tuning, n);
    const scene of({regime::without_replacement, 5, draws, 0.99, 0.1F, 0}, seed);
    compare_all<float>(of, regime::without_replacement, {.temperature = 1.0F}, seed++, tuning, n);
  }
  CHECK(n.accepted > 130 * 2);
}

TEST_CASE("a tree of the root alone is verified on the device") {
  counts n;
  const scene of({.how = regime::iid, .vocab = 50, .draws = 0}, 1);
  for (const auto& tuning : tunings())
    compare_all<float>(of, regime::iid, {.temperature = 1.0F}, 5, tuning, n);
  CHECK(n.accepted == 0);
}

TEST_CASE("logits that no token may be drawn from are a fault where their row was visited, and commit nothing") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {std::nanf(""), infinity, -infinity}) {
    const bool is_impossible = bad == -infinity;
    for (const auto& tuning : tunings()) {
      scene of({.how = regime::single_path, .vocab = 300, .draws = 3}, 8);
      of.logits[of.size(0) + 123] = bad;
      of.logits[of.size(0) + 200] = bad;
      if (is_impossible) std::fill_n(of.logits.begin(), 300, bad);
      const both_sides<float> sides(of);
      const auto refuse = [&](auto verifier, sampling_options sampling) {
        const auto answer = sides.by_device(verifier, sampling, 1, tuning);
        const std::string node = "after node 0 (the pending token) of sequence 3 ";
        REQUIRE(says(message_of<numeric_error>([&] { device::raise_fault(answer.found); }),
                     is_impossible ? "all of the target's logits " + node + "are minus infinity"
                                   : "the target's logit of token 123 " + node + "is "));
        REQUIRE(answer.path_length == 0);
        REQUIRE(answer.decision.accepted == root_node);
        REQUIRE(answer.decision.token == -1);
      };
      refuse(target_only(), {.temperature = 1.0F});
      refuse(espalier::block_verification(), {.temperature = 1.0F});
      refuse(traversal(), {.temperature = 1.0F, .top_k = 5});
      refuse(residual_walk(), {.temperature = 1.0F, .top_p = 0.5F});
      refuse(khisti(), {.temperature = 1.0F});
      refuse(greedy(), {});
    }
  }
  // Nobody asks for what comes after a draw that has failed.
  scene of({.how = regime::single_path, .vocab = 300, .draws = 1}, 8);
  of.logits[of.size(0) + static_cast<std::size_t>(of.tree.view().token[1])] = -60;
  of.logits[of.size(1)] = std::nanf("");
  counts n;
  const both_sides<float> sides(of);
  compare(sides, naive(), {.temperature = 1.0F}, 0, tunings().front(), n);
  compare(sides, traversal(), {.temperature = 1.0F}, 0, tunings().front(), n);
  compare(sides, greedy(), {}, 0, tunings().front(), n);
}

TEST_CASE("an accepted path is that of the verdict, and none where there is a fault") {
  const scene of({.how = regime::iid, .vocab = 9, .draws = 40}, 3);
  const tree_view view = of.tree.view();
  const device_sequence sequence(view, 1);
  const std::vector<std::int32_t> row_of = rows_backwards(view.n_nodes);
  const auto row_of_node = to_device(row_of);
  const device::accepted_path path(view.n_nodes);
  for (node_id u = 0; u < view.n_nodes; ++u) {
    const auto decision = to_device(std::vector<verdict>{{u, 4}});
    const auto found = to_device(std::vector<device::fault>(1));
    const device::path_view p =
        path.find(sequence.texts(), decision.data(), row_of_node.data(), view.n_nodes, found.data(), nullptr);
    REQUIRE(p.max == view.n_nodes);
    REQUIRE(p.decision == decision.data());
    const std::int32_t n = to_host(p.n, 1)[0];
    REQUIRE(n == view.depth[u] + 1);
    const auto nodes = to_host(p.nodes, static_cast<std::size_t>(n));
    const auto rows = to_host(p.rows, static_cast<std::size_t>(n));
    REQUIRE(nodes.front() == root_node);
    REQUIRE(nodes.back() == u);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      REQUIRE(rows[i] == row_of[static_cast<std::size_t>(nodes[i])]);
      if (i > 0) REQUIRE(view.parent[nodes[i]] == nodes[i - 1]);
    }
  }
  const auto decision = to_device(std::vector<verdict>{{1, 4}});
  device::fault bad;
  bad.what = device::fault::kind::bad_logit;
  const auto found = to_device(std::vector<device::fault>{bad});
  const device::path_view p =
      path.find(sequence.texts(), decision.data(), row_of_node.data(), view.n_nodes, found.data(), nullptr);
  REQUIRE(to_host(p.n, 1)[0] == 0);
}
