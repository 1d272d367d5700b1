// expect in 40 of 40 lines, of clang in 1 of 80: has no member named .apend.|no member named .apend.
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

struct own_policy {
  static constexpr regime sampling = regime::deterministic;
  std::int32_t max_nodes() const { return 2; }
  template <class TreeT>
  std::span<const node_id> begin(TreeT&) {
    return {};
  }
  template <class TreeT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, node_rows<float> rows, ChanceT&) {
#ifdef ESPALIER_VALID
    tree.append(root_node, 1, rows.row(root_node)[1]);
#else
    tree.apend(root_node, 1, rows.row(root_node)[1]);
#endif
    return {};
  }
  void observe(tree_view, verdict) {}
};

int main() {
  auto decode = make_decoder(drafter, own_policy(), greedy(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
