// SPDX-License-Identifier: BSL-1.0
// Models with recurrent layers: whoever serves them, what goes back and forth, and what cannot be done with them.
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/drafter/text_counts.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/kv_store/saved_sequence.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "llama_driver.hpp"
#include "model_writer.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

constexpr int positions = 400;

model_config shape(recurrence_kind kind) {
  return model_config::parse(hybrid_tensors::config_text(40, 32, 3, 4, 2, 48, 4, 24, positions, kind), "config.json");
}

llama_backend random_hybrid(recurrence_kind kind, float noise) {
  const model_config config = shape(kind);
  return model_writer::backend(config, model_writer::random_hybrid(config, 1, noise), {.threads = 1, .max_rows = 96});
}

// Room for passes of a few dozens, so that rows are overwritten before a text ends.
recurrent_kv small_cache(recurrence_kind kind, int n_sequences = 1) {
  return host_cache(shape(kind), n_sequences, positions, {.rows = 128});
}

// Fails in one of its passes, before it or after.
struct broken_pass : std::exception {};
struct faulty_backend {
  llama_backend& model;
  int fail_at = -1;
  bool after = false;
  int calls = 0;
  int rows = 0;

  std::int32_t vocab_size() const { return model.vocab_size(); }
  std::int32_t max_rows() const { return model.max_rows(); }
  std::int32_t max_positions() const { return model.max_positions(); }
  template <HostRecurrentStore StoreT>
  logits_view forward(StoreT& kv, const forward_batch_view& batch) {
    const bool fails = calls++ == fail_at;
    rows += batch.n_rows();
    if (fails && !after) throw broken_pass();
    const logits_view logits = model.forward(kv, batch);
    if (fails) throw broken_pass();
    return logits;
  }
};

// A decoder, its draft, and how often a part may fail.
struct composition {
  recurrence_kind kind;
  llama_backend target = random_hybrid(kind, 0), draft = random_hybrid(kind, 0.2F);
  faulty_backend faulty{target}, faulty_draft{draft};
  recurrent_kv kv = small_cache(kind);
  autoregressive<faulty_backend&, recurrent_kv> drafter{faulty_draft, small_cache(kind)};

  auto decoder() { return make_decoder(drafter, dynatree({.budget = 12}), greedy(), kv, faulty, {.prefill_rows = 20}); }
};

std::vector<token_id> text_of(const auto& decode) {
  return {decode.current().tokens().begin(), decode.current().tokens().end()};
}

std::vector<token_id> prompt_of(int n) {
  std::vector<token_id> prompt;
  for (int i = 0; i < n; ++i)
    prompt.push_back((7 * i + i * i) % 40);
  return prompt;
}

std::vector<token_id> plain_text(recurrence_kind kind, const std::vector<token_id>& prompt, int n) {
  llama_backend model = random_hybrid(kind, 0);
  recurrent_kv kv = small_cache(kind);
  std::vector<token_id> text = prompt;
  std::vector<llama_driver::row_type> rows = llama_driver::plainly(model, kv, text);
  for (int i = 0; i < n; ++i) {
    const llama_driver::row_type& row = rows.back();
    text.push_back(static_cast<token_id>(std::max_element(row.begin(), row.end()) - row.begin()));
    rows = llama_driver::plainly(model, kv, std::span(text).last(1));
  }
  return text;
}

// A text, and what it is alone.
struct asked {
  std::vector<token_id> prompt;
  std::int32_t max_tokens = 20;
  text_options options{};
  std::vector<token_id> expected{};
};

// Texts of unlike lengths, some of which begin alike.
std::vector<asked> requests(recurrence_kind kind, float temperature) {
  std::vector<asked> all;
  llama_backend model = random_hybrid(kind, 0);
  auto decode = make_decoder(no_drafter(), plain(), target_only(), small_cache(kind), model, {.prefill_rows = 20});
  for (const int n : {5, 150, 150, 1, 123, 40, 137, 96, 150, 30}) {
    asked r{.prompt = prompt_of(n),
            .max_tokens = 10 + n % 17,
            .options = {
                .sampling = {.temperature = temperature}, .seed = 5, .stream = static_cast<std::uint32_t>(all.size())}};
    if (n == 40 || n == 137) r.prompt[3] = 39;
    decode.begin(r.prompt, {.max_tokens = r.max_tokens}, r.options);
    while (decode.step()) {
    }
    r.expected = text_of(decode);
    all.push_back(std::move(r));
  }
  return all;
}

