// SPDX-License-Identifier: BSL-1.0
// The program generate with parts of one's own beside the library's: see --help.
#include <generate/generate_main.hpp>

#include "parts.hpp"

int main(int argc, char** argv) {
  return generate::generate_main(argc, argv, own::parts);
}
