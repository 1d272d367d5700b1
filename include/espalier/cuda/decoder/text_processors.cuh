// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/processor.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/processor.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/host_failure.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/row_changes.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/decoder/text.hpp"

namespace espalier::cuda::detail {

// A round's question to the host about each lane: the tree, and the nodes whose rows are to be changed. It is in memory
// of the host that the device can reach, too.
//
// Shapes      words [lanes][4 + 3 nodes + last]: place (-1: the lane is empty), number of nodes of the tree, number of
//             tokens of the text, number of last tokens that are given; tokens, parents [nodes], asked [nodes], the
//             text's last tokens [last]
struct asked_on_host {
  std::int32_t* words;
  std::int32_t nodes;
  std::int32_t last;

  ESPALIER_HOST_DEVICE std::int32_t* of(std::int32_t lane) const {
    return words + static_cast<std::ptrdiff_t>(lane) * size();
  }
  ESPALIER_HOST_DEVICE std::int32_t size() const { return 4 + 3 * nodes + last; }
  ESPALIER_HOST_DEVICE std::int32_t tokens() const { return 4; }
  ESPALIER_HOST_DEVICE std::int32_t parents() const { return 4 + nodes; }
  ESPALIER_HOST_DEVICE std::int32_t asked() const { return 4 + 2 * nodes; }
  ESPALIER_HOST_DEVICE std::int32_t last_tokens() const { return 4 + 3 * nodes; }
};

inline constexpr int bring_asked_threads = 128;

// Writes the question about each lane; one block works for a lane.
template <class UnusedT = void>
ESPALIER_KERNEL void bring_asked(asked_on_host to, text_batch texts, node_list asked) {
  const text_in_batch here = texts.here();
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  std::int32_t* const words = to.of(here.lane);
  if (here.place < 0) {
    if (thread == 0) words[0] = -1;
    return;
  }
  const std::int32_t n_nodes = here.tree.view().n_nodes, size = here.text.state->size;
  const std::int32_t n_last = size < to.last ? size : to.last;
  for (std::int32_t u = thread; u < n_nodes; u += bring_asked_threads) {
    words[to.tokens() + u] = here.tree.token[u];
    words[to.parents() + u] = here.tree.parent[u];
  }
  for (std::int32_t i = thread; i < asked.n; i += bring_asked_threads)
    words[to.asked() + i] = asked.of(here.place)[i];
  for (std::int32_t i = thread; i < n_last; i += bring_asked_threads)
    words[to.last_tokens() + i] = here.text.tokens[size - n_last + i];
  if (thread != 0) return;
  words[0] = here.place;
  words[1] = n_nodes;
  words[2] = size;
  words[3] = n_last;
}

// The host's answer about one row: the steps of the root's row, which all rows of the text share, then the row's own
// steps, which replace the shared steps of the same tokens.
struct listed_row {
  enum class kind : std::int32_t {
    unchanged,
    changed,
    failed,
  };

  kind what = kind::unchanged;  // failed: the processor has thrown
  std::int32_t is_masked = 0;   // 1 if the row has a mask of the tokens that may follow
  std::int32_t n_shared = 0;
  std::int32_t first_own = 0, n_own = 0;
  const row_change* steps = nullptr;  // all steps listed for the text, in memory of the host
};

// The arguments of change_rows.
//
// Shapes      listed, ends [places][nodes], by entry of `asked`; masks (the host's) and near_masks (the device's)
//             [places][nodes][words]; found [places]; row_of_node [lanes][n_rows], nullptr: row i of a lane belongs to
//             entry i of its nodes in `asked`; lanes [lanes]: where each lane's rows begin, nullptr: one lane after the
//             other
template <class LogitT>
struct row_change_arguments {
  text_batch texts;
  node_list asked;
  vocab_rows<LogitT> logits;
  const std::int32_t* row_of_node;
  std::int32_t n_rows;
  const batch_sequence* lanes;
  const listed_row* listed;
  const std::uint32_t* masks;
  std::uint32_t* near_masks;
  std::int32_t words;
  std::int32_t nodes;
  std::int32_t* ends;  // 1 if nothing may follow a node; nullptr: not wanted
  fault* found;
  row_origin from;
};

// Values that each block of a team copies once from the host's memory, which is slow to read.
struct change_memory {
  static constexpr std::int32_t near_tokens = 64;

