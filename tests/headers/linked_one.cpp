// SPDX-License-Identifier: BSL-1.0
#include <cstdio>

#include "everything.hpp"

espalier::error_handler_type* error_handler_of_two();

int main() {
  // What is inline has one address in the whole program.
  if (&espalier::error_handler() == error_handler_of_two()) return 0;
  std::puts("error_handler() is not the same object in two translation units");
  return 1;
}
