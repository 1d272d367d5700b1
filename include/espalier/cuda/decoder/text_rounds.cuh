// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/context_bucket.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/event.cuh"
#include "espalier/cuda/core/moved_nodes.cuh"
#include "espalier/cuda/core/pinned_array.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/decoder/accepted_path.cuh"
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/cuda/decoder/lane_table.cuh"
#include "espalier/cuda/decoder/round_graphs.cuh"
#include "espalier/cuda/decoder/round_kernels.cuh"
#include "espalier/cuda/decoder/round_parts.cuh"
#include "espalier/cuda/decoder/round_size.cuh"
#include "espalier/cuda/decoder/shared_rows.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"
#include "espalier/cuda/verifier/verify.cuh"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"

namespace espalier::cuda::detail {

// The rounds of texts on the device, as work in one stream. A text has a place, with its tokens, its state and a
// sequence of both caches; a round is over the texts of some places, its lanes. What a round leaves for the host comes
// over behind it: two rounds may be under way.
//
// A graph of the round is captured for each number of lanes, a power of two or all, each context_bucket and each
// round_size. Where a pass has no room for drafted tokens, rounds do not draft.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
class text_rounds {
  using drafter_type = std::remove_reference_t<DrafterT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using backend_type = std::remove_reference_t<BackendT>;

  static_assert(check_round_parts<drafter_type, TreePolicyT, VerifierT, kv_type, backend_type>());
  using number = typename backend_type::number;
  static constexpr bool is_drawn = TreePolicyT::sampling != regime::deterministic;
  // Where trees are cut after they have grown, a drafter that keeps something of each node must know.
  static constexpr bool can_share = is_drawn || !StepDrafter<drafter_type> || RenumberingDrafter<drafter_type>;

 public:
  static constexpr bool reads_features = FeatureDrafter<drafter_type, backend_type>;
  // Whether rounds that do not draft leave the drafter behind the text.
  static constexpr bool draft_falls_behind = StepDrafter<drafter_type>;

  // Whether caches can give up what they hold of texts that have left.
  static constexpr bool can_release = SharingKVStore<kv_type> || ReleasingDrafter<drafter_type>;

  // What comes over from a round: by lane, and the trees by place.
  struct arrival {
    std::span<const round_outcome> outcomes;
    std::int32_t* trees;
    std::int32_t capacity;
    std::exception_ptr failure{};  // of a model of the host, where any text has a fault

    tree_view tree(std::int32_t place) const {
      return tree::at(trees + static_cast<std::size_t>(place) * tree::n_words(capacity), capacity).view();
    }
  };

  text_rounds(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
              rounds_shape shape)
      : drafter_(std::forward<DrafterT>(drafter)),
        policy_(std::move(policy)),
        kv_(std::forward<KVStoreT>(kv)),
        backend_(std::forward<BackendT>(backend)),
        shape_(std::move(shape)),
        context_((std::min)(backend_.max_positions(), kv_.capacity())),
        max_nodes_((std::min)(policy_.max_nodes(), context_)),
        max_rows_((std::min)(shape_.max_rows, static_cast<std::int32_t>(backend_.max_rows()))),
        size_(shape_.costs, max_nodes_, max_rows_),
        tree_((std::min)(most_asked(policy_), context_), shape_.max_texts),
        compiler_(max_nodes_, shape_.order, shape_.max_texts),
        verification_(std::move(verifier), max_nodes_ + 1, backend_.vocab_size(), shape_.max_texts),
        path_(max_nodes_ + 1, shape_.max_texts),
        tokens_(static_cast<std::size_t>(shape_.max_texts) * (static_cast<std::size_t>(context_) + 1)),
        states_(static_cast<std::size_t>(shape_.max_texts)),
        found_(states_.size()),
        lanes_(shape_.max_texts),
        decisions_(states_.size()),
        outcomes_(static_cast<std::size_t>((std::max)(shape_.max_texts, size_.n_sizes()))) {
    require_option("sequence", shape_.first_sequence, 0, kv_.n_sequences() - 1);
    require_option("max_texts", shape_.max_texts, 1, kv_.n_sequences() - shape_.first_sequence);
    require_option("max_rows of a pass", max_rows_, shape_.max_texts, 1 << 30);
    espalier::detail::require_fit(drafter_, backend_, max_nodes_);
    if (shape_.max_texts > 1) policy_.reserve(shape_.max_texts);
    drafter_.reserve(most_asked(policy_), shape_.max_texts, found_.data());  // lists are as long in a short context
    const bool may_be_short = size_.has_costs() || is_short(shape_.max_texts, size_.most(shape_.max_texts));
    if (can_share && shape_.share_rows && max_nodes_ > 0 && may_be_short) {
      shared_.emplace(tree_.capacity(), shape_.max_texts);
      outcomes_.fill_bytes(0, stream_.get());
    }
    for (pending& p : pending_) {
      p.outcomes = pinned_array<round_outcome>(outcomes_.size());
      p.trees = pinned_array<std::int32_t>(tree_.words().size());
    }
  }
  text_rounds(const text_rounds&) = delete;
  ~text_rounds() { (void)cudaStreamSynchronize(stream_.get()); }

