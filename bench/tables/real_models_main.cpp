// SPDX-License-Identifier: BSL-1.0
#include "real_models.hpp"

int main(int argc, char** argv) {
  return bench::real_models(argc, argv, {});
}
