// SPDX-License-Identifier: BSL-1.0
// The functions of include/espalier/c/espalier.h.
#define ESPALIER_C_LIBRARY
#include "espalier/c/espalier.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "boundary.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/round_rows.hpp"
#include "espalier/interop/dense_mask.hpp"
#include "espalier/interop/flashinfer_mask.hpp"
#include "espalier/interop/sglang_mask.hpp"
#include "espalier/interop/sglang_tree.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/version.hpp"
#include "given_rows.hpp"
#include "outside_decoder.hpp"
#include "parts.hpp"

using namespace espalier;
using parts::array, parts::at, parts::data_of, parts::guarded, parts::refuse, parts::require_size, parts::sampling_of;

struct espalier_policy {
  std::unique_ptr<parts::policy_part> part;
  std::vector<node_id> wanted{};  // the nodes whose rows come next
  std::uint64_t grown = 0;        // the state in which the policy has left its tree; 0: it may not be observed
};
struct espalier_verifier {
  std::unique_ptr<parts::verifier_part> part;
  lazy_rows<float> target{};
};
struct espalier_tree {
  explicit espalier_tree(std::int32_t capacity) : own(std::make_unique<tree<>>(capacity)), writable(own.get()) {}
  // A tree that is lent to a part of the caller's, to write or to read.
  explicit espalier_tree(tree<>& lent) : writable(&lent) {}
  explicit espalier_tree(tree_view lent) : shown(lent) {}

  tree_view view() const { return writable != nullptr ? writable->view() : shown; }
  tree<>& write() {
    if (writable == nullptr) raise<input_error>("this tree is complete, and can only be read here.");
    return *writable;
  }

  // Gives the tree a state that no tree had before: a policy goes on only with the tree as the policy has left it.
  void changed() {
    static std::atomic<std::uint64_t> states{0};
    state = ++states;
  }

  std::unique_ptr<tree<>> own{};
  tree<>* writable = nullptr;
  tree_view shown{};
  std::uint64_t state = 0;
};
struct espalier_chance {
  parts::decisions& by;
};
struct espalier_target {
  parts::target_part<float>& rows;
  std::int32_t n_nodes;
};
struct espalier_batch {
  forward_batch rows{};
  std::vector<std::unique_ptr<round_rows>> rounds{};
  std::vector<std::vector<std::int32_t>> logits_rows{};
  std::vector<std::int32_t> prefixes{};
  std::vector<std::int32_t> kept{};
};
struct espalier_decoder {
  std::unique_ptr<parts::outside_decoder> value;
  std::vector<espalier_event> events{};
};

