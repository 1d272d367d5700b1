// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <httplib.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <string>

#include "http_options.hpp"

namespace serve {

namespace detail {

#if defined(POLLRDHUP)
constexpr short hung_up = POLLRDHUP;  // told even where bytes of the client wait to be read
#else
constexpr short hung_up = POLLHUP;
#endif

}  // namespace detail

//! A client's connection as httplib reads and writes it, with limits that httplib lacks: on the time in which a whole
//! request must arrive, on the bytes of its head, and on how long the client may leave sent bytes unread. Closes the
//! socket.
class connection final : public httplib::Stream {
 public:
  using clock = std::chrono::steady_clock;

  //! The fault in the way a request arrived.
  enum class fault { none, head_too_long, too_slow, cut_short };

  //! `ends` becomes true before the server itself stops reading from its clients.
  connection(int socket, const http_options& options, const std::atomic<bool>& ends)
      : socket_(socket), options_(options), ends_(ends) {
    const int on = 1, unread = unread_bytes;
    // Events are small and must not wait. Bytes that the client leaves unread stay with the server, which can drop
    // them.
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(socket_, SOL_SOCKET, SO_SNDBUF, &unread, sizeof unread);
    current_ = this;
  }
  connection(const connection&) = delete;
  connection& operator=(const connection&) = delete;
  ~connection() {
    current_ = nullptr;
    if (unread_request_) linger();
    ::shutdown(socket_, SHUT_RDWR);
    ::close(socket_);
  }

  //! The connection that this thread serves.
  static connection* current() { return current_; }

  //! Waits for the next request; false if the client sends none.
  bool await_request() {
    const bool is_there = begin_ < end_ || wait(POLLIN, clock::now() + std::chrono::seconds(options_.keep_alive));
    deadline_ = clock::now() + std::chrono::seconds(options_.read_timeout);
    head_left_ = http_options::max_head;
    fault_ = fault::none;
    replied_ = false;
    return is_there;
  }
  //! Notes that the head of the request has been read.
  void end_head() { head_left_ = -1; }
  //! Notes that the request was not read to its end: the connection ends after the reply.
  void give_up_request() { unread_request_ = true; }
  bool gave_up() const { return unread_request_; }
  fault what_failed() const { return fault_; }
  //! True if a part of a reply has been sent.
  bool replied() const { return replied_; }

  //! True if the client has left, or says that it will send nothing more.
  bool is_closed() const {
    bool has_left = poll_once(detail::hung_up, 0);
    if (!has_left) {
      char byte = 0;
      const ssize_t n = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      has_left = n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
    }
    return has_left && !ends_;  // a server that ends shuts the connection's reading side itself
  }

  // The functions of httplib::Stream, under all names that its versions have for them.
  ssize_t read(char* to, std::size_t size) {
    if (begin_ == end_ && !fill()) return fault_ == fault::cut_short ? 0 : -1;
    const std::size_t n = (std::min)(size, end_ - begin_);
    if (head_left_ >= 0) {
      if (static_cast<std::size_t>(head_left_) < n) return fail(fault::head_too_long);
      head_left_ -= static_cast<int>(n);
    }
    std::copy_n(buffer_.begin() + static_cast<std::ptrdiff_t>(begin_), n, to);
    begin_ += n;
    return static_cast<ssize_t>(n);
  }

  ssize_t write(const char* from, std::size_t size) {
    const clock::time_point deadline = clock::now() + std::chrono::seconds(options_.write_timeout);
    for (;;) {
      const ssize_t n = ::send(socket_, from, size, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n >= 0) {
        replied_ = true;
        return n;
      }
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !wait(POLLOUT, deadline)) return -1;
    }
  }

  bool is_readable() const { return begin_ < end_ || poll_once(POLLIN, 0); }
  bool is_writable() const { return !is_closed(); }
  bool wait_readable() const { return is_readable(); }
  bool wait_writable() const { return is_writable(); }
  time_t duration() const { return 0; }

  void get_remote_ip_and_port(std::string& ip, int& port) const { name_end(::getpeername, ip, port); }
  void get_local_ip_and_port(std::string& ip, int& port) const { name_end(::getsockname, ip, port); }
  int socket() const { return socket_; }

 private:
  static constexpr int unread_bytes = 32 << 10;
  static constexpr std::chrono::seconds linger_time{2};

  ssize_t fail(fault what) {
    fault_ = what;
    unread_request_ = true;
    return -1;
  }

  bool fill() {
    begin_ = end_ = 0;
    for (;;) {
      if (!wait(POLLIN, deadline_)) return fail(fault::too_slow) > 0;
      const ssize_t n = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (n > 0) {
        end_ = static_cast<std::size_t>(n);
        return true;
      }
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      return fail(fault::cut_short) > 0;
    }
  }

  // Reads for a while the bytes that the client still sends: if the socket were closed with unread bytes, the client
  // might not get the reply.
  void linger() {
    ::shutdown(socket_, SHUT_WR);
    const clock::time_point end = clock::now() + linger_time;
    while (wait(POLLIN, end)) {
      const ssize_t n = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    }
  }

  bool poll_once(short what, int milliseconds) const {
    pollfd one{socket_, what, 0};
    return ::poll(&one, 1, milliseconds) > 0;
  }

  // Waits for the socket; false at the deadline.
  bool wait(short what, clock::time_point deadline) const {
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now()).count();
      if (left <= 0) return false;
      if (poll_once(what, static_cast<int>(left))) return true;
    }
  }

  template <class NameT>
  void name_end(NameT name, std::string& ip, int& port) const {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    std::array<char, NI_MAXHOST> host{};
    std::array<char, NI_MAXSERV> service{};
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (name(socket_, any, &size) != 0) return;
    if (::getnameinfo(any, size, host.data(), host.size(), service.data(), service.size(),
                      NI_NUMERICHOST | NI_NUMERICSERV) != 0)
      return;
    ip = host.data();
    port = std::atoi(service.data());
  }

  static inline thread_local connection* current_ = nullptr;

  int socket_;
  const http_options& options_;
  const std::atomic<bool>& ends_;
  std::array<char, 4096> buffer_{};
  std::size_t begin_ = 0, end_ = 0;  // range of bytes that were received and not used yet
  clock::time_point deadline_{};
  int head_left_ = -1;  // bytes that the head may still have; -1: it has been read
  fault fault_ = fault::none;
  bool unread_request_ = false;
  bool replied_ = false;
};

}  // namespace serve
