// SPDX-License-Identifier: BSL-1.0
// Writes text with any of the library's methods, shows what happens, or compares them. See --help.
#include "run_program.hpp"

int main(int argc, char** argv) {
  return generate::run_program(argc, argv, {});
}