namespace {

void give(std::span<const node_id> nodes, const int32_t** out, int32_t* n) {
  *out = nodes.data();
  *n = static_cast<int32_t>(nodes.size());
}

void give_wanted(espalier_policy& policy, espalier_tree& grown, std::span<const node_id> wanted, const int32_t** out,
                 int32_t* n) {
  policy.wanted.assign(wanted.begin(), wanted.end());
  grown.changed();
  policy.grown = grown.state;
  give(policy.wanted, out, n);
}

void require_growing(const espalier_policy& policy, const espalier_tree& tree) {
  if (!policy.wanted.empty() && policy.grown == tree.state) return;
  raise<input_error>(
      "the policy is not growing this tree: espalier_grow_begin() comes first, for one tree at a time, and "
      "the tree must not be reset or drawn on in between.");
}

philox_chance chance_of(const espalier_seed* seed) {
  const espalier_seed& s = at(seed, "seed");
  return philox_chance(s.seed, s.stream, s.length);
}

verdict verdict_of(const espalier_verdict* v, tree_view t) {
  const verdict of{at(v, "verdict").accepted, v->token};
  espalier::detail::require_accepted(t, of);
  return of;
}

node_order order_of(std::int32_t order) {
  require_option("order", order, 0, ESPALIER_HEAVY_PATH);
  return static_cast<node_order>(order);
}

void give(const forward_batch_view& batch, bool is_draft, espalier_pass* pass) {
  require_size(at(pass, "pass").size, sizeof(espalier_pass), "espalier_pass");
  static_assert(sizeof(espalier_sequence) == sizeof(batch_sequence));
  pass->n_rows = batch.n_rows();
  pass->n_sequences = static_cast<int32_t>(batch.sequences.size());
  pass->n_mask = static_cast<int32_t>(batch.mask.size());
  pass->n_outputs = static_cast<int32_t>(batch.outputs.size());
  pass->tokens = batch.tokens.data();
  pass->positions = batch.positions.data();
  pass->slots = batch.slots.data();
  pass->sequences = reinterpret_cast<const espalier_sequence*>(batch.sequences.data());
  pass->mask = batch.mask.data();
  pass->outputs = batch.outputs.data();
  pass->is_draft = is_draft ? 1 : 0;
}

// The pass that a caller gives. Errors: input_error if its sequences do not divide its rows, or need more mask words.
forward_batch_view batch_of(const espalier_pass* pass) {
  const espalier_pass& p = at(pass, "pass");
  require_size(p.size, sizeof(espalier_pass), "espalier_pass");
  const auto sequences = array(p.sequences, p.n_sequences, "sequences");
  const forward_batch_view batch{array(p.tokens, p.n_rows, "tokens"),
                                 array(p.positions, p.n_rows, "positions"),
                                 array(p.slots, p.n_rows, "slots"),
                                 {reinterpret_cast<const batch_sequence*>(sequences.data()), sequences.size()},
                                 array(p.mask, p.n_mask, "mask"),
                                 array(p.outputs, p.n_outputs, "outputs")};
  std::int32_t row = 0;
  for (const batch_sequence& s : batch.sequences) {
    const bool is_in_rows = s.row_begin == row && s.row_end >= row && s.row_end <= p.n_rows;
    const std::int64_t words = is_in_rows ? std::int64_t{s.row_end - s.row_begin} * s.mask_words : 0;
    if (!is_in_rows || s.prefix < 0 || s.mask_begin < 0 || s.mask_words < 0 || s.mask_begin + words > p.n_mask)
      raise<input_error>("the rows and mask words of sequence ", s.sequence, " are not those of a pass.");
    row = s.row_end;
  }
  if (row != p.n_rows) raise<input_error>("the sequences of the pass have ", row, " of its ", p.n_rows, " rows.");
  return batch;
}

// An array of the caller's. Errors: input_error if it has less room than needed, which `told` is set to.
template <class T>
std::span<T> room_for(std::int64_t needed, T* out, std::size_t room, std::size_t* told) {
  const auto n = static_cast<std::size_t>((std::max)(needed, std::int64_t{0}));
  if (told != nullptr) *told = n;
  if (room < n) raise<input_error>("the layout needs room for ", n, " elements, but there is room for ", room, ".");
  if (n > 0) (void)at(out, "out");
  return {out, n};
}

void give_step(outside_pass next, espalier_pass* pass) {
  give(next.batch, next.is_draft(), pass);
}

// Decisions of the caller's.
class called_decisions final : public parts::decisions {
 public:
  explicit called_decisions(const espalier_decisions* by) : by_(at(by, "decisions")) {
    require_size(by_.size, sizeof by_, "espalier_decisions");
    if (by_.accept == nullptr || by_.pick == nullptr || by_.index == nullptr)
      raise<input_error>("a function of decisions is a null pointer.");
  }
  bool accept(double p, double q, chance_key at) override {
    return by_.accept(by_.user, p, q, at.node, at.slot, static_cast<std::int32_t>(at.use)) != 0;
  }
  std::int32_t pick(std::span<const double> weights, chance_key at) override {
    const auto n = static_cast<std::int32_t>(weights.size());
    const std::int32_t i = by_.pick(by_.user, weights.data(), n, at.node, at.slot, static_cast<std::int32_t>(at.use));
    if (i < -1 || i >= n) raise<input_error>("decisions pick ", i, " of ", n, " weights.");
    return i;
  }
  std::int32_t index(std::int32_t n, chance_key at) override {
    const std::int32_t i = by_.index(by_.user, n, at.node, at.slot, static_cast<std::int32_t>(at.use));
    if (i < 0 || i >= n) raise<input_error>("decisions give index ", i, " of ", n, ".");
    return i;
  }

 private:
  espalier_decisions by_;
};

// Whether a slot and a purpose can be parts of a key: others would make the key of another decision.
bool is_key(std::int32_t slot, std::int32_t purpose) {
  return slot >= 0 && slot < 1 << 29 && purpose >= ESPALIER_OF_DRAFT && purpose <= ESPALIER_OF_TOKEN;
}

chance_key key_of(std::int32_t node, std::int32_t slot, std::int32_t purpose) {
  return {node, slot, static_cast<espalier::purpose>(purpose)};
}

void require_done(std::int32_t failed, const char* what) {
  if (failed != 0) raise<input_error>(what, " of the caller's has failed, and returns ", failed, ".");
}

// A part of the caller's, which is destroyed with the last copy of the pointer.
template <class OwnT>
std::shared_ptr<const OwnT> shared(const OwnT& own) {
  return {new OwnT(own), [](const OwnT* part) {
            if (part->destroy != nullptr) part->destroy(part->user);
            delete part;
          }};
}

// A policy of the caller's. Copies share what it has unless the caller copies that.
class called_policy final : public parts::policy_part {
 public:
  explicit called_policy(const espalier_own_policy& own) : shared_(shared(own)) {}

