// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "espalier/concepts/verifier.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_transform.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"
#include "espalier/cuda/verifier/verify/first_path.cuh"
#include "espalier/cuda/verifier/verify/row_transforms.cuh"
#include "espalier/sampling/sampler.hpp"
#include "espalier/verifier/khisti/pair_select_view.hpp"

namespace espalier::cuda {

//! A row of the draft, as a team reads it.
using team_row = row_view<float, team>;

//! The rows from which a tree was drawn, for a verifier that a team runs.
class team_draft_rows {
 public:
  __device__ team_draft_rows(const node_rows<float>& rows, const team& who) : rows_(rows), who_(who) {}

  __device__ bool has(node_id u) const { return rows_.has(u); }
  //! Pre         has(u)
  __device__ team_row row(node_id u) const { return {rows_, u, who_}; }

 private:
  const node_rows<float>& rows_;
  const team& who_;
};

namespace detail {

// A residual that gives the node of its target row (target().node()) and the share of the draft's row that was taken
// from the target's row (now().share).
template <class TermsT>
concept RestOfNode = requires(const TermsT& terms) {
  terms.target().node();
  terms.now().share;
};

// A team that does not add up a residual whose sum is known already. The sum is known if node, depth and share are
// those of an entry of the first path; the entry's sums are returned then.
class row_team : public team {
 public:
  __device__ row_team(const team& who, const near_path& path) : team(who), path_(&path) {}

  template <class... TermsT>
  __device__ auto sums_of(std::size_t n, const TermsT&... terms) const {
    if constexpr ((sizeof...(TermsT) == 1) && (RestOfNode<TermsT> && ...)) {
      const std::int32_t d = depth_where_known(terms...);
      if (d >= 0) return espalier::detail::sums<1>{{path_->of->total[d]}};
    }
    return team::sums_of(n, terms...);
  }

  template <class TermsT>
  __device__ parts parts_of(const espalier::detail::parting& cut, const TermsT& terms) const {
    if constexpr (RestOfNode<TermsT>) {
      const std::int32_t d = depth_where_known(terms);
      if (d >= 0) return {path_->part + static_cast<std::ptrdiff_t>(d) * path_->n_parts, path_->of->total[d]};
    }
    return team::parts_of(cut, terms);
  }

 private:
  template <class RestT>
  __device__ std::int32_t depth_where_known(const RestT& rest) const {
    const std::int32_t d = rest.target().depth();
    const path_entry* const entry = path_->known(rest.target().node(), d);
    return entry != nullptr && static_cast<double>(entry->share) == rest.now().share ? d : -1;
  }

  const near_path* path_;
};

}  // namespace detail

//! A row of the target, as a team reads it. Probabilities are made from the logits one by one, and never stored.
template <class LogitT>
class logits_row {
 public:
  static constexpr bool is_trusted = true;

  //! Shapes      logits [vocab]
  __device__ logits_row(const LogitT* logits, std::size_t vocab, const row_transform& transform, node_id u,
                        std::int32_t depth, const detail::row_team& who)
      : logits_(logits), vocab_(vocab), transform_(transform), u_(u), depth_(depth), who_(who) {}

  __device__ std::size_t size() const { return vocab_; }
  __device__ float operator[](std::size_t i) const {
    return transform_.probability(detail::number_in(logits_, i), static_cast<token_id>(i));
  }
  __device__ detail::row_team team() const { return who_; }
  __device__ node_id node() const { return u_; }
  __device__ std::int32_t depth() const { return depth_; }

 private:
  const LogitT* logits_;
  std::size_t vocab_;
  row_transform transform_;
  node_id u_;
  std::int32_t depth_;
  detail::row_team who_;
};

//! The target's rows by node: lazy_rows on the device. If the transform of a row was not found beforehand, the team
//! finds it when the verifier first asks for the row. Of these transforms, most_rows at most are kept, one for each
//! depth modulo most_rows; a transform that was overwritten is found again.
//!
//! Complexity  row, argmax: as team_sampler::find_transform; nothing if the transform is known
//! Law         bit for bit the rows of espalier::lazy_rows
//! Errors      a fault for logits that espalier::sampler refuses: the row is 0 everywhere, and the verdict must not be
//!             used
template <class LogitT>
class team_target_rows {
 public:
  static constexpr std::int32_t most_rows = 32;

