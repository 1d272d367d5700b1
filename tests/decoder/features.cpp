// SPDX-License-Identifier: BSL-1.0
// A drafter that reads the target's hidden states is shown those of every token of the text, once, in order, before it
// is asked.
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "catch.hpp"
#include "decoder/composition.hpp"
#include "decoder/showing_backend.hpp"
#include "espalier/concepts/drafter.hpp"

using namespace espalier;
using models::showing_backend;

namespace {

// Drafts as its base, and keeps what it is shown.
struct reading_drafter : autoregressive<text_backend<models::text_model>&, token_kv&> {
  using base = autoregressive<text_backend<models::text_model>&, token_kv&>;
  using base::base;

  std::vector<token_id> text{};
  std::vector<std::uint64_t> seen{};
  int shown = 0;  // rows in all
  bool right = true;

  void begin(std::span<const token_id> context) {
    std::size_t common = 0;
    while (common < seen.size() && common < text.size() && common < context.size() && text[common] == context[common])
      ++common;
    seen.resize(common);
    text.assign(context.begin(), context.end());
    base::begin(context);
  }

  void commit(tree_view tree, verdict v) {
    const std::size_t old = text.size();
    text.resize(old + static_cast<std::size_t>(tree.depth[v.accepted]) + 1, v.token);
    for (node_id u = v.accepted; u != root_node; u = tree.parent[u])
      text[old + static_cast<std::size_t>(tree.depth[u]) - 1] = tree.token[u];
    base::commit(tree, v);
  }

  std::int32_t n_read() const { return static_cast<std::int32_t>(seen.size()); }

  void read(const showing_backend& backend, std::span<const std::int32_t> rows) {
    for (const std::int32_t row : rows)
      seen.push_back(backend.hidden(row));
    shown += static_cast<int>(rows.size());
  }

  void propose(tree_view tree, std::span<const node_id> nodes) {
    right = right && seen.size() + 1 >= text.size();
    std::uint64_t key = 1;
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
      key = showing_backend::next(key, text[i]);
      right = right && seen[i] == key;
    }
    base::propose(tree, nodes);
  }
};

static_assert(FeatureDrafter<reading_drafter, showing_backend>);
static_assert(!FeatureDrafter<reading_drafter, models::probe_backend>);

struct reader {
  explicit reader(commit_mode mode) : kv(200, mode), draft_kv(200) {}
  token_kv kv;
  token_kv draft_kv;
  showing_backend target{11, {}};
  text_backend<models::text_model> draft{11, {.noise = 0.3}};
  reading_drafter drafter{draft, draft_kv};
};

// Longer than one pass of prefill.
std::vector<token_id> long_prompt() {
  std::vector<token_id> text(100);
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = static_cast<token_id>(i * i % 11);
  return text;
}

}  // namespace

TEST_CASE("a drafter is shown the hidden states of the whole text", "[decoder]") {
  const commit_mode mode = GENERATE(commit_mode::compact, commit_mode::truncate);
  const node_order order = GENERATE(node_order::insertion, node_order::heavy_path);
  reader r(mode);
  auto decode = make_decoder(r.drafter, dynatree(), greedy(), r.kv, r.target, {.order = order});
  const std::vector<token_id> prompt = long_prompt();
  const auto expected = models::write_plain({}, 11, prompt, 200, {.max_tokens = 60}).text;
  decode.generate(prompt, {.max_tokens = 40});
  CHECK(r.drafter.right);
  const auto text = decode.current().tokens();
  CHECK(std::equal(text.begin(), text.end(), expected.begin()));
  // Each row once: nothing is read again from the passes that a truncating store repeats.
  CHECK(r.drafter.shown == r.drafter.n_read());

  SECTION("and of what is added to it") {
    const std::vector<token_id> more{5, 5, 5};
    decode.resume(more, {.max_tokens = 20});
    while (decode.step()) {
    }
    CHECK(r.drafter.right);
    CHECK(r.drafter.shown == r.drafter.n_read());
  }
  SECTION("and of another that begins alike") {
    const int before = r.drafter.shown;
    std::vector<token_id> other = long_prompt();
    other.resize(80);
    other.push_back(10);
    decode.generate(other, {.max_tokens = 20});
    CHECK(r.drafter.right);
    CHECK(r.drafter.shown - before == r.drafter.n_read() - 80);
  }
}

TEST_CASE("a round that fails is shown again as it was", "[decoder]") {
  const commit_mode mode = GENERATE(commit_mode::compact, commit_mode::truncate);
  const std::vector<token_id> prompt = long_prompt();
  const auto expected = models::write_plain({}, 11, prompt, 200, {.max_tokens = 30}).text;
  int failures = 0;
  for (int n = 0; n < 12; ++n) {
    reader r(mode);
    r.target.fail_at = n;
    auto decode = make_decoder(r.drafter, dynatree(), greedy(), r.kv, r.target);
    decode.begin(prompt, {.max_tokens = 30});
    for (bool more = true; more;) {
      try {
        more = decode.step();
      } catch (const std::runtime_error&) {
        ++failures;
      }
    }
    const auto text = decode.current().tokens();
    CHECK(std::vector<token_id>(text.begin(), text.end()) == expected);
    CHECK(r.drafter.right);
  }
  CHECK(failures > 6);
}
