// SPDX-License-Identifier: BSL-1.0
// Collects what the neural selector learns from: traces of a pair of models, and the costs of their passes. See --help.
#include "run_program.hpp"

int main(int argc, char** argv) {
  return nde::run_program(argc, argv, {});
}