// Writes texts that come, are forked, saved, loaded and cancelled, and checks that each is what it is alone. Gives how
// often a text gave up its place.
int write_together(auto& decode, const std::vector<asked>& texts) {
  std::map<text_id, std::size_t> of;
  const auto add = [&](std::size_t i) {
    const text_id id = decode.add(texts[i].prompt, {.max_tokens = texts[i].max_tokens}, texts[i].options);
    of[id] = i;
    return id;
  };
  const text_id left = add(0), saved = add(4);
  of[decode.fork(add(1), 2)] = 2;  // the other sample of its prompt
  const text_id cancelled = add(3);
  decode.cancel(cancelled);
  of.erase(cancelled);
  int preempted = 0;
  std::size_t n_ended = 0;
  for (int step = 0; !decode.idle(); ++step) {
    for (const text_event& e : decode.step()) {
      INFO(e.message);
      REQUIRE_FALSE(e.error);
      if (e.round.state == status::running) continue;
      const auto tokens = decode.current(e.id).tokens();
      CHECK(std::vector<token_id>(tokens.begin(), tokens.end()) == texts[of.at(e.id)].expected);
      ++n_ended;
    }
    preempted += decode.last_step().preempted;
    if (step == 1 && of.erase(left) > 0) decode.cancel(left);
    if (step == 2) {
      for (std::size_t i = 3; i < texts.size(); ++i)
        if (i != 4) add(i);
    }
    if (step == 7) {
      auto copy = decode.save(saved);
      decode.cancel(saved);
      of.erase(saved);
      of[decode.add(std::move(copy))] = 4;
    }
  }
  CHECK(n_ended == of.size());
  CHECK(n_ended > 8);
  return preempted;
}

// The row that a drafter gives after a text.
std::vector<float> drafted_by(auto& drafter, const std::vector<token_id>& text) {
  tree<> t(4);
  t.reset(text.back(), 4);
  const node_id root[] = {root_node};
  drafter.begin(text);
  drafter.propose(t, root);
  const auto row = drafter.rows().row(root_node);
  return {row.begin(), row.end()};
}

}  // namespace

TEST_CASE("a hybrid gives the same bits on one thread and on three, for wide heads too") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  const std::string text = hybrid_tensors::config_text(50, 128, 2, 4, 2, 96, 2, 144, 64, kind);
  const model_config config = model_config::parse(text, "config.json");
  CHECK(config.recurrence.head_dim == 128);
  const model_writer::file_text file = model_writer::random_hybrid(config, 3);
  llama_backend one = model_writer::backend(config, file, {.threads = 1}),
                three = model_writer::backend(config, file, {.threads = 3});
  std::mt19937 random(4);
  const auto tokens = llama_driver::random_tokens(random, 30, 50);
  auto kv_one = llama_driver::cache_for(one, 64), kv_three = llama_driver::cache_for(three, 64);
  CHECK(llama_driver::plainly(one, kv_one, tokens) == llama_driver::plainly(three, kv_three, tokens));
}

TEST_CASE("a text of a hybrid goes on where a part failed, before its pass or after") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  const std::vector<token_id> prompt = prompt_of(120);
  const std::vector<token_id> expected = plain_text(kind, prompt, 40);
  int failures = 0;
  for (const bool target_fails : {true, false}) {
    for (const bool after : {true, false}) {
      for (int n = 0; n < 24; n += target_fails ? 1 : 3) {
        composition c{kind};
        faulty_backend& faulty = target_fails ? c.faulty : c.faulty_draft;
        faulty.fail_at = n;
        faulty.after = after;
        auto decode = c.decoder();
        decode.begin(prompt, {.max_tokens = 40});
        for (bool more = true; more;) {
          try {
            more = decode.step();
          } catch (const broken_pass&) {
            ++failures;
          }
        }
        CHECK(text_of(decode) == expected);
      }
    }
  }
  CHECK(failures > 40);
}

