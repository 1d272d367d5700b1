/* SPDX-License-Identifier: BSL-1.0 */
#ifndef ESPALIER_C_ESPALIER_H
#define ESPALIER_C_ESPALIER_H

#include <stddef.h>
#include <stdint.h>

/* The library for C, and for every language that can call C: trees, their rows for a forward pass, verification, and a
 * decoder of many texts whose passes the caller makes. It is one shared library, the CMake target espalier::c.
 *
 * Errors      A function that can fail returns an espalier_status. After a failure, espalier_error() returns a sentence
 *             that says what is wrong. No exception leaves the library, and the objects that a failed call was to
 *             change are as before, unless a comment says otherwise, memory has run out or a function of the caller's
 *             has failed.
 * Memory      Each object that a function named _create makes is freed by _destroy; destroying NULL does nothing.
 *             Arrays that the library returns belong to the handle, and are valid until the next call with it. The
 *             library copies what it is given, except where a comment says how long an array must live.
 * Threads     Calls with different handles may run at the same time, calls with one handle may not.
 * ABI         espalier_abi() of the library must be ESPALIER_ABI. Under one number no function and no constant changes
 *             or goes. Structs with a member `size` only grow at their end: the caller writes sizeof into it, and the
 *             library neither reads nor writes beyond it. Other structs stay as they are. New functions may come. The
 *             file of the library has the number in its name (libespalier_c.so.1). */

#define ESPALIER_ABI 1

#if defined(_WIN32)
#if defined(ESPALIER_C_LIBRARY)
#define ESPALIER_C_API __declspec(dllexport)
#else
#define ESPALIER_C_API __declspec(dllimport)
#endif
#else
#define ESPALIER_C_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The number of the ABI, and the version of the library, such as "0.9.0". */
ESPALIER_C_API int32_t espalier_abi(void);
ESPALIER_C_API const char* espalier_version(void);

typedef int32_t espalier_status;
enum {
  ESPALIER_OK = 0,
  ESPALIER_OPTION_ERROR = 1,  /* an option is out of range, or parts do not fit */
  ESPALIER_INPUT_ERROR = 2,   /* an input does not fit: a shape, a token, a node, a null pointer */
  ESPALIER_NUMERIC_ERROR = 3, /* no token can be drawn from these numbers, such as NaN */
  ESPALIER_MEMORY_ERROR = 4,  /* there is no memory left */
  ESPALIER_OTHER_ERROR = 5
};

/* The sentence of the last error of this thread; "" before the first. Valid until the next error of the thread. */
ESPALIER_C_API const char* espalier_error(void);

/* ---- parts by name ---- */

/* How the children of a node were chosen. Several regimes are given as the sum of their values. */
enum {
  ESPALIER_DETERMINISTIC = 1,
  ESPALIER_IID = 2,
  ESPALIER_WITHOUT_REPLACEMENT = 4,
  ESPALIER_SINGLE_PATH = 8
};

typedef struct espalier_policy espalier_policy;
typedef struct espalier_verifier espalier_verifier;

/* The name of the i-th policy or verifier; NULL after the last. */
ESPALIER_C_API const char* espalier_policy_name(int32_t i);
ESPALIER_C_API const char* espalier_verifier_name(int32_t i);

/* Make a policy or a verifier by its name. options: words like "budget=8 history=off", or NULL; options that are left
 * out have their defaults. ESPALIER_OPTION_ERROR for a name, an option or a value that is not known or out of range. */
ESPALIER_C_API espalier_status espalier_policy_create(const char* name, const char* options, espalier_policy** policy);
ESPALIER_C_API void espalier_policy_destroy(espalier_policy* policy);
ESPALIER_C_API espalier_status espalier_verifier_create(const char* name, const char* options,
                                                        espalier_verifier** verifier);
ESPALIER_C_API void espalier_verifier_destroy(espalier_verifier* verifier);

/* _max_nodes returns the largest number of drafted tokens of a round, _max_asked the largest number of draws of a tree
 * while it grows, _regimes the regimes of the policy's trees. 0 for NULL. */
ESPALIER_C_API int32_t espalier_policy_max_nodes(const espalier_policy* policy);
ESPALIER_C_API int32_t espalier_policy_max_asked(const espalier_policy* policy);
ESPALIER_C_API uint32_t espalier_policy_regimes(const espalier_policy* policy);
/* The regimes for which a verifier is lossless. */
ESPALIER_C_API uint32_t espalier_verifier_regimes(const espalier_verifier* verifier);