  team::memory who;
  listed_row listed;
  token_id own[near_tokens];  // tokens of the row's first own steps
};

// Two counts of the numbers of a row: those whose tokens can be drawn, and bad ones, which are NaN or plus infinity.
struct row_census {
  std::int32_t possible = 0, bad = 0;

  __device__ void see(float z, std::int32_t by = 1) {
    if (!(z < INFINITY))
      bad += by;
    else if (z > -INFINITY)
      possible += by;
  }
};

// The changes of one row, made by a team.
template <class LogitT>
class row_changer {
 public:
  __device__ row_changer(LogitT* row, std::int32_t vocab, const change_memory& memory, const std::uint32_t* allowed,
                         const team& who)
      : row_(row), vocab_(vocab), memory_(memory), listed_(memory.listed), allowed_(allowed), who_(who) {}

  // True if, once the row has changed, a token can be drawn from it and no number is bad. All threads have read the row
  // when it returns.
  __device__ bool is_possible() const {
    row_census census;
    for (std::int32_t t = rank(); t < vocab_; t += size()) {
      if (is_allowed(t)) census.see(number(t));
    }
    each_token([&](token_id t, std::int32_t first) {
      census.see(number(t), -1);
      census.see(changed(t, first));
    });
    const auto sum = [](std::int32_t a, std::int32_t b) { return a + b; };
    const std::int32_t possible = who_.reduce(census.possible, sum), bad = who_.reduce(census.bad, sum);
    return possible > 0 && bad == 0;
  }

  // Writes the changed numbers, and minus infinity for the tokens that may not follow.
  __device__ void change() const {
    each_token([&](token_id t, std::int32_t first) { row_[t] = LogitT(changed(t, first)); });
    if (listed_.is_masked == 0) return;
    for (std::int32_t t = rank(); t < vocab_; t += size()) {
      if (!is_allowed(t)) row_[t] = LogitT(-INFINITY);
    }
  }

 private:
  __device__ std::int32_t rank() const { return static_cast<std::int32_t>(who_.rank()); }
  __device__ std::int32_t size() const { return static_cast<std::int32_t>(who_.size()); }
  __device__ float number(token_id t) const { return number_in(row_, static_cast<std::size_t>(t)); }
  __device__ bool is_allowed(token_id t) const {
    return listed_.is_masked == 0 || (allowed_[t / 32] >> t % 32 & 1U) != 0;
  }
  __device__ float changed(token_id t, std::int32_t first) const {
    float z = number(t);
    for (std::int32_t i = first; i >= 0; i = listed_.steps[i].next)
      z = listed_.steps[i].applied(z);
    return z;
  }

  // Calls f(token, its first step) for each token that has steps and may follow.
  template <class FunctionT>
  __device__ void each_token(const FunctionT& f) const {
    for (std::int32_t i = rank(); i < listed_.n_shared + listed_.n_own; i += size()) {
      const bool is_own = i >= listed_.n_shared;
      const std::int32_t at = is_own ? listed_.first_own + i - listed_.n_shared : i;
      const row_change& step = listed_.steps[at];
      if (step.is_first == 0 || !is_allowed(step.token) || (!is_own && is_replaced(step.token))) continue;
      f(step.token, at);
    }
  }
  __device__ bool is_replaced(token_id t) const {
    for (std::int32_t i = 0; i < listed_.n_own; ++i) {
      const bool is_near = i < change_memory::near_tokens;
      if ((is_near ? memory_.own[i] : listed_.steps[listed_.first_own + i].token) == t) return true;
    }
    return false;
  }

