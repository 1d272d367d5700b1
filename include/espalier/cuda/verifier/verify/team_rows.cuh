// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_transform.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"
#include "espalier/cuda/verifier/verify/first_path.cuh"
#include "espalier/cuda/verifier/verify/row_transforms.cuh"

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

// A residual of a target row that tells its node (target().node()) and the share of the draft that was taken
// (now().share).
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
//! finds it when the verifier first asks for the row. Found transforms are kept in most_rows places; nodes whose depths
//! are equal modulo most_rows share a place, and a transform that was overwritten is found again.
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