  std::unique_ptr<policy_part> copy() const override {
    auto made = std::make_unique<called_policy>(*this);
    if (own_.copy != nullptr) {
      espalier_own_policy another = own_;
      another.user = own_.copy(own_.user);
      if (another.user == nullptr) raise<input_error>("the function copy of a policy has returned a null pointer.");
      made = std::make_unique<called_policy>(another);
    }
    return made;
  }
  regime sampling() const override { return static_cast<regime>(own_.regimes); }
  bool takes_runs() const override { return false; }
  std::int32_t max_nodes() const override { return own_.max_nodes; }
  std::int32_t max_asked() const override { return own_.max_nodes; }
  void open(const round_start&) override {}
  void reset() override {}
  std::span<const node_id> begin(tree<>& t) override {
    espalier_tree lent(t);
    const int32_t* wanted = nullptr;
    int32_t n = 0;
    require_done(own_.begin(own_.user, &lent, &wanted, &n), "a policy");
    return checked(t, wanted, n);
  }
  std::span<const node_id> take(tree<>& t, const node_rows<float>& rows, philox_chance& chance) override {
    espalier_tree lent(t);
    parts::decisions_of<philox_chance> by(chance);
    espalier_chance lent_chance{by};
    const espalier_rows given{rows.rows.data, rows.rows.n_rows, rows.rows.vocab, rows.row_of, t.size()};
    const int32_t* wanted = nullptr;
    int32_t n = 0;
    require_done(own_.take(own_.user, &lent, &given, &lent_chance, &wanted, &n), "a policy");
    return checked(t, wanted, n);
  }
  std::span<const node_id> take(tree<>&, const node_rows<double>&, parts::any_chance&) override {
    raise<option_error>("a policy of the caller's takes rows of float: its outcomes can be run without the library.");
  }
  std::span<const node_id> take(tree<>&, const token_run&, philox_chance&) override {
    raise<option_error>("a policy of the caller's cannot grow from runs of tokens.");
  }
  std::span<const node_id> was() const override { return {}; }
  void observe(tree_view t, verdict v) override {
    if (own_.observe == nullptr) return;
    const espalier_tree lent(t);
    const espalier_verdict of{v.accepted, v.token};
    require_done(own_.observe(own_.user, &lent, &of), "a policy");
  }

 private:
  static std::span<const node_id> checked(const tree<>& t, const int32_t* wanted, int32_t n) {
    const auto nodes = array(wanted, n, "wanted");
    for (const node_id u : nodes) {
      if (u < 0 || u >= t.size())
        raise<input_error>("the policy wants node ", u, ", but the tree has the nodes 0 to ", t.size() - 1, ".");
    }
    return t.full() ? std::span<const node_id>() : nodes;
  }

  std::shared_ptr<const espalier_own_policy> shared_;
  const espalier_own_policy& own_ = *shared_;
};

// A verifier of the caller's. Copies share what it has.
class called_verifier final : public parts::verifier_part {
 public:
  explicit called_verifier(const espalier_own_verifier& own) : own_(shared(own)) {}

  std::unique_ptr<verifier_part> copy() const override { return std::make_unique<called_verifier>(*this); }
  regime lossless() const override { return static_cast<regime>(own_->regimes); }
  bool argmax_only() const override { return false; }
  bool target_alone() const override { return false; }
  void reserve(std::int32_t, std::int32_t) override {}
  verdict verify(tree_view t, const node_rows<float>& draft, parts::target_part<float>& target,
                 philox_chance& chance) override {
    const espalier_tree lent(t);
    const espalier_rows given{draft.rows.data, draft.rows.n_rows, draft.rows.vocab, draft.row_of,
                              draft.row_of == nullptr ? 0 : t.n_nodes};  // there is none without a draft
    espalier_target rows{target, t.n_nodes};
    parts::decisions_of<philox_chance> by(chance);
    espalier_chance lent_chance{by};
    espalier_verdict made{-1, -1};
    require_done(own_->verify(own_->user, &lent, &given, &rows, &lent_chance, &made), "a verifier");
    espalier::detail::require_accepted(t, {made.accepted, made.token});
    return {made.accepted, made.token};
  }
  verdict verify(tree_view, const node_rows<double>&, parts::target_part<double>&, parts::any_chance&) override {
    raise<option_error>("a verifier of the caller's takes rows of float: its outcomes can be run without the library.");
  }

 private:
  std::shared_ptr<const espalier_own_verifier> own_;
};

// The rows of a verification, checked: the target's row of each node, the draft's rows and the row of each node.
template <class NumberT>
struct verified_rows {
  std::vector<std::int32_t> target, draft;
  vocab_rows<NumberT> drafted;
};
template <class NumberT, class RowsT>
verified_rows<NumberT> checked_rows(espalier_verifier& v, tree_view t, const RowsT* draft, const RowsT* target,
                                    vocab_rows<NumberT> p) {
  verified_rows<NumberT> rows;
  rows.target =
      parts::rows_of_nodes("target", array(target->row_of, target->n_nodes, "row_of"), t.n_nodes, p.n_rows, false);
  parts::require_vocabulary(t, p.vocab);
  rows.draft.resize(static_cast<std::size_t>(t.n_nodes), -1);
  if (!v.part->target_alone() && t.n_draws > 0) {
    rows.drafted = data_of(at(draft, "draft"), "draft");
    parts::require_one_vocabulary(rows.drafted.vocab, p.vocab);
    rows.draft = parts::rows_of_nodes("draft", array(draft->row_of, draft->n_nodes, "row_of"), t.n_nodes,
                                      rows.drafted.n_rows, true);
    parts::require_draft_rows(t, rows.draft);
  }
  v.part->reserve(t.n_draws, p.vocab);
  return rows;
}

void require_regimes(std::uint32_t regimes) {
  if (regimes == 0 || regimes > static_cast<std::uint32_t>(regime::any))
    raise<option_error>("regimes is ", regimes, ", but must be a sum of ESPALIER_DETERMINISTIC and so on.");
}

}  // namespace

