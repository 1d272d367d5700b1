// SPDX-License-Identifier: BSL-1.0
#include "add_library_methods.hpp"

namespace generate {

template void add_library_methods<method_group::distinct>(part_list<method>& to);

}  // namespace generate
