// SPDX-License-Identifier: BSL-1.0
// Measures the gain of drafting the next round while the target verifies this one, by the time that the target's pass
// takes and by the rows that the draft's passes have to spare, which is the greatest number of guesses.
//
//   bench_micro_ahead [--models FOLDER] [--tokens N] [--prompts N] [--milliseconds N,...] [--rows N,...] [--budget N]
//
// With 0 milliseconds the target's pass is computed, by one thread on a core beside the draft's. With more it sleeps
// for that time and then gives the logits that the model gave before: a target on a device of its own, whose host
// waits. Texts are greedy; each is written without drafting ahead and with each number of rows, in turns, and must be
// the same. Prints Markdown; "would be" is computed from the times without, and from the share of verdicts that were
// guessed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../program.hpp"
#include "espalier/decoder/ahead.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model_set.hpp"
#include "prompts_file.hpp"

namespace {

using namespace espalier;
using clock_type = std::chrono::steady_clock;

// The target; or its recorded logits after each token of a text, given some time later.
struct timed_target {
  llama_backend& model;
  int milliseconds;
  std::vector<token_id> text{};
  std::vector<float> rows{};

  int vocab_size() const { return model.vocab_size(); }
  int max_rows() const { return model.max_rows(); }
  int max_positions() const { return model.max_positions(); }
  template <class KVStoreT>
  logits_view forward(KVStoreT& kv, const forward_batch_view& batch) {
    if (milliseconds == 0) return model.forward(kv, batch);
    const auto end = clock_type::now() + std::chrono::milliseconds(milliseconds);
    const auto vocab = static_cast<std::size_t>(vocab_size());
    rows.assign(batch.outputs.size() * vocab, 0.0F);
    for (std::size_t i = 0; i < batch.outputs.size(); ++i) {
      const auto next = static_cast<std::size_t>(batch.positions[static_cast<std::size_t>(batch.outputs[i])]) + 1;
      if (next < text.size()) rows[i * vocab + static_cast<std::size_t>(text[next])] = 1;
    }
    std::this_thread::sleep_until(end);
    return {rows.data(), static_cast<std::int32_t>(batch.outputs.size()), vocab_size()};
  }
};

struct written {
  std::vector<token_id> tokens;
  int rounds = 0, ahead = 0;
  double draft = 0, target = 0, other = 0;

  double seconds() const { return draft + target + other; }
  void add(const written& text) {
    tokens.insert(tokens.end(), text.tokens.begin(), text.tokens.end());
    rounds += text.rounds, ahead += text.ahead;
    draft += text.draft, target += text.target, other += text.other;
  }
};

// Statistics of a text's rounds without its first round and without the reading of the prompt.
template <class DecoderT>
written write(DecoderT& decode, const std::vector<token_id>& prompt, int n) {
  written out;
  decode.begin(prompt, {.max_tokens = n});
  for (bool is_first = true; decode.step();) {
    const round_record& r = decode.last_round();
    if (r.committed.empty() || std::exchange(is_first, false)) continue;
    ++out.rounds, out.ahead += r.drafted_ahead ? 1 : 0;
    out.draft += r.seconds.draft_forward + r.seconds.grow, out.target += r.seconds.target_forward;
    out.other += r.seconds.compile + r.seconds.verify + r.seconds.commit;
  }
  const auto text = decode.current().written();
  out.tokens.assign(text.begin(), text.end());
  return out;
}

// A decoder that drafts ahead, with caches of its own.
template <class PolicyT>
struct beside {
  beside(const PolicyT& policy, models::model_set& models, timed_target& target, int rows)
      : kv(models.make_cache(models.target)),
        draft_kv(models.make_cache(models.draft_model())),
        drafter(autoregressive(models.draft_model(), draft_kv), rows),
        decode(drafter, policy, greedy(), kv, target) {}