TEST_CASE("texts of a hybrid are edited, resumed, saved and loaded") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  composition c{kind};
  auto decode = c.decoder();
  std::vector<token_id> prompt = prompt_of(120);
  const auto require_text = [&](int n) {
    decode.begin(prompt, {.max_tokens = n});
    while (decode.step()) {
    }
    CHECK(text_of(decode) == plain_text(kind, prompt, n));
  };
  require_text(30);
  prompt.resize(113);  // what is before it is read again
  require_text(30);
  prompt[3] = 39;
  require_text(20);
  // The next turn reads only what is new, and so does a text that was saved with its rows.
  const int calls = c.faulty.calls;
  decode.resume(prompt_of(3), {.max_tokens = 1});
  while (decode.step()) {
  }
  CHECK(c.faulty.calls == calls + 1);
  std::vector<std::byte> bytes;
  write_sequence(c.kv, 0, bytes);
  const std::vector<token_id> text = text_of(decode);
  c.kv.truncate(0, 0);
  read_sequence(c.kv, 0, bytes);
  const int before = c.faulty.calls;
  decode.begin(text, {.max_tokens = 12});
  decode.step();
  CHECK(c.faulty.calls == before + 1);
  CHECK(c.kv.size(0) > static_cast<int>(text.size()) - 1);
  while (decode.step()) {
  }
  CHECK(text_of(decode) == plain_text(kind, text, 12));
}

TEST_CASE("a draft that is rejected leaves the state of what was committed") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  llama_backend target = random_hybrid(kind, 0), draft = random_hybrid(kind, 0.5F);
  const std::vector<token_id> prompt = prompt_of(200);
  recurrent_kv kv = small_cache(kind);
  autoregressive drafter(draft, small_cache(kind));
  auto decode = make_decoder(drafter, chain({.length = 4}), greedy(), kv, target, {.prefill_rows = 20});
  decode.begin(prompt, {.max_tokens = 60});
  int n_rejected = 0;
  while (decode.step()) {
    if (decode.last_round().committed.empty()) continue;
    n_rejected += decode.last_round().committed.size() < 5 ? 1 : 0;
    // What it drafts next is what a drafter says that has read the text anew.
    const std::vector<token_id> text = text_of(decode);
    autoregressive fresh(draft, small_cache(kind));
    fresh.reserve(4);
    CHECK(drafted_by(drafter, text) == drafted_by(fresh, text));
  }
  CHECK(n_rejected > 5);
  CHECK(text_of(decode) == plain_text(kind, prompt, 60));
}

TEST_CASE("a round of a hybrid allocates nothing") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  composition c{kind};
  auto decode = c.decoder();
  decode.begin(prompt_of(120), {.max_tokens = 60});
  for (int i = 0; i < 6; ++i)
    decode.step();
  const allocation_count allocated;
  while (decode.step()) {
  }
  CHECK(allocated.so_far() == 0);
}

TEST_CASE("several texts of a hybrid are written in one pass, each with its own state") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  llama_backend target = random_hybrid(kind, 0), draft = random_hybrid(kind, 0.2F);
  recurrent_kv kv = small_cache(kind, 3), draft_kv = small_cache(kind, 3);
  autoregressive drafter(draft, draft_kv);
  auto decode =
      make_batch_decoder(drafter, dynatree({.budget = 8}), greedy(), kv, target, {.max_texts = 3, .prefill_rows = 24});
  std::map<text_id, std::vector<token_id>> expected;
  for (const int n : {5, 140, 1, 123, 9}) {
    const std::vector<token_id> prompt = prompt_of(n);
    expected[decode.add(prompt, {.max_tokens = 20})] = plain_text(kind, prompt, 20);
  }
  std::size_t n_ended = 0;
  while (!decode.idle()) {
    for (const text_event& e : decode.step()) {
      REQUIRE_FALSE(e.error);
      if (e.round.state == status::running) continue;
      const auto tokens = decode.current(e.id).tokens();
      CHECK(std::vector<token_id>(tokens.begin(), tokens.end()) == expected.at(e.id));
      ++n_ended;
    }
  }
  CHECK(n_ended == expected.size());
}

