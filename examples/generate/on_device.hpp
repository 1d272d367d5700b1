// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <vector>

#include "arguments.hpp"

//! What --device cuda needs: on_cuda.cu where this program is built with CUDA, without_cuda.cpp elsewhere.
namespace generate {

struct text_task;
struct written_text;

//! The names of the methods that run on the device over this drafter, in the registry's order.
//!
//! Errors      usage_error where the program was built without CUDA, or nothing drafts so on the device
std::vector<std::string> methods_on_device(drafter_kind drafter);

//! Writes a text there, with models of its own from the same folder.
written_text write_on_device(const text_task& work);

}  // namespace generate