/* ---- trees ---- */

typedef struct espalier_tree espalier_tree;

/* The nodes and the draws of a tree, as arrays. Node 0 is the root, the last token of the text; parent[u] < u. A draw
 * is one token that was drawn at a node: the first draw of node u is i = first_draw[u], the one after it next_draw[i],
 * and so on until -1. drawn_node[i] is the child that draw i chose.
 *
 * Shapes      token, parent, depth, log_prob, first_draw [n_nodes]; next_draw, drawn_node [n_draws] */
typedef struct espalier_tree_arrays {
  size_t size; /* sizeof(espalier_tree_arrays) */
  int32_t n_nodes;
  int32_t n_draws;
  const int32_t* token;
  const int32_t* parent;
  const int32_t* depth;
  const float* log_prob;
  const int32_t* first_draw;
  const int32_t* next_draw;
  const int32_t* drawn_node;
} espalier_tree_arrays;

/* Rows over the vocabulary, found by node.
 *
 * Shapes      data [n_rows][vocab]; row_of [n_nodes]: the row of each node, -1 if it has none; NULL: node u has row
 *             u. */
typedef struct espalier_rows {
  const float* data;
  int32_t n_rows;
  int32_t vocab;
  const int32_t* row_of;
  int32_t n_nodes; /* number of entries of row_of; 0 with NULL */
} espalier_rows;

/* The key of a round's random numbers. Every round of a text needs another `length`: the number of its tokens when the
 * round begins, prompt included. Texts with one seed need different streams. */
typedef struct espalier_seed {
  uint64_t seed;
  uint32_t stream;
  uint32_t length;
} espalier_seed;

/* Makes a tree with room for `capacity` draws (0 to 2^24). */
ESPALIER_C_API espalier_status espalier_tree_create(int32_t capacity, espalier_tree** tree);
ESPALIER_C_API void espalier_tree_destroy(espalier_tree* tree);
/* Begins a round: the tree then has no node but the root, and takes at most `limit` draws, or, if limit is below 0, as
 * many as it can hold. */
ESPALIER_C_API espalier_status espalier_tree_reset(espalier_tree* tree, int32_t root_token, int32_t limit);
/* Records a draw at a node. A token that was drawn there before gets no second node. *node is set to the child, or -1
 * if the tree is full; node may be NULL. */
ESPALIER_C_API espalier_status espalier_tree_draw(espalier_tree* tree, int32_t parent, int32_t token, float log_prob,
                                                  int32_t* node);
ESPALIER_C_API espalier_status espalier_tree_read(const espalier_tree* tree, espalier_tree_arrays* arrays);

/* Grow a tree that was reset. The policy says which nodes it wants rows of, the root first. At each call of _take the
 * caller gives the rows of all nodes that were asked about so far in this round, probabilities that sum to 1, and the
 * policy says which it wants next. n_wanted 0: the tree is complete. A policy grows one tree at a time: with another
 * tree, or one that was reset or drawn on in between, _take is an input error. */
ESPALIER_C_API espalier_status espalier_grow_begin(espalier_policy* policy, espalier_tree* tree, const int32_t** wanted,
                                                   int32_t* n_wanted);
ESPALIER_C_API espalier_status espalier_grow_take(espalier_policy* policy, espalier_tree* tree,
                                                  const espalier_rows* rows, const espalier_seed* seed,
                                                  const int32_t** wanted, int32_t* n_wanted);
/* Gives, after a tree is complete, the numbers that nodes had before: was[u] is the number that node u had when its row
 * was asked for, -1 if it was not asked about. *n is 0 if the policy has not built its tree anew: then no number has
 * changed. */
ESPALIER_C_API espalier_status espalier_grow_was(espalier_policy* policy, const int32_t** was, int32_t* n);

/* ---- rows for a pass ---- */

enum {
  ESPALIER_INSERTION = 0,
  ESPALIER_BREADTH_FIRST = 1,
  ESPALIER_DEPTH_FIRST = 2,
  ESPALIER_HEAVY_PATH = 3
};

/* The rows of one sequence: rows row_begin to row_end - 1, after `prefix` slots of the cache, which all of them see.
 * Row r sees slot prefix + j if bit j % 32 of mask[mask_begin + (r - row_begin) * mask_words + j / 32] is set. */