TEST_CASE("texts of a hybrid that come and go, in pages or not, are those of plain decoding") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  const float temperature = GENERATE(0.0F, 0.8F);
  const std::vector<asked> texts = requests(kind, temperature);
  llama_backend target = random_hybrid(kind, 0), draft = random_hybrid(kind, 0.2F);
  const batch_options options{.max_texts = 3, .prefill_rows = 24};
  const auto write = [&](auto&& drafter, auto&& kv) {
    auto decode = make_batch_decoder(drafter, dynatree({.budget = 8}), target_only(), kv, target, options);
    return write_together(decode, texts);
  };
  const auto in_pages = [&](int n_pages) { return host_cache(shape(kind), 3, positions, 8, n_pages, {.rows = 128}); };
  const auto counts = [&] { return text_counts(target.vocab_size(), {.capacity = positions}); };
  CHECK(write(autoregressive(draft, small_cache(kind, 3)), small_cache(kind, 3)) == 0);
  CHECK(write(counts(), small_cache(kind, 3)) == 0);
  CHECK(write(autoregressive(draft, in_pages(150)), in_pages(150)) == 0);
  CHECK(write(counts(), in_pages(30)) > 0);
  CHECK(write(autoregressive(draft, in_pages(30)), in_pages(40)) > 0);  // a hybrid's draft may run out, too
}

TEST_CASE("texts of a hybrid that begin alike are read once, and a text goes on from one that has ended") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  llama_backend model = random_hybrid(kind, 0);
  faulty_backend target{model};
  paged_recurrent_kv kv = host_cache(shape(kind), 3, positions, 8, 150, {.rows = 128});
  auto decode = make_batch_decoder(no_drafter(), plain(), greedy(), kv, target, {.max_texts = 3, .prefill_rows = 24});
  std::vector<token_id> text;
  const auto rows_of = [&](const std::vector<std::vector<token_id>>& prompts) {
    const int before = target.rows;
    std::vector<text_id> ids;
    for (const std::vector<token_id>& prompt : prompts)
      ids.push_back(decode.add(prompt, {.max_tokens = 5}));
    while (!decode.idle())
      decode.step();
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto tokens = decode.current(ids[i]).tokens();
      text.assign(tokens.begin(), tokens.end());
      CHECK(text == plain_text(kind, prompts[i], 5));
    }
    return target.rows - before;
  };
  const int rows_of_text = 4;  // of plain decoding: the first of 5 tokens comes with the prompt's last row
  std::vector<token_id> other = prompt_of(150);
  other[120] = 39 - other[120];
  CHECK(rows_of({prompt_of(150)}) == 150 + rows_of_text);
  // What is new is read, and a few tokens before it: those after the state.
  std::vector<token_id> next = text;
  next.insert(next.end(), {3, 4, 5});
  CHECK(rows_of({next}) <= 3 + 3 + rows_of_text);
  CHECK(rows_of({prompt_of(9)}) == 9 + rows_of_text);  // another text in between
  next = text = plain_text(kind, next, 5);
  CHECK(rows_of({next}) <= 3 + rows_of_text);
  // Another text that goes on from it shares one token more, but has no state there any more.
  next = text;
  next.insert(next.end(), {3, 4});
  decode.add(next, {.max_tokens = 20});
  for (int i = 0; i < 10; ++i)
    decode.step();
  next.back() = 5;
  CHECK(rows_of({next}) <= 2 + 3 + rows_of_text + 10);
  kv = host_cache(shape(kind), 3, positions, 8, 150, {.rows = 128});
  CHECK(rows_of({prompt_of(150), prompt_of(150), other}) <= 150 + 30 + 3 * (1 + rows_of_text));
}