  //! The transforms that are kept and the nodes that they belong to; in the shared memory of each block.
  struct memory {
    node_id holder[most_rows];
    row_transform transforms[most_rows];
  };

  //! Shapes      row_of_node [n_nodes]
  __device__ team_target_rows(memory& shared, tree_view tree, const vocab_rows<LogitT>& logits,
                              const std::int32_t* row_of_node, std::int32_t sequence,
                              const detail::row_transforms_view& known, const detail::near_path& path,
                              team_sampler<LogitT>& sampler, const team& who, fault* found)
      : shared_(shared),
        tree_(tree),
        logits_(logits),
        row_of_node_(row_of_node),
        sequence_(sequence),
        known_(known),
        path_(path),
        adding_(who, path),
        sampler_(sampler),
        who_(who),
        found_(found) {
    if (threadIdx.x < most_rows) shared_.holder[threadIdx.x] = no_node;
    __syncthreads();
  }

  //! Returns the target's most probable token after node u; ties go to the lower id. Returns -1 if the row is refused.
  //! Pre: the sampler's temperature is 0
  __device__ token_id argmax(node_id u) {
    const row_transform found = transform_of(u, logits_.at(row_of_node_[u]));
    return found.refused == fault::kind::none ? found.last_lowest : -1;
  }

  //! Returns the distribution of the token after node u; 0 everywhere if the row is refused.
  __device__ logits_row<LogitT> row(node_id u) {
    const LogitT* const logits = logits_.at(row_of_node_[u]);
    return {logits, static_cast<std::size_t>(logits_.vocab), transform_of(u, logits), u, tree_.depth[u], adding_};
  }

  //! True if a row that was asked for was refused.
  __device__ bool failed() const { return failed_; }

 private:
  __device__ row_origin origin(node_id u) const {
    return row_origin::after_node(row_origin::model::target, sequence_, u);
  }

  // Not inlined, since verifiers ask for rows in several places.
  __device__ __noinline__ row_transform transform_of(node_id u, const LogitT* logits) {
    const std::int32_t place = tree_.depth[u] % most_rows;
    row_transform transform;
    if (const detail::path_entry* entry = path_.known(u, tree_.depth[u]); entry != nullptr) {
      transform = entry->transform;
    } else if (known_.has(tree_, u)) {
      transform = known_.transforms[u];
    } else if (who_.once([&] { return shared_.holder[place] == u; })) {
      transform = shared_.transforms[place];
    } else {
      transform = sampler_.find_transform(logits, logits_.vocab);
      if (threadIdx.x == 0) {
        shared_.holder[place] = u;
        shared_.transforms[place] = transform;
      }
      __syncthreads();
    }
    if (transform.refused != fault::kind::none) {
      sampler_.report_refused(transform, logits, found_, origin(u));
      failed_ = true;
    }
    return transform;
  }

  memory& shared_;
  tree_view tree_;
  const vocab_rows<LogitT>& logits_;
  const std::int32_t* row_of_node_;
  std::int32_t sequence_;
  detail::row_transforms_view known_;
  const detail::near_path& path_;
  detail::row_team adding_;
  team_sampler<LogitT>& sampler_;
  const team& who_;
  fault* found_;
  bool failed_ = false;
};

}  // namespace espalier::cuda

