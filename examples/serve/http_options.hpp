// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "espalier/core/option.hpp"

namespace serve {

struct http_options {
  std::string host = "127.0.0.1";
  std::string api_key;               //!< key that clients must send; empty: none
  std::vector<std::string> origins;  //!< origins of web pages that browsers may let read the replies; "*": all
  std::int32_t port = 8080;
  std::int32_t max_connections = 512;
  std::int32_t max_body = 1 << 20;
  std::int32_t read_timeout = 30;
  std::int32_t write_timeout = 10;
  std::int32_t keep_alive = 5;

  static constexpr std::int32_t max_head = 32 << 10;  // bytes of request line and headers at most

  static constexpr void describe(auto see) {
    using self = http_options;
    using espalier::option;
    see(option{"port", &self::port, "to listen on; 0: any that is free", 0, 65535});
    see(option{"max_connections", &self::max_connections, "clients at once, those that wait included", 1, 1 << 14});
    see(option{"max_body", &self::max_body, "bytes of a request's body", 1, 1 << 30});
    see(option{"read_timeout", &self::read_timeout, "seconds in which a request must have arrived", 1, 3600});
    see(option{"write_timeout", &self::write_timeout, "seconds that a client may read nothing", 1, 3600});
    see(option{"keep_alive", &self::keep_alive, "seconds until the next request of a connection", 1, 3600});
  }
};

}  // namespace serve
