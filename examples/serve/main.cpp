// SPDX-License-Identifier: BSL-1.0
// Serves a pair of models over HTTP in the manner of OpenAI's API. See --help.
#include <semaphore.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "../models/model_set.hpp"
#include "../models/vocabulary_of.hpp"
#include "arguments.hpp"
#include "engine.hpp"
#include "http_server.hpp"
#include "metrics.hpp"

namespace {

sem_t told_to_end;

extern "C" void on_signal(int) {
  sem_post(&told_to_end);
}

// Leaves SIGINT and SIGTERM to await_signal() from now on; a second one ends the program at once.
void watch_signals() {
  sem_init(&told_to_end, 0, 0);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void await_signal() {
  while (sem_wait(&told_to_end) != 0 && errno == EINTR)
    continue;
}

// Makes the memory that requests took go back to the system once it is free: in glibc's own setting every second thread
// has a heap that keeps what it once had, and large pieces are put there, too.
void give_freed_memory_back() {
#if defined(__GLIBC__)
  constexpr int large = 1 << 17;
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, large);
  mallopt(M_TRIM_THRESHOLD, large);
#endif
}

int run(int argc, const char* const* argv) {
  std::string help;
  const serve::arguments arguments = serve::parse(argc, argv, help);
  if (!help.empty()) {
    std::cout << help;
    return 0;
  }
  give_freed_memory_back();
  models::model_set models = models::model_set::load(
      arguments.models, {.threads = arguments.threads, .max_rows = serve::engine::max_rows(arguments.engine)},
      {.drafter = arguments.drafter});
  if (models.map) std::cerr << models.vocabularies_in_words() << std::endl;
  const espalier::chat_template chat = arguments.chat(models.text);
  serve::metrics counts;
  serve::engine engine(models, arguments.engine, counts);
  const serve::request_rules rules{
      .model = arguments.model_name,
      .context = models.context(),
      .vocab_size = models.target.vocab_size(),
      .most_texts = (std::min)(128, arguments.engine.max_texts + arguments.engine.max_waiting),
      .vocabulary = ::models::vocabulary_of(models.text),
      .keeper = &engine.rules(),
      .chat = chat,
      .calls = serve::call_form::of(chat, models.text)};
  serve::http_server server(engine, counts, models.text, rules, arguments.http);
  watch_signals();
  bool was_ended = false;
  std::thread listening([&] {
    was_ended = server.listen();
    sem_post(&told_to_end);
  });
  std::cout << "Model " << rules.model << " at http://" << arguments.http.host << ":" << server.port() << std::endl;

  await_signal();
  std::cout << "Ending." << std::endl;
  engine.close(std::chrono::seconds(arguments.grace));
  server.end();
  listening.join();
  if (!was_ended) throw std::runtime_error("it could not take connections any more.");
  return 0;
}

}  // namespace

//! Returns 0 if it was told to end, 2 if the arguments, a file, a model or the port cannot be used, which a sentence on
//! stderr explains.
int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const models::usage_error& error) {
    std::cerr << "serve: " << error.what() << "\nTry serve --help.\n";
  } catch (const std::bad_alloc&) {
    std::cerr << "serve: there is not enough memory.\n";
  } catch (const std::exception& error) {
    std::cerr << "serve: " << error.what() << "\n";
  }
  return 2;
}
