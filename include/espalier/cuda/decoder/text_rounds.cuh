// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/decoder.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/status.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/concepts/model_states.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/decoder/accepted_path.cuh"
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/cuda/decoder/outside_pass.cuh"
#include "espalier/cuda/decoder/round_kernels.cuh"
#include "espalier/cuda/decoder/round_size.cuh"
#include "espalier/cuda/decoder/shared_rows.cuh"
#include "espalier/cuda/decoder/text_caches.cuh"
#include "espalier/cuda/decoder/text_processors.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"
#include "espalier/cuda/verifier/verify.cuh"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/schedule.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"

namespace espalier::cuda::detail {

// Values that one part of the rounds has learnt of the texts. Shapes: from [places][n]
struct learnt_part {
  const std::int32_t* from = nullptr;
  std::int32_t n = 0;
};

// The learnt values of the texts on the device, part by part, and the memory from which they are copied to the host.
template <std::size_t N>
struct learnt_words {
  learnt_part parts[N];
  std::int32_t* kept;  // [places][n]
  std::int32_t n;      // number of words of all parts
};

// Copies what was learnt of each text to `kept`; one block works for a lane.
template <class WordsT>
ESPALIER_KERNEL void keep_learnt(text_batch texts, WordsT learnt) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  std::int32_t* to = learnt.kept + static_cast<std::ptrdiff_t>(here.place) * learnt.n;
  for (const learnt_part& part : learnt.parts) {
    const std::int32_t* const from = part.from + static_cast<std::ptrdiff_t>(here.place) * part.n;
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < part.n; i += static_cast<std::int32_t>(blockDim.x))
      to[i] = from[i];
    to += part.n;
  }
}

