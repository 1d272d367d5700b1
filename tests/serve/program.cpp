// SPDX-License-Identifier: BSL-1.0
#include "program.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "catch.hpp"

namespace {

using clock_type = std::chrono::steady_clock;

bool wait_readable(int file, clock_type::time_point end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - clock_type::now()).count();
  pollfd one{file, POLLIN, 0};
  return left > 0 && ::poll(&one, 1, static_cast<int>(left)) > 0;
}

}  // namespace

server_process::server_process(std::vector<std::string> arguments, const std::string& api_key,
                               const std::string& models) {
  arguments.insert(arguments.begin(),
                   {SERVE_PROGRAM, "--model", models.empty() ? SERVE_MODELS : models, "--port", "0"});
  std::vector<char*> words;
  for (std::string& argument : arguments)
    words.push_back(argument.data());
  words.push_back(nullptr);
  int ends[2] = {-1, -1};
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  process_ = ::fork();
  REQUIRE(process_ >= 0);
  if (process_ == 0) {
    ::dup2(ends[1], STDOUT_FILENO);
    if (!api_key.empty()) ::setenv("ESPALIER_API_KEY", api_key.c_str(), 1);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  output_ = ends[0];

  // Model NAME at http://HOST:PORT
  std::string line;
  const auto end = clock_type::now() + std::chrono::seconds(60);
  for (char c = 0; c != '\n' && wait_readable(output_, end) && ::read(output_, &c, 1) == 1;)
    line += c;
  INFO(line);
  REQUIRE(line.find(" at http://127.0.0.1:") != std::string::npos);
  port_ = std::stoi(line.substr(line.rfind(':') + 1));
}

server_process::~server_process() {
  if (process_ > 0) {
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
  }
  ::close(output_);
}

void server_process::tell_to_end() const {
  ::kill(process_, SIGTERM);
}

std::optional<int> server_process::wait(std::chrono::seconds patience) {
  const auto end = clock_type::now() + patience;
  int status = 0;
  while (::waitpid(process_, &status, WNOHANG) == 0) {
    if (clock_type::now() > end) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  process_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

raw_client::raw_client(int port, int receive_bytes) : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  if (receive_bytes > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
    throw std::runtime_error("there is no connection");
}

raw_client::~raw_client() {
  ::close(socket_);
}

void raw_client::send(const std::string& bytes) const {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t n = ::send(socket_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0) return;  // the server has closed: receive() tells what it said
    sent += static_cast<std::size_t>(n);
  }
}

void raw_client::finish() const {
  ::shutdown(socket_, SHUT_WR);
}

void raw_client::reset_at_end() const {
  const linger at_once{1, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

std::string raw_client::receive(std::chrono::milliseconds patience, const std::string& until) const {
  const auto end = clock_type::now() + patience;
  std::string all;
  char bytes[4096];
  while (wait_readable(socket_, end)) {
    const ssize_t n = ::recv(socket_, bytes, sizeof bytes, 0);
    if (n <= 0) break;
    all.append(bytes, static_cast<std::size_t>(n));
    if (!until.empty() && all.find(until) != std::string::npos) break;
  }
  return all;
}

std::string post(const std::string& path, const std::string& body, const std::string& headers) {
  return "POST " + path + " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
