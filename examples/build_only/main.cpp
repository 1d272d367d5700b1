// SPDX-License-Identifier: BSL-1.0
// Trees alone: an engine has the rows of a draft, and gets a tree with its order, positions and masks, in the layouts of
// other engines. Prints the rows of the tree, and whether each layout, read again, is this tree.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "espalier/interop.hpp"
#include "espalier/tree_policy.hpp"

using namespace espalier;

namespace {

constexpr std::int32_t vocab = 16;

// Stands for a draft of yours: for each node that it is asked about it makes a row of probabilities.
class draft {
 public:
  void propose(tree_view t, std::span<const node_id> nodes) {
    if (t.n_nodes == 1) data_.clear(), row_of_.clear();
    row_of_.resize(static_cast<std::size_t>(t.n_nodes), -1);
    for (const node_id u : nodes) {
      row_of_[static_cast<std::size_t>(u)] = n_rows();
      float row[vocab], total = 0;
      for (std::int32_t i = 0; i < vocab; ++i) {
        const auto rank = static_cast<float>(1 + (t.token[u] * 7 + i * i * 5 + t.depth[u]) % 13);
        row[i] = 1 / (rank * rank);
        total += row[i];
      }
      for (const float x : row)
        data_.push_back(x / total);
    }
  }
  node_rows<float> rows() const { return {{data_.data(), n_rows(), vocab}, row_of_.data()}; }

 private:
  std::int32_t n_rows() const { return static_cast<std::int32_t>(data_.size()) / vocab; }

  std::vector<float> data_;
  std::vector<std::int32_t> row_of_;
};

bool is(const char* name, std::span<const node_id> parents, std::span<const node_id> expected) {
  const bool equal = std::ranges::equal(parents, expected);
  std::printf("%-24s %s\n", name, equal ? "this tree" : "ANOTHER TREE");
  return equal;
}

}  // namespace

int main() {
  const std::vector<token_id> text{3, 1, 4, 1, 5, 9, 2, 6};
  draft yours;

  // [tree]
  auto policy = eagle2({.budget = 15});
  tree<> t(most_asked(policy));  // some policies ask about nodes that they do not keep
  t.reset(text.back());
  philox_chance chance = round_chance(7, 0, text, t);
  for (std::span<const node_id> wanted = policy.begin(t); !wanted.empty();) {
    yours.propose(t, wanted);
    wanted = policy.take(t, yours.rows(), chance);
  }
  // [tree]

  // [batch]
  round_rows rows(t.size(), t.size());
  forward_batch batch;
  const auto prefix = static_cast<std::int32_t>(text.size()) - 1;  // all but the root is in the cache
  rows.add_to(batch, t, node_order::breadth_first, std::span(text).last(1), 0, prefix);
  const forward_batch_view view = batch.view();  // tokens, positions, cache slots and the mask
  // [batch]

  // [layouts]
  const std::int32_t n = view.n_rows();
  const auto size = static_cast<std::size_t>(n);
  std::vector<std::int64_t> positions(size), index(size), next_token(size), next_sibling(size);
  interop::write_sglang_tree<std::int64_t>(view, n, {positions, index, next_token, next_sibling});
  const interop::sglang_mask_layout layout{interop::sglang_mask_mode::full, n};
  std::vector<std::uint8_t> sglang_mask(static_cast<std::size_t>(layout.bytes(prefix)));
  interop::write_sglang_mask(view, layout, sglang_mask);

  std::vector<std::uint8_t> flashinfer_mask(static_cast<std::size_t>(interop::flashinfer_mask_bytes(n, prefix)));
  std::vector<std::int32_t> mask_indptr(2);
  interop::write_flashinfer_mask(view, flashinfer_mask, mask_indptr);

  const interop::tensorrt_tree_shape shape{.max_tokens = n, .max_path = n};
  std::vector<std::int32_t> paths(static_cast<std::size_t>(shape.n_paths()));
  std::vector<std::int32_t> packed_mask(static_cast<std::size_t>(shape.n_words())), offsets(size);
  interop::write_tensorrt_tree(view, shape, {paths, packed_mask, offsets});
  // [layouts]

  std::vector<node_id> expected(size, no_node), parents(size);
  for (node_id u = 1; u < t.size(); ++u) {
    const auto at = [&](node_id v) {
      return static_cast<std::size_t>(rows.logits_rows()[static_cast<std::size_t>(v)]);
    };
    expected[at(u)] = static_cast<node_id>(at(t.view().parent[u]));
  }
  for (std::size_t r = 0; r < size; ++r) {
    std::printf("row %2zu: token %2d at position %2d, slot %2d, next token %2d, next sibling %2d\n", r, view.tokens[r],
                static_cast<int>(positions[r]), view.slots[r], static_cast<int>(next_token[r]),
                static_cast<int>(next_sibling[r]));
  }
  bool all = t.size() > 10;
  interop::read_sglang_tree<std::int64_t>(next_token, next_sibling, parents);
  all = is("SGLang's tree", parents, expected) && all;
  interop::read_sglang_mask(sglang_mask, layout, prefix, parents);
  all = is("SGLang's mask", parents, expected) && all;
  interop::read_flashinfer_mask(flashinfer_mask, n, prefix, parents);
  all = is("FlashInfer's mask", parents, expected) && all;
  interop::read_tensorrt_mask(packed_mask, n, shape.max_tokens, parents);
  all = is("TensorRT-LLM's mask", parents, expected) && all;

  // [kept]
  const verdict v{.accepted = t.size() - 1, .token = 0};  // whatever verified the tree
  for (const std::int32_t k : rows.kept(t, v.accepted))
    std::printf("row %d is kept, in slot %d\n", rows.first_row() + k, prefix + k);
  policy.observe(t, v);  // a policy may learn from it
  // [kept]
  return all ? 0 : 1;
}
