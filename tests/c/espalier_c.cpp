// SPDX-License-Identifier: BSL-1.0
// What the functions of C do with arguments that do not fit, and with parts of the caller's.
#include "espalier/c/espalier.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"

namespace {

// Counts how often a policy of this file was made and destroyed.
struct count {
  int alive = 0;
  int* total = nullptr;
};

// A policy that draws one token below the root.
espalier_own_policy one_draw(count& of) {
  espalier_own_policy own{};
  own.size = sizeof own;
  own.regimes = ESPALIER_IID;
  own.max_nodes = 1;
  own.begin = [](void* user, espalier_tree*, const int32_t** wanted, int32_t* n) {
    static const int32_t root = 0;
    if (static_cast<count*>(user)->alive != 1) return 1;
    *wanted = &root, *n = 1;
    return 0;
  };
  own.take = [](void* user, espalier_tree* tree, const espalier_rows* rows, espalier_chance* chance,
                const int32_t** wanted, int32_t* n) {
    if (static_cast<count*>(user)->alive != 1) return 1;
    std::vector<double> weights(rows->data, rows->data + rows->vocab);
    const int32_t token = espalier_chance_pick(chance, weights.data(), rows->vocab, 0, 0, ESPALIER_OF_DRAFT);
    *wanted = nullptr, *n = 0;
    int32_t node = -1;
    return espalier_tree_draw(tree, 0, token, 0, &node) == ESPALIER_OK ? 0 : 1;
  };
  own.destroy = [](void* user) { --static_cast<count*>(user)->alive; };
  own.user = &of;
  ++of.alive;
  return own;
}

// Writes three tokens with a decoder whose drafts and targets are uniform, and counts the drafted ones.
int32_t write_with(espalier_decoder* decoder) {
  const int32_t prompt[] = {1, 2};
  espalier_text_options text{};
  text.size = sizeof text;
  text.max_tokens = 3;
  text.sampling.temperature = 1;
  REQUIRE(espalier_decoder_add(decoder, prompt, 2, &text, nullptr) == ESPALIER_OK);
  int32_t drafted = 0;
  while (espalier_decoder_is_idle(decoder) == 0) {
    espalier_pass pass{};
    pass.size = sizeof pass;
    REQUIRE(espalier_decoder_begin_step(decoder, &pass) == ESPALIER_OK);
    while (pass.n_rows > 0) {
      const std::vector<float> logits(static_cast<std::size_t>(pass.n_outputs) * 5, 0.0F);
      REQUIRE(espalier_decoder_end_step(decoder, logits.data(), pass.n_outputs, 5, &pass) == ESPALIER_OK);
    }
    const espalier_event* events = nullptr;
    int32_t n = 0;
    REQUIRE(espalier_decoder_events(decoder, &events, &n) == ESPALIER_OK);
    for (int32_t i = 0; i < n; ++i) {
      INFO(events[i].error);
      REQUIRE(events[i].state != ESPALIER_FAILED);
      drafted += events[i].n_drafted;
    }
  }
  return drafted;
}

espalier_decoder* decoder_of(const espalier_policy* policy, espalier_status expected = ESPALIER_OK) {
  espalier_verifier* verifier = nullptr;
  REQUIRE(espalier_verifier_create("specinfer", "", &verifier) == ESPALIER_OK);
  espalier_decoder_options options{};
  options.size = sizeof options;
  options.vocab_size = 5;
  options.context = 20;
  options.draft = ESPALIER_DRAFT_MODEL;
  espalier_decoder* decoder = nullptr;
  const espalier_status made = espalier_decoder_create(&options, policy, verifier, &decoder);
  INFO(espalier_error());
  REQUIRE(made == expected);
  espalier_verifier_destroy(verifier);
  return decoder;
}

bool says(const char* part) {
  return std::string(espalier_error()).find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a policy of the caller's lives as long as a decoder has it, also without a function that copies") {
  count one;
  const espalier_own_policy own = one_draw(one);
  espalier_policy* policy = nullptr;
  REQUIRE(espalier_policy_create_own(&own, &policy) == ESPALIER_OK);
  espalier_decoder* decoder = decoder_of(policy);
  espalier_policy_destroy(policy);
  CHECK(one.alive == 1);
  CHECK(write_with(decoder) > 0);
  espalier_decoder_destroy(decoder);
  CHECK(one.alive == 0);
}

TEST_CASE("each copy of a policy of the caller's is destroyed once, and none may be a null pointer") {
  static std::vector<count*> copies;
  count first;
  espalier_own_policy own = one_draw(first);
  own.copy = [](void*) -> void* {
    copies.push_back(new count{1});
    return copies.back();
  };
  espalier_policy* policy = nullptr;
  REQUIRE(espalier_policy_create_own(&own, &policy) == ESPALIER_OK);
  espalier_decoder* decoder = decoder_of(policy);
  CHECK(write_with(decoder) > 0);
  espalier_decoder_destroy(decoder);
  CHECK_FALSE(copies.empty());
  for (count* c : copies) {
    CHECK(c->alive == 0);
    delete c;
  }
  CHECK(first.alive == 1);
  espalier_policy_destroy(policy);
  CHECK(first.alive == 0);

  own = one_draw(first);
  own.copy = [](void*) -> void* { return nullptr; };
  REQUIRE(espalier_policy_create_own(&own, &policy) == ESPALIER_OK);
  CHECK(decoder_of(policy, ESPALIER_INPUT_ERROR) == nullptr);
  CHECK(says("copy of a policy has returned a null pointer"));
  espalier_policy_destroy(policy);
  CHECK(first.alive == 0);
}

TEST_CASE("rows that are given for no node are not those of all nodes") {
  espalier_tree* tree = nullptr;
  REQUIRE(espalier_tree_create(4, &tree) == ESPALIER_OK);
  REQUIRE(espalier_tree_reset(tree, 1, -1) == ESPALIER_OK);
  espalier_verifier* verifier = nullptr;
  REQUIRE(espalier_verifier_create("target-only", "", &verifier) == ESPALIER_OK);
  const std::vector<float> logits(5, 0.0F);
  const int32_t row_of[] = {0};
  const espalier_seed seed{1, 0, 1};
  const espalier_sampling sampling{1, 0, 0, 0};
  espalier_verdict verdict{};
  const auto verify = [&](const int32_t* rows, int32_t n) {
    const espalier_rows target{logits.data(), 1, 5, rows, n};
    return espalier_verify(verifier, tree, nullptr, &target, &sampling, &seed, &verdict);
  };
  CHECK(verify(row_of, 1) == ESPALIER_OK);
  CHECK(verify(nullptr, 0) == ESPALIER_OK);
  CHECK(verify(row_of, 0) == ESPALIER_INPUT_ERROR);
  CHECK(says("target names the rows of 0 nodes, but the tree has 1 nodes"));
  CHECK(verify(nullptr, 1) == ESPALIER_INPUT_ERROR);

  // The length of the path alone.
  int32_t length = 0, token = -1;
  CHECK(espalier_accepted_path(tree, &verdict, nullptr, nullptr, 0, &length) == ESPALIER_OK);
  CHECK(length == 1);
  length = 0;
  CHECK(espalier_accepted_path(tree, &verdict, nullptr, &token, 0, &length) == ESPALIER_INPUT_ERROR);
  CHECK(length == 1);
  espalier_verifier_destroy(verifier);
  espalier_tree_destroy(tree);
}

TEST_CASE("a key that is none decides nothing") {
  static int32_t found[6];
  count one;
  espalier_own_policy own = one_draw(one);
  own.take = [](void*, espalier_tree*, const espalier_rows*, espalier_chance* chance, const int32_t**, int32_t* n) {
    const double weight = 1;
    int32_t* to = found;
    for (const int32_t purpose : {-1, 5})
      *to++ = espalier_chance_accept(chance, 1, 1, 0, 0, purpose);
    for (const int32_t slot : {-1, 1 << 29})
      *to++ = espalier_chance_pick(chance, &weight, 1, 0, slot, ESPALIER_OF_TOKEN);
    *to++ = espalier_chance_index(chance, 1, 0, 0, 8);
    *to = espalier_chance_index(chance, 1, 0, (1 << 29) - 1, ESPALIER_OF_TOKEN);
    *n = 0;
    return 0;
  };
  espalier_policy* policy = nullptr;
  REQUIRE(espalier_policy_create_own(&own, &policy) == ESPALIER_OK);
  espalier_decoder* decoder = decoder_of(policy);
  (void)write_with(decoder);
  const int32_t expected[] = {0, 0, -1, -1, -1, 0};
  for (int i = 0; i < 6; ++i)
    CHECK(found[i] == expected[i]);
  espalier_decoder_destroy(decoder);
  espalier_policy_destroy(policy);
}

TEST_CASE("rows of a sequence that are far beyond a pass are refused") {
  const int32_t tokens[] = {1};
  const int32_t outputs[] = {0};
  espalier_sequence sequence{};
  espalier_pass pass{};
  pass.size = sizeof pass;
  pass.n_rows = pass.n_outputs = pass.n_sequences = 1;
  pass.tokens = pass.positions = pass.slots = tokens;
  pass.outputs = outputs;
  pass.sequences = &sequence;
  const auto refused = [&](int32_t begin, int32_t end) {
    sequence.row_begin = begin, sequence.row_end = end, sequence.mask_words = 1;
    std::size_t needed = 0;
    uint8_t out = 0;
    return espalier_sglang_mask(&pass, 0, 1, &out, 1, &needed) == ESPALIER_INPUT_ERROR &&
           says("are not those of a pass");
  };
  constexpr int32_t most = std::numeric_limits<int32_t>::max(), least = std::numeric_limits<int32_t>::min();
  CHECK(refused(-5, most));
  CHECK(refused(most, least));
  CHECK(refused(0, 2));
}
