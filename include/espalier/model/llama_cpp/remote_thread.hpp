// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#if __has_include(<csignal>) && __has_include(<pthread.h>)
#include <pthread.h>

#include <csignal>
#endif

#if __has_include(<sys/socket.h>)
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#endif

#include <ggml.h>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"

namespace espalier {

//! Error: llama.cpp could not do something, such as make a pass, or reach a server.
struct llama_cpp_error : error {
  using error::error;
};

}  // namespace espalier

namespace espalier::detail {

enum class server_answer {
  takes,    // takes a connection, or cannot be asked on this system
  refuses,  // refuses a connection, or does not exist
  silent,   // gives no answer for two seconds: it is gone, or busy with others
};

// Returns the answer of the server at "host:port" to a request for a connection.
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

// Facts that this process knows about servers. The only object is never destroyed, because threads that wait for ever
// still read it.
struct server_losses {
  std::mutex mutex;
  std::condition_variable changed;
  unsigned n = 0;               // number of broken connections
  std::set<std::string> known;  // servers that this process has connected to
  std::set<std::string> gone;   // servers that run() has blamed for a broken connection or a missing answer
  ggml_abort_callback_t before = nullptr;

  static server_losses& all() {
    static auto* const losses = new server_losses;
    return *losses;
  }
};

// The thread for the calls of one model into llama.cpp if ggml's RPC servers hold parts of the model.
//
// When a connection breaks, ggml aborts on the thread that it has for that server, while the caller waits for an answer
// that will never come. So calls are made on a thread that can be left waiting: ggml's abort callback reports the
// broken connection and stops the thread that it is called on, and run() raises an error. The memory of the model is
// then lost to this process, and is not freed.
class remote_thread {
 public:
  // Starts the thread.
  //
  // Errors      llama_cpp_error that names a server that does not answer, or that this process has lost
  explicit remote_thread(std::vector<std::string> servers) : servers_(std::move(servers)) {
    server_losses& losses = server_losses::all();
    for (const std::string& server : servers_) {
      const std::lock_guard lock(losses.mutex);
      if (losses.gone.count(server) != 0) {
        raise<llama_cpp_error>("the connection to server ", server,
                               " broke, and ggml does not connect to it again: start a new process to use it.");
      }
      // A server that already serves this process lets further connections wait, so it is not asked.
      if (losses.known.count(server) == 0 && ask_server(server) != server_answer::takes)
        raise<llama_cpp_error>("no server answers at ", server, ".");
    }
    static const bool listens = [&] {
      losses.before = ggml_set_abort_callback(&on_abort);
      return true;
    }();
    static_cast<void>(listens);
    thread_ = std::thread([state = state_] { work(*state); });
  }

  remote_thread(const remote_thread&) = delete;
  remote_thread& operator=(const remote_thread&) = delete;

  ~remote_thread() {
    if (lost_) {
      thread_.detach();
      return;
    }
    {
      const std::lock_guard lock(server_losses::all().mutex);
      state_->stops = true;
    }
    server_losses::all().changed.notify_all();
    thread_.join();
  }

  bool lost() const { return lost_; }

  // Records that this process has connected to the servers.
  void connected() const {
    const std::lock_guard lock(server_losses::all().mutex);
    server_losses::all().known.insert(servers_.begin(), servers_.end());
  }

  // Makes a call on the thread, and waits for it, at most `patience` seconds. The call may go on after an error, so
  // objects that it refers to must be its own or outlive it.
  //
  // Errors      the call's own; llama_cpp_error if a connection breaks or `patience` runs out. Its message names the
  //             server that failed, or several servers of which one or more failed. No further call is made then
  void run(std::function<void()> call, double patience) {
    const std::lock_guard one_at_a_time(calls_);
    server_losses& losses = server_losses::all();
    std::unique_lock lock(losses.mutex);
    if (lost_) raise<llama_cpp_error>(what_is_lost_);
    const unsigned before = losses.n;
    state_->call = std::move(call);
    losses.changed.notify_all();
    const bool told = losses.changed.wait_for(lock, std::chrono::duration<double>(patience),
                                              [&] { return !state_->call || losses.n != before; });
    if (!state_->call) {
      const std::exception_ptr thrown = std::exchange(state_->thrown, nullptr);
      lock.unlock();
#if ESPALIER_EXCEPTIONS
      if (thrown) std::rethrow_exception(thrown);
#endif
      return;
    }
    lost_ = state_->stops = true;
    lock.unlock();
    const std::string who = who_is_gone(told);
    what_is_lost_ = told ? who + " went away in the middle of a pass"
                         : who + " gave no answer for " + in_words(patience) + " seconds";
    what_is_lost_ +=
        ". Texts stand at their last committed token, and can go on over another llama_cpp_model; this one can make no "
        "more passes.";
    raise<llama_cpp_error>(what_is_lost_);
  }