typedef struct espalier_sequence {
  int32_t sequence;
  int32_t row_begin;
  int32_t row_end;
  int32_t prefix;
  int32_t mask_begin;
  int32_t mask_words;
} espalier_sequence;

/* The rows of a pass.
 *
 * Shapes      tokens, positions, slots [n_rows]; sequences [n_sequences]; mask [n_mask]; outputs [n_outputs]: the rows
 *             whose logits are wanted, ascending */
typedef struct espalier_pass {
  size_t size; /* sizeof(espalier_pass) */
  int32_t n_rows;
  int32_t n_sequences;
  int32_t n_mask;
  int32_t n_outputs;
  const int32_t* tokens;
  const int32_t* positions;
  const int32_t* slots;
  const espalier_sequence* sequences;
  const uint32_t* mask;
  const int32_t* outputs;
  int32_t is_draft; /* 1: the draft model makes this pass, over its own cache; 0: the target */
} espalier_pass;

typedef struct espalier_batch espalier_batch;

ESPALIER_C_API espalier_status espalier_batch_create(espalier_batch** batch);
ESPALIER_C_API void espalier_batch_destroy(espalier_batch* batch);
ESPALIER_C_API espalier_status espalier_batch_clear(espalier_batch* batch);
/* Adds a tree after `prefix` slots of a sequence. pending [n_pending]: the last tokens of the text that the cache does
 * not hold, the tree's root last. */
ESPALIER_C_API espalier_status espalier_batch_add(espalier_batch* batch, const espalier_tree* tree, int32_t order,
                                                  const int32_t* pending, int32_t n_pending, int32_t sequence,
                                                  int32_t prefix);
ESPALIER_C_API espalier_status espalier_batch_read(const espalier_batch* batch, espalier_pass* pass);
/* Gives, for the i-th tree that was added, logits_row [n_nodes]: the row of each node among the pass's outputs. */
ESPALIER_C_API espalier_status espalier_batch_logits_rows(espalier_batch* batch, int32_t i, const int32_t** logits_row,
                                                          int32_t* n_nodes);
/* Gives, for the i-th tree, the slots to keep, in order, if the path to node `accepted` is accepted. The cache's row in
 * slots[k] goes to slot prefix + k. */
ESPALIER_C_API espalier_status espalier_batch_kept(espalier_batch* batch, int32_t i, const espalier_tree* tree,
                                                   int32_t accepted, const int32_t** slots, int32_t* n);

/* Write a pass in the layouts of other engines. `room` is the number of elements that the array before it has room for.
 * *needed is set to the number of elements that `out`, or each array of SGLang's tree, must have room for; needed may
 * be NULL. If there is too little room, no array is written, and the status is ESPALIER_INPUT_ERROR.
 *
 * dense       [n_rows][columns], 1 where the row sees the slot of its own sequence, else 0
 * additive    the same with 0 and minus infinity, which are added to scores
 * FlashInfer  packed bits, and indptr [n_sequences + 1]: the byte at which the bits of each sequence begin, and the end
 * SGLang      mode 0: full, 1: qlen_only, 2: bits; each sequence has n rows. positions, retrive_index,
 *             retrive_next_token, retrive_next_sibling [n_sequences][n]: `room` is the size of each of the four */
ESPALIER_C_API espalier_status espalier_dense_mask(const espalier_pass* pass, int32_t columns, uint8_t* out,
                                                   size_t room, size_t* needed);
ESPALIER_C_API espalier_status espalier_additive_mask(const espalier_pass* pass, int32_t columns, float* out,
                                                      size_t room, size_t* needed);
ESPALIER_C_API espalier_status espalier_flashinfer_mask(const espalier_pass* pass, uint8_t* out, size_t room,
                                                        int32_t* indptr, size_t indptr_room, size_t* needed);
ESPALIER_C_API espalier_status espalier_sglang_mask(const espalier_pass* pass, int32_t mode, int32_t n, uint8_t* out,
                                                    size_t room, size_t* needed);
ESPALIER_C_API espalier_status espalier_sglang_tree(const espalier_pass* pass, int32_t n, int64_t* positions,
                                                    int64_t* retrive_index, int64_t* retrive_next_token,
                                                    int64_t* retrive_next_sibling, size_t room, size_t* needed);

