// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/status.hpp"
#include "espalier/core/token.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/text_counts.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"
#include "metrics.hpp"
#include "rule_keeper.hpp"
#include "text_request.hpp"

namespace serve {

//! Writes the texts of requests with a batch decoder, and sends each request its events. For one thread.
//!
//! Law         each request gets one event that it is accepted or refused, and each of its texts one event at its end;
//!             after a cancel it gets none
template <class DecoderT>
class text_writer {
 public:
  //! Makes a writer. n_texts is decremented with each text that ends, before its request gets the event. await(text,
  //! what) is called for a text that must wait for its rule; go_on() follows it. The tokens of texts are added to the
  //! memory, if there is one, as they are written, each prompt with the first of them.
  text_writer(DecoderT& decode, const espalier::tokenizer& text, metrics& counts, rule_keeper& rules,
              std::atomic<std::int32_t>& n_texts, std::function<void(espalier::text_id, const mask_awaited&)> await,
              espalier::text_memory* memory)
      : decode_(decode),
        text_(text),
        counts_(counts),
        rules_(rules),
        n_texts_(n_texts),
        await_(std::move(await)),
        memory_(memory) {}

  void start(const text_job& job) {
    std::vector<espalier::text_id> ids;
    // The further texts of a request wait behind as many of every other request.
    const auto priority = [&] { return -static_cast<std::int32_t>(ids.size()); };
    try {
      for (const auto& prompt : job.texts.prompts) {
        ids.push_back(decode_.add(prompt, job.texts.stop, job.texts.options,
                                  {.priority = priority(), .processor = job.texts.process}));
        const espalier::text_id first = ids.back();
        for (std::int32_t i = 1; i < job.texts.n; ++i)
          ids.push_back(decode_.fork(first, static_cast<std::uint32_t>(i), priority()));
      }
    } catch (const std::exception& error) {
      for (const espalier::text_id id : ids)
        decode_.cancel(id);
      if (job.texts.rule) rules_.end(*job.texts.rule);
      n_texts_ -= job.texts.n_texts();
      const bool is_asked_wrongly = dynamic_cast<const espalier::error*>(&error) != nullptr;
      job.events->put(
          {.what = is_asked_wrongly ? text_event::kind::refused : text_event::kind::failed, .message = error.what()});
      return;
    }
    counts_.count_read(job.texts.n_prompt_tokens());
    job.events->put({.what = text_event::kind::accepted});
    for (std::size_t i = 0; i < ids.size(); ++i) {
      place& of = texts_
                      .emplace(ids[i], place{job.request, static_cast<std::int32_t>(i), job.events, job.asked,
                                             job.texts.tells_tokens})
                      .first->second;
      if (memory_ == nullptr) continue;
      of.tokens = job.texts.prompts[i / static_cast<std::size_t>(job.texts.n)];
      of.number = memory_->open();
    }
    of_request_.emplace(job.request, asked_texts{std::move(ids), job.texts.rule, job.texts.rule_field});
  }

  //! Cancels a request, which may also have ended or been refused.
  void cancel(std::int64_t request) {
    const auto found = of_request_.find(request);
    if (found == of_request_.end()) return;
    for (const espalier::text_id id : found->second.ids) {
      if (texts_.erase(id) == 0) continue;
      decode_.cancel(id);
      --n_texts_;
    }
    forget(found);
  }

  //! Goes on with a text that has waited for its rule, which may also have ended by now.
  void go_on(const answered_text& answer) {
    const auto found = texts_.find(answer.text);
    if (found == texts_.end()) return;
    if (answer.why.empty()) return decode_.resume(answer.text);
    decode_.cancel(answer.text);
    end(answer.text, {.what = text_event::kind::failed,
                      .choice = found->second.choice,
                      .message = answer.why,
                      .is_clients_fault = true,
                      .field = of_request_.at(found->second.request).rule_field});
  }

  //! Ends all texts with this reason.
  void fail_all(const std::string& reason) {
    while (!texts_.empty()) {
      const auto at = texts_.begin();
      decode_.cancel(at->first);
      end(at->first, {.what = text_event::kind::failed, .choice = at->second.choice, .message = reason});
    }
  }