 private:
  struct shared_state {
    std::function<void()> call;  // the call to make; empty when the last one is done
    std::exception_ptr thrown;
    bool stops = false;
  };

  static bool& is_own_thread() {
    thread_local bool own = false;
    return own;
  }

  static void on_abort(const char* message) {
    server_losses& losses = server_losses::all();
    if (std::strstr(message, "RPC") == nullptr && std::strstr(message, "connect") == nullptr) {
      if (losses.before != nullptr) {
        losses.before(message);
      } else {
        std::fprintf(stderr, "%s\n", message);
      }
      return;  // after which ggml ends the program
    }
#if ESPALIER_EXCEPTIONS
    // An abort on our own thread happens inside a call, for example while ggml connects. The exception unwinds ggml's
    // frames, so that it releases its locks.
    if (is_own_thread()) throw llama_cpp_error(std::string("llama.cpp: ") + message + ".");
#endif
    {
      const std::lock_guard lock(losses.mutex);
      ++losses.n;
    }
    losses.changed.notify_all();
    for (;;)
      std::this_thread::sleep_for(std::chrono::hours(1));
  }

  static void work(shared_state& state) {
    is_own_thread() = true;
#if __has_include(<csignal>) && __has_include(<pthread.h>)
    // ggml's own threads are started here and inherit this mask: a broken connection becomes an error of send() in
    // them.
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
#endif
    server_losses& losses = server_losses::all();
    std::unique_lock lock(losses.mutex);
    for (;;) {
      losses.changed.wait(lock, [&] { return state.call || state.stops; });
      if (state.stops) return;
      const std::function<void()> call = state.call;
      lock.unlock();
      std::exception_ptr thrown;
#if ESPALIER_EXCEPTIONS
      try {
        call();
      } catch (...) {
        thrown = std::current_exception();
      }
#else
      call();
#endif
      lock.lock();
      state.thrown = thrown;
      state.call = nullptr;
      losses.changed.notify_all();
    }
  }

  // Returns the servers to blame, in words, and enters them in server_losses::gone: those that refuse a connection; if
  // none does, those that are silent; if none is, all, because the broken one may have been started again. After a
  // broken connection the servers are asked for a while, since a process that ends closes its connections before it
  // stops listening.
  std::string who_is_gone(bool broke) const {
    std::vector<std::string> refuse, silent;
    for (int turn = 0; turn < (broke ? 25 : 1) && refuse.empty() && silent.empty(); ++turn) {
      if (turn > 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (const std::string& server : servers_) {
        const server_answer answer = ask_server(server);
        if (answer == server_answer::refuses) refuse.push_back(server);
        if (answer == server_answer::silent) silent.push_back(server);
      }
    }
    const std::vector<std::string>& named = !refuse.empty() ? refuse : !silent.empty() ? silent : servers_;
    std::string who = named.size() == 1 ? "the server " : refuse.empty() ? "one of the servers " : "the servers ";
    const std::lock_guard lock(server_losses::all().mutex);
    for (std::size_t i = 0; i < named.size(); ++i) {
      who += (i == 0 ? "" : ", ") + named[i];
      server_losses::all().gone.insert(named[i]);
    }
    return who;
  }

  std::vector<std::string> servers_;
  std::shared_ptr<shared_state> state_ = std::make_shared<shared_state>();
  std::thread thread_;
  std::mutex calls_;
  std::atomic<bool> lost_ = false;
  std::string what_is_lost_;
};

}  // namespace espalier::detail
