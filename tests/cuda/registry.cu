// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/registry.cuh"

#include <boost/hana/for_each.hpp>
#include <type_traits>

#include "catch.hpp"
#include "espalier/cuda/sampling/sampler.cuh"
#include "option_ranges.hpp"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;

TEST_CASE("Parts on the device take and refuse the options that the host's do") {
  int parts = 0;
  boost::hana::for_each(tree_policies, [&]<class PartT>(const PartT& part) {
    if constexpr (gpu::has_device_policy<typename PartT::type> &&
                  !std::is_same_v<typename PartT::options_type, no_options>) {
      INFO(part.name);
      const auto build = [&](const typename PartT::options_type& options) {
        PartT changed = part;
        changed.options = options;
        (void)gpu::make_on_device(changed);
      };
      check_ranges(part.options, build, [](auto& highest) {
        using options_type = typename PartT::options_type;
        if constexpr (std::is_same_v<options_type, dynatree_options> || std::is_same_v<options_type, fixed_options>)
          highest.budget = 1024;
      });
      ++parts;
    }
  });
  CHECK(parts == 16);
  check_ranges(sampling_options{}, [](const sampling_options& options) { gpu::sampler<float> sampler(options); });
  CHECK(message_of<option_error>([] { gpu::dynatree({.budget = 1025}); }) ==
        "option budget on the device is 1025, but must lie between 2 and 1024.");
}
