// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/backend/checked_forward.hpp"
#include "espalier/backend/prefill.hpp"
#include "espalier/concepts/backend.hpp"
#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/decoder/decoder_options.hpp"
#include "espalier/decoder/observer.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/decoder/session.hpp"
#include "espalier/sampling/lazy_rows.hpp"
#include "espalier/tree_policy/round_start.hpp"

namespace espalier {

//! For sessions without stop strings: tokens have no text.
struct no_pieces {
  std::string_view operator()(token_id) const { return {}; }
};

namespace detail {

// Drafters without probabilities have no rows, and policies that use none need none.
template <class DrafterT>
auto draft_rows(DrafterT& drafter) {
  if constexpr (requires { drafter.rows(); }) {
    return drafter.rows();
  } else {
    return node_rows<float>{};
  }
}

}  // namespace detail

//! Tree speculative decoding of one sequence: the only place that knows all five parts.
//!
//! Parts are kept by reference when make_decoder got lvalues, by value otherwise.
//!
//!     auto decode = make_decoder(drafter, dynatree(), greedy(), kv, target);
//!     decode.begin(prompt, {.max_tokens = 256});
//!     while (decode.step()) show(decode.last_round().committed);
//!
//! Complexity  a round: the policy's draft passes, one target pass of pending + nodes rows; no allocation once warm
//! Law         the text is distributed as the target alone would write it; with the greedy verifier it is the same text
//! Errors      option_error and input_error when parts or prompt do not fit. A part that throws inside step() leaves the
//!             session at its last committed token, cache included: step() may be called again
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
class decoder {
  using drafter_type = std::remove_reference_t<DrafterT>;
  using policy_type = std::remove_reference_t<TreePolicyT>;
  using verifier_type = std::remove_reference_t<VerifierT>;
  using kv_type = std::remove_reference_t<KVStoreT>;
  using backend_type = std::remove_reference_t<BackendT>;
  using clock = std::chrono::steady_clock;

  static_assert(Drafter<drafter_type>, "the first part must be a Drafter");
  static_assert(KVStore<kv_type>, "the fourth part must be a KVStore");
  static_assert(Backend<backend_type, kv_type>, "the fifth part must be a Backend that can use the KV store");
  using target_rows = lazy_rows<logit_number<backend_type, kv_type>>;
  static_assert(FeatureDrafter<drafter_type, backend_type> || !detail::CountsFeatures<drafter_type>,
                "this drafter reads hidden states, which this backend does not offer");
  static_assert(TreePolicy<policy_type, drafter_type, philox_chance>,
                "the second part must be a TreePolicy that can grow from this drafter");
  static_assert(
      Verifier<verifier_type, decltype(detail::draft_rows(std::declval<drafter_type&>())), target_rows, philox_chance>,
      "the third part must be a Verifier that can read the drafter's rows");
  static_assert(verifier_type::lossless == regime::any ||
                    std::is_same_v<decltype(detail::draft_rows(std::declval<drafter_type&>()).row(0)),
                                   decltype(std::declval<target_rows&>().row(0))>,
                "this verifier compares rows of draft and target: both must be float, or both double");
  static_assert(
      compatible(policy_type::sampling, verifier_type::lossless),
      "this verifier is not lossless for the trees of this policy: the regime that the policy samples in must "
      "be one of those that the verifier handles");