  //! Runs one round of all texts.
  void step() {
    for (const auto& [request, asked] : of_request_)
      if (asked.rule) asked.rule->begin_round();
    try {
      for (const espalier::text_event& event : decode_.step([&](espalier::token_id t) { return text_.piece(t); }))
        tell(event);
    } catch (const std::exception& error) {
      fail_all(std::string("The models failed: ") + error.what());
    }
  }

 private:
  using clock = std::chrono::steady_clock;

  struct place {
    std::int64_t request;
    std::int32_t choice;
    std::shared_ptr<mailbox> events;
    clock::time_point last;  // time of the request, then of its last tokens
    bool tells_tokens;
    bool has_tokens = false;
    // The whole text, for the memory: its number there, and how many of its tokens are.
    std::vector<espalier::token_id> tokens{};
    std::int64_t number = 0;
    std::size_t n_added = 0;
  };

  // The texts of a request that have not ended, and their rule.
  struct asked_texts {
    std::vector<espalier::text_id> ids;
    std::shared_ptr<rule_use> rule;
    std::string rule_field;
  };

  // Returns whether a text has failed only because its rule needs time; then it is made to wait.
  bool awaits(const espalier::text_event& event) {
    try {
      std::rethrow_exception(event.error);
    } catch (const mask_awaited& what) {
      await_(event.id, what);
      return true;
    } catch (...) {
      return false;
    }
  }

  void tell(const espalier::text_event& event) {
    const auto found = texts_.find(event.id);
    if (found == texts_.end()) return;
    place& to = found->second;
    if (event.failed()) {
      if (awaits(event)) return;
      const std::string message = event.message;  // it goes with the text
      decode_.cancel(event.id);
      return end(event.id, {.what = text_event::kind::failed, .choice = to.choice, .message = message});
    }
    const espalier::round_record& round = event.round;
    text_event news{.choice = to.choice,
                    .bytes = std::string(round.shown),
                    .n_tokens = static_cast<std::int32_t>(round.committed.size()),
                    .state = round.state};
    for (const espalier::scored_token& token : round.log_probs)
      (news.n_tokens > 0 ? news.tokens : news.prompt)
          .push_back({{token.token, token.log_prob}, {token.best.begin(), token.best.end()}});
    if (memory_ != nullptr && !round.committed.empty()) {
      to.tokens.insert(to.tokens.end(), round.committed.begin(), round.committed.end());
      memory_->add(to.number, to.tokens, to.n_added);
      to.n_added = to.tokens.size();
    }
    if (to.tells_tokens) news.written.assign(round.committed.begin(), round.committed.end());
    if (news.n_tokens > 0) count(round, to);
    if (news.ends()) return end(event.id, std::move(news));
    if (news.n_tokens > 0 || !news.prompt.empty()) to.events->put(std::move(news));
  }

  void count(const espalier::round_record& round, place& of) {
    const clock::time_point now = clock::now();
    counts_.count_round({.tokens = static_cast<std::int64_t>(round.committed.size()),
                         .drafted = round.tree.n_draws,
                         .accepted = round.accepted(),
                         .seconds = std::chrono::duration<double>(now - of.last).count(),
                         .is_first = !of.has_tokens,
                         .limited_by = round.limited_by});
    of.last = now;
    of.has_tokens = true;
  }

  void end(espalier::text_id id, text_event last) {
    const auto found = texts_.find(id);
    --n_texts_;
    found->second.events->put(std::move(last));
    const auto siblings = of_request_.find(found->second.request);
    std::erase(siblings->second.ids, id);
    if (siblings->second.ids.empty()) forget(siblings);
    texts_.erase(found);
  }

  void forget(typename std::unordered_map<std::int64_t, asked_texts>::iterator request) {
    if (request->second.rule) rules_.end(*request->second.rule);
    of_request_.erase(request);
  }

  DecoderT& decode_;
  const espalier::tokenizer& text_;
  metrics& counts_;
  std::unordered_map<espalier::text_id, place> texts_;  // texts that have not ended
  std::unordered_map<std::int64_t, asked_texts> of_request_;
  rule_keeper& rules_;
  std::atomic<std::int32_t>& n_texts_;
  std::function<void(espalier::text_id, const mask_awaited&)> await_;
  espalier::text_memory* memory_;
};

}  // namespace serve