  recurrent_kv kv, draft_kv;
  ahead<autoregressive<llama_backend&, recurrent_kv&>> drafter;
  decoder<decltype(drafter)&, PolicyT, greedy, recurrent_kv&, timed_target&> decode;
  written all{};
};

template <class PolicyT>
void measure(const char* name, const PolicyT& policy, models::model_set& models, timed_target target,
             const std::vector<std::vector<token_id>>& prompts, const std::vector<std::vector<token_id>>& whole,
             const std::vector<int>& rows, int n) {
  recurrent_kv kv = models.make_cache(models.target), draft_kv = models.make_cache(models.draft_model());
  auto drafter = autoregressive(models.draft_model(), draft_kv);
  auto decode = make_decoder(drafter, policy, greedy(), kv, target);
  written alone;
  std::vector<std::unique_ptr<beside<PolicyT>>> together;
  for (const int r : rows)
    together.push_back(std::make_unique<beside<PolicyT>>(policy, models, target, r));
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    target.text = whole[i];
    for (std::size_t turn = 0; turn <= rows.size(); ++turn) {
      const std::size_t which = (turn + i) % (rows.size() + 1);
      const written text =
          which == rows.size() ? write(decode, prompts[i], n) : write(together[which]->decode, prompts[i], n);
      if (!std::equal(text.tokens.rbegin(), text.tokens.rend(), whole[i].rbegin()))
        raise<input_error>("the texts of prompt ", i, " differ.");
      (which == rows.size() ? alone : together[which]->all).add(text);
    }
  }
  const double rounds = alone.rounds, ratio = alone.draft / alone.target;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const written& all = together[i]->all;
    const double guessed = all.ahead / static_cast<double>(all.rounds);
    std::printf("| %s | %d | %.2f | %.2f | %.2f | %.2f | %d | %.3f | %.2f | %.2f | %.2f |\n", name, target.milliseconds,
                static_cast<double>(alone.tokens.size()) / (rounds + static_cast<double>(prompts.size())),
                1e3 * alone.draft / rounds, 1e3 * alone.target / rounds, ratio, rows[i], guessed,
                1e3 * all.seconds() / all.rounds, alone.seconds() / all.seconds(),
                (1 + ratio) / ((std::max)(1.0, guessed * ratio + 1 - guessed) + (1 - guessed) * ratio));
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = ESPALIER_BENCH_MODELS;
  int tokens = 128, n_prompts = 12, budget = 16;
  std::vector<int> milliseconds = {0, 2, 4, 8, 16, 32}, rows = {1, 2, 4, 8};
  bench::program program("bench_micro_ahead", "What drafting ahead brings, by the time of the target's pass.");
  program.add("--models", folder, "folder with target/, draft/ and prompts.jsonl");
  program.add("--tokens", tokens, "tokens of each text", 8, 2048);
  program.add("--prompts", n_prompts, "texts");
  program.add("--budget", budget, "drafted tokens of dynatree and best-first");
  program.add("--rows", rows, "that a pass of the draft has, where it drafts for several guesses", 1, 1024);
  program.add("--milliseconds", milliseconds, "that the target's pass takes", 0, 10000);
  return program.run(argc, argv, [&] {
    models::model_set models = models::model_set::load({folder}, {.threads = 1, .max_rows = 128}, {.ahead = true});
    std::vector<std::vector<token_id>> prompts;
    for (const models::prompt& p : models::read_prompts(folder + "/prompts.jsonl")) {
      if (static_cast<int>(prompts.size()) == n_prompts) break;
      prompts.push_back(p.tokens.empty() ? models.text.encode_prompt(p.text) : p.tokens);
    }
    std::vector<std::vector<token_id>> texts = prompts;
    {
      recurrent_kv kv = models.make_cache(models.target);
      auto decode = make_decoder(no_drafter(), plain(), greedy(), kv, models.target);
      for (std::vector<token_id>& text : texts) {
        decode.generate(text, {.max_tokens = tokens});
        text.assign(decode.current().tokens().begin(), decode.current().tokens().end());
      }
    }
    std::printf(
        "| policy | target sleeps ms | tokens a round | draft ms | target ms | draft / target | rows | guessed | "
        "round ms, ahead | faster | would be |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    for (const int ms : milliseconds) {
      measure("chain of 5", chain(), models, {models.target, ms}, prompts, texts, rows, tokens);
      measure("dynatree", dynatree({.budget = budget}), models, {models.target, ms}, prompts, texts, rows, tokens);
      measure("best-first", best_first({.budget = budget}), models, {models.target, ms}, prompts, texts, rows, tokens);
    }
    return 0;
  });
}