namespace espalier::cuda {

namespace detail {

// The number of nodes of the largest tree that near_tree copies to shared memory.
inline constexpr std::int32_t most_near_nodes = 1024;

// Returns the bytes of shared memory that near_tree needs for trees of near_nodes nodes.
constexpr std::size_t near_tree_bytes(std::int32_t near_nodes) {
  return 6 * static_cast<std::size_t>(near_nodes) * sizeof(std::int32_t);
}

// Copies the arrays of a tree that verifiers read to shared memory, where they are read quickly, and returns the copy.
// There is room for near_nodes nodes and as many draws: if that is 0, returns the tree itself; draws that are more stay
// in the memory of the device. Called by the whole block.
__device__ inline tree_view near_tree(const tree_view& tree, void* shared, std::int32_t near_nodes) {
  if (near_nodes == 0) return tree;
  auto* const words = static_cast<std::int32_t*>(shared);
  const auto place = [&](std::int32_t array) { return words + array * near_nodes; };
  const auto thread = static_cast<std::int32_t>(threadIdx.x), threads = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t i = thread; i < tree.n_nodes && i < near_nodes; i += threads) {
    place(0)[i] = tree.token[i];
    place(1)[i] = tree.parent[i];
    place(2)[i] = tree.depth[i];
    place(3)[i] = tree.first_draw[i];
  }
  tree_view in_shared = tree;
  in_shared.token = place(0);
  in_shared.parent = place(1);
  in_shared.depth = place(2);
  in_shared.first_draw = place(3);
  if (tree.n_draws <= near_nodes) {
    for (std::int32_t i = thread; i < tree.n_draws; i += threads) {
      place(4)[i] = tree.next_draw[i];
      place(5)[i] = tree.drawn_node[i];
    }
    in_shared.next_draw = place(4);
    in_shared.drawn_node = place(5);
  }
  __syncthreads();
  return in_shared;
}

// The rows in which the stages of khisti's tournament keep their distributions, for each text of a round. Passed by
// value into kernels.
//
// Shapes      distribution [places][2][vocab]; rank, large [places][vocab]; ranks [places]
struct stage_memory_view {
  float* distribution;
  std::uint16_t* rank;
  std::uint32_t* large;
  espalier::detail::pair_ranks<float, 1024>* ranks;
  std::int32_t vocab;

  // The memory of one text. `window` is in shared memory: each block of the text's team has one of its own.
  __device__ espalier::detail::pair_select_memory<float> of(std::int32_t place,
                                                            espalier::detail::pair_window& window) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * vocab;
    return {{distribution + 2 * first, distribution + 2 * first + vocab},
            rank + first,
            large + first,
            ranks + place,
            &window};
  }
};

// The memory of a stage_memory_view: for each text 14 bytes a token of the vocabulary and some 33 KiB.
class stage_memory {
 public:
  stage_memory() = default;
  stage_memory(std::int32_t vocab, std::int32_t max_texts)
      : vocab_(vocab),
        rank_(static_cast<std::size_t>(vocab) * static_cast<std::size_t>(max_texts)),
        large_(rank_.size()),
        distribution_(2 * rank_.size()),
        ranks_(static_cast<std::size_t>(max_texts)) {}

  stage_memory_view view() const { return {distribution_.data(), rank_.data(), large_.data(), ranks_.data(), vocab_}; }

 private:
  std::int32_t vocab_ = 0;
  device_array<std::uint16_t> rank_;
  device_array<std::uint32_t> large_;
  device_array<float> distribution_;
  device_array<espalier::detail::pair_ranks<float, 1024>> ranks_;
};

}  // namespace detail

//! The way in which verification is spread over the device.
struct verify_tuning {
  detail::row_tuning walk;   //!< the team that runs the verifier
  detail::row_tuning ahead;  //!< the teams that look at the target's rows beforehand
  std::int32_t rows_ahead;   //!< nodes, from the root on, whose target rows are looked at beforehand; not used for
                             //!< verifiers that use the first path: for them all nodes' rows are

  static verify_tuning here(std::int32_t vocab) {
    return {detail::row_tuning_here(vocab, 16), detail::row_tuning_here(vocab), 16};
  }

  bool operator==(const verify_tuning&) const = default;
};