TEST_CASE("the first layers of a hybrid must have attention, and have no state if all of them have it") {
  model_config config = random_hybrid(recurrence_kind::gated_delta, 0).config();
  REQUIRE(config.n_layers == 3);
  config.recurrent = {false, true, true};
  CHECK_FALSE(config.with_first_layers(1).is_hybrid());
  CHECK(config.with_first_layers(1).recurrent_shape().layers == 0);
  CHECK(config.with_first_layers(2).recurrent_shape().layers == 1);
  config.recurrent = {true, true, false};
  CHECK(config.with_first_layers(3).recurrent_shape().layers == 2);
  CHECK(says(message_of<option_error>([&] { config.with_first_layers(2); }),
             "option layers is 2, but none of the first 2 layers of this model", "has attention"));
}

TEST_CASE("what cannot be done with a recurrent state is an error that names it") {
  constexpr recurrence_kind kind = recurrence_kind::gated_delta;
  llama_backend model = random_hybrid(kind, 0);
  const auto message = [&](auto& kv, auto&& fill) {
    forward_batch batch;
    fill(batch);
    return message_of<input_error>([&] { model.forward(kv, batch.view()); });
  };
  const auto one_row = [](forward_batch& batch) {
    batch.begin_sequence(0, 0, 1);
    batch.add_row(1, 0, 0, true);
  };
  contiguous_kv rows(1, model.config().kv_size(), 1, 16);
  CHECK(message(rows, one_row) ==
        "the model has 2 recurrent layers, but the cache keeps keys and values alone: it needs one that keeps states, "
        "such as recurrent_kv.");
  recurrent_shape other = model.config().recurrent_shape();
  other.layers = 1;
  recurrent_kv wrong(1, model.config().kv_size(), other, 1, 16);
  CHECK(says(message(wrong, one_row), "the cache keeps states of 1 recurrent layers", "the model has 2 of"));
  recurrent_kv kv = small_cache(kind);
  kv.append(0, 4);
  CHECK(message(kv, [](forward_batch& batch) {
          batch.begin_sequence(0, 0, 4);
          batch.add_row(1, 0, 0, true);
          batch.add_row(2, 1, 1, true);
          batch.add_row(3, 2, 2, true).include_first(2);  // both of them, which are siblings
        }) == "row 2 sees tokens that are no path: a recurrent state is one of a path.");
  CHECK(message(kv, [](forward_batch& batch) {
          batch.begin_sequence(0, 0, 4);
          batch.add_row(1, 0, 1, true);
          batch.add_row(2, 1, 0, true);
        }) == "row 1 has a cache slot that is not beyond that of the row before.");
  CHECK(says(message(kv,
                     [](forward_batch& batch) {
                       batch.begin_sequence(0, 2, 1);
                       batch.add_row(1, 2, 0, true);
                     }),
             "sequence 0 of a pass has 2 committed rows, and the cache 0"));
  kv.truncate(0, 0);
  // Too few rows for the rounds.
  llama_backend draft = random_hybrid(kind, 0.2F);
  recurrent_kv few = host_cache(shape(kind), 1, positions, {.rows = 40});
  CHECK(message_of<option_error>([&] {
          autoregressive drafter(draft, small_cache(kind));
          make_decoder(drafter, dynatree({.budget = 12}), greedy(), few, model);
        }) == "option rows is 40, but passes of 76 tokens need 152: a recurrent state may be one pass behind.");
  CHECK(says(message_of<option_error>([&] {
               autoregressive drafter(draft, host_cache(shape(kind), 1, positions, {.rows = 40}));
               drafter.reserve(12);
             }),
             "option rows is 40, but passes of 64 tokens need 128"));
  // By default there are enough for a tree of 64 after 64 pending tokens, whatever the context.
  const recurrent_kv by_default = host_cache(shape(kind), 1, 4096);
  CHECK_NOTHROW(require_rows(by_default, 64 + 64));
  CHECK(says(message_of<option_error>([&] { require_rows(by_default, 64 + 65); }), "option rows is 256"));
}
