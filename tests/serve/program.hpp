// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

// The program `serve` in a process of its own, at a port of its own. Ends with the test, whatever becomes of it.
class server_process {
 public:
  // With these models, or the bundled ones, and these arguments and environment. Waits until it listens.
  explicit server_process(std::vector<std::string> arguments, const std::string& api_key = "",
                          const std::string& models = "");
  server_process(const server_process&) = delete;
  ~server_process();

  int port() const { return port_; }
  void tell_to_end() const;  // SIGTERM
  // The exit status; -1 where it was killed, nothing where it goes on.
  std::optional<int> wait(std::chrono::seconds patience);

 private:
  int process_ = -1;
  int output_ = -1;
  int port_ = -1;
};

// A connection to 127.0.0.1 that sends what it is told, be it HTTP or not.
class raw_client {
 public:
  // receive_bytes: of the system's buffer for what is not read yet; 0: the usual.
  explicit raw_client(int port, int receive_bytes = 0);
  raw_client(const raw_client&) = delete;
  ~raw_client();

  void send(const std::string& bytes) const;
  // No more is sent.
  void finish() const;
  // The connection will end with a reset, not in order.
  void reset_at_end() const;
  // All until the server closes, or until this is in it; what has come where that takes longer.
  std::string receive(std::chrono::milliseconds patience, const std::string& until = "") const;

 private:
  int socket_ = -1;
};

// A request for text.
std::string post(const std::string& path, const std::string& body, const std::string& headers = "");
