// SPDX-License-Identifier: BSL-1.0
// What is thrown in a pass stops the texts of that pass, at their last committed token; they go on, and the others
// never notice.
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "catch.hpp"
#include "decoder/many_texts.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "raises.hpp"

using namespace espalier;
using many::request;

namespace {

constexpr sampling_options sampled{.temperature = 1.1F, .top_k = 9};

// A verifier that fails on its n-th call.
struct failing_verifier : traversal {
  int* calls = nullptr;
  int fails_at = -1;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) {
    if ((*calls)++ == fails_at) throw std::runtime_error("the verifier failed");
    return traversal::verify(tree, draft, target, chance);
  }
};

template <class PolicyT, class VerifierT>
void fail_everywhere(PolicyT policy, VerifierT verifier, bool target_fails) {
  const auto requests = many::requests(5, sampled);
  const auto expected = many::alone(requests, policy, verifier);
  int n_passes = 0;
  for (int n = -1; n < n_passes; ++n) {
    two_models<> m({.seed = 5}, commit_mode::compact, commit_mode::compact, 3);
    (target_fails ? m.target : m.draft).fails_at = n;
    auto decode = make_batch_decoder(m.drafter(), policy, verifier, m.kv, m.target, {.max_texts = 3});
    for (const request& r : requests)
      many::add(decode, r);
    std::map<text_id, std::vector<token_id>> texts;
    int failed = 0;
    while (!decode.idle()) {
      std::vector<text_id> held;
      for (const text_event& e : decode.step()) {
        REQUIRE(e.failed() == (e.error != nullptr));
        if (e.failed()) {
          held.push_back(e.id);
          REQUIRE(e.message == "the backend failed");
          REQUIRE(message_of<std::runtime_error>([&] { std::rethrow_exception(e.error); }) == "the backend failed");
          REQUIRE(e.round.committed.empty());
        }
        if (e.round.state != status::running) texts[e.id] = copy(decode.current(e.id).tokens());
      }
      failed += static_cast<int>(held.size());
      for (const text_id id : held)
        decode.resume(id);
    }
    if (n < 0) n_passes = (target_fails ? m.target : m.draft).passes;
    INFO("pass " << n);
    REQUIRE(failed >= (n < 0 ? 0 : 1));
    REQUIRE(failed <= 3);
    REQUIRE(texts.size() == requests.size());
    for (const auto& [id, tokens] : texts)
      REQUIRE(tokens == expected.texts[static_cast<std::size_t>(id)]);
  }
  CHECK(n_passes > 10);
}

}  // namespace

TEST_CASE("a backend that throws on its n-th call stops the texts of that pass alone, for every n") {
  for (const bool target_fails : {true, false}) {
    fail_everywhere(delayed(), traversal(), target_fails);
    fail_everywhere(dynatree(), target_only(), target_fails);
  }
}

TEST_CASE("what fails for one text holds that text alone") {
  const auto requests = many::requests(3, sampled);
  const auto expected = many::alone(requests, delayed(), traversal());
  for (int n = 0; n < 20; ++n) {
    two_models<> m;
    int calls = 0;
    failing_verifier verifier;
    verifier.calls = &calls;
    verifier.fails_at = n;
    auto decode = make_batch_decoder(m.drafter(), delayed(), verifier, m.kv, m.target, {.max_texts = 3});
    for (const request& r : requests)
      many::add(decode, r);
    std::map<text_id, std::vector<token_id>> texts;
    text_id held = -1;
    while (!decode.idle() || held >= 0) {
      for (const text_event& e : decode.step()) {
        if (e.error) {
          REQUIRE(held < 0);
          held = e.id;
        }
        if (e.round.state != status::running) texts[e.id] = copy(decode.current(e.id).tokens());
      }
      // Held until the others are done.
      if (!decode.idle() || held < 0) continue;
      CHECK(texts.size() == 2);
      decode.resume(held);
      held = -1;
    }
    for (const auto& [id, tokens] : texts)
      CHECK(tokens == expected.texts[static_cast<std::size_t>(id)]);
    CHECK(texts.size() == 3);
  }
}
