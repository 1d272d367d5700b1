// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/context_bucket.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/event.cuh"
#include "espalier/cuda/core/graph.cuh"
#include "espalier/cuda/core/pinned_array.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/decoder/accepted_path.cuh"
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/cuda/decoder/round_kernels.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/cuda/verifier/verify.cuh"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/decoder_options.hpp"
#include "espalier/decoder/no_pieces.hpp"
#include "espalier/decoder/observer.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/stopwatch.hpp"
#include "espalier/decoder/text.hpp"
#include "espalier/decoder/text_options.hpp"
#include "espalier/forward/held_prefix.hpp"

namespace espalier::cuda {

//! Tree speculative decoding of one sequence on the device: espalier::decoder, recompiled with parts that live there.
//!
//! A round is work in one stream, from the pending token to the committed text, without a word from the host; a graph
//! of it is captured once for each context_bucket and replayed. The host enqueues one round ahead of the one whose
//! outcome it takes in, and copies of tokens cross over meanwhile. Policy and verifier are kept by value; drafter,
//! store and backend by reference when make_decoder got lvalues, by value otherwise. A prompt is read in one step.
//! Log-probabilities and saved texts are the host's alone.
//!
//! Complexity  a round on the host: one graph launch, one copy, one event; on the device, the policy's draft passes,
//!             one target pass of 1 + max_nodes() rows, and no allocation
//! Law         the text is the host decoder's of the same parts, seed and logits. A policy that learns has seen all of
//!             a round that the host cut at a stop token or string, when resume() goes on
//! Pre         a drafter serves one decoder, whose text it reads
//! Errors      option_error, input_error when parts or prompt do not fit; numeric_error as the host's, one round
//!             later; cuda_error. After each, the text stands at its last committed token; step() may be called again
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
class decoder {
  using drafter_type = std::remove_reference_t<DrafterT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using backend_type = std::remove_reference_t<BackendT>;

  static_assert(Drafter<drafter_type>, "the first part must be a drafter on the device: cuda::Drafter");
  static_assert(KVStore<kv_type>, "the fourth part must be a KV store on the device: cuda::KVStore");
  static_assert(Backend<backend_type, kv_type>,
                "the fifth part must be a backend on the device that can use the KV store: cuda::Backend. "
                "cuda::on_host makes one of a host backend, with copies in between");
  static_assert(
      TreePolicy<TreePolicyT, drafter_type>,
      "the second part must be a tree policy on the device that can grow from this drafter: cuda::TreePolicy");
  static_assert(
      compatible(TreePolicyT::sampling, VerifierT::lossless),
      "this verifier is not lossless for the trees of this policy: the regime that the policy samples in must "
      "be one of those that the verifier handles");
  static_assert(!espalier::detail::NamesReset<TreePolicyT> || ResettingPolicy<TreePolicyT>,
                "the policy's member reset cannot be called as reset(stream): see cuda::ResettingPolicy");
  static_assert(!(espalier::detail::NamesPrefix<kv_type> || espalier::detail::NamesRemember<kv_type>) ||
                    PrefixKVStore<kv_type>,
                "the store's members prefix, version and remember cannot all be called: see cuda::PrefixKVStore");
  static constexpr bool reads_features = FeatureDrafter<drafter_type, backend_type>;
  using number = typename backend_type::number;

 public:
  decoder(DrafterT&& drafter, TreePolicyT policy, VerifierT verifier, KVStoreT&& kv, BackendT&& backend,
          decoder_options options = {}, bool replay = true)
      : drafter_(std::forward<DrafterT>(drafter)),
        policy_(std::move(policy)),
        kv_(std::forward<KVStoreT>(kv)),
        backend_(std::forward<BackendT>(backend)),
        options_(options),
        sampling_(options.text.sampling),
        replay_(replay),
        context_((std::min)(backend_.max_positions(), kv_.capacity())),
        max_nodes_((std::min)(policy_.max_nodes(), context_)),
        tree_((std::min)(most_asked(policy_), context_)),
        compiler_(max_nodes_, options.order),
        verification_(std::move(verifier), options.text.sampling, max_nodes_ + 1, backend_.vocab_size()),
        path_(max_nodes_ + 1),
        tokens_(static_cast<std::size_t>(context_) + 1),
        state_(1),
        found_(1),
        outcome_(1) {
    require_options(options);
    require_option("sequence", options.sequence, 0, kv_.n_sequences() - 1);
    espalier::detail::require_sampling<VerifierT>(options.text.sampling);
    espalier::detail::require_fit(drafter_, backend_, max_nodes_);
    drafter_.reserve(most_asked(policy_), text(), found_.data());  // lists are as long in a short context
    for (arrival& a : arrivals_) {
      a.outcome = pinned_array<detail::round_outcome>(1);
      a.tree = pinned_array<std::int32_t>(tree_.words().size());
    }
  }

