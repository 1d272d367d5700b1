// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/joint.hpp"

#include <cstdint>
#include <span>
#include <vector>

#include "archetypes/drafter.hpp"
#include "catch.hpp"
#include "drafter/fixed_drafters.hpp"
#include "drafter/lookup_decoder.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/ngram.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;
using text_type = std::vector<token_id>;

static_assert(Drafter<joint<archetypes::drafter>>);
static_assert(!StepDrafter<joint<archetypes::step_drafter>>);
static_assert(detail::HasVocabulary<joint<fixed_run&, archetypes::step_drafter>>);
static_assert(!detail::HasVocabulary<joint<prompt_lookup, ngram>>);
static_assert(FeatureDrafter<joint<fixed_run, fixed_reader>, text_backend<circling_model>>);
static_assert(!FeatureDrafter<joint<prompt_lookup, ngram>, text_backend<circling_model>>);

TEST_CASE("a joint gives each drafter the text, and room within its own capacity") {
  fixed_run small{.longest = 5}, large{.longest = 9};
  joint drafters(small, large);
  CHECK(drafters.capacity() == 9);
  drafters.begin(text_type{1, 2, 3});
  CHECK(drafters.room(0) == 2);
  CHECK(drafters.room(1) == 6);
  tree<> t(2);
  t.reset(3);
  t.append(t.append(root_node, 4, 0), 5, 0);
  drafters.commit(t, {2, 6});
  CHECK(small.text == text_type{1, 2, 3, 4, 5, 6});
  CHECK(large.text == small.text);
  CHECK(drafters.room(0) == 0);
  CHECK(drafters.room(1) == 3);
  // One without room is not asked.
  small.run = large.run = {7, 7, 7, 7};
  cascade policy(chain({.length = 4}), chain({.length = 4}));
  CHECK(text_of(grown(policy, drafters)) == "0>7 1>7 2>7");
  CHECK(small.asked == 0);
  CHECK(large.asked == 1);
}

TEST_CASE("a joint shows hidden states to those that read them, as far as each has not seen them") {
  const text_type prompt{3, 1, 4, 1, 5};
  fixed_reader first, second;
  second.longest = 20;  // it drops out midway
  token_kv kv(60);
  text_backend backend(circling_vocab, circling_model{71, 1});
  auto decode =
      make_decoder(joint(first, prompt_lookup(), second), cascade(chain(), chain(), chain()), greedy(), kv, backend);
  decode.begin(prompt);
  while (decode.step()) {
  }
  CHECK(first.right);
  CHECK(second.right);
  CHECK(first.asked > second.asked);
  CHECK(second.asked > 0);
  CHECK(second.read_rows <= 20);

  // Two that have read unlike parts of the text.
  joint readers(first, second);
  first.longest = second.longest = 100;
  readers.begin(text_type(9, 1));
  first.read_rows = 5, second.read_rows = 2;
  CHECK(readers.n_read() == 2);
  const std::int32_t rows[] = {4, 5, 6, 7, 8, 9};
  readers.read(backend, rows);
  CHECK(first.read_rows == 8);
  CHECK(second.read_rows == 8);
  first.read_rows = 8, second.read_rows = 2;
  readers.read(backend, std::span<const std::int32_t>(rows).first(3));
  CHECK(first.read_rows == 8);
  CHECK(second.read_rows == 5);
}

TEST_CASE("one drafter is a joint of one part: trees and texts are the same") {
  const std::vector<text_type> prompts{{3, 1, 4, 1, 5}, {2, 7}};
  // The texts, and how many tokens each round accepted.
  const auto write = [&](auto as_drafter, auto policy, auto verifier, float temperature, bool batched) {
    token_kv kv(96, commit_mode::compact, 2), draft_kv(96, commit_mode::compact, 2);
    text_backend target(circling_vocab, circling_model{71, 1}), draft(circling_vocab, circling_model{72, 1});
    autoregressive model(draft, draft_kv, {.temperature = 0.8F});
    const text_options options{.sampling = {.temperature = temperature}, .seed = 9};
    const stop_conditions stop{.max_tokens = 40};
    text_type written;
    const auto keep = [&](const round_record& r) {
      written.push_back(-1 - r.accepted());
      written.insert(written.end(), r.committed.begin(), r.committed.end());
    };
    if (batched) {
      auto decode =
          make_batch_decoder(as_drafter(model), policy, verifier, kv, target, {.text = options, .max_texts = 2});
      for (const text_type& prompt : prompts)
        decode.add(prompt, stop);
      while (!decode.idle()) {
        for (const text_event& event : decode.step())
          keep(event.round);
      }
    } else {
      auto decode = make_decoder(as_drafter(model), policy, verifier, kv, target, {.text = options});
      decode.begin(prompts[0], stop);
      while (decode.step())
        keep(decode.last_round());
    }
    return written;
  };
  const auto alone = [](auto& model) -> auto& {
    return model;
  };
  const auto one = [](auto& model) { return joint(model); };
  for (const bool batched : {false, true}) {
    // Drawn trees, whose verifier reads the draft's rows.
    const iid_paths paths({.paths = 3, .length = 3});
    CHECK(write(one, paths, traversal(), 0.9F, batched) == write(alone, paths, traversal(), 0.9F, batched));
    const auto expected = write(alone, dynatree({.budget = 12}), greedy(), 0, batched);
    CHECK(write(one, dynatree({.budget = 12}), greedy(), 0, batched) == expected);
    CHECK(write(alone, cascade(dynatree({.budget = 12})), greedy(), 0, batched) == expected);
    CHECK(write(one, cascade(dynatree({.budget = 12})), greedy(), 0, batched) == expected);
  }
}