  kv_type& kv() { return kv_; }
  const kv_type& kv() const { return kv_; }
  std::int32_t vocab_size() const { return backend_.vocab_size(); }
  std::int32_t context() const { return context_; }
  std::int32_t max_nodes() const { return max_nodes_; }
  std::int32_t sequence(std::int32_t place) const { return shape_.first_sequence + place; }

  // The next round of so many texts, of `context` tokens on average: rows of its pass, padding included.
  struct round_plan {
    std::int32_t lanes;
    std::int32_t n_rows;
    bool drafts() const { return n_rows > lanes; }
  };
  round_plan plan(std::int32_t n, std::int32_t context) const {
    const std::int32_t lanes = lanes_of(n);
    if (shared_) return {lanes, size_.choose(lanes, context, 0)};
    return {lanes, lanes * (std::min)(max_nodes_ + 1, max_rows_ / lanes)};
  }

  // Errors: option_error for options that the verifier or the device does not take.
  void check(const text_options& options) const {
    espalier::detail::require_sampling<VerifierT>(options.sampling);
    require_option("log_probs on the device", options.log_probs, -1, -1);
    (void)team_sampler_layout::of(options.sampling, vocab_size(), 1);  // checks them
  }

  // Nothing is under way any more.
  void settle() {
    n_under_way_ = 0;
    require(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }
  // The same where a failure is under way already.
  void give_up() noexcept {
    n_under_way_ = 0;
    lanes_.forget();
    (void)cudaStreamSynchronize(stream_.get());
  }
  std::int32_t n_under_way() const { return n_under_way_; }

  void sample(std::int32_t place, const sampling_options& sampling) {
    verification_.sample(place, sampling, stream_.get());
  }
  // What the policy and its rounds have learnt is forgotten.
  void forget(std::int32_t place) {
    if (shared_) shared_->forget(place, stream_.get());
    if constexpr (ResettingPolicy<TreePolicyT>) policy_.reset(place, stream_.get());
  }

  // The text in this place is as the host has it from now on, and has no fault.
  void put(std::int32_t place, const espalier::text& text) {
    const auto end =
        static_cast<std::int32_t>((std::min)(std::int64_t{context_}, std::int64_t{text.size()} + text.left()));
    const text_state state{text.size(), end, text.options().stream, text.seed()};
    const auto first = static_cast<std::size_t>(place) * (static_cast<std::size_t>(context_) + 1);
    tokens_.upload(text.tokens(), stream_.get(), first);
    launch("put_state", put_state<text_state>, {}, stream_.get(), states_.data() + place, state, found_.data() + place);
  }

  // The sequence of this place holds the longest beginning of these tokens that the cache has, and nothing else; gives
  // how many. A drafter that reads the target's hidden states needs those of all.
  std::int32_t adopt(std::int32_t place, std::span<const token_id> tokens) {
    if constexpr (PrefixKVStore<kv_type>) {
      const std::int32_t s = sequence(place);
      const std::span<const token_id> wanted = tokens.first(reads_features ? 0 : tokens.size());
      if constexpr (SharingKVStore<kv_type>) {
        return kv_.adopt(s, wanted, stream_.get());
      } else {
        const std::span<const token_id> held = kv_.prefix(s);
        const auto n = std::mismatch(held.begin(), held.end(), wanted.begin(), wanted.end()).first - held.begin();
        kv_.remember(s, static_cast<std::int32_t>(n), {});
        return static_cast<std::int32_t>(n);
      }
    }
    return 0;
  }
  // The rows from number `first` to `end` are those of the text.
  void remember(std::int32_t place, std::span<const token_id> tokens, std::int32_t first, std::int32_t end) {
    if constexpr (PrefixKVStore<kv_type>) {
      const auto n = static_cast<std::size_t>(end - first);
      kv_.remember(sequence(place), first, tokens.subspan(static_cast<std::size_t>(first), n));
    }
  }
  // The caches' rows of this place can be given to others.
  void release(std::int32_t place) {
    if constexpr (SharingKVStore<kv_type>) kv_.truncate(sequence(place), 0);
    if constexpr (ReleasingDrafter<drafter_type>) drafter_.release(place);
  }

  // Forwards the tokens from number `first` to end - 1 of the text.
  void read(std::int32_t place, std::int32_t first, std::int32_t end) {
    for (std::int32_t next = first; first < end; first = next) {
      next = (std::min)(end, first + max_rows_);
      prefill_.run(backend_, kv_, sequence(place), texts(1, context_).text(place), first, next, stream_.get(),
                   [&]([[maybe_unused]] std::int32_t at, [[maybe_unused]] std::int32_t n) {
                     if constexpr (reads_features) drafter_.read(backend_, place, at, n, stream_.get());
                   });
    }
  }

  // The drafter follows the text, of which it knows the first n_known tokens.
  void begin_draft(std::int32_t place, std::span<const token_id> tokens, std::int32_t n_known) {
    drafter_.ensure(place, static_cast<std::int32_t>(tokens.size()), stream_.get());
    drafter_.begin(place, texts(1, context_).text(place), tokens, n_known, stream_.get());
  }

  // Slots for a round of a text that may reach so many tokens.
  void ensure(std::int32_t place, std::int32_t n_slots) {
    kv_.ensure(sequence(place), n_slots, stream_.get());
    drafter_.ensure(place, n_slots, stream_.get());
  }

  // A round of the texts in these places, the longest of which may reach so many tokens. Of one place, that is place 0.
  void enqueue(std::span<const std::int32_t> places, std::int32_t longest, const round_plan& plan) {
    const round_shape shape{plan.lanes, context_bucket(longest, context_), plan.n_rows};
    if (shape_.max_texts > 1) lanes_.seat(places, plan.lanes, stream_.get());
    if (!shape_.replay || !graphs_.replay(shape, stream_.get(), [&] { round(shape); })) round(shape);
    pending& p = pending_[n_enqueued_ % 2];
    p.says_expected = shared_ && plan.drafts();
    size_.begin(plan.drafts());
    outcomes_.download(p.outcomes.span(), stream_.get());
    tree_.words().download(p.trees.span(), stream_.get());
    p.done.record(stream_.get());
    ++n_enqueued_;
    ++n_under_way_;
  }

  // What the oldest round under way has left, of n texts. Valid until the next is enqueued.
  arrival wait(std::size_t n) {
    pending& p = pending_[(n_enqueued_ - static_cast<unsigned>(n_under_way_)) % 2];
    p.done.wait();
    --n_under_way_;
    arrival arrived{p.outcomes.span().first(n), p.trees.data(), tree_.capacity()};
    const auto is_faulty = [](const round_outcome& o) { return o.found.what != fault::kind::none; };
    const bool any = std::any_of(arrived.outcomes.begin(), arrived.outcomes.end(), is_faulty);
    if (any) arrived.failure = failure_of_models();
    if (p.says_expected && !any) size_.observe(static_cast<std::int32_t>(n), p.outcomes.span());
    return arrived;
  }

  // Throws what a round has found in a text. What a model of the host has thrown says more than the logits that it
  // left.
  static void raise_fault(const arrival& arrived, std::size_t lane) {
    const fault& found = arrived.outcomes[lane].found;
    if (found.what != fault::kind::none && arrived.failure) std::rethrow_exception(arrived.failure);
    cuda::raise_fault(found);
  }

 private:
  struct pending {
    pinned_array<round_outcome> outcomes;
    pinned_array<std::int32_t> trees;
    event done;
    bool says_expected = false;
  };

  std::int32_t lanes_of(std::int32_t n) const {
    std::int32_t lanes = 1;
    while (lanes < n)
      lanes *= 2;
    return (std::min)(lanes, shape_.max_texts);
  }
  // Whether so many rows are not enough for all trees.
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
            .texts = {tokens_.data(), states_.data(), context_}};
  }