 public:
  decoder(DrafterT&& drafter, TreePolicyT&& policy, VerifierT&& verifier, KVStoreT&& kv, BackendT&& backend,
          decoder_options options = {})
      : drafter_(std::forward<DrafterT>(drafter)),
        policy_(std::forward<TreePolicyT>(policy)),
        verifier_(std::forward<VerifierT>(verifier)),
        kv_(std::forward<KVStoreT>(kv)),
        backend_(std::forward<BackendT>(backend)),
        options_(options),
        target_(options.sampling),
        context_(context_length(backend_, kv_)),
        tree_((std::min)(most_asked(policy_), context_)),
        order_((std::min)(policy_.max_nodes(), context_) + 1) {
    const std::int32_t nodes = (std::min)(policy_.max_nodes(), context_);
    require_option("order", static_cast<int>(options.order), 0, 3);
    kv_.size(options.sequence);  // the store says so if there is no such sequence
    if constexpr (requires { requires verifier_type::argmax_only; }) {
      if (options.sampling.temperature != 0.0F) {
        raise<option_error>("option temperature is ", options.sampling.temperature,
                            ", but the greedy verifier writes the most probable token: it must be 0.");
      }
    }
    if constexpr (requires { drafter_.vocab_size(); }) {
      if (drafter_.vocab_size() != backend_.vocab_size()) {
        raise<input_error>("the draft model has ", drafter_.vocab_size(), " tokens and the target ",
                           backend_.vocab_size(), "; they must share one vocabulary.");
      }
    }
    if constexpr (BoundedBackend<backend_type>) {
      const std::int32_t most = backend_.max_rows();
      if (most <= nodes) {
        raise<option_error>("a tree of up to ", nodes, " nodes needs passes of ", nodes + 1,
                            " rows, but the backend takes at most ", most,
                            ": lower the policy's budget or raise the backend's max_rows.");
      }
      max_pending_ = (std::min)(max_pending_, most - nodes);
    }
    const std::int32_t rows = max_pending_ + nodes;
    if constexpr (StateDrafter<drafter_type>) {
      if (reads_states()) drafter_.keep_states();
    }
    drafter_.reserve(tree_.capacity());
    target_.reserve(nodes + 1, backend_.vocab_size());
    if constexpr (requires { verifier_.reserve(nodes, backend_.vocab_size()); })
      verifier_.reserve(nodes, backend_.vocab_size());
    batch_.reserve(rows, rows);
    prefill_.reserve();
    kept_.reserve(static_cast<std::size_t>(rows));
  }

  //! Starts a text. From here to its end, the sequence of the cache and the drafter belong to this decoder alone.
  void begin(std::span<const token_id> prompt, stop_conditions stop = {}) {
    session_.begin(prompt, std::move(stop), context_, backend_.vocab_size());
    record_ = {};
    earlier_rounds_ = 0;
    cache_in_step_ = drafter_in_step_ = policy_in_step_ = false;
    if constexpr (requires { policy_.reset(); }) policy_.reset();
  }

  //! Goes on after the text that stands, with `more` tokens in between (or none): the next turn of a conversation. What
  //! the cache holds is used again, and so is what the policy has learnt.
  void resume(std::span<const token_id> more, stop_conditions stop = {}) {
    std::vector<token_id> prompt(session_.text().begin(), session_.text().end());
    prompt.insert(prompt.end(), more.begin(), more.end());
    const std::int32_t rounds = session_.round();
    session_.begin(prompt, std::move(stop), context_, backend_.vocab_size());
    record_ = {};
    earlier_rounds_ += rounds;
    drafter_in_step_ = false;
    policy_in_step_ = false;
  }

  //! One round. False, and nothing is done, once the session has ended. `piece_of` is needed for stop strings only.
  template <class PieceT = no_pieces>
  bool step(const PieceT& piece_of = {}) {
    philox_chance chance(options_.seed, static_cast<std::uint32_t>(options_.sequence),
                         static_cast<std::uint32_t>(earlier_rounds_ + session_.round()));
    return step_with(chance, piece_of);
  }

  //! One round with a chance of one's own, such as the enumerator's.
  template <Chance ChanceT, class PieceT = no_pieces>
  bool step_with(ChanceT& chance, const PieceT& piece_of = {}) {
    if (!session_.running()) return false;
    if (std::is_same_v<PieceT, no_pieces> && session_.reads_pieces()) {
      raise<input_error>("stop strings need the text of each token: give step() or generate() a function for it.");
    }
    record_ = {.index = session_.round()};
    lap_ = clock::now();
    scratch_guard guard{*this};
    prepare();
    draft(chance);
    compile();
    logits_ = checked_forward(backend_, kv_, batch_.view());
    record_.seconds.target_forward += lap();
    target_.open(logits_, order_.rows());
    const verdict v = verifier_.verify(tree_.view(), detail::draft_rows(drafter_), target_, chance);
    record_.seconds.verify = lap();
    commit(v, piece_of);
    record_.seconds.commit = lap();
    guard.finished = true;
    return true;
  }

