// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>

#if __has_include(<sys/socket.h>)
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#endif

namespace espalier::detail {

// Whether somebody takes a connection at "host:port" within two seconds; true where this system cannot ask.
inline bool server_answers([[maybe_unused]] const std::string& server) {
#if __has_include(<sys/socket.h>)
  const std::size_t colon = server.rfind(':');
  if (colon == std::string::npos) return false;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(server.substr(0, colon).c_str(), server.substr(colon + 1).c_str(), &wanted, &found) != 0)
    return false;
  bool answers = false;
  for (const addrinfo* one = found; one != nullptr && !answers; one = one->ai_next) {
    const int fd = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
    if (fd < 0) continue;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    connect(fd, one->ai_addr, one->ai_addrlen);
    pollfd wait{fd, POLLOUT, 0};
    int failure = 0;
    socklen_t size = sizeof failure;
    answers = poll(&wait, 1, 2000) == 1 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) == 0 && failure == 0;
    close(fd);
  }
  freeaddrinfo(found);
  return answers;
#else
  return true;
#endif
}

}  // namespace espalier::detail
