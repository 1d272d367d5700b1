// SPDX-License-Identifier: BSL-1.0
#include "write_with.hpp"

namespace generate {

template written_text write_with(const held_policy<espalier::regime::deterministic>&, bool,
                                 const espalier::sampling_options&, const assignment&);
template written_text write_with(const held_policy<espalier::regime::iid>&, bool, const espalier::sampling_options&,
                                 const assignment&);
template written_text write_with(const held_policy<espalier::regime::without_replacement>&, bool,
                                 const espalier::sampling_options&, const assignment&);
template written_text write_with(const held_policy<espalier::sampled_chain::sampling>&, bool,
                                 const espalier::sampling_options&, const assignment&);

}  // namespace generate
