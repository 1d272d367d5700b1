// SPDX-License-Identifier: BSL-1.0
// A model spread over ggml's RPC servers on this machine, and servers that go away.
#include "espalier/model/llama_cpp/remote_thread.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/model/llama_cpp/llama_cpp_backend.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model/llama_cpp/tiny_gguf.hpp"
#include "raises.hpp"

extern "C" char** environ;

using namespace espalier;

namespace {

// A listening socket on a port of the system's choice.
struct listener {
  listener() : fd(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(fd, 8) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      FAIL("no port is free");
    }
    endpoint = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
  }
  ~listener() { close(fd); }
  int fd;
  std::string endpoint;
};

std::string free_endpoint() {
  return listener().endpoint;
}

struct rpc_server {
  rpc_server() : endpoint(free_endpoint()) {
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO})
      posix_spawn_file_actions_addopen(&files, fd, "/dev/null", O_WRONLY, 0);
    std::string program = ESPALIER_TEST_RPC_SERVER;
    char* arguments[] = {program.data(), endpoint.data(), nullptr};
    REQUIRE(posix_spawn(&process, program.c_str(), &files, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&files);
    using detail::server_answer;
    for (int i = 0; i < 200 && detail::ask_server(endpoint) != server_answer::takes; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    REQUIRE(detail::ask_server(endpoint) == server_answer::takes);
  }
  rpc_server(const rpc_server&) = delete;
  rpc_server& operator=(const rpc_server&) = delete;
  ~rpc_server() { end(); }

  void signal(int number) const { kill(process, number); }
  void end() {
    if (process == 0) return;
    signal(SIGKILL);
    waitpid(process, nullptr, 0);
    process = 0;
  }

  std::string endpoint;
  pid_t process = 0;
};

std::string tiny_file() {
  const std::string file = std::string(ESPALIER_TEST_WORK) + "/spread.gguf";
  tiny_gguf{.layers = 4}.write(file);
  return file;
}

const std::vector<token_id> prompt{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3};
const stop_conditions stop{.max_tokens = 40};

std::vector<token_id> plain_text(const std::string& file) {
  const llama_cpp_model model(file, {.threads = 1});
  auto decode = make_decoder(no_drafter(), plain(), greedy(), llama_cpp_kv(model), llama_cpp_backend(model));
  const auto text = decode.generate(prompt, stop);
  return {text.begin(), text.end()};
}

}  // namespace

TEST_CASE("llama_cpp_model over two servers: a server that goes away in the middle of a pass loses no token") {
  const std::string file = tiny_file();
  const std::vector<token_id> expected = plain_text(file);
  rpc_server first, second;
  const llama_cpp_options spread{.threads = 1, .servers = {first.endpoint, second.endpoint}};
  const llama_cpp_model model(file, spread);
  llama_cpp_kv kv(model, {.capacity = 256});
  auto decode = make_decoder(prompt_lookup(), chain({.length = 4}), greedy(), kv, llama_cpp_backend(model));
  const auto text = decode.generate(prompt, stop);
  REQUIRE(std::vector<token_id>(text.begin(), text.end()) == expected);

  decode.begin(prompt, stop);
  while (decode.current().written().size() < 10)
    decode.step();
  const std::int32_t n = decode.current().size();
  // The second server takes the next pass and does not answer; then it dies.
  second.signal(SIGSTOP);
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    second.end();
  });
  const std::string message = message_of<llama_cpp_error>([&] { decode.step(); });
  killer.join();
  INFO(message);
  REQUIRE(says(message, second.endpoint, "went away in the middle of a pass"));
  REQUIRE(message.find(first.endpoint) == std::string::npos);
  REQUIRE(decode.current().size() == n);
  REQUIRE(says(message_of<llama_cpp_error>([&] { decode.step(); }), second.endpoint));
  REQUIRE(decode.current().size() == n);

  // The text goes on elsewhere: here, and over the server that is left.
  for (const bool remote : {false, true}) {
    llama_cpp_options options{.threads = 1};
    if (remote) options.servers = {first.endpoint};
    const llama_cpp_model left(file, options);
    auto next = make_decoder(prompt_lookup(), chain({.length = 4}), greedy(), llama_cpp_kv(left, {.capacity = 256}),
                             llama_cpp_backend(left));
    next.load(decode.save());
    while (next.step()) {
    }
    const auto whole = next.current().written();
    REQUIRE(std::vector<token_id>(whole.begin(), whole.end()) == expected);
  }
  const std::string again = message_of<llama_cpp_error>([&] { llama_cpp_model(file, spread).vocab_size(); });
  INFO(again);
  REQUIRE(says(again, second.endpoint, "broke"));
}

TEST_CASE("llama_cpp_model: a server that dies between two passes, and one that gives no answer") {
  const std::string file = tiny_file();
  const std::vector<token_id> expected = plain_text(file);
  for (const bool dies : {true, false}) {
    rpc_server server;
    const llama_cpp_model model(file, {.threads = 1, .patience = dies ? 60 : 0.3, .servers = {server.endpoint}});
    auto decode = make_decoder(no_drafter(), plain(), greedy(), llama_cpp_kv(model), llama_cpp_backend(model));
    decode.begin(prompt, stop);
    while (decode.current().written().size() < 5)
      decode.step();
    if (dies) {
      server.end();
    } else {
      server.signal(SIGSTOP);
    }
    const std::string message = message_of<llama_cpp_error>([&] { decode.step(); });
    INFO(message);
    REQUIRE(says(message, server.endpoint, dies ? "went away" : "gave no answer"));
    const auto whole = decode.current().written();
    REQUIRE(std::vector<token_id>(whole.begin(), whole.end()) ==
            std::vector<token_id>(expected.begin(), expected.begin() + 5));
  }
}

TEST_CASE("llama_cpp_model: servers that are none") {
  const std::string file = tiny_file();
  const auto refused = [&](const std::string& server) {
    return message_of<llama_cpp_error>([&] { llama_cpp_model model(file, {.threads = 1, .servers = {server}}); });
  };
  const std::string nobody = free_endpoint();
  REQUIRE(says(refused(nobody), "no server answers", nobody));
  REQUIRE(says(refused("nonsense"), "no server answers", "nonsense"));
  // Something else that listens, and hangs up.
  listener other;
  std::thread hangs_up([&] {
    for (int i = 0; i < 2; ++i)
      close(accept(other.fd, nullptr, nullptr));
  });
  const std::string message = refused(other.endpoint);
  hangs_up.join();
  INFO(message);
  REQUIRE(says(message, "RPC"));
  // Others can still be reached.
  rpc_server server;
  REQUIRE(llama_cpp_model(file, {.threads = 1, .servers = {server.endpoint}}).vocab_size() == 4096);
}