  LogitT* row_;
  std::int32_t vocab_;
  const change_memory& memory_;
  const listed_row& listed_;
  const std::uint32_t* allowed_;
  const team& who_;
};

// Changes rows: grid column x is a team for entry x of in.asked, grid row y is lane y. The mask is read once from the
// host's memory. A row that would have no token left, or a bad number, stays as it is, and `ends` is set for its node.
template <class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads, 1) void change_rows(const row_change_arguments<LogitT> in) {
  const text_in_batch here = in.texts.here();
  if (here.place < 0) return;
  const std::int32_t entry = team::number();
  const node_id u = in.asked.of(here.place)[entry];
  if (u < 0 || u >= here.tree.view().n_nodes) return;
  const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(here.place) * in.nodes + entry;
  const std::int32_t row_in_lane =
      in.row_of_node == nullptr ? entry : in.row_of_node[static_cast<std::ptrdiff_t>(here.lane) * in.n_rows + u];
  auto& memory = *reinterpret_cast<change_memory*>(shared_memory());
  const listed_row& listed = memory.listed;
  if (threadIdx.x == 0) memory.listed = in.listed[at];
  __syncthreads();
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < ::min(listed.n_own, change_memory::near_tokens);
       i += static_cast<std::int32_t>(blockDim.x))
    memory.own[i] = listed.steps[listed.first_own + i].token;
  __syncthreads();
  team::turns turns;
  const team who(memory.who, turns);
  const bool is_there = row_in_lane >= 0;
  if (in.ends != nullptr && who.rank() == 0) in.ends[at] = 0;
  if (is_there && listed.what == listed_row::kind::failed && who.rank() == 0)
    report(in.found + here.place, {fault::kind::bad_logit, in.from.numbered(u), 0, NAN});
  if (is_there && listed.what == listed_row::kind::changed) {
    std::uint32_t* const allowed = in.near_masks + at * in.words;
    if (listed.is_masked != 0) {
      for (auto w = static_cast<std::int32_t>(who.rank()); w < in.words; w += static_cast<std::int32_t>(who.size()))
        allowed[w] = in.masks[at * in.words + w];
      who.sync();
    }
    const std::int32_t lane_begin = in.lanes == nullptr ? here.lane * in.n_rows : in.lanes[here.lane].row_begin;
    // The logits of a backend may be changed in place: see Backend.
    auto* const row = const_cast<LogitT*>(in.logits.at(lane_begin + row_in_lane));
    const row_changer<LogitT> changer(row, in.logits.vocab, memory, allowed, who);
    if (changer.is_possible())
      changer.change();
    else if (in.ends != nullptr && who.rank() == 0)
      in.ends[at] = 1;
  }
  who.sync();  // no block ends while another one reads its shared memory
}

// The rows of the trees' nodes in a pass of the target.
struct processed_pass {
  std::int32_t n_rows;              // the most rows of a lane
  const std::int32_t* row_of_node;  // [lanes][n_rows]
  const batch_sequence* lanes;      // [lanes]: where the rows of each lane begin
  std::int32_t sequence;            // sequence of place 0
};

// The processors of texts on the device. The processors stay on the host: the stream calls them there in the middle of
// a round, after it has copied the trees to the host. The processors' bit masks and steps go to the device unchanged,
// from memory that both can reach. A graph can capture all of this.
//
// For each text that is written the stream has a copy of the text's processor, which follows the text in the stream's
// order, so that a round may be enqueued before the outcome of the one before it is known. Only one thread at a time
// asks processors, since constraints may share data.
template <class ProcessorT>
class text_processors {
  static_assert(ListingProcessor<ProcessorT>,
                "the processor must be one that says what it does to rows without them, by changes(path, list): "
                "cuda::ListingProcessor");

 public:
  // Has room for trees of `nodes` nodes, root included, in rounds that add at most `last` tokens to a text.
  text_processors(std::int32_t nodes, std::int32_t last, std::int32_t vocab, std::int32_t max_texts)
      : nodes_(nodes),
        last_(last),
        vocab_(vocab),
        words_((vocab + 31) / 32),
        tuning_(row_tuning_here(vocab)),
        shared_(vocab),
        own_(vocab) {
    const auto texts = static_cast<std::size_t>(max_texts), all = texts * static_cast<std::size_t>(nodes);
    for (std::size_t i = 0; i < texts; ++i)
      places_.push_back(std::make_unique<place>());
    asked_ = pinned_array<std::int32_t>(texts * static_cast<std::size_t>(asked().size()));
    listed_ = pinned_array<listed_row>(all);
    masks_ = pinned_array<std::uint32_t>(all * static_cast<std::size_t>(words_));
    near_masks_ = device_array<std::uint32_t>(masks_.size());
    ends_ = device_array<std::int32_t>(all);
    std::vector<node_id> numbers(static_cast<std::size_t>(nodes));
    std::iota(numbers.begin(), numbers.end(), root_node);
    every_node_ = device_array<node_id>(std::span<const node_id>(numbers));
  }
  text_processors(const text_processors&) = delete;

