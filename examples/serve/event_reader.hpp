// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "text_request.hpp"

namespace serve {

//! Events of a request on their way from the engine's thread to the thread that waits for them. put() never waits:
//! there are never more events than the texts have tokens.
class mailbox {
 public:
  void put(text_event event) {
    {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
    }
    arrived_.notify_one();
  }

  //! The next event, or none if none comes in time.
  std::optional<text_event> take(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, patience, [&] { return !events_.empty(); })) return {};
    text_event event = std::move(events_.front());
    events_.pop_front();
    return event;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<text_event> events_;
};

//! The reader of a request's events. Its destructor cancels the texts of the request that are still being written.
class event_reader {
 public:
  event_reader(std::shared_ptr<mailbox> events, std::function<void()> cancel)
      : events_(std::move(events)), cancel_(std::move(cancel)) {}
  event_reader(event_reader&& other) noexcept
      : events_(std::move(other.events_)), cancel_(std::exchange(other.cancel_, nullptr)) {}
  event_reader& operator=(event_reader&&) = delete;
  ~event_reader() {
    if (cancel_) cancel_();
  }

  //! The next event, or none if none comes in time.
  std::optional<text_event> next(std::chrono::milliseconds patience) { return events_->take(patience); }

 private:
  std::shared_ptr<mailbox> events_;
  std::function<void()> cancel_;
};

}  // namespace serve