/* ---- verification ---- */

/* How logits become the distribution that is drawn from. temperature 0 takes the most probable token; top_k 0 and top_p
 * 0 leave no token out. */
typedef struct espalier_sampling {
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
} espalier_sampling;

/* The decision of a verifier: the path to node `accepted` is committed, then `token`. */
typedef struct espalier_verdict {
  int32_t accepted;
  int32_t token;
} espalier_verdict;

/* Verifies a tree. draft: the rows that the children of each node were drawn from; NULL for verifiers that read the
 * target alone. target: the target's logits if `sampling` is given, or the target's probabilities, which sum to 1, if
 * `sampling` is NULL. seed: the seed that the tree's draws were made with. ESPALIER_NUMERIC_ERROR for a row that is
 * read and is no distribution. */
ESPALIER_C_API espalier_status espalier_verify(espalier_verifier* verifier, const espalier_tree* tree,
                                               const espalier_rows* draft, const espalier_rows* target,
                                               const espalier_sampling* sampling, const espalier_seed* seed,
                                               espalier_verdict* verdict);
/* Gives the nodes of the accepted path, root first, and the tokens that are committed: the tokens of the path without
 * the root, then the verdict's token. Both arrays get *n elements; `room` is the number of elements that each has room
 * for. nodes or tokens may be NULL. *n is set, too, if the room does not suffice, and if both are NULL. */
ESPALIER_C_API espalier_status espalier_accepted_path(const espalier_tree* tree, const espalier_verdict* verdict,
                                                      int32_t* nodes, int32_t* tokens, int32_t room, int32_t* n);
/* Tells a policy, which may learn, what became of the tree that it has grown last: once, and as it was grown. */
ESPALIER_C_API espalier_status espalier_policy_observe(espalier_policy* policy, const espalier_tree* tree,
                                                       const espalier_verdict* verdict);

/* ---- chance, and parts of the caller's ---- */

/* The purpose of a random number, a part of its key: no two decisions of a round have equal keys. */
enum {
  ESPALIER_OF_DRAFT = 0,
  ESPALIER_OF_ACCEPT = 1,
  ESPALIER_OF_RESIDUAL = 2,
  ESPALIER_OF_SELECT = 3,
  ESPALIER_OF_TOKEN = 4 /* a token of the text drawn from the target alone: `node` is the depth of the node before it */
};

/* Functions of the caller's that take the random decisions, instead of a seed: to run every outcome, or to use given
 * numbers. accept returns 1 with probability min(1, p / q), else 0. pick returns i with probability weights[i] / sum,
 * -1 if all are 0. index returns a number that is uniform in 0 to n - 1. */
typedef struct espalier_decisions {
  size_t size; /* sizeof(espalier_decisions) */
  int32_t (*accept)(void* user, double p, double q, int32_t node, int32_t slot, int32_t purpose);
  int32_t (*pick)(void* user, const double* weights, int32_t n, int32_t node, int32_t slot, int32_t purpose);
  int32_t (*index)(void* user, int32_t n, int32_t node, int32_t slot, int32_t purpose);
  void* user;
} espalier_decisions;

/* Rows over the vocabulary like espalier_rows, with numbers of type double. */
typedef struct espalier_double_rows {
  const double* data;
  int32_t n_rows;
  int32_t vocab;
  const int32_t* row_of;
  int32_t n_nodes;
} espalier_double_rows;

/* As espalier_grow_take and espalier_verify, over probabilities of double and with decisions of the caller's: a policy
 * or a verifier is then a function of its inputs, and every outcome can be run with its exact probability. */
ESPALIER_C_API espalier_status espalier_grow_decided(espalier_policy* policy, espalier_tree* tree,
                                                     const espalier_double_rows* rows,
                                                     const espalier_decisions* decisions, const int32_t** wanted,
                                                     int32_t* n_wanted);
ESPALIER_C_API espalier_status espalier_verify_decided(espalier_verifier* verifier, const espalier_tree* tree,
                                                       const espalier_double_rows* draft,
                                                       const espalier_double_rows* target,
                                                       const espalier_decisions* decisions, espalier_verdict* verdict);

/* The chance and the target's rows of a round. A policy or a verifier of the caller's may use them while it is called,
 * not after. The functions of chance decide as those of espalier_decisions do; for a purpose that is none of the five,
 * a slot outside 0 to 2^29 - 1, a null pointer or a number that cannot be, accept returns 0, pick and index -1. */
