// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/batch_decoder.cu
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

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/decoder/outside_pass.cuh"
#include "espalier/cuda/decoder/round_kernels.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/decoder/text.hpp"

namespace espalier::cuda::detail {

// The number of texts that rounds are made for, and the options of the rounds.
struct rounds_shape {
  node_order order = node_order::insertion;
  std::int32_t max_texts = 1;
  std::int32_t first_sequence = 0;    // sequence of the cache that place 0 has
  std::int32_t max_rows = 1 << 30;    // the most rows of a pass
  std::int32_t prefill_rows = 0;      // the most rows of a pass that read prompts beside trees
  bool share_budget = false;          // trees share the rows of a pass by what nodes are expected to gain
  std::optional<cost_model> costs{};  // costs of passes, by which the number of rows is chosen
  bool keeps_learnt = false;          // the host gets what was learnt of each text
  bool replay = true;                 // rounds are captured as graphs and replayed
};

// Checks the types of a decoder's five parts on the device, given without references; for a part that does not fit, a
// static_assert says in a sentence what is wrong. Returns true.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
constexpr bool check_round_parts() {
  static_assert(Drafter<DrafterT>, "the first part must be a drafter on the device: cuda::Drafter");
  static_assert(KVStore<KVStoreT>, "the fourth part must be a KV store on the device: cuda::KVStore");
  static_assert(Backend<BackendT, KVStoreT>,
                "the fifth part must be a backend on the device that can use the KV store: cuda::Backend. "
                "cuda::on_host makes one of a host backend, with copies in between");
  static_assert(
      TreePolicy<TreePolicyT, DrafterT>,
      "the second part must be a tree policy on the device that can grow from this drafter: cuda::TreePolicy");
  static_assert(
      compatible(TreePolicyT::sampling, VerifierT::lossless),
      "this verifier is not lossless for the trees of this policy: the regime that the policy samples in must "
      "be one of those that the verifier handles");
  static_assert(!espalier::detail::NamesReset<TreePolicyT> || ResettingPolicy<TreePolicyT>,
                "the policy's member reset cannot be called as reset(place, stream): see cuda::ResettingPolicy");
  static_assert(!(espalier::detail::NamesPrefix<KVStoreT> || espalier::detail::NamesRemember<KVStoreT>) ||
                    PrefixKVStore<KVStoreT>,
                "the store's members prefix, version and remember cannot all be called: see cuda::PrefixKVStore");
  return true;
}

// The texts of a decoder on the device, by place, and the models whose caches hold these texts; does the work between
// rounds, in the rounds' stream. The text in place i has sequence first_sequence + i of the target's cache.
template <class DrafterT, class KVStoreT, class BackendT>
class text_caches {
 protected:
  using drafter_type = std::remove_reference_t<DrafterT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using backend_type = std::remove_reference_t<BackendT>;

 public:
  static constexpr bool reads_features = FeatureDrafter<drafter_type, backend_type>;
  // True if a text can begin with rows that another text has computed.
  static constexpr bool shares_rows = SharingKVStore<kv_type> && !reads_features;
  // True if the target's or the draft's cache can give up the rows of texts that have left.
  static constexpr bool can_release = SharingKVStore<kv_type> || ReleasingDrafter<drafter_type>;

  text_caches(DrafterT&& drafter, KVStoreT&& kv, BackendT&& backend, const rounds_shape& shape)
      : drafter_(std::forward<DrafterT>(drafter)),
        kv_(std::forward<KVStoreT>(kv)),
        backend_(std::forward<BackendT>(backend)),
        first_sequence_(shape.first_sequence),
        context_((std::min)(backend_.max_positions(), kv_.capacity())),
        max_rows_((std::min)(shape.max_rows, static_cast<std::int32_t>(backend_.max_rows()))),
        tokens_(static_cast<std::size_t>(shape.max_texts) * (static_cast<std::size_t>(context_) + 1)),
        states_(static_cast<std::size_t>(shape.max_texts)),
        found_(states_.size()) {}
  text_caches(const text_caches&) = delete;
  ~text_caches() { (void)cudaStreamSynchronize(stream_.get()); }

  kv_type& kv() { return kv_; }
  const kv_type& kv() const { return kv_; }
  std::int32_t vocab_size() const { return backend_.vocab_size(); }
  std::int32_t context() const { return context_; }
  std::int32_t sequence(std::int32_t place) const { return first_sequence_ + place; }

  // Puts the host's text into this place on the device, and clears the place's fault.
  void put(std::int32_t place, const espalier::text& text) {
    const auto end =
        static_cast<std::int32_t>((std::min)(std::int64_t{context_}, std::int64_t{text.size()} + text.left()));
    const text_state state{text.size(), end, text.options().stream, text.seed()};
    const auto first = static_cast<std::size_t>(place) * (static_cast<std::size_t>(context_) + 1);
    tokens_.upload(text.tokens(), stream_.get(), first);
    launch("put_state", put_state<text_state>, {}, stream_.get(), states_.data() + place, state, found_.data() + place);
  }