  //! Writes a whole text and tells the observer about each round. The result is valid until the next text begins.
  template <Observer ObserverT, class PieceT = no_pieces>
  std::span<const token_id> generate(std::span<const token_id> prompt, stop_conditions stop, ObserverT&& observer,
                                     const PieceT& piece_of = {}) {
    begin(prompt, std::move(stop));
    while (step(piece_of))
      observer(last_round());
    return session_.written();
  }

  std::span<const token_id> generate(std::span<const token_id> prompt, stop_conditions stop = {}) {
    return generate(prompt, std::move(stop), [](const round_record&) {});
  }

  //! The text so far.
  const session& current() const { return session_; }
  //! Valid until the next round or text.
  const round_record& last_round() const { return record_; }

 private:
  // A round that does not finish leaves no scratch, and a drafter that follows the text anew.
  struct scratch_guard {
    decoder& self;
    bool finished = false;
    ~scratch_guard() {
      if (finished) return;
      self.drafter_in_step_ = false;
#if ESPALIER_EXCEPTIONS
      try {
        self.drop_scratch();
      } catch (...) {  // the next round drops it
      }
#endif
    }
  };

  double lap() {
    const auto now = clock::now();
    return std::chrono::duration<double>(now - std::exchange(lap_, now)).count();
  }

  std::int32_t text_size() const {
    return static_cast<std::int32_t>(session_.text().size());
  }

  void drop_scratch() {
    kv_.truncate(options_.sequence, cache_in_step_ ? text_size() - 1 : 0);
  }

  static constexpr bool reads_features = FeatureDrafter<drafter_type, backend_type>;

  // Gives the drafter the hidden states of the last pass's rows that are text beyond what it has read. rows [n] are those of
  // the tokens from `first` on.
  void show_features(std::int32_t first, std::span<const std::int32_t> rows) {
    if constexpr (reads_features) {
      const auto known = static_cast<std::size_t>((std::max)(0, drafter_.n_read() - first));
      if (known < rows.size()) drafter_.read(backend_, rows.subspan(known));
    }
  }

  bool reads_states() const {
    if constexpr (requires { policy_.reads_states(); }) return policy_.reads_states();
    return false;
  }

  // Tells the policy what the target says after this node.
  void show_state(node_id u) {
    if constexpr (requires { policy_.reads_states(); }) {
      if (!reads_states()) return;
      const std::int32_t row = order_.rows()[static_cast<std::size_t>(u)];
      std::span<const float> hidden;
      if constexpr (HiddenBackend<backend_type>) {
        if (backend_.hidden_size() > 0) hidden = backend_.hidden_state(pending_ - 1 + row);
      }
      policy_in_step_ = false;
      policy_.read(logits_.row(row), hidden);
    }
  }

  void prepare() {
    drop_scratch();
    cache_in_step_ = true;
    if (!drafter_in_step_) {
      drafter_.begin(session_.text());
      drafter_in_step_ = true;
    }
    std::int32_t pending = max_pending_;
    if constexpr (reads_features) {
      // Text that it has not read passes through the target before the drafter is asked.
      if (drafter_.n_read() < text_size() - 1) {
        kv_.truncate(options_.sequence, (std::min)(kv_.size(options_.sequence), drafter_.n_read()));
        pending = 1;
      }
    }
    prefill_.run(backend_, kv_, options_.sequence, session_.text(), pending, [&](std::int32_t first, std::int32_t n) {
      show_features(first, prefill_.rows().first(static_cast<std::size_t>(n)));
    });
    record_.seconds.target_forward = lap();
  }

  template <class ChanceT>
  void draft(ChanceT& chance) {
    // The last token that may be written is the target's own: nothing need be drafted for it.
    const std::int32_t room = session_.left() > 1 ? (std::min)(session_.room(), drafter_.capacity() - text_size()) : 0;
    tree_.reset(session_.text().back(), (std::min)(tree_.capacity(), room));
    const double before = draft_forward_seconds();
    if constexpr (requires { policy_.open(round_start{}); })
      policy_.open({text_size(), options_.sampling, policy_in_step_});
    policy_.grow(tree_, drafter_, chance);
    record_.tree = tree_.view();
    record_.seconds.draft_forward = draft_forward_seconds() - before;
    record_.seconds.grow = lap() - record_.seconds.draft_forward;
  }

