// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../models/device_block_model.cuh"
#include "../models/layers_read.hpp"
#include "constraint_of.hpp"
#include "draft_sampling.hpp"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/block_diffusion.cuh"
#include "espalier/cuda/drafter/factorised.cuh"
#include "espalier/cuda/drafter/feature_steps.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/kv_store/recurrent.cuh"
#include "espalier/cuda/model/llama/draft_head_model.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/registry.cuh"
#include "espalier/model/files/head_tokens.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/selector/neural_delayed.hpp"
#include "part_with.hpp"
#include "text_task.hpp"

namespace generate {

namespace cuda = espalier::cuda;

//! The models on the device, loaded when they are first used, with weights and caches of NumberT.
template <class NumberT>
struct device_models {
  using backend = cuda::llama_backend<NumberT>;
  using cache = cuda::recurrent_kv<NumberT>;
  using block_model = models::device_block_model<NumberT>;
  using head_model = cuda::draft_head_model<NumberT>;
  using model_drafter = cuda::autoregressive<backend&, cache&>;
  using block_drafter = cuda::block_diffusion<block_model&>;
  using step_drafter = cuda::factorised<block_drafter>;  // of a block's rows, for policies that ask node by node
  using head_drafter = cuda::feature_steps<head_model&>;

  std::int32_t rows;
  std::int32_t context;
  backend target;
  std::optional<backend> draft;
  std::optional<block_model> block;
  std::optional<head_model> head;

  device_models(const models::model_paths& paths, std::int32_t max_rows)
      : rows(max_rows), context(context_of(paths.model)), target(load(paths.model, models::layers_read(paths))) {
    if (!paths.draft.empty()) draft.emplace(load(paths.draft, {}, paths.head_tokens));
    if (!paths.block.empty()) block.emplace(block_model::load(paths.block, target, rows));
    if (!paths.head.empty()) head.emplace(head_model::load(paths.head, target, rows));
  }

  // The positions of a model; a draft is not asked beyond the target's.
  static std::int32_t context_of(const std::string& path) {
    return espalier::model_files::open(path).config.max_positions;
  }
  backend load(const std::string& path, const std::vector<int>& hidden_layers, const std::string& tokens = {}) const {
    const espalier::model_config config = espalier::model_files::open(path).config;
    const std::int32_t positions = (std::min)(context, config.max_positions);
    std::vector<espalier::token_id> head_tokens;
    if (!tokens.empty()) head_tokens = espalier::read_head_tokens(tokens, config.vocab_size);
    // With 16 bits a rounding may choose another token: at temperature 0 all methods must write the same text.
    return backend::load(path, {.max_rows = rows,
                                .max_positions = positions,
                                .max_context = positions,
                                .hidden_layers = hidden_layers,
                                .head_tokens = std::move(head_tokens),
                                .batch_invariant = sizeof(NumberT) == 2});
  }
  cache make_cache(const backend& model) const {
    // Room for two passes after a recurrent state; a draft's have two pending tokens beside the nodes.
    return cuda::device_cache<NumberT>(model.config(), 1, model.max_positions(), 2 * (rows + 2));
  }
};

template <class NumberT>
device_models<NumberT>& models_of(const models::model_paths& paths, std::int32_t rows) {
  static std::optional<device_models<NumberT>> loaded;
  if (!loaded || loaded->rows < rows) loaded.emplace(paths, rows);
  return *loaded;
}

//! True if a method has a form on the device that can grow from this drafter. neural_delayed is left out: its selector
//! needs costs of passes on the device, which this program does not measure.
template <class PolicyT, class DrafterT>
constexpr bool grows_from() {
  if constexpr (cuda::has_device_policy<PolicyT> && !std::is_same_v<PolicyT, espalier::neural_delayed<>>) {
    return cuda::TreePolicy<cuda::device_policy<PolicyT>, DrafterT>;
  } else {
    return false;
  }
}

//! Writes a text on the device, with models whose weights and caches are NumberT.
template <class NumberT>
written_text write_in(const text_task& work) {
  using all_models = device_models<NumberT>;
  using model_drafter = typename all_models::model_drafter;
  using block_drafter = typename all_models::block_drafter;
  using step_drafter = typename all_models::step_drafter;
  using head_drafter = typename all_models::head_drafter;
  using cache = typename all_models::cache;
  written_text result;
  const auto write_with = [&]<class PartT, class VerifierT>(const PartT& policy, const VerifierT& verifier) {
    using policy_type = typename PartT::type;
    if constexpr (cuda::has_device_policy<policy_type>) {
      auto grown = cuda::make_on_device(policy);
      all_models& models =
          models_of<NumberT>(models::paths_for(work.arguments.drafter, work.arguments.models.resolved()),
                             (std::max)(cuda::most_asked<model_drafter>(grown) + 1, 64));
      cache kv = models.make_cache(models.target);
      const auto write = [&](auto&& drafter) {
        auto decode = cuda::make_decoder(drafter, std::move(grown), verifier.make(), kv, models.target,
                                         work.arguments.target, constraint_of(work));
        result = write_by(decode, work);
      };
      if constexpr (!espalier::drafts<policy_type>) {
        write(cuda::no_drafter());
      } else if (work.arguments.drafter == drafter_kind::block) {
        if constexpr (grows_from<policy_type, block_drafter>()) {
          if (!models.block->corrects()) return write(block_drafter(*models.block));
        }
        if constexpr (grows_from<policy_type, step_drafter>()) {
          write(step_drafter(block_drafter(*models.block),
                             draft_sampling(work.arguments, *work.arguments.parts.methods.find(work.method))));
        }
      } else if (is_head(work.arguments.drafter)) {
        if constexpr (grows_from<policy_type, head_drafter>()) {
          write(head_drafter(*models.head,
                             draft_sampling(work.arguments, *work.arguments.parts.methods.find(work.method))));
        }
      } else if (work.arguments.drafter == drafter_kind::text) {
        if constexpr (grows_from<policy_type, cuda::prompt_lookup>()) write(cuda::prompt_lookup());
      } else if constexpr (grows_from<policy_type, model_drafter>()) {
        cache draft_kv = models.make_cache(*models.draft);
        write(model_drafter(*models.draft, draft_kv,
                            draft_sampling(work.arguments, *work.arguments.parts.methods.find(work.method))));
      }
    }
  };
  const parts& offered = work.arguments.parts;
  espalier::for_each_compatible_pair(
      [&]<class PolicyT, class VerifierT>(const PolicyT& policy, const VerifierT& verifier) {
        if (policy.name != work.method || verifier.name != work.verifier) return;
        // The library's parts with the options that flags set.
        write_with(dynamic_cast<const method_with<PolicyT>&>(*offered.methods.find(policy.name)).part(),
                   dynamic_cast<const verifier_with<VerifierT>&>(*offered.verifiers.find(verifier.name)).part());
      });
  return result;
}

}  // namespace generate