  // Gives the text in this place a copy of this processor, from this point of the stream's order on.
  void follow(std::int32_t number, const espalier::text& text, const ProcessorT& processor, cudaStream_t stream) {
    auto next = std::make_shared<follower>(processor);
    place& p = at(number);
    std::size_t n_steps = 0;
    {
      const std::lock_guard lock(asking_);
      const std::size_t n_prompt = text.tokens().size() - text.written().size();
      next->processor.begin(text.tokens().first(n_prompt));
      next->processor.commit(text.written());
      next->size = text.size();
      next->is_idle = espalier::detail::is_idle(next->processor);
      if (!next->is_idle) n_steps = n_steps_of(next->processor);
      p.most_steps = n_steps;
    }
    p.latest = next;
    make_room(p);
    auto change = std::make_unique<succession>(succession{&p, std::move(next)});
    require(cudaLaunchHostFunc(stream, &succession::run, change.get()), "cudaLaunchHostFunc");
    (void)change.release();  // succession::run deletes it
  }

  // Makes room for the next round of these texts. Returns true if a processor may change rows in it.
  bool prepare(std::span<const std::int32_t> places) {
    bool any = false;
    for (const std::int32_t number : places) {
      place& p = at(number);
      if (!p.latest || p.latest->is_idle) continue;
      any = true;
      make_room(p);
    }
    return any;
  }

  // Enqueues the change of the target's rows of all nodes, which also finds the nodes after which nothing may follow.
  template <class LogitT>
  void run(const text_batch& texts, const processed_pass& pass, vocab_rows<LogitT> logits, fault* found,
           cudaStream_t stream) {
    enqueue<LogitT>(texts, {every_node_.data(), pass.n_rows, 0}, logits, pass.row_of_node, pass.lanes, ends_.data(),
                    found, row_origin::after_node(row_origin::model::target, pass.sequence, root_node), stream);
  }

  // Returns the processor for the rows of a drafter; `found` gets the faults of these rows. Shapes: found [places]
  template <class LogitT>
  row_processor<LogitT> of_draft(fault* found) {
    draft_.self = this;
    draft_.found = found;
    return row_processor<LogitT>(draft_);
  }

  // Returns an array with 1 for each node after which nothing may follow, else 0. Shapes: [places][nodes]
  const std::int32_t* ends() const { return ends_.data(); }
  std::int32_t n_nodes() const { return nodes_; }

  // Throws the first exception of a processor that was not thrown yet, if there is one.
  void raise_failure() { failure_.raise(); }

 private:
  // A processor that follows its text in the stream's order.
  struct follower {
    explicit follower(const ProcessorT& p) : processor(p) {}
    ProcessorT processor;
    std::int32_t size = 0;  // number of the text's tokens that the processor has read
    std::atomic<bool> is_idle = false;
  };

  struct place {
    std::shared_ptr<follower> latest;   // the processor of the last call of follow()
    std::shared_ptr<follower> current;  // the processor that list() uses at the present point of the stream's order
    std::vector<pinned_array<row_change>> rooms;
    std::atomic<std::size_t> most_steps = 0;  // the most steps that a round has listed
    std::span<row_change> room;               // the last of rooms; used under the lock
  };

  struct succession {
    place* at;
    std::shared_ptr<follower> next;

    static void run(void* data) {
      const std::unique_ptr<succession> change(static_cast<succession*>(data));
      change->at->current = std::move(change->next);
    }
  };