// Copies bytes to the device, in the stream's order. They are in pageable memory of the host, which is not needed after
// the call.
inline void put_bytes(void* to, std::span<const std::byte> from, cudaStream_t stream) {
  if (from.empty()) return;
  require(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
}

// Returns the number of 32-bit words that a policy learns of a text.
template <class PolicyT>
std::int32_t learnt_words_of(const PolicyT& policy) {
  std::size_t n = 0;
  for_each_part(policy, [&]<class OneT>(const OneT& one, auto) {
    if constexpr (LearningPolicy<OneT>) n += one.learnt_bytes();
  });
  return static_cast<std::int32_t>(n / sizeof(std::int32_t));
}

// Gives the policy, for the text in this place, values that were learnt elsewhere. Pre: `learnt` has as many bytes as
// the policy learns of a text
template <class PolicyT>
void put_learnt(const PolicyT& policy, std::int32_t place, std::span<const std::byte> learnt, cudaStream_t stream) {
  for_each_part(policy, [&]<class OneT>(const OneT& one, auto) {
    if constexpr (LearningPolicy<OneT>) {
      const std::size_t n = one.learnt_bytes();
      put_bytes(one.learnt() + static_cast<std::size_t>(place) * n, learnt.first(n), stream);
      learnt = learnt.subspan(n);
    }
  });
}

// Copies what policy and rounds have learnt to `kept`. Shapes: gains [places][gains.n], kept [places][all words]
template <class PolicyT>
void keep_learnt_of(const text_batch& texts, const PolicyT& policy, learnt_part gains, std::int32_t* kept,
                    cudaStream_t stream) {
  using words = learnt_words<n_parts<PolicyT> + 1>;
  words all{{}, kept, learnt_words_of(policy) + gains.n};
  learnt_part* next = all.parts;
  for_each_part(policy, [&]<class OneT>(const OneT& one, auto) {
    if constexpr (LearningPolicy<OneT>) {
      *next++ = {reinterpret_cast<const std::int32_t*>(one.learnt()),
                 static_cast<std::int32_t>(one.learnt_bytes() / sizeof(std::int32_t))};
    }
  });
  *next = gains;
  launch("keep_learnt", keep_learnt<words>, {.grid = texts.lanes(), .threads = 64}, stream, texts, all);
}

// Commits to the host's text what a round of the device has committed, up to the text's stop condition, or up to depth
// `ends`, after which nothing may follow (-1: there is no such depth). Returns the record of the round; its views point
// into the text and the tree.
template <class PieceT>
round_record take_round(text& written, tree_view tree, tree_limit limited_by, verdict decision, std::int32_t ends,
                        const PieceT& piece_of) {
  if (ends == 0) {
    round_record nothing{.index = written.round(), .tree = tree, .decision = decision, .forwarded_rows = tree.n_nodes};
    nothing.limited_by = limited_by;
    written.stop(status::nothing_allowed);
    nothing.shown = written.shown();
    nothing.state = written.state();
    return nothing;
  }
  const status after = ends > 0 ? status::nothing_allowed : status::running;
  const verdict admitted = written.admit(tree, decision, piece_of, after);
  round_record record{.index = written.round(), .tree = tree, .decision = admitted, .forwarded_rows = tree.n_nodes};
  record.limited_by = limited_by;
  const std::size_t before = written.tokens().size();
  written.commit(tree, admitted);
  record.committed = written.tokens().subspan(before);
  record.shown = written.shown();
  record.state = written.state();
  return record;
}

// The results of a round on the host: outcomes by lane, trees by place.
struct round_arrival {
  std::span<const round_outcome> outcomes;
  std::int32_t* trees;
  std::int32_t capacity;
  std::span<const std::int32_t> learnt{};
  std::int32_t learnt_words = 0;    // number of words of a place
  std::exception_ptr failure{};     // exception of a model of the host; looked for only if a text has a fault
  std::exception_ptr processing{};  // exception of a processor, likewise

  tree_view tree(std::int32_t place) const {
    return tree::at(trees + static_cast<std::size_t>(place) * tree::n_words(capacity), capacity).view();
  }
  // The number of draws that the tree was allowed to have, or was cut to.
  std::int32_t limit(std::int32_t place) const {
    return tree::at(trees + static_cast<std::size_t>(place) * tree::n_words(capacity), capacity).limit();
  }
  // The values that are learnt of the text in this place once the round is over.
  std::span<const std::byte> learnt_at(std::int32_t place) const {
    const auto n = static_cast<std::size_t>(learnt_words);
    return std::as_bytes(learnt.subspan(static_cast<std::size_t>(place) * n, n));
  }

  // Throws the fault that the round has found in a lane's text or, if a model or a processor of the host has failed in
  // the round, its exception in place of the fault. Does nothing if there is no fault.
  void raise_fault(std::size_t lane) const {
    const fault& found = outcomes[lane].found;
    if (found.what != fault::kind::none && failure) std::rethrow_exception(failure);
    if (found.what != fault::kind::none && processing) std::rethrow_exception(processing);
    cuda::raise_fault(found);
  }
};

// The sizes that the launches of a round are made for.
struct round_shape {
  std::int32_t lanes = 1;
  std::int32_t bucket = 0;         // tokens that a text may reach
  std::int32_t n_rows = 1;         // rows of the target's pass for trees
  std::int32_t n_prompt_rows = 0;  // rows of the target's pass for prompts
  bool processes = false;          // processors change rows

  bool drafts() const { return n_rows > lanes; }
  bool operator==(const round_shape&) const = default;
};

// The graphs of rounds, one for each shape.
class round_graphs {
 public:
  // Replays a round of this shape, captured from enqueue(), and returns true. Returns false for the first round of its
  // shape: the caller enqueues it without a graph, so that all its kernels are loaded before one is captured.
  template <class EnqueueT>
  bool replay(const round_shape& shape, cudaStream_t stream, const EnqueueT& enqueue) {
    for (captured& c : all_) {
      if (c.shape != shape) continue;
      if (!c.made) c.made.emplace(stream, enqueue);
      c.made->launch(stream);
      return true;
    }
    all_.push_back({shape, std::nullopt});
    return false;
  }

 private:
  struct captured {
    round_shape shape;
    std::optional<graph> made;
  };
  std::vector<captured> all_;
};

// The table of the places of a round's lanes on the device, and a copy of the table on the host.
class lane_table {
 public:
  explicit lane_table(std::int32_t max_texts) : place_of_(static_cast<std::size_t>(max_texts)) {}

  // Shapes [lanes], on the device: the place of each lane, -1 for an empty one.
  const std::int32_t* data() const { return place_of_.data(); }

  // Sets the table to these places, in this order; further lanes, up to `lanes`, are empty. Launches nothing if the
  // table is so already.
  void seat(std::span<const std::int32_t> places, std::int32_t lanes, cudaStream_t stream) {
    const auto same = static_cast<std::size_t>(lanes) == now_.size() &&
                      std::equal(places.begin(), places.end(), now_.begin()) &&
                      std::all_of(now_.begin() + std::ssize(places), now_.end(), [](std::int32_t p) { return p < 0; });
    if (same) return;
    now_.assign(static_cast<std::size_t>(lanes), -1);
    std::copy(places.begin(), places.end(), now_.begin());
    for (std::int32_t first = 0; first < lanes; first += some_lanes::max) {
      some_lanes some{first, (std::min)(lanes - first, some_lanes::max), {}};
      std::copy_n(now_.begin() + first, some.n, some.place);
      launch("set_lanes", set_lanes<>, {.threads = some_lanes::max}, stream, place_of_.data(), some);
    }
  }

  // Forgets what the table has, so that the next seat() writes all of it.
  void forget() { now_.clear(); }

 private:
  device_array<std::int32_t> place_of_;
  std::vector<std::int32_t> now_;
};

// The rounds of texts on the device, as work in one stream. A text has a place, with its tokens, its state and a
// sequence of both caches; a round is over the texts of some places, its lanes. The results of a round are copied to
// the host after it; two rounds may be under way.
//
// A graph of the round is captured for each number of lanes (a power of two, or all), each context_bucket, each number
// of rows for trees and for prompts, and separately for rounds in which processors change rows. A round does not draft
// if its pass has no room for drafted tokens.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT,
          class ProcessorT = no_processor>
class text_rounds : public text_caches<DrafterT, KVStoreT, BackendT> {
  using caches = text_caches<DrafterT, KVStoreT, BackendT>;
  using typename caches::backend_type;
  using typename caches::drafter_type;
  using typename caches::kv_type;

  static_assert(check_round_parts<drafter_type, TreePolicyT, VerifierT, kv_type, backend_type>());
  using caches::backend_;
  using caches::context_;
  using caches::drafter_;
  using caches::found_;
  using caches::kv_;
  using caches::max_rows_;
  using caches::states_;
  using caches::stream_;
  static constexpr bool has_processor = espalier::detail::processes<ProcessorT>;
  static constexpr bool is_drawn = TreePolicyT::sampling != regime::deterministic;
  // True if trees can be cut: a drafter that keeps rows by node must be able to follow a cut after growth.
  static constexpr bool can_cut = is_drawn || !asks_by_steps<drafter_type>() || RenumberingDrafter<drafter_type>;

 public:
  using number = typename backend_type::number;
  // True if rounds that do not draft leave the drafter behind the text.
  static constexpr bool draft_falls_behind = may_fall_behind<drafter_type>();

  using arrival = round_arrival;
  using processor_type = ProcessorT;

  text_rounds(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
              rounds_shape shape)
      : caches(std::forward<DrafterT>(drafter), std::forward<KVStoreT>(kv), std::forward<BackendT>(backend), shape),
        policy_(std::move(policy)),
        shape_(std::move(shape)),
        prefill_rows_(rows_of_pass(kv_, (std::min)(shape_.prefill_rows, prefill::chunk))),
        max_nodes_((std::min)(policy_.max_nodes(), context_)),
        size_(shape_.costs, max_nodes_, max_rows_),
        tree_((std::min)(most_asked<drafter_type>(policy_), context_), shape_.max_texts,
              static_cast<std::size_t>(learnt_words()) * static_cast<std::size_t>(shape_.max_texts)),
        compiler_(max_nodes_, shape_.order, shape_.max_texts, prefill_rows_),
        verification_(std::move(verifier), max_nodes_ + 1, backend_.vocab_size(), shape_.max_texts),
        path_(max_nodes_ + 1, shape_.max_texts),
        processors_(most_asked<drafter_type>(policy_) + 1, max_nodes_ + 1, backend_.vocab_size(), shape_.max_texts),
        lanes_(shape_.max_texts),
        decisions_(states_.size()),
        outcomes_(static_cast<std::size_t>((std::max)(shape_.max_texts, size_.n_sizes()))) {
    require_option("sequence", shape_.first_sequence, 0, kv_.n_sequences() - 1);
    require_option("max_texts", shape_.max_texts, 1, kv_.n_sequences() - shape_.first_sequence);
    require_option("max_rows of a pass", max_rows_, shape_.max_texts, 1 << 30);
    espalier::detail::require_parts<VerifierT, ProcessorT>(drafter_, policy_, backend_, max_nodes_);
    require_rows(kv_, max_nodes_ + 1);
    reserve_trees<drafter_type>(policy_, shape_.max_texts);
    keep_states(policy_, drafter_);
    // Not limited by the context: the policy's lists of nodes are as long in a short context as in a long one.
    reserve_draft(drafter_, policy_, shape_.max_texts, found_.data());
    reserve_states();
    if (may_be_short()) {
      shared_.emplace(tree_.capacity(), shape_.max_texts);
      outcomes_.fill_bytes(0, stream_.get());
    }
    for (pending& p : pending_) {
      p.outcomes = pinned_array<round_outcome>(outcomes_.size());
      p.trees = pinned_array<std::int32_t>(tree_.words().size());
    }
  }
  ~text_rounds() { (void)cudaStreamSynchronize(stream_.get()); }

  using caches::reads_features;
  std::int32_t max_nodes() const { return max_nodes_; }

  // Makes sure that both caches have slots for a round of a text that may reach n_slots tokens. A tree that is built
  // anew once it has grown is larger before that, and the draft's cache must hold the larger one.
  void ensure(std::int32_t place, std::int32_t n_slots) {
    const bool rebuilds = tree_.capacity() > max_nodes_;
    caches::ensure(place, n_slots, rebuilds ? n_slots + tree_.capacity() : n_slots);
  }

  // The limits of a pass, for plan_step().
  espalier::detail::pass_limits limits() const {
    return {.rows = max_rows_,
            .prefill_rows = prefill_rows_,
            .prefill_alone = shape_.prefill_rows,
            .max_chunks = max_chunks(prefill_rows_),
            .max_nodes = max_nodes_,
            .cuts_trees = cuts_trees(),
            .max_lanes = shape_.max_texts};
  }
  // The rows of a planned round.
  struct pass_rows {
    std::int32_t lanes = 0;
    std::int32_t n_rows = 0;         // for trees, padding included
    std::int32_t n_prompt_rows = 0;  // for prompts, padding included
    // Why a tree has no more nodes, if it is as large as its rows allow.
    tree_limit limited_by = tree_limit::pass_rows;
    bool drafts() const { return n_rows > lanes; }
  };
  // Returns the rows of a round by this plan, of texts with `context` tokens on average.
  pass_rows rows_of(const espalier::detail::pass_plan& plan, std::int32_t context) const {
    const std::int32_t lanes = plan.n_lanes, prompts = plan.prefill_rows;
    if (shared_) {
      const std::int32_t n = size_.choose(lanes, plan.n_rounds, context, prompts);
      const bool has_more = n < (std::min)(size_.most(lanes), max_rows_ - prompts);
      return {lanes, n, prompts, has_more ? tree_limit::price : tree_limit::shared_rows};
    }
    return {lanes, lanes * (std::min)(max_nodes_ + 1, (max_rows_ - prompts) / lanes), prompts};
  }

  // Returns why the tree of text t, as the text stood before the round, has no more nodes. `limit` is the number of
  // draws that the tree was allowed to have or was cut to, in a round with these rows.
  tree_limit limit_of(const espalier::text& t, tree_view tree, std::int32_t limit, const pass_rows& rows) const {
    const espalier::detail::tree_room room{rows.drafts(), t.left(), t.room(), drafter_.capacity() - t.size(),
                                           max_nodes_};
    const std::int32_t most = (std::min)({room.context, room.draft, room.budget});
    const bool is_cut = !rows.drafts() || (tree.n_draws >= limit && limit < most);
    return espalier::detail::limit_of(tree.n_draws, room, is_cut ? rows.limited_by : tree_limit::policy);
  }

  // Checks the options of a text. Errors: option_error for options that the verifier or the device does not take
  void check(const text_options& options) const {
    espalier::detail::require_text<VerifierT>(options, backend_);
    require_option("log_probs on the device", options.log_probs, -1, -1);
    (void)team_sampler_layout::of(options.sampling, backend_.vocab_size(), 1);  // checks them
  }

  // Waits until no round is under way.
  void settle() {
    n_under_way_ = 0;
    require(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }
  // Gives up all rounds under way, and their failures. May be called after an error.
  void give_up() noexcept {
    n_under_way_ = 0;
    lanes_.forget();
    (void)cudaStreamSynchronize(stream_.get());
    caches::forget_failures();
    (void)caches::failure_of(processors_);
  }
  std::int32_t n_under_way() const { return n_under_way_; }

  // Gives the text in this place its processor, and forgets the models' states of it. Called after put().
  void follow(std::int32_t place, const espalier::text& text, const ProcessorT& processor) {
    processors_.follow(place, text, processor, stream_.get());
    if constexpr (ReadsStates<TreePolicyT>) {
      if (policy_.reads_states()) policy_.forget_states(place, stream_.get());
    }
  }
  void sample(std::int32_t place, const sampling_options& sampling) {
    verification_.sample(place, sampling, stream_.get());
    if constexpr (ReadsStates<TreePolicyT>) {
      if (policy_.reads_states()) policy_.sample(place, sampling, stream_.get());
    }
  }
  // Forgets what policy and rounds have learnt of the text in this place.
  void forget(std::int32_t place) {
    if (shared_) shared_->forget(place, stream_.get());
    if constexpr (ResettingPolicy<TreePolicyT>) policy_.reset(place, stream_.get());
  }
  // Replaces what was learnt by values from learnt_at() or learnt_with(); only forgets it if `learnt` is empty.
  void learn(std::int32_t place, std::span<const std::byte> learnt) {
    forget(place);
    if (learnt.empty()) return;
    const auto n_bytes = static_cast<std::size_t>(learnt_words_of(policy_)) * sizeof(std::int32_t);
    put_learnt(policy_, place, learnt.first(n_bytes), stream_.get());
    if (shared_) put_bytes(shared_->gains().data() + place, learnt.subspan(n_bytes), stream_.get());
  }
  // Returns the learnt values that a text begins with if it has these options of its own for the policy.
  template <class OptionsT>
  std::vector<std::byte> learnt_with(const OptionsT& options) const {
    return policy_.learnt_with(options);
  }

  // Enqueues a round of the texts in these places, the longest of which may reach `longest` tokens. The round's pass
  // also reads these chunks of prompts, whose rows are set here. Pre: if max_texts is 1 the place is 0
  void enqueue(std::span<const std::int32_t> places, std::int32_t longest, const pass_rows& plan,
               std::span<prompt_chunk> chunks = {}) {
    const round_shape shape = prepare(places, longest, plan, chunks);
    if (!shape_.replay || !graphs_.replay(shape, stream_.get(), [&] { round(shape); })) round(shape);
    enqueue_results(shape);
  }

  // Enqueues the work before the pass in a round whose pass is made outside, and returns the pass: the first half of
  // enqueue().
  outside_pass open(std::span<const std::int32_t> places, std::int32_t longest, const pass_rows& plan,
                    std::span<prompt_chunk> chunks = {}) {
    opened_.shape = prepare(places, longest, plan, chunks);
    opened_.batch = before_pass(opened_.shape);
    return {opened_.batch, stream_.get()};
  }
  // Enqueues the work after the pass, which has given these logits: the second half of enqueue().
  void close(vocab_rows<number> logits) {
    after_pass(opened_.shape, opened_.batch, logits);
    enqueue_results(opened_.shape);
  }

  // Waits for the oldest round under way, which is of n texts, and returns its results. They are valid until the next
  // round is enqueued.
  arrival wait(std::size_t n) {
    pending& p = pending_[(n_enqueued_ - static_cast<unsigned>(n_under_way_)) % 2];
    p.done.wait();
    --n_under_way_;
    const std::span<const std::int32_t> words = p.trees.span();
    const auto of_learnt = static_cast<std::size_t>(learnt_words()) * static_cast<std::size_t>(shape_.max_texts);
    arrival arrived{p.outcomes.span().first(n), p.trees.data(), tree_.capacity(), words.last(of_learnt),
                    learnt_words()};
    const auto is_faulty = [](const round_outcome& o) { return o.found.what != fault::kind::none; };
    const bool any = std::any_of(arrived.outcomes.begin(), arrived.outcomes.end(), is_faulty);
    if (any) arrived.failure = caches::failure_of_models();
    if (any) arrived.processing = caches::failure_of(processors_);
    if (p.says_expected && !any) size_.observe(static_cast<std::int32_t>(n), p.outcomes.span());
    return arrived;
  }

 private:
  struct pending {
    pinned_array<round_outcome> outcomes;
    pinned_array<std::int32_t> trees;
    event done;
    bool says_expected = false;
  };

  // Lets the policy take memory for the states of both models, if it reads them.
  void reserve_states() {
    if constexpr (ReadsStates<TreePolicyT> && KeepsStates<drafter_type>) {
      if (policy_.reads_states()) {
        policy_.reserve_states({.vocab = backend_.vocab_size(),
                                .context = context_,
                                .target_hidden = hidden_rows_of(backend_).size,
                                .draft_hidden = drafter_.hidden_size(),
                                .max_texts = shape_.max_texts});
      }
    }
  }

  // Number of prompts that a pass with n_rows rows for prompts may read.
  std::int32_t max_chunks(std::int32_t n_rows) const {
    return (std::min)(prompt_rows::max_chunks(n_rows), shape_.max_texts);
  }
  // True if a tree may be cut to fewer nodes, so that others have room.
  bool cuts_trees() const { return can_cut && shape_.share_budget; }
  // True if trees may have to be cut: a pass may have no room for all of them, or costs may ask for fewer rows.
  bool may_be_short() const {
    const std::int64_t all_rows = std::int64_t{shape_.max_texts} * (max_nodes_ + 1) + prefill_rows_;
    return cuts_trees() && max_nodes_ > 0 && (size_.has_costs() || all_rows > max_rows_);
  }
  static constexpr std::int32_t gains_words = sizeof(text_gains) / sizeof(std::int32_t);
  // Number of 32-bit words that are learnt of a text.
  std::int32_t learnt_words() const {
    return shape_.keeps_learnt ? learnt_words_of(policy_) + (may_be_short() ? gains_words : 0) : 0;
  }

  // Enqueues a copy of what was learnt of the texts to the memory after the trees, which goes to the host with them.
  void keep(const text_batch& texts) {
    const auto trees = static_cast<std::size_t>(texts.tree_words) * static_cast<std::size_t>(shape_.max_texts);
    learnt_part gains;
    if (shared_) gains = {reinterpret_cast<const std::int32_t*>(shared_->gains().data()), gains_words};
    keep_learnt_of(texts, policy_, gains, tree_.words().data() + trees, stream_.get());
  }

  // True if n_rows rows are too few for the largest trees of all lanes.
  bool is_short(std::int32_t lanes, std::int32_t n_rows) const {
    return n_rows < std::int64_t{lanes} * (max_nodes_ + 1);
  }

  text_batch texts(std::int32_t lanes, std::int32_t bucket) const {
    return {.n = lanes,
            .max_context = bucket,
            .first_sequence = shape_.first_sequence,
            .place_of = shape_.max_texts > 1 ? lanes_.data() : nullptr,
            .trees = tree_.writer(),
            .tree_words = static_cast<std::ptrdiff_t>(tree::n_words(tree_.capacity())),
            .texts = caches::texts()};
  }

  // Sets the lanes and chunks of the next round, and returns its shape.
  round_shape prepare(std::span<const std::int32_t> places, std::int32_t longest, const pass_rows& plan,
                      std::span<prompt_chunk> chunks) {
    const round_shape shape{plan.lanes, context_bucket(longest, context_), plan.n_rows, plan.n_prompt_rows,
                            processors_.prepare(places)};
    if (shape_.max_texts > 1) lanes_.seat(places, plan.lanes, stream_.get());
    for (std::int32_t row = plan.n_rows; prompt_chunk & c : chunks) {
      c.row = row;
      row += c.n;
    }
    if (plan.n_prompt_rows > 0) prompts_.set(chunks, stream_.get());
    return shape;
  }

  // Enqueues the copies of a round's results to the host. From then on the round is under way.
  void enqueue_results(const round_shape& shape) {
    pending& p = pending_[n_enqueued_ % 2];
    p.says_expected = shared_ && size_.has_costs() && shape.drafts();
    size_.begin(shape.drafts());
    outcomes_.download(p.outcomes.span(), stream_.get());
    tree_.words().download(p.trees.span(), stream_.get());
    p.done.record(stream_.get());
    ++n_enqueued_;
    ++n_under_way_;
  }

  // True if the trees of a round of this shape share the rows of its pass.
  bool shares(const round_shape& shape) const { return shared_ && shape.drafts(); }
  // Returns the most rows that a tree may have in a round of this shape.
  std::int32_t rows_of_tree(const round_shape& shape) const {
    return (std::min)(max_nodes_ + 1, shares(shape) ? shape.n_rows : shape.n_rows / shape.lanes);
  }

  // Enqueues the launches of a round.
  void round(const round_shape& shape) {
    const forward_batch_view batch = before_pass(shape);
    after_pass(shape, batch, backend_.forward(kv_, batch, stream_.get()));
  }

  // Enqueues the work before the target's pass in a round, and returns the pass: trees grow, and their rows are
  // compiled.
  forward_batch_view before_pass(const round_shape& shape) {
    const cudaStream_t s = stream_.get();
    const text_batch texts = this->texts(shape.lanes, shape.bucket);
    const bool shares = this->shares(shape), cuts = is_short(shape.lanes, shape.n_rows);
    const std::int32_t n_rows = rows_of_tree(shape);
    const std::int32_t limit = n_rows <= max_nodes_ && (is_drawn || !shares) ? n_rows - 1 : tree_.capacity();
    launch("open_round", open_round<>, {.grid = texts.lanes()}, s, texts, limit,
           (std::min)(context_, drafter_.capacity()));
    if constexpr (has_processor) {
      fault* const found = found_.data();
      for_each_part(drafter_, [&]<class PartT>(PartT& part, auto) {
        if constexpr (ProcessingDrafter<PartT>) {
          using draft_number = typename PartT::number;
          part.process_rows(shape.processes ? processors_.template of_draft<draft_number>(found)
                                            : row_processor<draft_number>());
        }
      });
    }
    if (shape.drafts()) draft(texts, shape.n_rows, shares, cuts);
    const forward_batch_view batch = compiler_.compile(texts, n_rows, s, shares && cuts ? shape.n_rows : 0);
    if (shape.n_prompt_rows == 0) return batch;
    return prompts_.add(batch, compiler_, texts, shape.n_prompt_rows, max_chunks(shape.n_prompt_rows), s);
  }

  // Enqueues the work after the target's pass: the round is verified and committed.
  void after_pass(const round_shape& shape, const forward_batch_view& batch, vocab_rows<number> logits) {
    const cudaStream_t s = stream_.get();
    const text_batch texts = this->texts(shape.lanes, shape.bucket);
    const bool drafts = shape.drafts();
    const std::int32_t n_rows = rows_of_tree(shape);
    if constexpr (has_processor) {
      const processed_pass pass{n_rows, compiler_.rows(), batch.sequences, shape_.first_sequence};
      if (shape.processes) processors_.run(texts, pass, logits, found_.data(), s);
    }
    verification_.run(texts, drafts ? draft_rows() : text_rows(), logits, compiler_.rows(), n_rows, found_.data(), s,
                      batch.sequences);
    const path_view path = path_.find(texts, verification_.decisions(), compiler_.rows(), n_rows, found_.data(), s);
    if constexpr (ReadsStates<TreePolicyT>) {
      if (policy_.reads_states()) {
        const target_states<number> target{logits, hidden_rows_of(backend_), batch.sequences};
        policy_.read(texts, path, target, found_.data(), s);
      }
    }
    if constexpr (reads_features) {
      drafter_.read(backend_, texts, path, batch.sequences, s);
      const std::int32_t n_chunks = max_chunks(shape.n_prompt_rows);
      if (n_chunks > 0) drafter_.read(backend_, prompts_.chunks(), n_chunks, shape.n_prompt_rows, s);
    }
    kv_.commit(texts, {path.base, path.rows, path.n, path.max}, s);
    if (drafts) drafter_.commit(texts, path, s);
    launch("close_round", close_round<>, {.grid = texts.lanes()}, s, texts, path, found_.data(),
           {shape.processes ? processors_.ends() : nullptr, processors_.n_nodes()}, decisions_.data(),
           outcomes_.data());
    if (drafts) policy_.observe(texts, decisions_.data(), s);
    if (shares(shape)) shared_->observe(texts, decisions_.data(), s);
    if (learnt_words() > 0) keep(texts);
  }

  // Enqueues the growth of the texts' trees. With `shares` the rows of the pass are shared out, if they are too few for
  // whole trees (`cuts`) or if there are costs: drawn trees get their limits before they grow; other trees grow whole,
  // and are cut afterwards if `cuts`.
  void draft(const text_batch& texts, std::int32_t n_rows, bool shares, bool cuts) {
    const cudaStream_t s = stream_.get();
    const auto share = [&] {
      shared_->share(texts, n_rows, &outcomes_.data()->expected, sizeof(round_outcome) / sizeof(float), size_.n_sizes(),
                     s);
    };
    const bool weighs = shares && (cuts || size_.has_costs());
    if (is_drawn && weighs) share();
    std::vector<std::int32_t> asked;
    grow(policy_, texts, drafter_, s, [&](std::int32_t n) { asked.push_back(n); });
    size_.draft_as(asked);
    if constexpr (!is_drawn) {
      if (weighs) share();
      if (shares && cuts) {
        [[maybe_unused]] const moved_nodes moved = shared_->cut(texts, s);
        if constexpr (RenumberingDrafter<drafter_type>) drafter_.renumber(texts, moved, s);
      }
    }
  }

  text_rows draft_rows() const {
    if constexpr (requires { text_rows(drafter_.rows()); }) return drafter_.rows();
    return {};
  }

  TreePolicyT policy_;
  rounds_shape shape_;
  std::int32_t prefill_rows_;  // rows of a pass for prompts, at most
  std::int32_t max_nodes_;
  round_size size_;
  tree tree_;
  tree_compiler compiler_;
  verification<VerifierT, number> verification_;
  accepted_path path_;
  ESPALIER_NO_UNIQUE_ADDRESS text_processors<ProcessorT> processors_;
  prompt_rows prompts_;
  lane_table lanes_;
  device_array<verdict> decisions_;
  device_array<round_outcome> outcomes_;  // [lanes]
  std::optional<shared_rows<is_drawn>> shared_;
  round_graphs graphs_;
  struct {
    round_shape shape{};
    forward_batch_view batch{};
  } opened_;  // the round whose pass is made outside
  pending pending_[2];
  unsigned n_enqueued_ = 0;
  std::int32_t n_under_way_ = 0;
};

}  // namespace espalier::cuda::detail