typedef struct espalier_chance espalier_chance;
typedef struct espalier_target espalier_target;
ESPALIER_C_API int32_t espalier_chance_accept(espalier_chance* chance, double p, double q, int32_t node, int32_t slot,
                                              int32_t purpose);
ESPALIER_C_API int32_t espalier_chance_pick(espalier_chance* chance, const double* weights, int32_t n, int32_t node,
                                            int32_t slot, int32_t purpose);
ESPALIER_C_API int32_t espalier_chance_index(espalier_chance* chance, int32_t n, int32_t node, int32_t slot,
                                             int32_t purpose);
/* _row gives the target's row of a node, probabilities [vocab], which is made when it is first asked for. _argmax gives
 * the most probable token of that row. */
ESPALIER_C_API espalier_status espalier_target_row(espalier_target* target, int32_t node, const float** row,
                                                   int32_t* vocab);
ESPALIER_C_API espalier_status espalier_target_argmax(espalier_target* target, int32_t node, int32_t* token);

/* A policy of the caller's. begin, take and observe return 0, or another number if they fail. begin gets a tree that
 * has only its root; take adds draws with espalier_tree_draw. Both say which nodes they want rows of next, none once
 * the tree is complete, in an array that stays as it is until the next call. The number of draws must not depend on
 * which tokens were drawn. */
typedef struct espalier_own_policy {
  size_t size; /* sizeof(espalier_own_policy) */
  uint32_t regimes;
  int32_t max_nodes;
  int32_t (*begin)(void* user, espalier_tree* tree, const int32_t** wanted, int32_t* n_wanted);
  int32_t (*take)(void* user, espalier_tree* tree, const espalier_rows* rows, espalier_chance* chance,
                  const int32_t** wanted, int32_t* n_wanted);
  int32_t (*observe)(void* user, const espalier_tree* tree, const espalier_verdict* verdict); /* may be NULL */
  /* returns another `user`, for another text, and not NULL; if `copy` is NULL, all texts share one `user`, which then
   * must learn nothing */
  void* (*copy)(void* user);
  void (*destroy)(void* user); /* called once for each `user`, when nothing uses it any more; may be NULL */
  void* user;
} espalier_own_policy;

/* A verifier of the caller's. verify returns 0 and sets the verdict, or returns another number if it fails. */
typedef struct espalier_own_verifier {
  size_t size; /* sizeof(espalier_own_verifier) */
  uint32_t regimes; /* the regimes for which it is lossless */
  int32_t (*verify)(void* user, const espalier_tree* tree, const espalier_rows* draft, espalier_target* target,
                    espalier_chance* chance, espalier_verdict* verdict);
  void (*destroy)(void* user); /* may be NULL */
  void* user;
} espalier_own_verifier;

/* Make a policy, or a verifier, of functions that the caller has written. It is used like a policy or a verifier of the
 * library, with rows of float. */
ESPALIER_C_API espalier_status espalier_policy_create_own(const espalier_own_policy* own, espalier_policy** policy);
ESPALIER_C_API espalier_status espalier_verifier_create_own(const espalier_own_verifier* own,
                                                            espalier_verifier** verifier);

/* ---- a decoder of many texts, whose passes the caller makes ---- */

typedef struct espalier_decoder espalier_decoder;

enum {
  ESPALIER_DRAFT_MODEL = 0,        /* a draft model of the caller's, by passes with is_draft 1 */
  ESPALIER_DRAFT_PROMPT_LOOKUP = 1, /* runs of tokens that followed the text's last tokens before: only for chains */
  ESPALIER_DRAFT_NONE = 2           /* nothing, for the policy plain */
};

typedef struct espalier_decoder_options {
  size_t size; /* sizeof(espalier_decoder_options) */
  int32_t vocab_size;
  int32_t context;      /* slots of each sequence, in both caches; a text has at most as many tokens */
  int32_t max_texts;    /* texts served at once, in sequences 0 to max_texts - 1 of both caches; 0: 8 */
  int32_t prefill_rows; /* most tokens of prompts that a pass reads; 0: 64 */
  int32_t draft;        /* ESPALIER_DRAFT_.. */
  int32_t order;        /* order of a tree's rows, ESPALIER_INSERTION and so on */
  espalier_sampling draft_sampling; /* how the draft's rows are sampled; all 0: temperature 1, no token left out;
                                      temperature 0 is said with top_p 1 */
  /* Moves one row of a cache from slot `from` to slot `to`, which is lower: of the target's cache, or the draft's if
   * is_draft is 1. Called in espalier_decoder_end_step, for lower slots first. NULL: the caches are never compacted,
   * and accepted tokens whose rows do not follow the committed ones are forwarded again with the next round's tree. */
  void (*move)(void* user, int32_t is_draft, int32_t sequence, int32_t from, int32_t to);
  void* user;
} espalier_decoder_options;