  // The argument of a call on the host, at an address that a graph may keep.
  struct call {
    text_processors* self;
    std::int32_t n_lanes, n_asked;

    static void run(void* data) {
      const auto& c = *static_cast<const call*>(data);
      for (std::int32_t lane = 0; lane < c.n_lanes; ++lane)
        c.self->list(c.self->asked().of(lane), c.n_asked);
    }
  };

  struct draft_rows {
    text_processors* self = nullptr;
    fault* found = nullptr;

    template <class LogitT>
    void process(const text_batch& texts, node_list nodes, vocab_rows<LogitT> logits, cudaStream_t stream) {
      self->template enqueue<LogitT>(texts, nodes, logits, nullptr, nullptr, nullptr, found,
                                     row_origin::after_node(row_origin::model::draft, 0, root_node), stream);
    }
  };

  place& at(std::int32_t number) { return *places_[static_cast<std::size_t>(number)]; }
  asked_on_host asked() const { return {asked_.data(), nodes_, last_}; }

  template <class LogitT>
  void enqueue(const text_batch& texts, node_list nodes, vocab_rows<LogitT> logits, const std::int32_t* row_of_node,
               const batch_sequence* lanes, std::int32_t* ends, fault* found, row_origin from, cudaStream_t stream) {
    if (nodes.n == 0) return;
    launch("bring_asked", bring_asked<>, {.grid = texts.lanes(), .threads = bring_asked_threads}, stream, asked(),
           texts, nodes);
    require(cudaLaunchHostFunc(stream, &call::run, &call_of(texts.n, nodes.n)), "cudaLaunchHostFunc");
    launch("change_rows", change_rows<LogitT>, tuning_.shape(nodes.n, sizeof(change_memory), texts.n), stream,
           {texts, nodes, logits, row_of_node, nodes.n, lanes, listed_.data(), masks_.data(), near_masks_.data(),
            words_, nodes_, ends, found, from});
  }

  call& call_of(std::int32_t n_lanes, std::int32_t n_asked) {
    for (const auto& c : calls_) {
      if (c->n_lanes == n_lanes && c->n_asked == n_asked) return *c;
    }
    calls_.push_back(std::make_unique<call>(call{this, n_lanes, n_asked}));
    return *calls_.back();
  }

  std::size_t n_steps_of(ProcessorT& processor) {
    own_.begin();
    processor.changes({}, own_);
    return own_.steps().size();
  }

  // Makes room for the steps of the next round: at least twice as many as a round has listed before, plus 16 for each
  // node. Rooms that are too small are kept: work that is enqueued may still use them.
  void make_room(place& p) {
    const std::size_t needed = 2 * p.most_steps + 16 * static_cast<std::size_t>(nodes_);
    if (p.room.size() >= needed) return;
    pinned_array<row_change> room(2 * needed);
    const std::lock_guard lock(asking_);
    p.room = room.span();
    p.rooms.push_back(std::move(room));
  }

  // Lists the changes of a lane's rows. Called on the host, in the stream's order.
  void list(const std::int32_t* words, std::int32_t n_asked) {
    if (words[0] < 0) return;
    const auto first = static_cast<std::size_t>(words[0]) * static_cast<std::size_t>(nodes_);
    const std::span<listed_row> rows = listed_.span().subspan(first, static_cast<std::size_t>(n_asked));
    std::fill(rows.begin(), rows.end(), listed_row{});
    place& p = at(words[0]);
    if (!p.current || p.current->is_idle) return;
    const std::lock_guard lock(asking_);
    const bool is_listed = failure_.guard([&] {
      catch_up(*p.current, words);
      if (!p.current->is_idle) list_rows(p, words, rows, first);
    });
    if (!is_listed) std::fill(rows.begin(), rows.end(), listed_row{.what = listed_row::kind::failed});
  }

  void catch_up(follower& f, const std::int32_t* words) {
    const auto n = static_cast<std::size_t>(words[2] - f.size);
    const std::span<const token_id> last(words + asked().last_tokens(), static_cast<std::size_t>(words[3]));
    if (n > last.size()) {
      raise<input_error>("a processor has read ", f.size, " tokens of a text of ", words[2], ", but is told the last ",
                         last.size(), " alone.");
    }
    f.processor.commit(last.last(n));
    f.size = words[2];
    f.is_idle = espalier::detail::is_idle(f.processor);
  }

