// SPDX-License-Identifier: BSL-1.0
// Compiled only, never linked: the parts and the decoder need no more of one another than the concepts say.
#include "archetypes/backend.hpp"
#include "archetypes/drafter.hpp"
#include "archetypes/kv_store.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"

namespace minimal {

struct policy {
  static constexpr espalier::regime sampling = espalier::regime::iid;
  std::int32_t max_nodes() const;
  std::span<const espalier::node_id> begin(espalier::tree<>&);
  template <class AnswerT>
  std::span<const espalier::node_id> take(espalier::tree<>&, AnswerT, espalier::philox_chance&);
  void observe(espalier::tree_view, espalier::verdict);
};

struct verifier {
  static constexpr espalier::regime lossless = espalier::regime::iid;
  espalier::verdict verify(espalier::tree_view, espalier::node_rows<float>, espalier::lazy_rows<>&,
                           espalier::philox_chance&);
};

// A decoder asks for the draft's rows by name; who proposes nothing has none.
struct drafter : archetypes::drafter {
  espalier::node_rows<float> rows() const;
};

template <class DrafterT, class PolicyT, class VerifierT>
using composed = espalier::decoder<DrafterT&, PolicyT, VerifierT, archetypes::kv_store&, archetypes::backend&>;

}  // namespace minimal

template class espalier::autoregressive<archetypes::backend&, archetypes::kv_store&>;
template class espalier::autoregressive<archetypes::double_backend&, archetypes::kv_store&>;
template class espalier::autoregressive<archetypes::backend&, archetypes::windowed_kv_store&>;
template class espalier::decoder<archetypes::step_drafter&, espalier::dynatree, espalier::greedy, archetypes::kv_store&,
                                 archetypes::backend&>;

template class espalier::decoder<archetypes::step_drafter&, espalier::dynatree, espalier::greedy, archetypes::kv_store&,
                                 archetypes::double_backend&>;

void compose_all(archetypes::step_drafter& step, minimal::drafter& nothing, archetypes::kv_store& kv,
                 archetypes::backend& backend, minimal::policy& policy, minimal::verifier& verifier) {
  const auto all_steps = [&](auto decoder) { return decoder.step() && !decoder.generate({}).empty(); };
  all_steps(espalier::make_decoder(step, espalier::chain(), espalier::greedy(), kv, backend));
  all_steps(espalier::make_decoder(step, espalier::fixed(), espalier::target_only(), kv, backend));
  all_steps(espalier::make_decoder(step, espalier::dynatree(), espalier::greedy(), kv, backend));
  all_steps(espalier::make_decoder(nothing, espalier::plain(), espalier::greedy(), kv, backend));
  minimal::composed<minimal::drafter, minimal::policy, minimal::verifier>(nothing, policy, verifier, kv, backend)
      .step();
}
