// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <map>
#include <string>

namespace bench {

//! Calls of the CUDA runtime by name, since the last time that this was asked for. Programs that are linked with
//! api_calls.cpp count them.
//!
//! Post        names that were called; counting begins anew
std::map<std::string, int> api_calls();

}  // namespace bench
