// SPDX-License-Identifier: BSL-1.0
// The bundled block draft: its numbers are those of the model that was trained, and what is written with it is what the
// target alone writes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/block_draft_model.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"

using namespace espalier;

namespace {

#if defined(NDEBUG)
constexpr std::int32_t max_tokens = 40;
#else
constexpr std::int32_t max_tokens = 8;  // a build with sanitizers looks for other faults
#endif

using text_type = std::vector<token_id>;

// The bundled target, which may fail once.
struct faulty_target {
  llama_backend& model;
  int fail_at = -1;
  int calls = 0;

  std::int32_t vocab_size() const { return model.vocab_size(); }
  std::int32_t max_rows() const { return model.max_rows(); }
  std::int32_t max_positions() const { return model.max_positions(); }
  std::span<const float> hidden(int layer, int row) const { return model.hidden(layer, row); }
  logits_view forward(contiguous_kv& kv, const forward_batch_view& batch) {
    const logits_view logits = model.forward(kv, batch);
    if (calls++ == fail_at) throw std::runtime_error("the target failed");
    return logits;
  }
};

struct bundled {
  llama_backend target =
      llama_backend::load(MODELS_FOLDER "/target", {.threads = 1, .max_rows = 80, .weights = weight_storage::f32});
  block_draft_model block = block_draft_model::load(MODELS_FOLDER "/block", target);

  contiguous_kv make_cache(commit_mode mode = commit_mode::compact) const {
    return {target.config().n_layers, target.config().kv_size(), 1, 160, mode};
  }
};

bundled& models() {
  static bundled both;
  return both;
}

const nlohmann::json& references() {
  static const nlohmann::json cases = [] {
    std::ifstream file(ESPALIER_TEST_DATA "/golden/block_bundled.json");
    REQUIRE(file.good());
    return nlohmann::json::parse(file);
  }();
  return cases;
}

// Two turns; a failure of the target is stepped over. Returns the text and how many drafted tokens were accepted.
template <class DrafterT, class PolicyT>
std::pair<text_type, int> write(DrafterT&& drafter, PolicyT policy, const text_type& prompt, commit_mode mode,
                                int fail_at) {
  faulty_target target{models().target, fail_at};
  auto decode =
      make_decoder(std::forward<DrafterT>(drafter), std::move(policy), greedy(), models().make_cache(mode), target);
  decode.begin(prompt, {.max_tokens = max_tokens});
  int accepted = 0, failures = 0;
  for (int turn = 0; turn < 2; ++turn) {
    for (bool more = true; more;) {
      try {
        more = decode.step();
        if (more) accepted += decode.last_round().accepted();
      } catch (const std::runtime_error&) {
        ++failures;
      }
    }
    if (turn == 0) decode.resume(text_type{3, 3}, {.max_tokens = max_tokens / 2});
  }
  REQUIRE(failures == (fail_at < 0 ? 0 : 1));
  const auto text = decode.current().tokens();
  return {{text.begin(), text.end()}, accepted};
}

}  // namespace

TEST_CASE("the logits of the bundled block draft are those of its reference", "[models][block_draft]") {
  REQUIRE(references().size() == 4);
  for (const nlohmann::json& reference : references()) {
    const auto tokens = reference["tokens"].get<text_type>();
    const auto argmax = reference["argmax"].get<text_type>();
    const auto largest = reference["largest"].get<std::vector<double>>();
    const auto logsumexp = reference["logsumexp"].get<std::vector<double>>();
    block_diffusion drafter(models().block, {.length = static_cast<std::int32_t>(argmax.size())});
    drafter.reserve(20);
    drafter.begin(tokens);
    contiguous_kv kv = models().make_cache();
    prefill fill;
    fill.run(models().target, kv, 0, tokens, 1,
             [&](std::int32_t, std::int32_t n) { drafter.read(models().target, fill.first_rows(n)); });
    const auto block = drafter.propose_block();
    REQUIRE(block.n_rows == static_cast<std::int32_t>(argmax.size()));
    for (std::int32_t i = 0; i < block.n_rows; ++i) {
      const auto row = block.row(i);
      const auto at = static_cast<std::size_t>(i);
      const auto top = static_cast<double>(*std::max_element(row.begin(), row.end()));
      CHECK(static_cast<double>(row[static_cast<std::size_t>(argmax[at])]) > top - 1e-4);
      CHECK(std::abs(top - largest[at]) < 1e-3);
      const double sum = std::accumulate(row.begin(), row.end(), 0.0,
                                         [&](double s, float x) { return s + std::exp(static_cast<double>(x) - top); });
      CHECK(std::abs(top + std::log(sum) - logsumexp[at]) < 1e-3);
    }
  }
}

TEST_CASE("with the bundled block draft the text is that of plain decoding, whatever fails on the way",
          "[models][block_draft]") {
  int accepted = 0, rounds = 0;
  for (const nlohmann::json& reference : references()) {
    const auto prompt = reference["tokens"].get<text_type>();
    const text_type plainly = write(no_drafter(), plain(), prompt, commit_mode::compact, -1).first;
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      const std::vector<int> failures = rounds == 0 ? std::vector{-1, 0, 3, 6} : std::vector{-1};
      for (const int fail_at : failures) {
        const auto check = [&](auto&& drafter, auto policy) {
          const auto [text, n] = write(drafter, policy, prompt, mode, fail_at);
          CHECK(text == plainly);
          accepted += n;
          rounds += static_cast<int>(text.size() - prompt.size()) - 2 - n;
        };
        check(factorised(block_diffusion(models().block)), chain({.length = 15}));
        check(factorised(block_diffusion(models().block, {.length = 7})), chain({.length = 7}));
        check(factorised(block_diffusion(models().block)), dynatree({.budget = 48}));
        check(block_diffusion(models().block), best_first({.budget = 48}));
      }
    }
  }
  // It reads the right states: a round accepts more than one token.
  CHECK(accepted > rounds);
}
