/* SPDX-License-Identifier: BSL-1.0 */
/* The library from C: a tree from rows, its layouts, its verification, and a decoder of many texts over a model of the
 * caller's. Compares texts with those of plain decoding, and says what was wrong with bad input. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "espalier/c/espalier.h"

enum { vocab = 16, context = 96, max_texts = 2 };

static int n_failed = 0;

static void check(int is_so, const char* what) {
  if (is_so) return;
  printf("FAILED: %s (%s)\n", what, espalier_error());
  ++n_failed;
}

static void require(espalier_status status) {
  if (status == ESPALIER_OK) return;
  printf("FAILED: %s\n", espalier_error());
  exit(1);
}

static void refuses(espalier_status status, espalier_status expected, const char* word) {
  printf("  %s\n", espalier_error());
  check(status == expected && strstr(espalier_error(), word) != NULL, word);
}

/* Stands for your model: the logits of the token after a text. A draft is less sure, and errs now and then. */
static void model(const int32_t* text, int32_t n, int is_draft, float* logits) {
  unsigned seen = 17;
  for (int32_t i = n < 3 ? 0 : n - 3; i < n; ++i) seen = seen * 37 + (unsigned)text[i];
  for (unsigned t = 0; t < vocab; ++t) {
    logits[t] = 0.4F * (float)((seen * 13 + t * t * 7 + seen % 5 * t) % 17);
    if (is_draft) logits[t] = 0.6F * logits[t] + 0.3F * (float)((seen + t * 5) % 7);
  }
}

/* ---- parts ---- */

static void probabilities(const int32_t* text, int32_t n, int is_draft, float* row) {
  float total = 0;
  model(text, n, is_draft, row);
  for (int t = 0; t < vocab; ++t) total += row[t] = expf(row[t]);
  for (int t = 0; t < vocab; ++t) row[t] /= total;
}

/* The text of a node: `text`, whose last token is the root, and the path below it. */
static int32_t path_of(const espalier_tree_arrays* a, int32_t node, const int32_t* text, int32_t n, int32_t* out) {
  memcpy(out, text, (size_t)n * sizeof *out);
  for (int32_t u = node; u > 0; u = a->parent[u]) out[n - 1 + a->depth[u]] = a->token[u];
  return n + a->depth[node];
}

