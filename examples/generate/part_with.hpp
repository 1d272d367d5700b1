// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <vector>

#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/decoder/check_parts.hpp"
#include "espalier/registry.hpp"
#include "host_drafter.hpp"
#include "parts.hpp"

namespace generate {

//! A method made from a `part` of a list such as the registry's: all of it but the writing.
template <class PartT>
class method_with : public method {
 public:
  using policy_type = typename PartT::type;
  template <class DrafterT>
  static constexpr bool grows_from = espalier::TreePolicy<policy_type, DrafterT, espalier::philox_chance>;
  static constexpr bool from_rows = grows_from<host_drafter>;

  explicit method_with(const PartT& part)
      : method(part.name, part.summary, policy_type::sampling, espalier::drafts<policy_type>, from_rows), part_(part) {}

  std::vector<models::text_option> options() override { return models::text_options(part_.options); }
  std::int32_t max_nodes() const override { return part_.make().max_nodes(); }

  //! The part, with the options that flags set.
  const PartT& part() const { return part_; }

 private:
  PartT part_;
};

//! A verifier made from a `part` of a list such as the registry's: all of it but the verifying.
template <class PartT>
class verifier_with : public verifier {
 public:
  using verifier_type = typename PartT::type;

  explicit verifier_with(const PartT& part)
      : verifier(part.name, part.summary, verifier_type::lossless, espalier::ArgmaxVerifier<verifier_type>,
                 espalier::detail::NamesApproximateFor<verifier_type>),
        part_(part) {}

  std::vector<models::text_option> options() override { return models::text_options(part_.options); }

  //! The part, with the options that flags set.
  const PartT& part() const { return part_; }

 private:
  PartT part_;
};

}  // namespace generate