  // The round itself.
  void round(const round_shape& shape) {
    const cudaStream_t s = stream_.get();
    const text_batch texts = this->texts(shape.lanes, shape.bucket);
    const bool drafts = shape.n_rows > shape.lanes, cuts = is_short(shape.lanes, shape.n_rows);
    const bool shares = shared_ && drafts;
    const std::int32_t n_rows = (std::min)(max_nodes_ + 1, shares ? shape.n_rows : shape.n_rows / shape.lanes);
    const std::int32_t limit = n_rows <= max_nodes_ && (is_drawn || !shares) ? n_rows - 1 : tree_.capacity();
    launch("open_round", open_round<>, {.grid = texts.lanes()}, s, texts, limit,
           (std::min)(context_, drafter_.capacity()));
    if (drafts) draft(texts, shape.n_rows, shares, cuts);
    const forward_batch_view batch = compiler_.compile(texts, n_rows, s, shares && cuts ? shape.n_rows : 0);
    const vocab_rows<number> logits = backend_.forward(kv_, batch, s);
    verification_.run(texts, drafts ? draft_rows() : text_rows(), logits, compiler_.rows(), n_rows, found_.data(), s,
                      batch.sequences);
    const path_view path = path_.find(texts, verification_.decisions(), compiler_.rows(), n_rows, found_.data(), s);
    if constexpr (reads_features) drafter_.read(backend_, texts, path, batch.sequences, s);
    kv_.commit(texts, {path.base, path.rows, path.n, path.max}, s);
    if (drafts) drafter_.commit(texts, path, s);
    launch("close_round", close_round<>, {.grid = texts.lanes()}, s, texts, path, found_.data(), decisions_.data(),
           outcomes_.data());
    if (drafts) policy_.observe(texts, decisions_.data(), s);
    if (shares) shared_->observe(texts, decisions_.data(), s);
  }

