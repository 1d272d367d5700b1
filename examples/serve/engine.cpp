// SPDX-License-Identifier: BSL-1.0
#include "engine.hpp"

#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <utility>

#include "../models/model_costs.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/block_diffusion.hpp"
#include "espalier/drafter/factorised.hpp"
#include "espalier/drafter/feature_steps.hpp"
#include "espalier/drafter/recut.hpp"
#include "espalier/drafter/text_counts.hpp"
#include "espalier/drafter/translated.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/kv_store/page_ledger.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/tree_policy/any_policy.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/verifier/target_only.hpp"
#include "memory_file.hpp"
#include "text_writer.hpp"

namespace serve {

namespace {

constexpr std::int32_t page_size = 16;  // tokens

// The policies of one setting. Their texts share no budget, so that one decoder, compiled once, serves both.
using set_policy = espalier::any_policy<espalier::regime::deterministic,
                                        espalier::takes<espalier::sampled_rows<float>, espalier::philox_chance>,
                                        espalier::takes<espalier::node_rows<float>, espalier::philox_chance>>;

// Number of nodes of the largest tree.
std::int32_t most_nodes(policy_kind policy) {
  switch (policy) {
    case policy_kind::cost_aware:
      return espalier::cost_aware().max_nodes();
    case policy_kind::dynatree:
      return espalier::dynatree().max_nodes();
    case policy_kind::chain:
      return espalier::chain().max_nodes();
  }
  return 0;
}

// Number of tokens after a recurrent state that a text has room for: those of two passes, each with as much of a prompt
// as a pass reads, at least a draft's 64 tokens, and a tree.
std::int32_t rows_after_state(const engine_options& options) {
  return 2 * ((std::max)(options.prefill_rows, espalier::prefill::default_chunk) + most_nodes(options.policy));
}

// Number of pages of a cache for all texts.
std::int32_t n_pages(const engine_options& options, std::int32_t context) {
  if (options.cache_tokens > 0) return ((std::max)(options.cache_tokens, context) - 1) / page_size + 1;
  return espalier::page_ledger::enough(options.max_texts, context, page_size);
}

espalier::paged_recurrent_kv make_cache(const models::model_set& models, const espalier::llama_backend& model,
                                        const engine_options& options) {
  const std::int32_t context = (std::min)(models.context(), model.max_positions());
  return espalier::host_cache(model.config(), options.max_texts, context, page_size, n_pages(options, context),
                              {.rows = rows_after_state(options)});
}

espalier::cost_model costs_of(models::model_set& models, const std::string& file) {
  if (!file.empty()) return models::read_model_costs(models, file);
  std::cerr << "Measuring what passes cost here; --costs FILE does without." << std::endl;
  return models::measure_model_costs(models, {.seconds = 1.5}, [](double, std::string_view) {});
}

}  // namespace

engine::engine(models::model_set& models, const engine_options& options, metrics& counts)
    : models_(models), options_(espalier::require_options(options)), counts_(counts), rules_(options.rules) {
  std::future<void> done = ready_.get_future();
  thread_ = std::thread([this] { work(); });
  try {
    done.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

engine::~engine() {
  close(std::chrono::milliseconds(0));
  rules_.stop();
  {
    const std::lock_guard lock(mutex_);
    orders_.leave = true;
  }
  ordered_.notify_one();
  thread_.join();
}

std::int32_t engine::max_rows(const engine_options& options) {
  const std::int32_t texts = options.max_texts * (most_nodes(options.policy) + 1);
  return (std::min)(texts, 1024) + options.prefill_rows;
}

event_reader engine::submit(text_request request) {
  const auto events = std::make_shared<mailbox>();
  std::int64_t id = 0;
  {
    const std::lock_guard lock(mutex_);
    if (closing_) throw closing_down("The server is about to end.");
    if (request.n_texts() > options_.max_texts + options_.max_waiting - n_texts_) {
      throw queue_full("The server already has " + std::to_string(n_texts_) + " texts to write, and takes " +
                       std::to_string(options_.max_texts + options_.max_waiting) + " at most. Try again later.");
    }
    n_texts_ += request.n_texts();
    id = ++n_requests_;
    orders_.jobs.push_back({id, std::move(request), events, std::chrono::steady_clock::now()});
  }
  ordered_.notify_one();
  return {events, [this, id] { cancel(id); }};
}

void engine::close(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  closing_ = true;
  const auto all_ended = [&] { return n_texts_ == 0; };
  if (ended_.wait_for(lock, patience, all_ended)) return;
  orders_.give_up = true;
  ordered_.notify_one();
  ended_.wait(lock, all_ended);
}

void engine::cancel(std::int64_t request) {
  {
    const std::lock_guard lock(mutex_);
    orders_.cancelled.push_back(request);
  }
  ordered_.notify_one();
}

void engine::await(espalier::text_id text, const mask_awaited& what) {
  rules_.find(what.use, what.after, [this, text](const std::string& why) {
    {
      const std::lock_guard lock(mutex_);
      orders_.answered.push_back({text, why});
    }
    ordered_.notify_one();
  });
}

engine::orders engine::take(bool idle) {
  std::unique_lock lock(mutex_);
  const auto any = [&] {
    return orders_.leave || orders_.give_up || !orders_.jobs.empty() || !orders_.cancelled.empty() ||
           !orders_.answered.empty();
  };
  if (idle) ordered_.wait(lock, any);
  orders taken = std::exchange(orders_, {});
  orders_.leave = taken.leave;
  return taken;
}

void engine::work() {
  try {
    switch (options_.policy) {
      case policy_kind::cost_aware:
        return work_with(espalier::cost_aware({}, costs_of(models_, options_.costs)));
      case policy_kind::dynatree:
        return work_with(set_policy(espalier::dynatree()));
      case policy_kind::chain:
        return work_with(set_policy(espalier::chain()));
    }
  } catch (...) {
    if (is_ready_) throw;
    ready_.set_exception(std::current_exception());
  }
}

template <class PolicyT>
void engine::work_with(PolicyT policy) {
  if (models_.draft) {
    espalier::paged_recurrent_kv draft_kv = make_cache(models_, *models_.draft, options_);
    espalier::autoregressive drafter(*models_.draft, draft_kv);
    if (models_.draft_text) {
      return work_over(espalier::recut(drafter, *models_.map, *models_.draft_text, models_.text), std::move(policy));
    }
    if (models_.map) return work_over(espalier::translated(drafter, *models_.map), std::move(policy));
    return work_over(std::move(drafter), std::move(policy));
  }
  if (models_.head) return work_over(espalier::feature_steps(*models_.head), std::move(policy));
  if (models_.block)
    return work_over(espalier::factorised(espalier::block_diffusion(*models_.block)), std::move(policy));
  constexpr std::int32_t most = espalier::option_of(&espalier::text_counts_options::capacity).high();
  const std::int32_t vocab = models_.target.vocab_size();
  if (options_.memory > 0) {
    memory_.emplace(options_.memory);
    if (!options_.memory_file.empty()) load_memory(*memory_, vocab, options_.memory_file);
  }
  work_over(
      espalier::text_counts(vocab, {.capacity = (std::min)(models_.context(), most)}, memory_ ? &*memory_ : nullptr),
      std::move(policy));
  if (!memory_ || options_.memory_file.empty()) return;
  try {
    save_memory(*memory_, vocab, options_.memory_file);
  } catch (const std::exception& error) {
    std::cerr << "serve: " << error.what() << std::endl;
  }
}

template <class DrafterT, class PolicyT>
void engine::work_over(DrafterT drafter, PolicyT policy) {
  espalier::paged_recurrent_kv kv = make_cache(models_, models_.target, options_);
  auto decode = espalier::make_batch_decoder(drafter, std::move(policy), espalier::target_only(), kv, models_.target,
                                             {.max_texts = options_.max_texts,
                                              .max_waiting = options_.max_waiting,
                                              .max_rows = models_.target.max_rows(),
                                              .prefill_rows = options_.prefill_rows},
                                             text_processor());
  text_writer writer(
      decode, models_.text, counts_, rules_, n_texts_,
      [this](espalier::text_id text, const mask_awaited& what) { await(text, what); }, memory_ ? &*memory_ : nullptr);
  const auto show = [&] {
    counts_.set({decode.n_running(), decode.n_waiting(), kv.n_pages(), kv.n_pages() - kv.n_free()});
  };
  show();
  is_ready_ = true;
  ready_.set_value();
  // Obeys an order. An error of it, such as a lack of memory, ends all texts, and not the server.
  const auto obey = [&](const auto& order) {
    try {
      order();
    } catch (const std::exception& error) {
      writer.fail_all(std::string("The server failed: ") + error.what());
    }
  };
  for (orders now = take(true); !now.leave; now = take(decode.idle())) {
    for (const text_job& job : now.jobs)
      obey([&] { writer.start(job); });
    for (const std::int64_t request : now.cancelled)
      obey([&] { writer.cancel(request); });
    for (const answered_text& answer : now.answered)
      obey([&] { writer.go_on(answer); });
    if (now.give_up) writer.fail_all("The server is about to end.");
    if (!decode.idle()) writer.step();
    show();
    if (n_texts_ > 0) continue;
    const std::lock_guard lock(mutex_);  // so that no thread is between checking and waiting
    ended_.notify_all();
  }
}

}  // namespace serve
