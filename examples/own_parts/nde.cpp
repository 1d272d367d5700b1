// SPDX-License-Identifier: BSL-1.0
// The program nde with a verifier of one's own beside the library's: see collect --help.
#include <nde/nde_main.hpp>

#include "parts.hpp"

int main(int argc, char** argv) {
  return nde::nde_main(argc, argv, own::parts);
}