  // The texts' trees, and their shares of the pass.
  void draft(const text_batch& texts, std::int32_t n_rows, bool shares, bool cuts) {
    const cudaStream_t s = stream_.get();
    const auto share = [&] {
      shared_->share(texts, n_rows, &outcomes_.data()->expected, sizeof(round_outcome) / sizeof(float), size_.n_sizes(),
                     s);
    };
    if (is_drawn && shares) share();
    std::vector<std::int32_t> asked;
    grow(policy_, texts, drafter_, s, [&](std::int32_t n) { asked.push_back(n); });
    size_.draft_as(asked);
    if constexpr (!is_drawn) {
      if (shares) share();
      if (shares && cuts) {
        [[maybe_unused]] const moved_nodes moved = shared_->cut(texts, s);
        if constexpr (RenumberingDrafter<drafter_type>) drafter_.renumber(texts, moved, s);
      }
    }
  }

  std::exception_ptr failure_of_models() {
    try {
      if constexpr (FailingBackend<drafter_type>) drafter_.raise_failure();
      if constexpr (FailingBackend<backend_type>) backend_.raise_failure();
    } catch (...) {
      return std::current_exception();
    }
    return {};
  }

  text_rows draft_rows() const {
    if constexpr (StepDrafter<drafter_type>) return drafter_.rows();
    return {};
  }

  DrafterT drafter_;
  TreePolicyT policy_;
  KVStoreT kv_;
  BackendT backend_;
  rounds_shape shape_;
  std::int32_t context_;
  std::int32_t max_nodes_;
  std::int32_t max_rows_;
  round_size size_;
  stream stream_;
  tree tree_;
  tree_compiler compiler_;
  verification<VerifierT, number> verification_;
  accepted_path path_;
  prefill prefill_;
  device_array<token_id> tokens_;  // [places][context + 1]
  device_array<text_state> states_;
  device_array<fault> found_;
  lane_table lanes_;
  device_array<verdict> decisions_;
  device_array<round_outcome> outcomes_;  // [lanes]
  std::optional<shared_rows<is_drawn>> shared_;
  round_graphs graphs_;
  pending pending_[2];
  unsigned n_enqueued_ = 0;
  std::int32_t n_under_way_ = 0;
};

}  // namespace espalier::cuda::detail