  decoder(const decoder&) = delete;
  ~decoder() { (void)cudaStreamSynchronize(stream_.get()); }

  //! Starts a text. From here to its end, the sequence of the cache, drafter and backend belong to this decoder alone.
  //! What the caches hold of the text's beginning is used again. Synchronises.
  //!
  //! Errors      as espalier::decoder; option_error for log_probs, which are of the host
  void begin(std::span<const token_id> prompt, stop_conditions stop, const text_options& options) {
    espalier::detail::require_sampling<VerifierT>(options.sampling);
    require_option("log_probs on the device", options.log_probs, -1, -1);
    (void)team_sampler_layout::of(options.sampling, backend_.vocab_size(), 1);  // checks them
    settle();
    const std::int32_t drafted = drafted_of(prompt);
    text_.begin(prompt, std::move(stop), options, context_, backend_.vocab_size());
    n_drafted_ = drafted;
    held_.begin();
    if (!(options.sampling == sampling_)) {
      sampling_ = options.sampling;
      verification_.sample(sampling_, backend_.vocab_size());
      graphs_.clear();
    }
    if constexpr (ResettingPolicy<TreePolicyT>) policy_.reset(stream_.get());
  }

  //! The same, with the decoder's options for texts.
  void begin(std::span<const token_id> prompt, stop_conditions stop = {}) {
    begin(prompt, std::move(stop), options_.text);
  }

  //! Goes on after the text that stands, with `more` tokens in between (or none). What the caches hold is used again,
  //! and so is what the policy has learnt. Synchronises.
  void resume(std::span<const token_id> more, stop_conditions stop = {}) {
    if (text_.state() == status::idle) return begin(more, std::move(stop));
    settle();
    text_.resume(more, std::move(stop), context_, backend_.vocab_size());
  }

  //! Takes in one round, and has the next one under way; false once the text has ended. piece_of is for stop strings.
  template <class PieceT = no_pieces>
  bool step(const PieceT& piece_of = {}) {
    if (!text_.running()) return false;
    espalier::detail::require_pieces<PieceT>(text_);
    flight_guard guard{*this};
    in_step_ ? require_own_cache() : put_in_step();
    if (text_.left() == 0) {
      text_.end();
      record_ = {.state = text_.state()};
      return true;
    }
    // A round writes at least one token: with one left, the round under way is the last.
    while (n_under_way_ < (text_.left() > 1 ? 2 : 1))
      enqueue_round();
    take_in(piece_of);
    guard.finished = text_.running();  // a round that is under way when the text has ended is given up
    return true;
  }

  //! As espalier::decoder's.
  template <Observer ObserverT, class PieceT = no_pieces>
  std::span<const token_id> generate(std::span<const token_id> prompt, stop_conditions stop, ObserverT&& observer,
                                     const PieceT& piece_of = {}) {
    begin(prompt, std::move(stop));
    while (step(piece_of)) {
      if (!record_.committed.empty()) observer(last_round());
    }
    return text_.written();
  }

  std::span<const token_id> generate(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return generate(prompt, std::move(stop), [](const round_record&) {});
  }

  //! The text so far, as the host has it.
  const espalier::text& current() const { return text_; }
  //! Valid until the next round or text. Seconds are from one outcome to the next: the host does not see the stations.
  const round_record& last_round() const { return record_; }

 private:
  // What comes over from a round.
  struct arrival {
    pinned_array<detail::round_outcome> outcome;
    pinned_array<std::int32_t> tree;
    event done;
  };

  // Where a round fails or the text ends, rounds under way are given up, and both sides go on from the host's text.
  struct flight_guard {
    decoder& self;
    bool finished = false;
    ~flight_guard() {
      if (finished) return;
      (void)cudaStreamSynchronize(self.stream_.get());
      self.n_under_way_ = 0;
      self.in_step_ = false;
    }
  };