namespace detail {

// A verifier that keeps a value for each node on the path: basic_traversal.
template <class VerifierT>
concept KeepsPath = requires {
  typename VerifierT::memory;
};

// A verifier that tests each node of a path by itself, and takes the last node that passes: block_verification.
template <class VerifierT>
concept JudgesPath = requires(double x) {
  { VerifierT::probability(x, x) } -> std::same_as<double>;
};

// A verifier that keeps distributions of its own, in the rows of stage_memory: khisti.
template <class VerifierT>
concept KeepsStages =
    std::same_as<typename VerifierT::template stage_memory<float>, espalier::detail::pair_select_memory<float>>;

// The form in which a kernel gets a verifier: a copy of it; or, for a verifier that keeps values in the memory of the
// device, a view of that memory, and its options.
template <class VerifierT>
struct verifier_argument {
  static_assert(std::is_trivially_copyable_v<VerifierT>,
                "this verifier does not run on the device: it keeps memory of the host");
  using type = VerifierT;
  struct memory {};

  static type of(const VerifierT& verifier, const memory&) { return verifier; }
};
// For a verifier that keeps a value for each node on the path: an array of these values for each block of each text's
// team.
template <KeepsPath VerifierT>
struct verifier_argument<VerifierT> {
  using type = typename VerifierT::memory*;
  using memory = device_array<typename VerifierT::memory>;

  static type of(const VerifierT&, const memory& kept) { return kept.data(); }
};
template <KeepsStages VerifierT>
struct verifier_argument<VerifierT> {
  struct type {
    std::remove_cvref_t<decltype(std::declval<VerifierT>().options())> options;
    stage_memory_view kept;
  };
  using memory = stage_memory;

  static type of(const VerifierT& verifier, const memory& kept) { return {verifier.options(), kept.view()}; }
};

template <class VerifierT, class LogitT>
struct verify_arguments {
  typename verifier_argument<VerifierT>::type verifier;
  text_batch texts;
  text_rows draft;
  round_logits<LogitT> logits;
  const sampling_options* samplings;  // [places], as decisions and found
  team_sampler_layout layout;
  row_transforms_view ahead;
  first_path_view path;
  std::int32_t max_nodes, near_nodes;
  verdict* decisions;
  fault* found;
};

// Writes options to the memory of the device. The kernel gets them by value, since the host's copy may be gone when the
// kernel runs.
template <class UnusedT = void>
ESPALIER_KERNEL void sample_as(sampling_options* to, sampling_options options) {
  *to = options;
}

// Values of a verifier in the shared memory of each block: the known entries of the first path, the verifier's own
// array by node if the tree is small, the window of a stage.
template <class VerifierT>
struct kept_in_shared_memory {};
template <JudgesPath VerifierT>
struct kept_in_shared_memory<VerifierT> {
  near_path::memory known;
};
template <KeepsStages VerifierT>
struct kept_in_shared_memory<VerifierT> {
  espalier::detail::pair_window window;
};
template <KeepsPath VerifierT>
struct kept_in_shared_memory<VerifierT> {
  static constexpr std::int32_t most_nodes = 256;

