// expect in 3 of 40 lines: needs static constexpr regime sampling
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

struct own_policy {
#ifdef ESPALIER_VALID
  static constexpr regime sampling = regime::deterministic;
#endif
  std::int32_t max_nodes() const {
    return 2;
  }
  template <class TreeT>
  std::span<const node_id> begin(TreeT&) {
    return {};
  }
  template <class TreeT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, node_rows<float> rows, ChanceT&) {
    tree.append(root_node, 1, rows.row(root_node)[1]);
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