extern "C" {

int32_t espalier_abi(void) {
  return ESPALIER_ABI;
}

const char* espalier_version(void) {
  return espalier::version().data();  // a literal, which ends in a zero
}

const char* espalier_error(void) {
  return parts::sentence().c_str();
}

const char* espalier_policy_name(int32_t i) {
  static const auto names = parts::policy_names();
  return i >= 0 && static_cast<std::size_t>(i) < names.size() ? names[static_cast<std::size_t>(i)].data() : nullptr;
}

const char* espalier_verifier_name(int32_t i) {
  static const auto names = parts::verifier_names();
  return i >= 0 && static_cast<std::size_t>(i) < names.size() ? names[static_cast<std::size_t>(i)].data() : nullptr;
}

espalier_status espalier_policy_create(const char* name, const char* options, espalier_policy** policy) {
  return guarded([&] {
    (void)at(policy, "policy");
    auto made = std::make_unique<espalier_policy>(
        espalier_policy{parts::make_policy(&at(name, "name"), options == nullptr ? "" : options)});
    *policy = made.release();
  });
}
void espalier_policy_destroy(espalier_policy* policy) {
  delete policy;
}

espalier_status espalier_verifier_create(const char* name, const char* options, espalier_verifier** verifier) {
  return guarded([&] {
    (void)at(verifier, "verifier");
    auto made = std::make_unique<espalier_verifier>(
        espalier_verifier{parts::make_verifier(&at(name, "name"), options == nullptr ? "" : options)});
    *verifier = made.release();
  });
}
void espalier_verifier_destroy(espalier_verifier* verifier) {
  delete verifier;
}

int32_t espalier_policy_max_nodes(const espalier_policy* policy) {
  return policy == nullptr ? 0 : policy->part->max_nodes();
}
int32_t espalier_policy_max_asked(const espalier_policy* policy) {
  return policy == nullptr ? 0 : policy->part->max_asked();
}
uint32_t espalier_policy_regimes(const espalier_policy* policy) {
  return policy == nullptr ? 0 : static_cast<uint32_t>(policy->part->sampling());
}
uint32_t espalier_verifier_regimes(const espalier_verifier* verifier) {
  return verifier == nullptr ? 0 : static_cast<uint32_t>(verifier->part->lossless());
}

espalier_status espalier_tree_create(int32_t capacity, espalier_tree** tree) {
  return guarded([&] {
    (void)at(tree, "tree");
    *tree = std::make_unique<espalier_tree>(capacity).release();
  });
}
void espalier_tree_destroy(espalier_tree* tree) {
  delete tree;
}

espalier_status espalier_tree_reset(espalier_tree* tree, int32_t root_token, int32_t limit) {
  return guarded([&] {
    at(tree, "tree").write().reset(root_token, limit < 0 ? tree->write().capacity() : limit);
    tree->changed();
  });
}

espalier_status espalier_tree_draw(espalier_tree* tree, int32_t parent, int32_t token, float log_prob, int32_t* node) {
  return guarded([&] {
    const node_id made = at(tree, "tree").write().draw(parent, token, log_prob);
    tree->changed();
    if (node != nullptr) *node = made;
  });
}

espalier_status espalier_tree_read(const espalier_tree* tree, espalier_tree_arrays* arrays) {
  return guarded([&] {
    const tree_view t = at(tree, "tree").view();
    require_size(at(arrays, "arrays").size, sizeof(espalier_tree_arrays), "espalier_tree_arrays");
    arrays->n_nodes = t.n_nodes;
    arrays->n_draws = t.n_draws;
    arrays->token = t.token;
    arrays->parent = t.parent;
    arrays->depth = t.depth;
    arrays->log_prob = t.log_prob;
    arrays->first_draw = t.first_draw;
    arrays->next_draw = t.next_draw;
    arrays->drawn_node = t.drawn_node;
  });
}

espalier_status espalier_grow_begin(espalier_policy* policy, espalier_tree* tree, const int32_t** wanted,
                                    int32_t* n_wanted) {
  return guarded([&] {
    (void)at(wanted, "wanted"), (void)at(n_wanted, "n_wanted");
    parts::policy_part& p = *at(policy, "policy").part;
    auto& t = at(tree, "tree").write();
    if (t.size() != 1) raise<input_error>("the tree has grown: espalier_tree_reset() comes first.");
    if (t.capacity() < p.max_asked()) {
      raise<input_error>("the tree has room for ", t.capacity(), " draws, but while it grows this policy has up to ",
                         p.max_asked(), ".");
    }
    give_wanted(*policy, *tree, p.begin(t), wanted, n_wanted);
  });
}

espalier_status espalier_grow_take(espalier_policy* policy, espalier_tree* tree, const espalier_rows* rows,
                                   const espalier_seed* seed, const int32_t** wanted, int32_t* n_wanted) {
  return guarded([&] {
    (void)at(wanted, "wanted"), (void)at(n_wanted, "n_wanted");
    const tree_view t = at(tree, "tree").view();
    espalier_policy& p = at(policy, "policy");
    require_growing(p, *tree);
    const vocab_rows<float> data = data_of(at(rows, "rows"), "rows");
    const auto row_of =
        parts::rows_of_nodes("rows", array(rows->row_of, rows->n_nodes, "row_of"), t.n_nodes, data.n_rows, true);
    const node_rows<float> answer{data, row_of.data()};
    parts::require_answer<float>(p.wanted, answer);
    philox_chance chance = chance_of(seed);
    give_wanted(p, *tree, p.part->take(tree->write(), answer, chance), wanted, n_wanted);
  });
}

espalier_status espalier_grow_was(espalier_policy* policy, const int32_t** was, int32_t* n) {
  return guarded([&] {
    (void)at(was, "was"), (void)at(n, "n");
    give(at(policy, "policy").part->was(), was, n);
  });
}

espalier_status espalier_batch_create(espalier_batch** batch) {
  return guarded([&] {
    (void)at(batch, "batch");
    *batch = std::make_unique<espalier_batch>().release();
  });
}
void espalier_batch_destroy(espalier_batch* batch) {
  delete batch;
}

espalier_status espalier_batch_clear(espalier_batch* batch) {
  return guarded([&] {
    at(batch, "batch").rows.clear();
    batch->rounds.clear(), batch->logits_rows.clear(), batch->prefixes.clear();
  });
}

espalier_status espalier_batch_add(espalier_batch* batch, const espalier_tree* tree, int32_t order,
                                   const int32_t* pending, int32_t n_pending, int32_t sequence, int32_t prefix) {
  return guarded([&] {
    espalier_batch& b = at(batch, "batch");
    const tree_view t = at(tree, "tree").view();
    const auto chain = array(pending, n_pending, "pending");
    if (chain.empty() || chain.back() != t.token[root_node])
      raise<input_error>("the last of the pending tokens must be the tree's root, token ", t.token[root_node], ".");
    const std::int32_t n_rows = n_pending + t.n_nodes - 1;
    const std::int32_t most = (std::numeric_limits<std::int32_t>::max)() - n_rows;
    if (prefix < 0 || prefix > most)
      raise<input_error>("the prefix is ", prefix, " slots; beside ", n_rows, " rows it must be 0 to ", most, ".");
    auto round = std::make_unique<round_rows>(t.n_nodes, n_rows);
    const node_order by = order_of(order);
    b.rounds.reserve(b.rounds.size() + 1), b.logits_rows.reserve(b.rounds.size() + 1);
    b.prefixes.reserve(b.rounds.size() + 1);
    round->add_to(b.rows, t, by, chain, sequence, prefix);
    std::vector<std::int32_t> rows(round->logits_rows().begin(), round->logits_rows().end());
    for (std::int32_t& row : rows)
      row += round->first_output();
    b.rounds.push_back(std::move(round)), b.logits_rows.push_back(std::move(rows)), b.prefixes.push_back(prefix);
  });
}

espalier_status espalier_batch_read(const espalier_batch* batch, espalier_pass* pass) {
  return guarded([&] { give(at(batch, "batch").rows.view(), false, pass); });
}

espalier_status espalier_batch_logits_rows(espalier_batch* batch, int32_t i, const int32_t** logits_row,
                                           int32_t* n_nodes) {
  return guarded([&] {
    (void)at(logits_row, "logits_row"), (void)at(n_nodes, "n_nodes");
    require_option("i", i, 0, static_cast<std::int32_t>(at(batch, "batch").rounds.size()) - 1);
    give(batch->logits_rows[static_cast<std::size_t>(i)], logits_row, n_nodes);
  });
}

espalier_status espalier_batch_kept(espalier_batch* batch, int32_t i, const espalier_tree* tree, int32_t accepted,
                                    const int32_t** slots, int32_t* n) {
  return guarded([&] {
    (void)at(slots, "slots"), (void)at(n, "n");
    require_option("i", i, 0, static_cast<std::int32_t>(at(batch, "batch").rounds.size()) - 1);
    const auto which = static_cast<std::size_t>(i);
    const tree_view t = at(tree, "tree").view();
    if (static_cast<std::size_t>(t.n_nodes) != batch->logits_rows[which].size())
      raise<input_error>("this is not the tree that was added: it has ", t.n_nodes, " nodes.");
    espalier::detail::require_accepted(t, {accepted, 0});
    const auto kept = batch->rounds[which]->kept(t, accepted);
    batch->kept.assign(kept.begin(), kept.end());
    for (std::int32_t& row : batch->kept)
      row += batch->prefixes[which];
    give(batch->kept, slots, n);
  });
}

espalier_status espalier_dense_mask(const espalier_pass* pass, int32_t columns, uint8_t* out, size_t room,
                                    size_t* needed) {
  return guarded([&] {
    const forward_batch_view batch = batch_of(pass);
    interop::write_dense_mask<uint8_t>(batch, columns,
                                       room_for(std::int64_t{batch.n_rows()} * columns, out, room, needed));
  });
}

espalier_status espalier_additive_mask(const espalier_pass* pass, int32_t columns, float* out, size_t room,
                                       size_t* needed) {
  return guarded([&] {
    const forward_batch_view batch = batch_of(pass);
    interop::write_dense_mask<float>(batch, columns,
                                     room_for(std::int64_t{batch.n_rows()} * columns, out, room, needed));
  });
}

espalier_status espalier_flashinfer_mask(const espalier_pass* pass, uint8_t* out, size_t room, int32_t* indptr,
                                         size_t indptr_room, size_t* needed) {
  return guarded([&] {
    const forward_batch_view batch = batch_of(pass);
    std::int64_t bytes = 0;
    for (const batch_sequence& s : batch.sequences)
      bytes += interop::flashinfer_mask_bytes(s.row_end - s.row_begin, s.prefix);
    const auto packed = room_for(bytes, out, room, needed);
    interop::write_flashinfer_mask(
        batch, packed, room_for(static_cast<std::int64_t>(batch.sequences.size()) + 1, indptr, indptr_room, nullptr));
  });
}

espalier_status espalier_sglang_mask(const espalier_pass* pass, int32_t mode, int32_t n, uint8_t* out, size_t room,
                                     size_t* needed) {
  return guarded([&] {
    const forward_batch_view batch = batch_of(pass);
    require_option("mode", mode, 0, 2);
    const interop::sglang_mask_layout layout{static_cast<interop::sglang_mask_mode>(mode), n};
    layout.check();
    std::int64_t bytes = 0;
    for (const batch_sequence& s : batch.sequences)
      bytes += layout.bytes(s.prefix);
    interop::write_sglang_mask(batch, layout, room_for(bytes, out, room, needed));
  });
}

espalier_status espalier_sglang_tree(const espalier_pass* pass, int32_t n, int64_t* positions, int64_t* retrive_index,
                                     int64_t* retrive_next_token, int64_t* retrive_next_sibling, size_t room,
                                     size_t* needed) {
  return guarded([&] {
    const forward_batch_view batch = batch_of(pass);
    const std::int64_t size = static_cast<std::int64_t>(batch.sequences.size()) * n;
    const auto of = [&](int64_t* out) { return room_for(size, out, room, needed); };
    interop::write_sglang_tree<int64_t>(
        batch, n, {of(positions), of(retrive_index), of(retrive_next_token), of(retrive_next_sibling)});
  });
}

espalier_status espalier_verify(espalier_verifier* verifier, const espalier_tree* tree, const espalier_rows* draft,
                                const espalier_rows* target, const espalier_sampling* sampling,
                                const espalier_seed* seed, espalier_verdict* out) {
  return guarded([&] {
    (void)at(out, "verdict");
    espalier_verifier& v = at(verifier, "verifier");
    const tree_view t = at(tree, "tree").view();
    const vocab_rows<float> p = data_of(at(target, "target"), "target");
    philox_chance chance = chance_of(seed);
    const auto rows = checked_rows<float>(v, t, draft, target, p);
    const node_rows<float> drafted{rows.drafted, rows.draft.data()};
    verdict made;
    if (sampling == nullptr) {
      parts::given_target<float> given({p, rows.target.data()});
      made = v.part->verify(t, drafted, given, chance);
    } else {
      if (v.part->argmax_only() && sampling->temperature > 0)
        raise<option_error>("this verifier follows the target's most probable token: the temperature must be 0.");
      v.target.reserve(t.n_nodes, p.vocab);
      v.target.sample(sampling_of(*sampling), p.vocab);
      v.target.open(p, rows.target, 0);
      parts::target_of<float, lazy_rows<float>> sampled(v.target);
      made = v.part->verify(t, drafted, sampled, chance);
    }
    *out = {made.accepted, made.token};
  });
}

espalier_status espalier_accepted_path(const espalier_tree* tree, const espalier_verdict* of, int32_t* nodes,
                                       int32_t* tokens, int32_t room, int32_t* n) {
  return guarded([&] {
    const tree_view t = at(tree, "tree").view();
    const verdict v = verdict_of(of, t);
    const std::int32_t length = t.depth[v.accepted] + 1;
    at(n, "n") = length;
    if (nodes == nullptr && tokens == nullptr) return;
    if (room < length) raise<input_error>("the path has ", length, " nodes, but there is room for ", room, ".");
    std::vector<token_id> committed;
    append_committed(committed, t, v);
    if (tokens != nullptr) std::copy(committed.begin(), committed.end(), tokens);
    for (node_id u = v.accepted; nodes != nullptr && u != no_node; u = t.parent[u])
      nodes[t.depth[u]] = u;
  });
}

espalier_status espalier_policy_observe(espalier_policy* policy, const espalier_tree* tree,
                                        const espalier_verdict* of) {
  return guarded([&] {
    const tree_view t = at(tree, "tree").view();
    espalier_policy& p = at(policy, "policy");
    const verdict v = verdict_of(of, t);
    if (p.grown == 0 || p.grown != tree->state) {
      raise<input_error>(
          "the policy observes the tree that it has grown last, once, and unchanged since; this is another, "
          "or another state of it.");
    }
    p.grown = 0;
    p.part->observe(t, v);
  });
}

espalier_status espalier_grow_decided(espalier_policy* policy, espalier_tree* tree, const espalier_double_rows* rows,
                                      const espalier_decisions* decisions, const int32_t** wanted, int32_t* n_wanted) {
  return guarded([&] {
    (void)at(wanted, "wanted"), (void)at(n_wanted, "n_wanted");
    const tree_view t = at(tree, "tree").view();
    espalier_policy& p = at(policy, "policy");
    require_growing(p, *tree);
    const vocab_rows<double> data = data_of(at(rows, "rows"), "rows");
    const auto row_of =
        parts::rows_of_nodes("rows", array(rows->row_of, rows->n_nodes, "row_of"), t.n_nodes, data.n_rows, true);
    const node_rows<double> answer{data, row_of.data()};
    parts::require_answer<double>(p.wanted, answer);
    called_decisions by(decisions);
    parts::any_chance chance(by);
    give_wanted(p, *tree, p.part->take(tree->write(), answer, chance), wanted, n_wanted);
  });
}

espalier_status espalier_verify_decided(espalier_verifier* verifier, const espalier_tree* tree,
                                        const espalier_double_rows* draft, const espalier_double_rows* target,
                                        const espalier_decisions* decisions, espalier_verdict* out) {
  return guarded([&] {
    (void)at(out, "verdict");
    espalier_verifier& v = at(verifier, "verifier");
    const tree_view t = at(tree, "tree").view();
    const vocab_rows<double> p = data_of(at(target, "target"), "target");
    called_decisions by(decisions);
    parts::any_chance chance(by);
    const auto rows = checked_rows<double>(v, t, draft, target, p);
    parts::given_target<double> given({p, rows.target.data()});
    const verdict made = v.part->verify(t, node_rows<double>{rows.drafted, rows.draft.data()}, given, chance);
    *out = {made.accepted, made.token};
  });
}

int32_t espalier_chance_accept(espalier_chance* chance, double p, double q, int32_t node, int32_t slot,
                               int32_t purpose) {
  return chance != nullptr && is_key(slot, purpose) && chance->by.accept(p, q, key_of(node, slot, purpose)) ? 1 : 0;
}
int32_t espalier_chance_pick(espalier_chance* chance, const double* weights, int32_t n, int32_t node, int32_t slot,
                             int32_t purpose) {
  if (chance == nullptr || weights == nullptr || n < 0 || !is_key(slot, purpose)) return -1;
  return chance->by.pick({weights, static_cast<std::size_t>(n)}, key_of(node, slot, purpose));
}
int32_t espalier_chance_index(espalier_chance* chance, int32_t n, int32_t node, int32_t slot, int32_t purpose) {
  return chance == nullptr || n < 1 || !is_key(slot, purpose) ? -1 : chance->by.index(n, key_of(node, slot, purpose));
}

espalier_status espalier_target_row(espalier_target* target, int32_t node, const float** row, int32_t* vocab) {
  return guarded([&] {
    (void)at(row, "row"), (void)at(vocab, "vocab");
    require_option("node", node, 0, at(target, "target").n_nodes - 1);
    const auto of = target->rows.row(node);
    *row = of.data();
    *vocab = static_cast<int32_t>(of.size());
  });
}
espalier_status espalier_target_argmax(espalier_target* target, int32_t node, int32_t* token) {
  return guarded([&] {
    require_option("node", node, 0, at(target, "target").n_nodes - 1);
    at(token, "token") = target->rows.argmax(node);
  });
}

espalier_status espalier_policy_create_own(const espalier_own_policy* own, espalier_policy** policy) {
  return guarded([&] {
    (void)at(policy, "policy");
    require_size(at(own, "own").size, sizeof(espalier_own_policy), "espalier_own_policy");
    require_regimes(own->regimes);
    require_option("max_nodes", own->max_nodes, 0, 1 << 16);
    if (own->begin == nullptr || own->take == nullptr)
      raise<input_error>("the functions begin and take of a policy must not be null pointers.");
    auto made = std::make_unique<espalier_policy>();
    made->part = std::make_unique<called_policy>(*own);
    *policy = made.release();
  });
}

espalier_status espalier_verifier_create_own(const espalier_own_verifier* own, espalier_verifier** verifier) {
  return guarded([&] {
    (void)at(verifier, "verifier");
    require_size(at(own, "own").size, sizeof(espalier_own_verifier), "espalier_own_verifier");
    require_regimes(own->regimes);
    if (own->verify == nullptr) raise<input_error>("the function verify of a verifier must not be a null pointer.");
    auto made = std::make_unique<espalier_verifier>();
    made->part = std::make_unique<called_verifier>(*own);
    *verifier = made.release();
  });
}

espalier_status espalier_decoder_create(const espalier_decoder_options* options, const espalier_policy* policy,
                                        const espalier_verifier* verifier, espalier_decoder** decoder) {
  return guarded([&] {
    (void)at(decoder, "decoder");
    const espalier_decoder_options& o = at(options, "options");
    require_size(o.size, sizeof(espalier_decoder_options), "espalier_decoder_options");
    parts::decoder_setup setup{.vocab_size = o.vocab_size, .context = o.context};
    if (o.max_texts != 0) setup.max_texts = o.max_texts;
    if (o.prefill_rows != 0) setup.prefill_rows = o.prefill_rows;
    require_option("draft", o.draft, 0, ESPALIER_DRAFT_NONE);
    setup.draft = static_cast<parts::draft_kind>(o.draft);
    setup.order = order_of(o.order);
    const espalier_sampling& s = o.draft_sampling;
    if (s.temperature != 0 || s.top_k != 0 || s.top_p != 0 || s.min_p != 0) setup.draft_sampling = sampling_of(s);
    if (o.move != nullptr) {
      setup.move = [move = o.move, user = o.user](bool is_draft, std::int32_t sequence, std::int32_t from,
                                                  std::int32_t to) {
        move(user, is_draft ? 1 : 0, sequence, from, to);
      };
    }
    auto made = std::make_unique<espalier_decoder>(espalier_decoder{
        parts::make_outside_decoder(setup, at(policy, "policy").part->copy(), at(verifier, "verifier").part->copy())});
    *decoder = made.release();
  });
}
void espalier_decoder_destroy(espalier_decoder* decoder) {
  delete decoder;
}

espalier_status espalier_decoder_add(espalier_decoder* decoder, const int32_t* prompt, int32_t n_prompt,
                                     const espalier_text_options* options, int64_t* text) {
  return guarded([&] {
    (void)at(decoder, "decoder");
    const espalier_text_options& o = at(options, "options");
    require_size(o.size, sizeof(espalier_text_options), "espalier_text_options");
    const auto stop_tokens = array(o.stop_tokens, o.n_stop_tokens, "stop_tokens");
    stop_conditions stop;
    if (o.max_tokens >= 0) stop.max_tokens = o.max_tokens;
    stop.tokens.assign(stop_tokens.begin(), stop_tokens.end());
    const text_id id = decoder->value->add(array(prompt, n_prompt, "prompt"), std::move(stop),
                                           {.sampling = sampling_of(o.sampling), .seed = o.seed, .stream = o.stream});
    if (text != nullptr) *text = id;
  });
}

espalier_status espalier_decoder_cancel(espalier_decoder* decoder, int64_t text) {
  return guarded([&] { at(decoder, "decoder").value->cancel(text); });
}

espalier_status espalier_decoder_resume(espalier_decoder* decoder, int64_t text) {
  return guarded([&] { at(decoder, "decoder").value->resume(text); });
}

int32_t espalier_decoder_is_idle(const espalier_decoder* decoder) {
  return decoder == nullptr || decoder->value->is_idle() ? 1 : 0;
}

espalier_status espalier_decoder_begin_step(espalier_decoder* decoder, espalier_pass* pass) {
  return guarded([&] {
    require_size(at(pass, "pass").size, sizeof(espalier_pass), "espalier_pass");
    give_step(at(decoder, "decoder").value->begin_step(), pass);
  });
}

espalier_status espalier_decoder_end_step(espalier_decoder* decoder, const float* logits, int32_t n_rows, int32_t vocab,
                                          espalier_pass* pass) {
  return guarded([&] {
    require_size(at(pass, "pass").size, sizeof(espalier_pass), "espalier_pass");
    if (n_rows > 0) (void)at(logits, "logits");
    give_step(at(decoder, "decoder").value->end_step({logits, n_rows, vocab}), pass);
  });
}

espalier_status espalier_decoder_give_up(espalier_decoder* decoder) {
  return guarded([&] { at(decoder, "decoder").value->give_up(); });
}

espalier_status espalier_decoder_events(espalier_decoder* decoder, const espalier_event** events, int32_t* n_events) {
  return guarded([&] {
    (void)at(events, "events"), (void)at(n_events, "n_events");
    espalier_decoder& d = at(decoder, "decoder");
    d.events.clear();
    for (const text_event& e : d.value->events()) {
      d.events.push_back({e.id, e.round.committed.data(), static_cast<int32_t>(e.round.committed.size()),
                          e.round.tree.n_draws,
                          e.failed() ? static_cast<int32_t>(ESPALIER_FAILED) : static_cast<int32_t>(e.round.state),
                          e.message.c_str()});
    }
    *events = d.events.data();
    *n_events = static_cast<int32_t>(d.events.size());
  });
}

espalier_status espalier_decoder_text(const espalier_decoder* decoder, int64_t text, const int32_t** tokens,
                                      int32_t* n_tokens, int32_t* n_prompt) {
  return guarded([&] {
    (void)at(tokens, "tokens"), (void)at(n_tokens, "n_tokens");
    const auto& t = at(decoder, "decoder").value->current(text);
    give(t.tokens(), tokens, n_tokens);
    if (n_prompt != nullptr) *n_prompt = *n_tokens - static_cast<int32_t>(t.written().size());
  });
}

}  // extern "C"