  near_path::memory known;
  typename VerifierT::memory kept[most_nodes];
};

template <class VerifierT, class LogitT>
struct alignas(16) verify_memory {
  team::memory who;
  typename team_target_rows<LogitT>::memory rows;
  ESPALIER_NO_UNIQUE_ADDRESS kept_in_shared_memory<VerifierT> own;
};

// Bytes of the sampler's shared memory, rounded up to 16. The copy of the tree begins after it.
ESPALIER_HOST_DEVICE inline std::size_t sampler_bytes(const team_sampler_layout& layout) {
  return (layout.bytes + 15) / 16 * 16;
}

// Returns the depth of the last node on the first path that passes its test; 0, the root, if none does. Each thread
// tests one node at a time.
template <JudgesPath VerifierT, class ChanceT>
__device__ std::int32_t last_that_passes(const first_path_view& path, std::int32_t length, const team& who,
                                         const ChanceT& chance) {
  std::int32_t last = 0;
  for (auto d = static_cast<std::int32_t>(who.rank()) + 1; d < length; d += static_cast<std::int32_t>(who.size())) {
    const path_entry& entry = path.entry[d];
    const double pass = entry.has_rest ? VerifierT::probability(entry.weight, path.total[d]) : entry.weight;
    if (chance.accept(pass, 1, {entry.node, 0, purpose::accept})) last = d;
  }
  return who.reduce(last, [](std::int32_t a, std::int32_t b) { return ::max(a, b); });
}

template <class VerifierT, class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads, 1) void verify_trees(const verify_arguments<VerifierT, LogitT> in) {
  const text_in_batch here = in.texts.here();
  if (here.place < 0) return;
  verdict decided{root_node, -1};
  fault* const found = in.found + here.place;
  auto& memory = *reinterpret_cast<verify_memory<VerifierT, LogitT>*>(shared_memory());
  unsigned char* const of_sampler = shared_memory() + sizeof memory;
  philox_chance chance = here.chance();
  if (found->what != fault::kind::none) {
    if (blockIdx.x == 0 && threadIdx.x == 0) in.decisions[here.place] = decided;
    return;
  }
  const tree_view tree = near_tree(here.tree.view(), of_sampler + sampler_bytes(in.layout), in.near_nodes);
  team::turns turns;
  const team who(memory.who, turns);
  const node_rows<float> draft_rows = in.draft.of(here.place);
  const team_draft_rows draft(draft_rows, who);
  const sampling_options sampling = in.samplings[here.place];
  team_sampler<LogitT> sampler(sampling, in.layout, who, of_sampler);
  const round_logits<LogitT> logits = in.logits.of(here.lane);
  const first_path_view own_path = in.path.of(here.place);
  near_path path;
  std::int32_t length = 0;
  if constexpr (KeepsPath<VerifierT> || JudgesPath<VerifierT>) {
    length = own_path.size->length;
    add_up_first_rests(own_path, length, who);
    path = near_path::copied(own_path, length, memory.own.known);
  }
  team_target_rows<LogitT> target(memory.rows, tree, logits.logits, logits.row_of_node,
                                  in.texts.first_sequence + here.place, in.ahead.of(here.place), path, sampler, who,
                                  found);
  if constexpr (KeepsPath<VerifierT>) {
    const bool is_near = in.max_nodes <= memory.own.most_nodes;
    const std::int64_t block = static_cast<std::int64_t>(here.place) * who.blocks() + who.block();
    const auto in_global = in.verifier + block * in.max_nodes;
    decided = VerifierT::verify(tree, draft, target, chance, is_near ? memory.own.kept : in_global);
  } else if constexpr (JudgesPath<VerifierT>) {
    const std::int32_t refused = own_path.size->refused;
    if (refused >= 0) (void)target.row(own_path.entry[refused].node);
    const path_entry& last = own_path.entry[last_that_passes<VerifierT>(own_path, length, who, chance)];
    if (refused < 0) decided = VerifierT::conclude(tree, draft, target, chance, last.node, last.weight);
  } else if constexpr (KeepsStages<VerifierT>) {
    decided = VerifierT::verify(tree, draft, target, chance, in.verifier.options,
                                in.verifier.kept.of(here.place, memory.own.window));
  } else {
    VerifierT verifier = in.verifier;
    decided = verifier.verify(tree, draft, target, chance);
  }
  if (target.failed()) decided = {root_node, -1};
  if (who.rank() == 0) in.decisions[here.place] = decided;
  who.sync();  // no block ends while another one reads its shared memory
}

}  // namespace detail

