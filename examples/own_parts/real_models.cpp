// SPDX-License-Identifier: BSL-1.0
// The benchmark tables of real models with parts of one's own beside the library's: see --help.
#include <generate/generate_main.hpp>
#include <tables/real_models.hpp>

#include "parts.hpp"

int main(int argc, char** argv) {
  return bench::real_models(argc, argv, generate::parts_of(own::parts));
}
