// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <httplib.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "api_error.hpp"
#include "api_reply.hpp"
#include "connection.hpp"
#include "http_options.hpp"

namespace serve {

//! httplib's server over this program's connections.
class listener final : public httplib::Server {
 public:
  explicit listener(const http_options& options) : options_(options) {
    new_task_queue = [n = options.max_connections + spare_threads] {
      return new httplib::ThreadPool(static_cast<std::size_t>(n));
    };
    // Without SO_REUSEPORT: two servers on one port would be a mistake.
    set_socket_options([](int socket) {
      const int on = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    });
  }

  //! Binds the port. Returns it, or -1.
  int bind() {
    const int port = options_.port == 0 ? bind_to_any_port(options_.host)
                                        : (bind_to_port(options_.host, options_.port) ? options_.port : -1);
    if (port >= 0) ::listen(svr_sock_, backlog);
    return port;
  }

  //! Serves until end(); false if it ended by itself.
  bool serve() {
    listen_after_bind();
    served_ = true;
    return ended_;
  }

  //! Makes serve() return, which another thread has called or will call: no more connections are accepted, and replies
  //! that have begun are sent, as long as their clients take them within the write timeout.
  void end() {
    ended_ = true;
    shut_down(SHUT_RD);
    const auto deadline = connection::clock::now() + std::chrono::seconds(options_.write_timeout);
    // httplib cannot stop a server that has not begun.
    while (!is_running() && !served_)
      std::this_thread::sleep_for(moment);
    stop();
    while (connection::clock::now() < deadline && n_guests() > 0)
      std::this_thread::sleep_for(moment);
    shut_down(SHUT_RDWR);
  }

 private:
  static constexpr int backlog = 1024;     // clients that may connect at once; httplib's own number is small
  static constexpr int spare_threads = 4;  // threads that refuse clients
  static constexpr std::chrono::milliseconds moment{5};

  void shut_down(int how) {
    const std::lock_guard lock(mutex_);
    for (const int socket : sockets_)
      ::shutdown(socket, how);
  }
  std::size_t n_guests() {
    const std::lock_guard lock(mutex_);
    return sockets_.size();
  }

  // Counts a connection while it is served.
  class guest {
   public:
    guest(listener& host, int socket) : host_(host), socket_(socket) {
      const std::lock_guard lock(host_.mutex_);
      host_.sockets_.insert(socket_);
      n_ = static_cast<int>(host_.sockets_.size());
    }
    ~guest() {
      const std::lock_guard lock(host_.mutex_);
      host_.sockets_.erase(socket_);
    }
    bool is_too_much() const { return n_ > host_.options_.max_connections; }

   private:
    listener& host_;
    int socket_;
    int n_ = 0;
  };

  bool process_and_close_socket(socket_t socket) override {
    connection client(socket, options_, ended_);
    const guest here(*this, socket);
    if (here.is_too_much()) {
      refuse(client, api_error(503, "The server has as many clients as it takes. Try again later.", "", "busy"));
      return false;
    }
    bool goes_on = true;
    while (goes_on && !ended_ && client.await_request()) {
      bool closes = false;
      goes_on = answer(client, closes) && !closes && !client.gave_up();
      if (!client.replied()) explain(client);
    }
    return goes_on;
  }

  // Versions of httplib differ in the parameters of process_request. A template, so that only one of the calls must
  // compile.
  template <class StreamT>
  bool answer(StreamT& client, bool& closes) {
    const std::function<void(httplib::Request&)> setup = [&client](httplib::Request& request) {
      client.end_head();
      request.ranges.clear();  // ranges make no sense for replies that are made for one client
    };
    if constexpr (requires { this->process_request(client, false, closes, setup); }) {
      return this->process_request(client, false, closes, setup);
    } else {
      std::string remote, local;
      int remote_port = 0, local_port = 0;
      client.get_remote_ip_and_port(remote, remote_port);
      client.get_local_ip_and_port(local, local_port);
      return this->process_request(client, remote, remote_port, local, local_port, false, closes, setup);
    }
  }

  // Replies to requests that httplib leaves without a reply, such as a request line that does not end.
  static void explain(connection& client) {
    const connection::fault what = client.what_failed();
    if (what == connection::fault::too_slow) return refuse(client, too_slow());
    if (what != connection::fault::cut_short) refuse(client, head_too_long());
  }

  // Sends a reply without httplib.
  static void refuse(connection& client, const api_error& error) {
    const std::string body = to_text(error_object(error));
    const std::string reply = "HTTP/1.1 " + std::to_string(error.status) +
                              " Refused\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: " +
                              std::to_string(body.size()) + "\r\n\r\n" + body;
    client.give_up_request();
    client.write(reply.data(), reply.size());
  }

 public:
  static api_error too_slow() { return api_error(408, "The request did not arrive in time."); }
  static api_error head_too_long() {
    return api_error(431,
                     "Request line and headers have more than " + std::to_string(http_options::max_head) + " bytes.");
  }

 private:
  const http_options& options_;
  std::mutex mutex_;
  std::set<int> sockets_;             // sockets that are being served
  std::atomic<bool> ended_ = false;   // no more requests are read
  std::atomic<bool> served_ = false;  // serve() has returned
};

}  // namespace serve