  void list_rows(place& p, const std::int32_t* words, std::span<listed_row> rows, std::size_t first) {
    ProcessorT& processor = p.current->processor;
    const std::int32_t *tokens = words + asked().tokens(), *parents = words + asked().parents();
    std::size_t used = 0;
    const auto put = [&](const row_change& step) {
      if (used < p.room.size()) p.room[used] = step;
      ++used;
    };
    shared_.begin();
    processor.changes({}, shared_);
    for (const row_change& step : shared_.steps())
      put(step);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const node_id asked_about = words[asked().asked() + static_cast<std::int32_t>(i)];
      if (asked_about < 0 || asked_about >= words[1]) continue;
      path_.clear();
      for (node_id u = asked_about; u != root_node; u = parents[u])
        path_.push_back(tokens[u]);
      std::reverse(path_.begin(), path_.end());
      own_.begin();
      processor.changes(std::span<const token_id>(path_), own_);
      const std::size_t first_own = used;
      list_own(put, used);
      if (own_.is_masked()) {
        std::copy(own_.allowed().begin(), own_.allowed().end(),
                  masks_.data() + (first + i) * static_cast<std::size_t>(words_));
      }
      rows[i] = {listed_row::kind::changed,
                 own_.is_masked() ? 1 : 0,
                 static_cast<std::int32_t>(shared_.steps().size()),
                 static_cast<std::int32_t>(first_own),
                 static_cast<std::int32_t>(used - first_own),
                 p.room.data()};
    }
    if (used > p.most_steps) p.most_steps = used;
    if (used > p.room.size()) {
      raise<input_error>("a processor changes logits in ", used,
                         " steps in one round, but lately did so in no more than ", p.room.size(),
                         ": resume the text, and there is room.");
    }
  }

  // Lists the steps of a row that differ from those of the root's row.
  template <class PutT>
  void list_own(const PutT& put, const std::size_t& used) const {
    for (const row_change& step : own_.steps()) {
      if (step.is_first == 0 || own_.agrees(shared_, step.token)) continue;
      for (const row_change* s = &step;; s = &own_.steps()[static_cast<std::size_t>(s->next)]) {
        row_change moved = *s;
        if (s->next >= 0) moved.next = static_cast<std::int32_t>(used) + 1;
        put(moved);
        if (s->next < 0) break;
      }
    }
    for (const row_change& step : shared_.steps()) {
      if (step.is_first != 0 && own_.first_of(step.token) < 0) put({.token = step.token, .is_first = 1});
    }
  }

  std::int32_t nodes_, last_, vocab_, words_;
  row_tuning tuning_;
  std::vector<std::unique_ptr<place>> places_;
  pinned_array<std::int32_t> asked_;
  pinned_array<listed_row> listed_;    // [places][nodes]
  pinned_array<std::uint32_t> masks_;  // [places][nodes][words]
  device_array<std::uint32_t> near_masks_;
  device_array<std::int32_t> ends_;   // [places][nodes]
  device_array<node_id> every_node_;  // 0, 1, 2...
  std::vector<std::unique_ptr<call>> calls_;
  draft_rows draft_;
  std::mutex asking_;
  row_changes shared_, own_;  // changes of the row of a text's root, and of the row of one node
  std::vector<token_id> path_;
  host_failure failure_;
};

// The text_processors of texts without a processor: does nothing.
template <>
class text_processors<no_processor> {
 public:
  text_processors(std::int32_t, std::int32_t, std::int32_t, std::int32_t) {}

  void follow(std::int32_t, const espalier::text&, const no_processor&, cudaStream_t) {}
  static constexpr bool prepare(std::span<const std::int32_t>) { return false; }
  static constexpr const std::int32_t* ends() { return nullptr; }
  static constexpr std::int32_t n_nodes() { return 0; }
  void raise_failure() {}
};

}  // namespace espalier::cuda::detail
