// SPDX-License-Identifier: BSL-1.0
// The code of docs/embedded.md: rounds without a decoder, in memory that is there from the start. Whatever asks the
// heap for memory ends the program.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <span>

#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/verifier/greedy.hpp"

void* operator new(std::size_t) {
  std::abort();
}
void operator delete(void*) noexcept {}
void operator delete(void*, std::size_t) noexcept {}

using namespace espalier;

constexpr std::int32_t vocab = 16;
constexpr std::int32_t most_drafted = 4;
constexpr std::int32_t context = 64;

// The models: what follows two tokens. The draft is wrong after one token in four.
token_id target_next(token_id before, token_id last) {
  return (5 * before + 3 * last + 1) % vocab;
}
token_id draft_next(token_id before, token_id last) {
  return last % 4 == 0 ? (last + 1) % vocab : target_next(before, last);
}

// [rounds]
// What a round needs, all of it in the object.
struct round_memory {
  tree<most_drafted> drafted;
  std::array<float, (most_drafted + 1) * vocab> draft_rows;
  std::array<std::int32_t, most_drafted + 1> row_of;
  std::array<token_id, most_drafted + 1> target_choice;

  // What greedy asks for: the target's most probable token after a node.
  token_id argmax(node_id u) const { return target_choice[static_cast<std::size_t>(u)]; }
};

// One round: drafts, asks the target about every node, and writes what is committed behind the text.
// Returns how many tokens.
std::size_t write_round(round_memory& memory, chain& policy, std::span<token_id> text, std::size_t n) {
  auto& tree = memory.drafted;
  philox_chance chance(0, 0, 0);  // greedy draws nothing
  tree.reset(text[n - 1], static_cast<int>(text.size() - n) - 1);
  const auto before = [&](node_id u) {
    return u == root_node ? text[n - 2] : tree.view().token[tree.view().parent[u]];
  };
  memory.row_of.fill(-1);
  for (std::span<const node_id> wanted = policy.begin(tree); !wanted.empty();) {
    for (const node_id u : wanted) {
      const std::span row = std::span(memory.draft_rows).subspan(static_cast<std::size_t>(u * vocab), vocab);
      std::fill(row.begin(), row.end(), 0.0F);
      row[static_cast<std::size_t>(draft_next(before(u), tree.view().token[u]))] = 1.0F;
      memory.row_of[static_cast<std::size_t>(u)] = u;
    }
    const node_rows<float> rows{{memory.draft_rows.data(), most_drafted + 1, vocab}, memory.row_of.data()};
    wanted = policy.take(tree, rows, chance);
  }
  for (node_id u = 0; u < tree.size(); ++u)  // a model would do all of them in one pass
    memory.target_choice[static_cast<std::size_t>(u)] = target_next(before(u), tree.view().token[u]);
  const verdict v = greedy().verify(tree, node_rows<float>{}, memory, chance);
  const std::int32_t depth = tree.view().depth[v.accepted];
  for (std::int32_t d = 1; d <= depth; ++d)
    text[n++] = tree.view().token[tree.view().ancestor_at(v.accepted, d)];
  text[n] = v.token;
  policy.observe(tree, v);
  return static_cast<std::size_t>(depth) + 1;
}
// [rounds]

int main() {
  static round_memory memory;
  static std::array<token_id, context> text{1, 2};
  chain policy({.length = most_drafted});
  std::size_t n = 2;
  int rounds = 0;
  for (; n < context; ++rounds)
    n += write_round(memory, policy, text, n);
  bool right = true;
  for (std::size_t i = 2; i < context; ++i)
    right = right && text[i] == target_next(text[i - 2], text[i - 1]);
  std::printf("%zu tokens in %d rounds, %zu bytes\n", n - 2, rounds, sizeof memory + sizeof text + sizeof policy);
  return right && rounds < 40 ? 0 : 1;
}