typedef struct espalier_text_options {
  size_t size;        /* sizeof(espalier_text_options) */
  int32_t max_tokens; /* most tokens to write; below 0: no limit */
  espalier_sampling sampling;
  uint64_t seed;
  uint32_t stream;
  const int32_t* stop_tokens; /* [n_stop_tokens]: the text ends after any of these */
  int32_t n_stop_tokens;
} espalier_text_options;

enum {
  ESPALIER_RUNNING = 1,
  ESPALIER_STOP_TOKEN = 2,
  ESPALIER_LENGTH = 4,
  ESPALIER_CONTEXT_FULL = 5,
  ESPALIER_FAILED = 7 /* the text is held at its last committed token */
};

/* What a step has done for one text. */
typedef struct espalier_event {
  int64_t text;
  const int32_t* tokens; /* [n_tokens]: the committed tokens; none if a part of the prompt was read */
  int32_t n_tokens;
  int32_t n_drafted; /* draws of the tree that the target saw */
  int32_t state;     /* ESPALIER_RUNNING and so on */
  const char* error; /* "", or the sentence of the error */
} espalier_event;

/* Makes a decoder, which copies policy and verifier. ESPALIER_OPTION_ERROR if the verifier is not lossless for the
 * policy's trees, or the policy cannot grow from the draft. */
ESPALIER_C_API espalier_status espalier_decoder_create(const espalier_decoder_options* options,
                                                       const espalier_policy* policy,
                                                       const espalier_verifier* verifier, espalier_decoder** decoder);
ESPALIER_C_API void espalier_decoder_destroy(espalier_decoder* decoder);
/* Adds a text, which waits for its turn. *text is set to its number, from 0 on; text may be NULL. */
ESPALIER_C_API espalier_status espalier_decoder_add(espalier_decoder* decoder, const int32_t* prompt, int32_t n_prompt,
                                                    const espalier_text_options* options, int64_t* text);
/* Ends a text, whether it waits, is served, is held or has ended, and forgets it. */
ESPALIER_C_API espalier_status espalier_decoder_cancel(espalier_decoder* decoder, int64_t text);
/* Goes on with a text that is held because a part failed. */
ESPALIER_C_API espalier_status espalier_decoder_resume(espalier_decoder* decoder, int64_t text);
/* Returns 1 if all texts have ended or are held. */
ESPALIER_C_API int32_t espalier_decoder_is_idle(const espalier_decoder* decoder);

/* Make a step. _begin_step gives the first pass; each _end_step takes the logits of the pass under way and gives the
 * next one. If pass->n_rows is 0, the step is over, and _events tells what it has done. A pass is valid until the next
 * call with this decoder.
 *
 * Shapes      logits [n_outputs of the pass][vocab_size], read until _end_step returns */
ESPALIER_C_API espalier_status espalier_decoder_begin_step(espalier_decoder* decoder, espalier_pass* pass);
ESPALIER_C_API espalier_status espalier_decoder_end_step(espalier_decoder* decoder, const float* logits, int32_t n_rows,
                                                         int32_t vocab, espalier_pass* pass);
/* Gives up the step under way: all texts stand at their last committed tokens. */
ESPALIER_C_API espalier_status espalier_decoder_give_up(espalier_decoder* decoder);
ESPALIER_C_API espalier_status espalier_decoder_events(espalier_decoder* decoder, const espalier_event** events,
                                                       int32_t* n_events);
/* Gives the tokens of a text so far: the n_prompt tokens of the prompt, then the tokens that were written. */
ESPALIER_C_API espalier_status espalier_decoder_text(const espalier_decoder* decoder, int64_t text,
                                                     const int32_t** tokens, int32_t* n_tokens, int32_t* n_prompt);

#ifdef __cplusplus
}
#endif

#endif
