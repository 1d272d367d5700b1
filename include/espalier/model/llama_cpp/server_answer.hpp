// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cerrno>
#include <cstddef>
#include <string>

#if __has_include(<sys/socket.h>)
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#endif

namespace espalier::detail {

enum class server_answer {
  takes,    // takes a connection, or cannot be asked on this system
  refuses,  // refuses a connection, or does not exist
  silent,   // gives no answer for two seconds: it is gone, or busy with others
};

// The answer of "host:port" to a request for a connection.
inline server_answer ask_server([[maybe_unused]] const std::string& server) {
#if __has_include(<sys/socket.h>)
  const std::size_t colon = server.rfind(':');
  if (colon == std::string::npos) return server_answer::refuses;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(server.substr(0, colon).c_str(), server.substr(colon + 1).c_str(), &wanted, &found) != 0)
    return server_answer::refuses;
  auto answer = server_answer::refuses;
  for (const addrinfo* one = found; one != nullptr && answer != server_answer::takes; one = one->ai_next) {
    const int fd = socket(one->ai_family, one->ai_socktype, one->ai_protocol);
    if (fd < 0) continue;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    const bool begun = connect(fd, one->ai_addr, one->ai_addrlen) == 0 || errno == EINPROGRESS;
    pollfd wait{fd, POLLOUT, 0};
    int failure = 0;
    socklen_t size = sizeof failure;
    if (begun && poll(&wait, 1, 2000) == 0) {
      answer = server_answer::silent;
    } else if (begun && getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) == 0 && failure == 0) {
      answer = server_answer::takes;
    }
    close(fd);
  }
  freeaddrinfo(found);
  return answer;
#else
  return server_answer::takes;
#endif
}

}  // namespace espalier::detail