  text_view text() const { return {tokens_.data(), state_.data(), context_}; }

  // Nothing is under way any more.
  void settle() {
    require(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    n_under_way_ = 0;
    in_step_ = false;
    record_ = {};
  }

  // Leading tokens of another text in the draft's cache. What has used the target's sequence may have used it, too.
  std::int32_t drafted_of(std::span<const token_id> other) const {
    const auto drafted = text_.tokens().first(static_cast<std::size_t>((std::min)(n_drafted_, n_held())));
    return static_cast<std::int32_t>(std::mismatch(drafted.begin(), drafted.end(), other.begin(), other.end()).first -
                                     drafted.begin());
  }

  // Those of the text in the target's cache: of a store that does not remember none, another decoder may use it.
  std::int32_t n_held() const {
    if constexpr (PrefixKVStore<kv_type>) return held_.of(kv_, options_.sequence, text_.tokens());
    return 0;
  }

  // All of the text but its pending token is in both caches for good; of it, the target's held the first n tokens
  // before.
  void remember(std::int32_t n) {
    n_drafted_ = text_.size() - 1;
    if constexpr (PrefixKVStore<kv_type>) held_.remember(kv_, options_.sequence, text_.tokens(), n, n_drafted_);
  }

  void require_own_cache() {
    if constexpr (PrefixKVStore<kv_type>) {
      if (n_held() >= text_.size() - 1) return;
      raise<input_error>("sequence ", options_.sequence, " of the cache holds another text from token ", n_held(),
                         " on: another part uses it, too. Each text that is being written needs its own.");
    }
  }

  // Brings the device to the host's text: tokens, both caches, and no fault.
  void put_in_step() {
    watch_.lap();
    const std::span<const token_id> now = text_.tokens();
    const auto size = static_cast<std::int32_t>(now.size());
    n_drafted_ = (std::min)({n_drafted_, n_held(), size - 1});
    // A drafter that reads the target's hidden states needs those of all that it has not drafted from.
    const std::int32_t known = (std::min)(n_held(), reads_features ? n_drafted_ : size - 1);
    const auto end = static_cast<std::int32_t>((std::min)(std::int64_t{context_}, std::int64_t{size} + text_.left()));
    const text_state state{size, end, text_.options().stream, text_.seed()};
    tokens_.upload(now, stream_.get());
    state_.upload(std::span<const text_state>(&state, 1), stream_.get());
    found_.fill_bytes(0, stream_.get());
    if constexpr (SharingKVStore<kv_type>) kv_.truncate(options_.sequence, known);  // to be written anew from there
    kv_.ensure(options_.sequence, size, stream_.get());
    drafter_.ensure(size, size, stream_.get());
    prefill_.run(backend_, kv_, options_.sequence, text(), known, size - 1, stream_.get(),
                 [&]([[maybe_unused]] std::int32_t first, [[maybe_unused]] std::int32_t n) {
                   if constexpr (reads_features) drafter_.read(backend_, first, n, stream_.get());
                 });
    drafter_.begin(now, n_drafted_, stream_.get());
    require(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    remember(known);
    in_step_ = true;
  }

  void enqueue_round() {
    // What is under way may add as many tokens each.
    const std::int32_t longest = text_.size() + (n_under_way_ + 1) * (max_nodes_ + 1) + max_nodes_ + 1;
    const std::int32_t bucket = context_bucket(longest, context_);
    const std::int32_t slots = (std::min)(longest, context_);
    kv_.ensure(options_.sequence, slots, stream_.get());
    drafter_.ensure(slots, bucket, stream_.get());
    if (!replay_ || !replay(bucket)) round(bucket);
    arrival& a = arrivals_[n_enqueued_ % 2];
    outcome_.download(a.outcome.span(), stream_.get());
    tree_.words().download(a.tree.span(), stream_.get());
    a.done.record(stream_.get());
    ++n_enqueued_;
    ++n_under_way_;
  }

  // False for the first round of a bucket, which runs as it is: what is loaded when it is first used is loaded by then.
  bool replay(std::int32_t bucket) {
    for (auto& [size, made] : graphs_) {
      if (size != bucket) continue;
      if (!made) made.emplace(stream_.get(), [&] { round(bucket); });
      made->launch(stream_.get());
      return true;
    }
    graphs_.emplace_back(bucket, std::nullopt);
    return false;
  }

  // The round itself.
  void round(std::int32_t bucket) {
    const cudaStream_t s = stream_.get();
    const chance_source chance{state_.data()};
    const tree_writer tree = tree_.writer();
    launch("open_round", detail::open_round<>, {}, s, tree, text(), tree_.capacity(),
           (std::min)(context_, drafter_.capacity()));
    grow(policy_, tree, drafter_, chance, s);
    const forward_batch_view batch = compiler_.compile({tree, text(), options_.sequence}, max_nodes_ + 1, bucket, s);
    const vocab_rows<number> logits = backend_.forward(kv_, batch, s);
    verification_.run(tree, espalier::detail::draft_rows(drafter_), logits, compiler_.rows(), options_.sequence, chance,
                      found_.data(), s);
    const path_view path = path_.find(tree, verification_.decision(), compiler_.rows(), found_.data(), s);
    if constexpr (reads_features) drafter_.read(backend_, path, s);
    kv_.commit(options_.sequence, &batch.sequences->prefix, path.rows, path.n, path.max, s);
    drafter_.commit(tree, path, s);
    launch("close_round", detail::close_round<>, {}, s, tree, path, text(), found_.data(), outcome_.data());
    policy_.observe(tree, &outcome_.data()->decision, s);
  }

  template <class PieceT>
  void take_in(const PieceT& piece_of) {
    arrival& a = arrivals_[(n_enqueued_ - static_cast<unsigned>(n_under_way_)) % 2];
    a.done.wait();
    const detail::round_outcome outcome = a.outcome[0];
    if constexpr (FailingBackend<backend_type>) {
      // What a backend of the host has thrown says more than the logits that it left.
      if (outcome.found.what != fault::kind::none) backend_.raise_failure();
    }
    raise_fault(outcome.found);
    const tree_view tree = cuda::tree::at(a.tree.data(), tree_.capacity()).view();
    const verdict admitted = text_.admit(tree, outcome.decision, piece_of);
    record_ = {.index = text_.round(), .tree = tree, .decision = admitted, .forwarded_rows = tree.n_nodes};
    const std::size_t written = text_.tokens().size();
    text_.commit(tree, admitted);
    --n_under_way_;
    remember(static_cast<std::int32_t>(written) - 1);
    record_.committed = text_.tokens().subspan(written);
    record_.shown = text_.shown();
    record_.state = text_.state();
    record_.seconds.on_device = watch_.lap();
  }

  DrafterT drafter_;
  TreePolicyT policy_;
  KVStoreT kv_;
  BackendT backend_;
  decoder_options options_;
  sampling_options sampling_;  // of what was captured
  bool replay_;
  std::int32_t context_;
  std::int32_t max_nodes_;
  stream stream_;
  tree tree_;
  tree_compiler compiler_;
  verification<VerifierT, number> verification_;
  accepted_path path_;
  prefill prefill_;
  device_array<token_id> tokens_;  // [context + 1]
  device_array<text_state> state_;
  device_array<fault> found_;
  device_array<detail::round_outcome> outcome_;
  std::vector<std::pair<std::int32_t, std::optional<graph>>> graphs_;
  arrival arrivals_[2];
  unsigned n_enqueued_ = 0;
  std::int32_t n_under_way_ = 0;
  std::int32_t n_drafted_ = 0;  // leading tokens of the text whose rows the draft's cache holds
  held_prefix held_;
  bool in_step_ = false;
  espalier::text text_;
  round_record record_;
  stopwatch watch_;
};

//! Builds a decoder on the device of five parts: policy and verifier are moved, of the others lvalues are kept by
//! reference.
//!
//! Without `replay`, each round is enqueued anew: for backends that a graph cannot capture.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT> make_decoder(DrafterT&& drafter, TreePolicyT policy,
                                                                           VerifierT verifier, KVStoreT&& kv,
                                                                           BackendT&& backend,
                                                                           decoder_options options = {},
                                                                           bool replay = true) {
  return {std::forward<DrafterT>(drafter),
          std::move(policy),
          std::move(verifier),
          std::forward<KVStoreT>(kv),
          std::forward<BackendT>(backend),
          options,
          replay};
}

}  // namespace espalier::cuda
