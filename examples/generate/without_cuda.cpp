// SPDX-License-Identifier: BSL-1.0
#include "on_device.hpp"
#include "text_task.hpp"

namespace generate {

namespace {

[[noreturn]] void refuse() {
  throw usage_error("--device cuda needs a program that was built where nvcc is: this one was built without CUDA.");
}

}  // namespace

std::vector<std::string> methods_on_device(drafter_kind) {
  refuse();
}

bool verifies_on_device(std::string_view) {
  refuse();
}

written_text write_on_device(const text_task&) {
  refuse();
}

}  // namespace generate
