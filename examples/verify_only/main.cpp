// SPDX-License-Identifier: BSL-1.0
// Verification alone: the tree and the logits come from an engine, which gets a verdict, and the rows and cache slots of
// the accepted path. Prints how many tokens a pass wrote, and whether the engine's cache then held the text.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "espalier/verifier.hpp"

using namespace espalier;

namespace {

constexpr std::int32_t vocab = 32, max_nodes = 13;

// Stands for an engine of yours: it drafts trees, makes passes over them, and has a cache with a token in each slot.
class engine {
 public:
  // A drafted tree: token, parent and row of each node, the root first, and the probabilities [node][vocab] from which
  // the children of each node were drawn.
  struct draft {
    std::vector<token_id> token;
    std::vector<std::int32_t> parent, row;
    std::vector<float> probabilities;
  };

  // Draws three children after the root, two after each of them, and one after each of those.
  draft propose(std::span<const token_id> text) {
    draft d{.token = {text.back()}, .parent = {-1}, .row = {}, .probabilities = {}};
    std::vector<std::vector<token_id>> path{{text.begin(), text.end()}};
    for (std::size_t u = 0; u < d.token.size(); ++u) {
      std::array<float, vocab> q{};
      model(path[u], 0.6F, q.data());
      float total = 0;
      for (float& x : q) {
        x = std::exp(x);
        total += x;
      }
      for (float& x : q)
        x /= total;
      d.probabilities.insert(d.probabilities.end(), q.begin(), q.end());
      const std::size_t depth = path[u].size() - text.size(), width = depth < 3 ? 3 - depth : 0;
      std::discrete_distribution<token_id> drawn(q.begin(), q.end());
      for (std::size_t i = 0; i < width && d.token.size() < max_nodes; ++i) {
        d.token.push_back(drawn(random_));
        d.parent.push_back(static_cast<std::int32_t>(u));
        path.push_back(path[u]);
        path.back().push_back(d.token.back());
      }
    }
    // The rows of a pass stand in an order of the engine's own: here the last node's comes right after the root's.
    const auto n = static_cast<std::int32_t>(d.token.size());
    for (std::int32_t u = 0; u < n; ++u)
      d.row.push_back(u == 0 ? 0 : n - u);
    return d;
  }

  // The logits [row][vocab] of a pass over a tree. Row r is written to the slot that follows the cache's rows by r.
  std::vector<float> pass(const draft& d) {
    std::vector<float> logits(d.token.size() * vocab);
    slots_.resize(n_committed_ + d.token.size());
    for (std::size_t u = 0; u < d.token.size(); ++u) {
      const auto row = static_cast<std::size_t>(d.row[u]);
      slots_[n_committed_ + row] = d.token[u];
      std::vector<token_id> path;
      for (std::int32_t v = static_cast<std::int32_t>(u); v >= 0; v = d.parent[static_cast<std::size_t>(v)])
        path.insert(path.begin(), d.token[static_cast<std::size_t>(v)]);
      path.insert(path.begin(), slots_.begin(), slots_.begin() + static_cast<std::ptrdiff_t>(n_committed_));
      model(path, 1.0F, &logits[row * vocab]);
    }
    return logits;
  }

  // Keeps these slots in this order, and drops the other slots of the last pass.
  void keep(std::span<const std::int32_t> slots) {
    std::vector<token_id> kept;
    for (const std::int32_t slot : slots)
      kept.push_back(slots_[static_cast<std::size_t>(slot)]);
    slots_.resize(n_committed_);
    slots_.insert(slots_.end(), kept.begin(), kept.end());
    n_committed_ = slots_.size();
  }

  void read(std::span<const token_id> prompt) {
    slots_.assign(prompt.begin(), prompt.end());
    n_committed_ = slots_.size();
  }
  std::int32_t n_committed() const { return static_cast<std::int32_t>(n_committed_); }
  const std::vector<token_id>& cache() const { return slots_; }

 private:
  static void model(std::span<const token_id> text, float sharpness, float* logits) {
    unsigned seen = 0;
    for (const token_id t : text.last(std::min<std::size_t>(text.size(), 3)))
      seen = seen * 37 + static_cast<unsigned>(t);
    for (unsigned t = 0; t < vocab; ++t)
      logits[t] = sharpness * static_cast<float>((seen * 13 + t * t * 7 + seen % 5 * t) % 17) * 0.4F;
  }

  std::vector<token_id> slots_;
  std::size_t n_committed_ = 0;
  std::mt19937 random_{1};
};

}  // namespace

int main() {
  engine yours;
  std::vector<token_id> text{3, 1, 4, 1, 5};
  yours.read(std::span(text).first(text.size() - 1));  // the last token of a text is not in the cache yet

  // [once]
  const sampling_options sampling{.temperature = 0.8F, .top_p = 0.95F};
  const std::uint64_t seed = 7;
  tree<> t(max_nodes);
  lazy_rows<float> target(sampling);
  target.reserve(max_nodes + 1, vocab);
  specinfer verifier;
  // [once]
  int passes = 0;
  bool holds_text = true;
  for (const std::size_t before = text.size(); text.size() < before + 200; ++passes) {
    const engine::draft d = yours.propose(text);
    const std::vector<float> logits = yours.pass(d);

    // [round]
    t.reset(text.back());
    std::vector<node_id> node{root_node};  // of each drafted token: tokens that were drawn twice share one
    std::vector<std::int32_t> row_of{d.row[0]}, draft_row_of{0};
    for (std::size_t i = 1; i < d.token.size(); ++i) {
      const auto parent = static_cast<std::size_t>(d.parent[i]);
      const float q = d.probabilities[parent * vocab + static_cast<std::size_t>(d.token[i])];
      node.push_back(t.draw(node[parent], d.token[i], std::log(q)));
      if (t.size() == static_cast<std::int32_t>(row_of.size())) continue;
      row_of.push_back(d.row[i]);
      draft_row_of.push_back(static_cast<std::int32_t>(i));
    }
    const auto n_rows = static_cast<std::int32_t>(d.token.size());
    target.open({logits.data(), n_rows, vocab}, row_of, 0);
    const node_rows<float> draft{{d.probabilities.data(), n_rows, vocab}, draft_row_of.data()};
    philox_chance chance = round_chance(seed, 0, text, t);
    const verdict v = verifier.verify(t, draft, target, chance);
    // [round]

    // [path]
    std::vector<std::int32_t> slots;
    append_path(slots, t, v, row_of);  // the rows of the accepted path in the pass, the root's first
    for (std::int32_t& slot : slots)
      slot += yours.n_committed();  // and the cache slots to which the pass wrote them
    yours.keep(slots);
    append_committed(text, t, v);  // the tokens of the path, then the verifier's own
    // [path]
    holds_text = holds_text && std::ranges::equal(yours.cache(), std::span(text).first(text.size() - 1));
  }
  std::printf("%.2f tokens a pass; the cache %s the text\n", 200.0 / passes, holds_text ? "holds" : "does not hold");
  return holds_text && passes < 180 ? 0 : 1;
}
