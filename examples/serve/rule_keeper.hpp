// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../models/text_rule.hpp"
#include "espalier/core/token.hpp"
#include "rule_options.hpp"
#include "served_rule.hpp"

namespace serve {

//! Compiles rules, and finds out what they allow, on threads of its own that give way to those that write: one
//! request's rule takes time and memory of no other request's text. Rules stay compiled for later requests, until the
//! memory is needed: those that no text uses go first, the least recently used one before others.
//!
//! Errors      compile: what make() throws; rule_error if the first mask takes more time or memory than a rule may
class rule_keeper {
 public:
  explicit rule_keeper(const rule_options& options);
  rule_keeper(const rule_keeper&) = delete;
  ~rule_keeper() { stop(); }

  //! The rule that `make` compiles, for the texts of one request; a rule with the same key may be compiled already.
  //! Returns once it is known what a text may begin with.
  std::shared_ptr<rule_use> compile(const std::string& key, const std::function<models::text_rule()>& make);

  //! Finds out what may be written after a state, and then calls done(message), on another thread: an empty message, or
  //! the sentence that says why the text cannot go on.
  void find(std::shared_ptr<rule_use> use, const served_rule::state_type& after,
            std::function<void(const std::string&)> done);

  //! Ends the use of a rule, whose texts have ended.
  void end(rule_use& use);

  //! Ends the threads. Everything that waits fails.
  void stop();

  //! Bytes of all rules together, about.
  std::size_t bytes() const;

 private:
  struct job {
    std::shared_ptr<rule_use> use{};  // null: `run` is the job
    served_rule::state_type after{};
    std::function<void(const std::string&)> done{};
    std::function<void()> run{};
    int n_slices = 0;
  };

  void work(std::deque<job>& jobs);
  // Works on a job for a while. Returns false if it is not done.
  bool advance(job& one);
  void put(std::deque<job>& jobs, job one);
  // Drops rules that no text uses, as long as these take more than a sixteenth of the memory, or all rules together
  // more than there is. Returns whether all take no more then.
  bool make_room();

  const rule_options options_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<job> to_compile_, to_find_;
  std::map<std::string, std::shared_ptr<kept_rule>> rules_;
  std::atomic<std::int64_t> turn_ = 0;
  bool stops_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace serve