static void parts(void) {
  const int32_t text[] = {3, 1, 4, 1, 5};
  const espalier_seed seed = {7, 0, 5};
  espalier_policy* policy;
  espalier_verifier* verifier;
  espalier_tree* tree;
  espalier_tree_arrays a = {sizeof a, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
  require(espalier_policy_create("iid-paths", "paths=3 length=3", &policy));
  require(espalier_verifier_create("specinfer", NULL, &verifier));
  check((espalier_policy_regimes(policy) & espalier_verifier_regimes(verifier)) != 0, "the pair fits");
  require(espalier_tree_create(espalier_policy_max_asked(policy), &tree));

  /* The tree: the policy asks, the draft answers. */
  static float q[32][vocab], p[32][vocab];
  int32_t row_of[32], n_rows = 0, path[32], n_wanted;
  const int32_t* wanted;
  memset(row_of, -1, sizeof row_of);
  require(espalier_tree_reset(tree, text[4], -1));
  require(espalier_grow_begin(policy, tree, &wanted, &n_wanted));
  while (n_wanted > 0) {
    require(espalier_tree_read(tree, &a));
    for (int32_t i = 0; i < n_wanted; ++i) {
      const int32_t n = path_of(&a, wanted[i], text, 5, path);
      probabilities(path, n, 1, q[n_rows]);
      row_of[wanted[i]] = n_rows++;
    }
    const espalier_rows rows = {q[0], n_rows, vocab, row_of, a.n_nodes};
    require(espalier_grow_take(policy, tree, &rows, &seed, &wanted, &n_wanted));
  }
  require(espalier_tree_read(tree, &a));
  check(a.n_draws == 9 && a.n_nodes > 4, "three paths of three draws");

  /* Its rows in a pass, and other engines' layouts. */
  espalier_batch* batch;
  espalier_pass pass = {.size = sizeof pass};
  const int32_t* logits_row;
  int32_t n_nodes;
  require(espalier_batch_create(&batch));
  require(espalier_batch_add(batch, tree, ESPALIER_BREADTH_FIRST, text + 4, 1, 0, 4));
  require(espalier_batch_read(batch, &pass));
  require(espalier_batch_logits_rows(batch, 0, &logits_row, &n_nodes));
  check(pass.n_rows == a.n_nodes && n_nodes == a.n_nodes && pass.positions[0] == 4, "rows of the tree");
  uint8_t dense[32 * 64], packed[256];
  int32_t indptr[2];
  size_t needed;
  require(espalier_dense_mask(&pass, 4 + a.n_nodes, dense, sizeof dense, &needed));
  check(needed == (size_t)(a.n_nodes * (4 + a.n_nodes)), "elements of the dense mask");
  for (int32_t u = 0; u < a.n_nodes; ++u) {
    const uint8_t* sees = dense + logits_row[u] * (4 + a.n_nodes);
    int seen = 0;
    for (int32_t c = 0; c < 4 + a.n_nodes; ++c) seen += sees[c];
    check(seen == 4 + a.depth[u] + 1, "a row sees the prefix, its ancestors and itself");
  }
  require(espalier_flashinfer_mask(&pass, packed, sizeof packed, indptr, 2, &needed));
  check(indptr[1] == (int32_t)needed, "bytes of FlashInfer's mask");
  refuses(espalier_dense_mask(&pass, 4 + a.n_nodes, dense, 3, &needed), ESPALIER_INPUT_ERROR, "room for 3");

  /* Its verification. */
  espalier_verdict verdict, again;
  for (int32_t u = 0; u < a.n_nodes; ++u) probabilities(path, path_of(&a, u, text, 5, path), 0, p[u]);
  const espalier_rows draft = {q[0], n_rows, vocab, row_of, a.n_nodes}, target = {p[0], a.n_nodes, vocab, NULL, 0};
  require(espalier_verify(verifier, tree, &draft, &target, NULL, &seed, &verdict));
  require(espalier_verify(verifier, tree, &draft, &target, NULL, &seed, &again));
  check(verdict.accepted == again.accepted && verdict.token == again.token, "one seed, one verdict");
  for (int32_t u = 0; u < a.n_nodes; ++u) model(path, path_of(&a, u, text, 5, path), 0, p[u]);
  const espalier_sampling sampling = {1, 0, 1, 0};
  require(espalier_verify(verifier, tree, &draft, &target, &sampling, &seed, &again));
  check(verdict.accepted == again.accepted && verdict.token == again.token, "logits give what probabilities give");
  int32_t nodes[8], tokens[8], n;
  const int32_t* slots;
  require(espalier_accepted_path(tree, &verdict, nodes, tokens, 8, &n));
  check(nodes[0] == 0 && nodes[n - 1] == verdict.accepted && tokens[n - 1] == verdict.token, "the accepted path");
  require(espalier_batch_kept(batch, 0, tree, verdict.accepted, &slots, &n));
  check(slots[n - 1] == 4 + logits_row[verdict.accepted], "the slots that are kept");
  require(espalier_policy_observe(policy, tree, &verdict));

  /* Bad input gets a sentence. */
  espalier_policy* none = NULL;
  refuses(espalier_policy_create("egale2", NULL, &none), ESPALIER_OPTION_ERROR, "eagle2");
  refuses(espalier_policy_create("eagle2", "buget=3", &none), ESPALIER_OPTION_ERROR, "budget");
  refuses(espalier_policy_create("eagle2", "budget=0", &none), ESPALIER_OPTION_ERROR, "a whole number, 1 to 1024");
  refuses(espalier_policy_create("eagle2", "budget=many", &none), ESPALIER_OPTION_ERROR, "whole number");
  refuses(espalier_policy_create(NULL, NULL, &none), ESPALIER_INPUT_ERROR, "null pointer");
  check(none == NULL, "nothing was made");
  refuses(espalier_verify(verifier, tree, NULL, &target, NULL, &seed, &again), ESPALIER_INPUT_ERROR, "draft");
  p[0][3] = NAN;
  refuses(espalier_verify(verifier, tree, &draft, &target, NULL, &seed, &again), ESPALIER_NUMERIC_ERROR, "nan");
  const espalier_rows few = {q[0], 1, vocab, NULL, 0};
  refuses(espalier_verify(verifier, tree, &few, &target, NULL, &seed, &again), ESPALIER_INPUT_ERROR, "no row");
  require(espalier_tree_reset(tree, 5, -1));
  refuses(espalier_tree_draw(tree, 999, 0, 0, NULL), ESPALIER_INPUT_ERROR, "node 999");
  espalier_batch_destroy(batch);
  espalier_tree_destroy(tree);
  espalier_verifier_destroy(verifier);
  espalier_policy_destroy(policy);
}

/* ---- the decoder ---- */

/* Stands for your engine: two caches with a token in each slot of each sequence, and no keys and values. */
typedef struct engine {
  int32_t cache[2][max_texts][context];
  int n_moves;
} engine;

static void move_row(void* user, int32_t is_draft, int32_t sequence, int32_t from, int32_t to) {
  engine* e = user;
  e->cache[is_draft][sequence][to] = e->cache[is_draft][sequence][from];
  ++e->n_moves;
}

/* Makes a pass: writes the rows' tokens, and computes the logits of the outputs. */
static void make_pass(engine* e, const espalier_pass* pass, float* logits) {
  int32_t output = 0;
  for (int32_t i = 0; i < pass->n_sequences; ++i) {
    const espalier_sequence s = pass->sequences[i];
    int32_t* cache = e->cache[pass->is_draft][s.sequence];
    for (int32_t r = s.row_begin; r < s.row_end; ++r) cache[pass->slots[r]] = pass->tokens[r];
    for (; output < pass->n_outputs && pass->outputs[output] < s.row_end; ++output) {
      int32_t text[context], n = s.prefix;
      const uint32_t* mask = pass->mask + s.mask_begin + (pass->outputs[output] - s.row_begin) * s.mask_words;
      memcpy(text, cache, (size_t)n * sizeof *text);
      for (int32_t j = 0; j < 32 * s.mask_words; ++j) {
        if (mask[j / 32] >> (j % 32) & 1) text[n++] = cache[s.prefix + j];
      }
      model(text, n, pass->is_draft, logits + output * vocab);
    }
  }
}

/* Writes two texts with a policy and a verifier. Returns the number of the target's passes. */
static int write(const char* policy_name, const char* verifier_name, int32_t draft, int can_move, float temperature,
                 int32_t texts[2][context]) {
  static engine e;
  static float logits[4096 * vocab];
  espalier_policy* policy;
  espalier_verifier* verifier;
  espalier_decoder* decoder;
  memset(&e, 0, sizeof e);
  require(espalier_policy_create(policy_name, NULL, &policy));
  require(espalier_verifier_create(verifier_name, NULL, &verifier));
  const espalier_decoder_options options = {.size = sizeof options,
                                            .vocab_size = vocab,
                                            .context = context,
                                            .max_texts = max_texts,
                                            .draft = draft,
                                            .move = can_move ? move_row : NULL,
                                            .user = &e};
  require(espalier_decoder_create(&options, policy, verifier, &decoder));
  espalier_policy_destroy(policy);
  espalier_verifier_destroy(verifier);
  for (int32_t i = 0; i < 2; ++i) {
    const int32_t prompt[] = {2 + i, 7, 1};
    const espalier_text_options of = {
        .size = sizeof of, .max_tokens = 40, .sampling = {temperature, 0, 1, 0}, .seed = 11, .stream = (uint32_t)i};
    require(espalier_decoder_add(decoder, prompt, 3, &of, NULL));
  }
  int n_passes = 0;
  espalier_pass pass = {.size = sizeof pass};
  while (!espalier_decoder_is_idle(decoder)) {
    require(espalier_decoder_begin_step(decoder, &pass));
    while (pass.n_rows > 0) {
      check(pass.n_outputs <= 4096, "room for the logits of a pass");
      make_pass(&e, &pass, logits);
      n_passes += !pass.is_draft;
      require(espalier_decoder_end_step(decoder, logits, pass.n_outputs, vocab, &pass));
    }
    const espalier_event* events;
    int32_t n_events;
    require(espalier_decoder_events(decoder, &events, &n_events));
    for (int32_t i = 0; i < n_events; ++i) check(events[i].error[0] == 0, events[i].error);
  }
  for (int32_t i = 0; i < 2; ++i) {
    const int32_t* tokens;
    int32_t n, n_prompt;
    require(espalier_decoder_text(decoder, i, &tokens, &n, &n_prompt));
    check(n == 43 && n_prompt == 3, "40 tokens after a prompt of 3");
    memcpy(texts[i], tokens, (size_t)n * sizeof *tokens);
  }
  espalier_decoder_destroy(decoder);
  printf("  %-12s %-12s %d passes of the target, %d rows moved\n", policy_name, verifier_name, n_passes, e.n_moves);
  return n_passes;
}

static void decoders(void) {
  static int32_t plain[2][context], by_tree[2][context];
  const int n_plain = write("plain", "target-only", ESPALIER_DRAFT_NONE, 1, 0.8F, plain);
  check(write("best-first", "target-only", ESPALIER_DRAFT_MODEL, 1, 0.8F, by_tree) < n_plain, "fewer passes");
  check(memcmp(plain, by_tree, sizeof plain) == 0, "a tree writes what plain decoding writes");
  write("best-first", "target-only", ESPALIER_DRAFT_MODEL, 0, 0.8F, by_tree);
  check(memcmp(plain, by_tree, sizeof plain) == 0, "so does a cache that cannot move rows");
  write("chain", "target-only", ESPALIER_DRAFT_PROMPT_LOOKUP, 1, 0.8F, by_tree);
  check(memcmp(plain, by_tree, sizeof plain) == 0, "so does prompt look-up");
  write("plain", "greedy", ESPALIER_DRAFT_NONE, 1, 0, plain);
  write("eagle2", "greedy", ESPALIER_DRAFT_MODEL, 1, 0, by_tree);
  check(memcmp(plain, by_tree, sizeof plain) == 0, "and at temperature 0");
  write("sequoia", "residual-walk", ESPALIER_DRAFT_MODEL, 1, 0.8F, by_tree);

  espalier_policy* policy;
  espalier_verifier* verifier;
  espalier_decoder* decoder = NULL;
  espalier_decoder_options options = {.size = sizeof options, .vocab_size = vocab, .context = context};
  require(espalier_policy_create("eagle2", NULL, &policy));
  require(espalier_verifier_create("specinfer", NULL, &verifier));
  refuses(espalier_decoder_create(&options, policy, verifier, &decoder), ESPALIER_OPTION_ERROR, "not lossless");
  espalier_verifier_destroy(verifier);
  require(espalier_verifier_create("greedy", NULL, &verifier));
  options.size = 4;
  refuses(espalier_decoder_create(&options, policy, verifier, &decoder), ESPALIER_INPUT_ERROR, "size");
  options.size = sizeof options;
  require(espalier_decoder_create(&options, policy, verifier, &decoder));
  espalier_text_options text = {.size = sizeof text, .max_tokens = 4, .sampling = {1, 0, 1, 0}};
  const int32_t prompt[] = {1, 99};
  refuses(espalier_decoder_add(decoder, prompt, 1, &text, NULL), ESPALIER_OPTION_ERROR, "temperature");
  text.sampling.temperature = 0;
  refuses(espalier_decoder_add(decoder, prompt, 2, &text, NULL), ESPALIER_INPUT_ERROR, "99");
  require(espalier_decoder_add(decoder, prompt, 1, &text, NULL));
  espalier_pass pass = {.size = sizeof pass};
  float logits[vocab] = {0};
  refuses(espalier_decoder_end_step(decoder, logits, 1, vocab, &pass), ESPALIER_INPUT_ERROR, "begin_step");
  require(espalier_decoder_begin_step(decoder, &pass));
  refuses(espalier_decoder_end_step(decoder, logits, 1, vocab - 1, &pass), ESPALIER_INPUT_ERROR, "logits");
  require(espalier_decoder_give_up(decoder));
  require(espalier_decoder_cancel(decoder, 0));
  check(espalier_decoder_is_idle(decoder) == 1, "a cancelled text is gone");
  espalier_decoder_destroy(decoder);
  espalier_verifier_destroy(verifier);
  espalier_policy_destroy(policy);
}

int main(void) {
  printf("espalier %s, ABI %d\n", espalier_version(), (int)espalier_abi());
  check(espalier_abi() == ESPALIER_ABI, "the library has the header's ABI");
  int n_policies = 0, n_verifiers = 0;
  while (espalier_policy_name(n_policies) != NULL) ++n_policies;
  while (espalier_verifier_name(n_verifiers) != NULL) ++n_verifiers;
  printf("%d policies, %d verifiers\n", n_policies, n_verifiers);
  check(n_policies > 15 && n_verifiers > 10, "all parts of the registry");
  parts();
  decoders();
  printf(n_failed == 0 ? "all as expected\n" : "%d checks failed\n", n_failed);
  return n_failed == 0 ? 0 : 1;
}
