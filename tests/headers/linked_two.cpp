// SPDX-License-Identifier: BSL-1.0
#include "everything.hpp"

espalier::error_handler_type* error_handler_of_two() {
  return &espalier::error_handler();
}