  double draft_forward_seconds() const {
    if constexpr (requires { drafter_.forward_seconds(); }) return drafter_.forward_seconds();
    return 0.0;
  }

  void compile() {
    order_.compute(tree_.view(), options_.order);
    prefix_ = kv_.size(options_.sequence);
    pending_ = text_size() - prefix_;
    if (pending_ < 1) {
      raise<input_error>("sequence ", options_.sequence, " of the cache holds ", prefix_, " tokens of a text of ",
                         text_size(), ": another part uses it, too. Drafter and target need a sequence each.");
    }
    const std::int32_t rows = pending_ + tree_.size() - 1;
    if (kv_.append(options_.sequence, rows) < 0)
      raise<input_error>("the cache of ", kv_.capacity(), " tokens is full.");
    batch_.clear();
    batch_.begin_sequence(options_.sequence, prefix_, rows);
    batch_.add_chain(session_.text().last(static_cast<std::size_t>(pending_)), prefix_, 1);
    batch_.add_tree(tree_.view(), order_, pending_ - 1);
    record_.forwarded_rows = rows;
    record_.seconds.compile = lap();
  }

  template <class PieceT>
  void commit(verdict v, const PieceT& piece_of) {
    const tree_view tree = tree_.view();
    const verdict admitted = session_.admit(tree, v, piece_of);
    const node_id accepted = admitted.accepted;
    kept_.resize(static_cast<std::size_t>(pending_ + tree.depth[accepted]));
    for (std::int32_t i = 0; i < pending_; ++i)
      kept_[static_cast<std::size_t>(i)] = i;
    for (node_id u = accepted; u != root_node; u = tree.parent[u]) {
      kept_[static_cast<std::size_t>(pending_ - 1 + tree.depth[u])] =
          pending_ - 1 + order_.rows()[static_cast<std::size_t>(u)];
    }
    show_features(prefix_, kept_);
    kv_.commit(options_.sequence, kept_);
    drafter_.commit(tree, admitted);
    show_state(accepted);
    policy_.observe(tree, admitted);
    // The session comes last: whatever failed before this line, the round has not been.
    const std::size_t written = session_.text().size();
    session_.commit(tree, admitted);
    policy_in_step_ = reads_states();
    record_.decision = admitted;
    record_.committed = session_.text().subspan(written);
    record_.state = session_.state();
  }

  DrafterT drafter_;
  TreePolicyT policy_;
  VerifierT verifier_;
  KVStoreT kv_;
  BackendT backend_;
  decoder_options options_;
  session session_;
  target_rows target_;
  vocab_rows<logit_number<backend_type, kv_type>> logits_;  // of the last target pass
  std::int32_t context_;
  tree<> tree_;
  tree_order order_;
  forward_batch batch_;
  prefill prefill_;
  std::vector<std::int32_t> kept_;
  std::int32_t max_pending_ = prefill::chunk;
  std::int32_t prefix_ = 0;
  std::int32_t pending_ = 0;
  std::int32_t earlier_rounds_ = 0;
  bool cache_in_step_ = false;
  bool drafter_in_step_ = false;
  bool policy_in_step_ = false;  // what it read last is of the token before the pending one
  round_record record_;
  clock::time_point lap_;
};

//! Builds a decoder of five parts; lvalues are kept by reference.
template <class DrafterT, class TreePolicyT, class VerifierT, class KVStoreT, class BackendT>
decoder<DrafterT, TreePolicyT, VerifierT, KVStoreT, BackendT> make_decoder(DrafterT&& drafter, TreePolicyT&& policy,
                                                                           VerifierT&& verifier, KVStoreT&& kv,
                                                                           BackendT&& backend,
                                                                           decoder_options options = {}) {
  return {std::forward<DrafterT>(drafter), std::forward<TreePolicyT>(policy), std::forward<VerifierT>(verifier),
          std::forward<KVStoreT>(kv),      std::forward<BackendT>(backend),   options};
}

}  // namespace espalier
