// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <nlohmann/json.hpp>
#include <string>

// What the program, or another one, writes with --json, and no complaint.
nlohmann::json written(const std::string& arguments, const std::string& program = GENERATE_PROGRAM);

// The text of its first prompt.
std::string text_of(const nlohmann::json& object);

// Arguments that many runs go without for the sake of time: one thread a run, since others run beside it, and what
// passes cost from a file, which takes the program ten seconds to measure.
const std::string& quickly();
