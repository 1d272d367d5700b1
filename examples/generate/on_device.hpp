// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "arguments.hpp"

//! The functions for --device cuda: on_cuda.cu if this program is built with CUDA, else without_cuda.cpp.
namespace generate {

struct text_task;
struct written_text;

//! The names of the methods that run on the device over this drafter, in the registry's order.
//!
//! Errors      usage_error if the program was built without CUDA
std::vector<std::string> methods_on_device(drafter_kind drafter);

//! True if the verifier of this name runs on the device: the library's do.
//!
//! Errors      usage_error if the program was built without CUDA
bool verifies_on_device(std::string_view verifier);

//! Writes a text on the device, with models of its own from the same folder.
written_text write_on_device(const text_task& work);

}  // namespace generate
