// SPDX-License-Identifier: BSL-1.0
// The code of docs/guide.md: a backend of one's own, a policy of one's own, and a decoder made of them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/statistics.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/sampling/top_k.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;

// [backend]
// Copies: after a token it expects what followed the same few tokens earlier in the text.
struct copying_backend {
  std::size_t memory;  // tokens that must match

  std::int32_t vocab_size() const { return 128; }

  logits_view forward(token_kv& kv, forward_batch_view batch) {
    logits.assign(batch.outputs.size() * 128, 0.0F);
    std::size_t output = 0;
    for (const batch_sequence& s : batch.sequences) {
      for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
        const auto r = static_cast<std::size_t>(row);
        kv.token(s.sequence, batch.slots[r]) = batch.tokens[r];  // "keys and values" of the row
        if (output == batch.outputs.size() || batch.outputs[output] != row) continue;
        std::vector<token_id> seen;  // the whole prefix, then what the mask shows of this round
        for (std::int32_t slot = 0; slot < s.prefix; ++slot)
          seen.push_back(kv.token(s.sequence, slot));
        const std::span<const std::uint32_t> mask = batch.mask_of(s, row);
        for (std::int32_t j = 0; j < 32 * s.mask_words; ++j) {
          if (mask[static_cast<std::size_t>(j / 32)] >> (j % 32) & 1U)
            seen.push_back(kv.token(s.sequence, s.prefix + j));
        }
        score(seen, &logits[output++ * 128]);
      }
    }
    return {logits.data(), static_cast<std::int32_t>(batch.outputs.size()), 128};
  }

  void score(std::span<const token_id> seen, float* row) const;
  std::vector<float> logits;
};
// [backend]

void copying_backend::score(std::span<const token_id> seen, float* row) const {
  for (std::size_t end = 1; end < seen.size(); ++end) {
    std::size_t match = 0;
    while (match < memory && match < end && seen[end - 1 - match] == seen[seen.size() - 1 - match])
      ++match;
    row[seen[end]] = std::max(row[seen[end]], static_cast<float>(match));
  }
}

// [policy]
// A chain of the most probable tokens; each of its nodes has one alternative, which stays a leaf.
class caterpillar {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit caterpillar(std::int32_t length) : length_(length) { require_option("length", length, 1, 64); }

  std::int32_t max_nodes() const { return 2 * length_; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) const {
    node_id u = root_node;
    for (std::int32_t i = 0; i < length_ && !tree.full(); ++i) {
      const auto row = drafter.propose(tree, std::span(&u, 1)).row(0);
      candidate<float> best[2];
      const std::int32_t found = top_k(row, std::span(best));
      node_id next = no_node;
      for (std::int32_t c = 0; c < found; ++c) {
        const node_id child = tree.append(u, best[c].token, std::log(best[c].probability));
        if (c == 0) next = child;
      }
      if (next == no_node) return;
      u = next;
    }
  }

  void observe(tree_view, verdict) const {}

 private:
  std::int32_t length_;
};
// [policy]

template <class DrafterT, class PolicyT>
std::string write(DrafterT& drafter, const PolicyT& policy, statistics& stats) {
  const std::string_view text =
      "row, row, row your boat, gently down the stream. merrily, merrily, merrily, merrily, life is but a dream. row, ";
  const std::vector<token_id> prompt(text.begin(), text.end());
  // [compose]
  token_kv cache(1024, commit_mode::compact);
  auto decode = make_decoder(drafter, policy, greedy(), cache, copying_backend{8, {}});
  std::string written;
  for (const token_id t : decode.generate(prompt, {.max_tokens = 100}, stats))
    written += static_cast<char>(t);
  // [compose]
  return written;
}

int main() {
  no_drafter none;
  autoregressive drafter(copying_backend{3, {}}, token_kv(1024));
  statistics plainly;
  statistics speculating;
  const std::string expected = write(none, plain(), plainly);
  const std::string written = write(drafter, caterpillar(6), speculating);
  std::printf("%s\n%.2f tokens a target pass, plain decoding %.2f\n", written.c_str(), speculating.tokens_per_round(),
              plainly.tokens_per_round());
  return written == expected ? 0 : 1;
}
