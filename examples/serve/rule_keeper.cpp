// SPDX-License-Identifier: BSL-1.0
#include "rule_keeper.hpp"

#include <time.h>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <exception>
#include <future>
#include <utility>

#include "background.hpp"
#include "espalier/constraint/token_automaton.hpp"
#include "espalier/core/error.hpp"

namespace serve {

namespace {

constexpr int n_threads_of_each = 2;                            // that compile, and that find masks
constexpr std::int64_t steps_of_slice = std::int64_t{1} << 21;  // 20 ms or so
constexpr auto about_to_end = "The server is about to end.";

// Seconds that this thread has run.
double seconds_run() {
  timespec now{};
  (void)::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::size_t mebibytes(std::int32_t n) {
  return static_cast<std::size_t>(n) << 20;
}

// Returns memory that was freed to the system.
void give_memory_back() {
#if defined(__GLIBC__)
  (void)::malloc_trim(0);
#endif
}

}  // namespace

rule_keeper::rule_keeper(const rule_options& options) : options_(espalier::require_options(options)) {
  for (int i = 0; i < n_threads_of_each; ++i) {
    threads_.emplace_back([this] { work(to_compile_); });
    threads_.emplace_back([this] { work(to_find_); });
  }
}

void rule_keeper::stop() {
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  arrived_.notify_all();
  for (std::thread& thread : threads_)
    thread.join();
  threads_.clear();
}

std::size_t rule_keeper::bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t n = 0;
  for (const auto& [key, kept] : rules_)
    n += kept->bytes;
  return n;
}

std::shared_ptr<rule_use> rule_keeper::compile(const std::string& key, const std::function<models::text_rule()>& make) {
  const auto use_of = [&](const std::shared_ptr<kept_rule>& kept) {
    kept->turn = ++turn_;
    auto use = std::make_shared<rule_use>(kept, mebibytes(options_.rule_memory) / 4);
    use->seconds_left = options_.rule_seconds;
    return use;
  };
  std::shared_ptr<rule_use> use;
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = rules_.find(key); known != rules_.end()) use = use_of(known->second);
  }
  if (!use) {
    std::promise<std::shared_ptr<kept_rule>> compiled;
    const auto run = [&] {
      try {
        compiled.set_value(std::make_shared<kept_rule>(make()));
      } catch (...) {
        compiled.set_exception(std::current_exception());
      }
    };
    put(to_compile_,
        {.done = [&](const std::string& why) { compiled.set_exception(std::make_exception_ptr(rule_error(why))); },
         .run = run});
    const std::shared_ptr<kept_rule> made = compiled.get_future().get();
    const std::lock_guard lock(mutex_);
    use = use_of(rules_.try_emplace(key, made).first->second);
  }
  std::promise<std::string> found;
  find(use, {use->rule()->start}, [&](const std::string& why) { found.set_value(why); });
  if (const std::string why = found.get_future().get(); !why.empty()) {
    end(*use);
    throw rule_error(why);
  }
  return use;
}

void rule_keeper::end(rule_use& use) {
  use.end();
  put(to_compile_, {.run = [this] { make_room(); }});
}

void rule_keeper::find(std::shared_ptr<rule_use> use, const served_rule::state_type& after,
                       std::function<void(const std::string&)> done) {
  put(to_find_, {.use = std::move(use), .after = after, .done = std::move(done)});
}

void rule_keeper::put(std::deque<job>& jobs, job one) {
  {
    const std::lock_guard lock(mutex_);
    if (!stops_) {
      jobs.push_back(std::move(one));
      one.done = nullptr;
    }
  }
  if (one.done) return one.done(about_to_end);
  arrived_.notify_all();
}

void rule_keeper::work(std::deque<job>& jobs) {
  give_way();
  for (;;) {
    job one;
    {
      std::unique_lock lock(mutex_);
      arrived_.wait(lock, [&] { return stops_ || !jobs.empty(); });
      if (jobs.empty()) return;
      one = std::move(jobs.front());
      jobs.pop_front();
      if (stops_) {
        lock.unlock();
        if (one.done) one.done(about_to_end);
        continue;
      }
    }
    if (!one.use) {
      one.run();
    } else if (!advance(one)) {
      put(jobs, std::move(one));
    }
  }
}

bool rule_keeper::advance(job& one) {
  const std::shared_ptr<kept_rule> kept = one.use->rule();
  if (!kept) {
    one.done("The text has ended.");
    return true;
  }
  std::string why;
  bool is_done = true;
  {
    const std::lock_guard lock(kept->mutex);
    const double begin = seconds_run();
    try {
      kept->rule.set_limits({.steps = steps_of_slice << (std::min)(one.n_slices, 4), .bytes = one.use->max_bytes()});
      served_rule::state_type now = one.after;
      served_rule::read(kept->rule, now);
      (void)kept->rule.allowed(now.read);
    } catch (const espalier::steps_error&) {
      ++one.n_slices;
      is_done = one.use->seconds_left <= 0;
      if (is_done) {
        why = "It takes more than " + std::to_string(options_.rule_seconds) +
              " seconds to find out what may be written next. Lower the rule's numbers of repetitions, or write fewer "
              "parts that may be left out.";
      }
    } catch (const std::exception& error) {
      why = error.what();
    }
    one.use->seconds_left -= seconds_run() - begin;
    if (is_done) one.use->seconds_left += 0.05;
    kept->bytes = kept->rule.bytes();
    kept->turn = ++turn_;
  }
  if (!make_room() && why.empty()) {
    is_done = true;
    why = "The rules of all texts together take more than " + std::to_string(options_.rule_memory) +
          " MiB: ask again later, or for a smaller rule.";
  }
  if (is_done) one.done(why);
  return is_done;
}

bool rule_keeper::make_room() {
  std::vector<std::shared_ptr<kept_rule>> dropped;  // destroyed without the lock
  bool has_room = false;
  {
    const std::lock_guard lock(mutex_);
    for (;;) {
      std::size_t in_all = 0, idle = 0;
      auto first = rules_.end();
      for (auto at = rules_.begin(); at != rules_.end(); ++at) {
        in_all += at->second->bytes;
        if (at->second->n_uses > 0) continue;
        idle += at->second->bytes;
        if (first == rules_.end() || at->second->turn < first->second->turn) first = at;
      }
      has_room = in_all <= mebibytes(options_.rule_memory);
      if ((has_room && idle <= mebibytes(options_.rule_memory) / 16) || first == rules_.end()) break;
      dropped.push_back(std::move(first->second));
      rules_.erase(first);
    }
  }
  if (dropped.empty()) return has_room;
  dropped.clear();
  give_memory_back();
  return has_room;
}

}  // namespace serve
