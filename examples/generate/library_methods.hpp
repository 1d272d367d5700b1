// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "parts.hpp"

namespace generate {

//! The methods of the library that are compiled together: the decoders of all at once would take a compiler more memory
//! than many machines have to spare.
enum class method_group {
  chosen,       //!< trees that are chosen
  independent,  //!< trees of independent draws
  distinct,     //!< trees of draws without replacement
};

//! Adds the methods of a group, in the order of the registry. methods_chosen.cpp and so on compile it.
template <method_group Group>
void add_library_methods(part_list<method>& to);

}  // namespace generate