  // Gives the sequence of this place the rows of the longest beginning of these tokens that the cache has, and returns
  // the number of these rows: 0 if the store does not know the tokens of its rows, and for a drafter that reads hidden
  // states, since it needs the states of all tokens.
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
  // Tells the store the tokens of the sequence's rows from `first` to end - 1.
  void remember(std::int32_t place, std::span<const token_id> tokens, std::int32_t first, std::int32_t end) {
    if constexpr (PrefixKVStore<kv_type>) {
      const auto n = static_cast<std::size_t>(end - first);
      kv_.remember(sequence(place), first, tokens.subspan(static_cast<std::size_t>(first), n));
    }
  }
  // Gives up the caches' rows of this place, so that other texts can use their room.
  void release(std::int32_t place) {
    if constexpr (SharingKVStore<kv_type>) kv_.truncate(sequence(place), 0);
    if constexpr (ReleasingDrafter<drafter_type>) drafter_.release(place);
  }

  // Forwards the text's tokens from number `first` to end - 1, in passes of the target that read nothing else.
  void read(std::int32_t place, std::int32_t first, std::int32_t end) {
    told([&] {
      while (first < end) {
        const forward_batch_view batch = open_read(place, first, end).batch;
        backend_.forward(kv_, batch, stream_.get());
        read_states(place, first, batch.n_rows);
        first += batch.n_rows;
      }
    });
  }
  // Returns the next pass of read(), and enqueues the kernel that writes its batch. If the pass is made outside,
  // close_read() is called after it.
  outside_pass open_read(std::int32_t place, std::int32_t first, std::int32_t end) {
    return {prefill_.open(kv_, sequence(place), text_at(place), first, end, max_rows_, stream_.get()), stream_.get()};
  }
  // Goes on after a pass of open_read(), which has read n tokens from number `first` on.
  void close_read(std::int32_t place, std::int32_t first, std::int32_t n) {
    read_states(place, first, n);
    tell_failure();
  }

  // Makes the drafter follow the text, of which its cache has the first n_known tokens.
  void begin_draft(std::int32_t place, std::span<const token_id> tokens, std::int32_t n_known) {
    drafter_.ensure(place, static_cast<std::int32_t>(tokens.size()), stream_.get());
    told([&] { drafter_.begin(place, text_at(place), tokens, n_known, stream_.get()); });
  }

  // Makes sure that the target's cache has n_slots slots for a text, and the draft's n_draft_slots.
  void ensure(std::int32_t place, std::int32_t n_slots, std::int32_t n_draft_slots) {
    kv_.ensure(sequence(place), n_slots, stream_.get());
    drafter_.ensure(place, n_draft_slots, stream_.get());
  }

 protected:
  // Returns the first failure of a model since the last call, or none.
  std::exception_ptr failure_of_models() {
    const std::exception_ptr before = std::exchange(failure_, nullptr), now = failure_now();
    return before ? before : now;
  }

  // Drops the failures of models in rounds that were given up.
  void forget_failures() noexcept {
    failure_ = nullptr;
    (void)failure_now();
  }

  // Returns the failure that a part has kept of its work on the host, or none.
  template <class PartT>
  static std::exception_ptr failure_of(PartT& part) {
    if constexpr (KeepsFailure<std::remove_reference_t<PartT>>) {
      try {
        part.raise_failure();
      } catch (...) {
        return std::current_exception();
      }
    }
    return {};
  }

  // The texts of all places.
  text_view texts() const { return {tokens_.data(), states_.data(), context_}; }

  DrafterT drafter_;
  KVStoreT kv_;
  BackendT backend_;
  std::int32_t first_sequence_;
  std::int32_t context_;
  std::int32_t max_rows_;  // the most rows of a pass
  stream stream_;
  device_array<token_id> tokens_;  // [places][context + 1]
  device_array<text_state> states_;
  device_array<fault> found_;

 private:
  static constexpr bool models_fail = KeepsFailure<drafter_type> || KeepsFailure<backend_type>;

  // Calls f(), which enqueues passes that leave no outcome for the host; then throws the exception of a model of the
  // host in these passes, if there is one. Waits for the stream before and after: a failure of a round that is under
  // way is kept for that round, and not thrown as a failure of these passes.
  template <class FunctionT>
  void told(const FunctionT& f) {
    if constexpr (!models_fail) return f();
    require(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    if (!failure_) failure_ = failure_now();
    f();
    tell_failure();
  }

  // Waits for the passes that are enqueued, and throws what a model of the host has thrown in them.
  void tell_failure() {
    if constexpr (!models_fail) return;
    require(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    if (const std::exception_ptr failure = failure_now()) std::rethrow_exception(failure);
  }

  // Gives the states of the target's last pass, of n tokens of the text from number `first` on, to a drafter that reads
  // them.
  void read_states([[maybe_unused]] std::int32_t place, [[maybe_unused]] std::int32_t first,
                   [[maybe_unused]] std::int32_t n) {
    if constexpr (reads_features) drafter_.read(backend_, place, first, n, stream_.get());
  }

  // Returns the failure of the draft or, if it has none, of the target, or none. Takes out the failures of both models,
  // so that none is left for a later round.
  std::exception_ptr failure_now() {
    const std::exception_ptr drafting = failure_of(drafter_), forward = failure_of(backend_);
    return drafting ? drafting : forward;
  }

  text_view text_at(std::int32_t place) const {
    return {tokens_.data() + static_cast<std::ptrdiff_t>(place) * (context_ + 1), states_.data() + place, context_};
  }

  prefill prefill_;
  std::exception_ptr failure_;  // failure of a model of the host, in a round whose outcome has not been taken in
};

}  // namespace espalier::cuda::detail