//! The verification of draft trees on the device: any of the host's verifiers, run by a team of threads for each text.
//!
//! Two things do not depend on random numbers, and the whole device computes them before the verifier runs. The first
//! is the transform of each target row (row_transform), for the first nodes of the tree. The second is the sum of the
//! residual at each node of the first path (the path of each node's first draw); verifiers that go through the tree
//! bottom up or test a path as a whole need it. The team computes everything else when the verifier asks for it. No row
//! of the target and no residual is ever stored; khisti stores two distributions of winners for each text.
//!
//! LogitT is float, __half or __nv_bfloat16.
//!
//! Complexity  run: 2 launches, 4 for block_verification and traversal. Two passes over each row that is looked at
//!             beforehand, one with greedy; one pass over the target's and the draft's rows along the first path; then
//!             the verifier's own passes over rows. No synchronisation, no allocation after the constructor
//! Law         the verdict of the host's verifier over the same logits, draft rows, tree and chance, if neither
//!             compiler fuses products and sums
//! Errors      sample: option_error for options out of range; cuda_error where there is no memory or a launch fails. If
//!             the verifier visits a row that espalier::sampler refuses, a fault is reported; after this or any earlier
//!             fault the verdict is {root, -1}, which commits nothing
template <class VerifierT, class LogitT>
class verification {
  using argument = detail::verifier_argument<VerifierT>;
  static constexpr bool uses_path = detail::KeepsPath<VerifierT> || detail::JudgesPath<VerifierT>;

 public:
  //! Prepares for max_texts texts, and trees of max_nodes nodes, root included.
  verification(VerifierT verifier, std::int32_t max_nodes, std::int32_t vocab, std::int32_t max_texts = 1)
      : verification(std::move(verifier), max_nodes, vocab, max_texts, tuning_here(max_nodes, vocab, max_texts)) {}

  verification(VerifierT verifier, std::int32_t max_nodes, std::int32_t vocab, std::int32_t max_texts,
               verify_tuning tuning)
      : verifier_(std::move(verifier)),
        walk_memory_(memory_of(max_nodes, vocab, tuning.walk.blocks)),
        ahead_layout_(layout_of(vocab, tuning.ahead.blocks)),
        tuning_(tuning),
        max_nodes_(max_nodes),
        vocab_(vocab),
        n_ahead_(uses_path ? max_nodes : (std::min)(max_nodes, tuning.rows_ahead)) {
    const auto texts = static_cast<std::size_t>(max_texts);
    samplings_ = device_array<sampling_options>(texts);
    decisions_ = device_array<verdict>(texts);
    transforms_ = device_array<row_transform>(texts * static_cast<std::size_t>(n_ahead_));
    if constexpr (uses_path) {
      first_ratio_ = device_array<double>(transforms_.size());
      path_ = detail::first_path(max_nodes, vocab, max_texts);
    }
    if constexpr (detail::KeepsPath<VerifierT>)
      kept_ = typename argument::memory(texts * static_cast<std::size_t>(max_nodes) * tuning.walk.blocks);
    if constexpr (detail::KeepsStages<VerifierT>) kept_ = typename argument::memory(vocab, max_texts);
  }

  //! Sets how the text in this place is sampled, from the next run on.
  void sample(std::int32_t place, sampling_options sampling, cudaStream_t stream) {
    if constexpr (ArgmaxVerifier<VerifierT>) sampling.temperature = 0;
    (void)team_sampler_layout::of(sampling, vocab_, tuning_.walk.blocks);  // checks the options
    const sampling_options checked = sampler<float>(sampling).options();
    launch("sample_as", detail::sample_as<>, {}, stream, samplings_.data() + place, checked);
  }

