// expect in 3 of 40 lines: verify\(\) must return a verdict
// SPDX-License-Identifier: BSL-1.0
#include "mistake.hpp"

struct own_verifier {
  static constexpr regime lossless = regime::any;
#ifdef ESPALIER_VALID
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view, const DraftRowsT&, TargetRowsT&, ChanceT&) {
    return {};
  }
#else
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  token_id verify(tree_view, const DraftRowsT&, TargetRowsT&, ChanceT&) {
    return 0;
  }
#endif
};

int main() {
  auto decode = make_decoder(drafter, chain(), own_verifier(), kv, target);
  decode.begin(prompt, {.max_tokens = 8});
  while (decode.step()) {
  }
}
