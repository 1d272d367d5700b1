// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <map>
#include <string>

namespace bench {

//! Calls of the CUDA runtime since the last time that this was called, by name. They are counted in programs that are
//! linked with api_calls.cpp.
//!
//! Post        counting begins anew
std::map<std::string, int> api_calls();

}  // namespace bench
