// SPDX-License-Identifier: BSL-1.0
#include "on_cuda.cuh"

#include <cuda_bf16.h>

#include <boost/hana/for_each.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/registry.hpp"
#include "on_device.hpp"

namespace generate {

extern template written_text write_in<__nv_bfloat16>(const text_task&);

std::vector<std::string> methods_on_device(drafter_kind drafter) {
  using models = device_models<float>;
  std::vector<std::string> names;
  boost::hana::for_each(espalier::tree_policies, [&]<class PartT>(const PartT& part) {
    using policy = typename PartT::type;
    const bool grows = is_head(drafter)                 ? grows_from<policy, models::head_drafter>()
                       : drafter == drafter_kind::block ? grows_from<policy, models::step_drafter>()
                       : drafter == drafter_kind::text  ? grows_from<policy, cuda::prompt_lookup>()
                                                        : grows_from<policy, models::model_drafter>();
    if (grows) names.emplace_back(part.name);
  });
  return names;
}

bool verifies_on_device(std::string_view verifier) {
  bool found = false;
  boost::hana::for_each(espalier::verifiers, [&](const auto& part) { found = found || part.name == verifier; });
  return found;
}

written_text write_on_device(const text_task& work) {
  const bool narrow = work.arguments.weights == espalier::weight_storage::bf16;
  return narrow ? write_in<__nv_bfloat16>(work) : write_in<float>(work);
}

}  // namespace generate
