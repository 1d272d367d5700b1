// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "draft_sampling.hpp"
#include "espalier/cuda/backend/llama.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/registry.cuh"
#include "on_device.hpp"
#include "write_with.hpp"

namespace generate {

namespace {

namespace cuda = espalier::cuda;

using backend = cuda::llama_backend<float>;
using cache = cuda::contiguous_kv<float>;
using model_drafter = cuda::autoregressive<backend&, cache&>;

// The models of a folder on the device, loaded when they are first used.
struct device_models {
  std::int32_t rows;
  std::int32_t context;
  backend target;
  backend draft;

  static backend load(const std::string& folder, std::int32_t rows, std::int32_t context) {
    return backend::load(folder, {.max_rows = rows, .max_positions = context, .max_context = context});
  }
  cache make_cache(const backend& model) const {
    return cache(model.config().n_layers, model.config().kv_size(), 1, context);
  }
};

device_models& models_for(const assignment& work, std::int32_t rows) {
  static std::optional<device_models> loaded;
  if (!loaded || loaded->rows < rows) {
    loaded.reset();
    const std::int32_t context = work.models.context();
    loaded.emplace(device_models{rows, context, device_models::load(work.arguments.models + "/target", rows, context),
                                 device_models::load(work.arguments.models + "/draft", rows, context)});
  }
  return *loaded;
}

template <class PolicyT>
constexpr bool drafts_on_device() {
  if constexpr (!cuda::has_device_policy<PolicyT>) {
    return false;
  } else if constexpr (!espalier::drafts<PolicyT>) {
    return true;
  } else {
    return cuda::TreePolicy<cuda::device_policy<PolicyT>, model_drafter>;
  }
}

}  // namespace

std::vector<std::string> methods_on_device(drafter_kind drafter) {
  if (drafter != drafter_kind::model) throw usage_error("--device cuda drafts with --drafter model.");
  std::vector<std::string> names;
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
    if (drafts_on_device<typename PartT::type>()) names.emplace_back(part.name);
  });
  return names;
}

written_text write_on_device(const assignment& work) {
  written_text result;
  bool found = false;
  with_parts(work.arguments, work.method, work.verifier,
             [&]<class PolicyT, class VerifierT>(const PolicyT& policy, const VerifierT& verifier) {
               using policy_type = typename PolicyT::type;
               if constexpr (drafts_on_device<policy_type>() && cuda::runs_on_device<typename VerifierT::type>) {
                 found = true;
                 auto grown = cuda::make_on_device(policy);
                 device_models& models = models_for(work, (std::max)(grown.max_nodes() + 1, 64));
                 cache kv = models.make_cache(models.target);
                 const auto write = [&](auto&& drafter) {
                   auto decode =
                       cuda::make_decoder(drafter, grown, verifier.make(), kv, models.target, work.arguments.target);
                   result = write_by(decode, work);
                 };
                 if constexpr (espalier::drafts<policy_type>) {
                   cache draft_kv = models.make_cache(models.draft);
                   write(model_drafter(models.draft, draft_kv, draft_sampling(work.arguments, work.method)));
                 } else {
                   write(cuda::no_drafter());
                 }
               }
             });
  if (!found) throw usage_error("--verifier " + work.verifier + " does not run on --device cuda.");
  return result;
}

}  // namespace generate