  //! Verifies the trees of all lanes; decisions() has the verdicts.
  //!
  //! Shapes      logits: [lanes][n_rows][vocab] or, if `lanes` [lanes] is given, each lane's rows from its row_begin
  //!             on; row_of_node [lanes][n_rows]: the row of each node within its lane; found [places]
  //! Pre         sample() was called for the place of each lane; no tree has more than n_rows nodes, the root included
  void run(const text_batch& texts, const text_rows& draft, const vocab_rows<LogitT>& logits,
           const std::int32_t* row_of_node, std::int32_t n_rows, fault* found, cudaStream_t stream,
           const batch_sequence* lanes = nullptr) {
    const detail::round_logits<LogitT> rows{logits, row_of_node, n_rows, lanes};
    const std::int32_t n_ahead = (std::min)(n_ahead_, n_rows);
    const detail::row_transforms_view ahead{transforms_.data(), first_ratio_.data(), n_ahead, n_ahead_};
    const detail::first_path_view path = path_.view();
    if (n_ahead > 0) {
      launch("find_row_transforms", detail::find_row_transforms<LogitT>,
             tuning_.ahead.shape(n_ahead, sizeof(team::memory) + ahead_layout_.bytes, texts.n), stream, texts, rows,
             draft, samplings_.data(), ahead_layout_, ahead, found);
    }
    if constexpr (uses_path) {
      launch("weigh_path", detail::weigh_path<LogitT>,
             {texts.lanes(), detail::path_threads, sizeof(detail::path_memory)}, stream, texts, rows, draft, ahead,
             path, found);
      launch("sum_first_rests", detail::sum_first_rests<LogitT>, path_.shape(n_rows, texts.n), stream, texts, rows,
             draft.rows, path, found);
    }
    launch("verify_trees", detail::verify_trees<VerifierT, LogitT>,
           tuning_.walk.shape(1, walk_memory_.bytes(), texts.n), stream,
           {argument::of(verifier_, kept_), texts, draft, rows, samplings_.data(), walk_memory_.layout, ahead, path,
            max_nodes_, walk_memory_.near_nodes, decisions_.data(), found});
  }

  //! The verdicts of the last run: [places], on the device.
  const verdict* decisions() const { return decisions_.data(); }

 private:
  // The parts of the shared memory of verify_trees whose sizes depend on the device.
  struct walk_memory {
    team_sampler_layout layout;
    std::int32_t near_nodes;  // see near_tree

    std::size_t bytes() const {
      return sizeof(detail::verify_memory<VerifierT, LogitT>) + detail::sampler_bytes(layout) +
             detail::near_tree_bytes(near_nodes);
    }
  };

  // Returns what fits this device: rather fewer maxima than no copy of the tree, as long as the maxima are many.
  static walk_memory memory_of(std::int32_t max_nodes, std::int32_t vocab, unsigned blocks) {
    constexpr std::int32_t few_maxima = 2048;
    walk_memory memory{};
    for (const std::int32_t near_nodes : {max_nodes <= detail::most_near_nodes ? max_nodes : 0, 0}) {
      for (std::int32_t most = detail::row_share::most_maxima; most > few_maxima; most /= 2) {
        memory = {layout_of(vocab, blocks, most), near_nodes};
        if (memory.bytes() <= most_shared_bytes()) return memory;
      }
    }
    return memory;
  }

  // Returns the tuning for this device. A device with clusters may lack room for as many wide clusters as there are
  // texts; the teams are narrower then.
  static verify_tuning tuning_here(std::int32_t max_nodes, std::int32_t vocab, std::int32_t max_texts) {
    verify_tuning tuning = verify_tuning::here(vocab);
    const launch_shape shape = tuning.walk.shape(1, memory_of(max_nodes, vocab, tuning.walk.blocks).bytes());
    const bool is_wide = shape.cluster > tuning.ahead.blocks;
    if (is_wide && resident_clusters("verify_trees", detail::verify_trees<VerifierT, LogitT>, shape) < max_texts)
      tuning.walk = tuning.ahead;
    return tuning;
  }

  static team_sampler_layout layout_of(std::int32_t vocab, unsigned blocks,
                                       std::int32_t most_maxima = detail::row_share::most_maxima) {
    if constexpr (ArgmaxVerifier<VerifierT>) return team_sampler_layout::of({}, vocab, blocks, most_maxima);
    return team_sampler_layout::of_any(vocab, blocks, most_maxima);
  }

  VerifierT verifier_;
  walk_memory walk_memory_;
  team_sampler_layout ahead_layout_;
  verify_tuning tuning_;
  std::int32_t max_nodes_;
  std::int32_t vocab_;
  std::int32_t n_ahead_;
  device_array<sampling_options> samplings_;  // [places], as decisions_
  device_array<row_transform> transforms_;    // [places][n_ahead_], as first_ratio_
  device_array<double> first_ratio_;
  detail::first_path path_;
  ESPALIER_NO_UNIQUE_ADDRESS typename argument::memory kept_;
  device_array<verdict> decisions_;
};

}  // namespace espalier::cuda
