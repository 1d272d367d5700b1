// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../models/model_set.hpp"
#include "engine_options.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/drafter/text_counts.hpp"
#include "event_reader.hpp"
#include "metrics.hpp"
#include "rule_keeper.hpp"
#include "text_request.hpp"

namespace serve {

//! Error: the queue has no room for a request.
struct queue_full : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! Error: the server is about to end.
struct closing_down : std::runtime_error {
  using std::runtime_error::runtime_error;
};

//! A request on its way to the engine's thread.
struct text_job {
  std::int64_t request;
  text_request texts;
  std::shared_ptr<mailbox> events;
  std::chrono::steady_clock::time_point asked;
};

//! A text whose rule now knows what may follow.
struct answered_text {
  espalier::text_id text;
  std::string why;  //!< the sentence that says why the text cannot go on; empty: it can
};

//! The thread that owns models, caches and decoder, and writes all texts. Other threads ask it for texts and wait for
//! its events.
//!
//! Law         a text depends on its request alone: not on which other clients are served, read or leave
//! Errors      the constructor: those of the parts, and of reading costs
class engine {
 public:
  engine(models::model_set& models, const engine_options& options, metrics& counts);
  ~engine();

  //! Number of rows of the longest pass of either model, which must be loaded for as many.
  static std::int32_t max_rows(const engine_options& options);

  //! Asks for texts. A request that does not fit the models gets the event `refused`.
  //!
  //! Errors      queue_full, closing_down
  event_reader submit(text_request request);

  //! The keeper of the rules of texts, whose uses requests bring along.
  rule_keeper& rules() { return rules_; }

  //! Takes no more requests, waits until all texts have ended, at most `patience`, and cancels the rest, which get the
  //! event that they have failed.
  void close(std::chrono::milliseconds patience);

 private:
  // The orders of other threads.
  struct orders {
    std::vector<text_job> jobs;
    std::vector<std::int64_t> cancelled;  // numbers of cancelled requests
    std::vector<answered_text> answered;  // texts that waited for their rules
    bool give_up = false;                 // true to give up all texts
    bool leave = false;
  };

  // The function of the thread.
  void work();
  template <class PolicyT>
  void work_with(PolicyT policy);
  template <class DrafterT, class PolicyT>
  void work_over(DrafterT drafter, PolicyT policy);
  orders take(bool idle);
  void cancel(std::int64_t request);
  // Makes a text go on once what its rule allows is known.
  void await(espalier::text_id text, const mask_awaited& what);

  models::model_set& models_;
  const engine_options options_;
  metrics& counts_;
  std::mutex mutex_;
  std::condition_variable ordered_, ended_;
  orders orders_;
  std::int64_t n_requests_ = 0;
  std::atomic<std::int32_t> n_texts_ = 0;  // texts that were asked for and have not ended
  bool closing_ = false;
  rule_keeper rules_;
  std::promise<void> ready_;  // set when texts may come, or to the error of the start
  bool is_ready_ = false;     // of the engine's thread alone, as memory_
  std::optional<espalier::text_memory> memory_;
  std::thread thread_;
};

}  // namespace serve
