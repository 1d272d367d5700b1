// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "emulator/fiber.hpp"
#include "emulator/vectors.hpp"

// The position of a thread in its grid, as a kernel sees it.
inline uint3 threadIdx{}, blockIdx{};
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

namespace emulator {

namespace detail {

struct thread;

//! A barrier of the threads of a block, a cluster or a grid.
struct barrier {
  unsigned expected = 0, arrived = 0, phase = 0;
  int true_so_far = 0,
      true_at_last = 0;  // predicates of __syncthreads_count and similar functions
  std::vector<thread*> waiting;

  void reset(std::size_t threads) {
    expected = static_cast<unsigned>(threads);
    arrived = phase = 0;
    true_so_far = 0;
    waiting.clear();
  }
};

//! One lane's call of a warp operation; lives on the lane's stack.
struct visit {
  unsigned mask;
  const char* name;
  void* item;
  bool elected;  // woken to complete the operation, because the last lane
                 // missing has finished
};

struct warp {
  unsigned live = 0, waiting = 0;
  visit* visits[32] = {};
  thread* lanes[32] = {};

  //! True when every lane of `mask` that still runs is here with the same operation.
  bool complete(unsigned mask) const {
    const unsigned group = mask & live;
    if ((waiting & group) != group) return false;
    for (unsigned i = 0; i < 32; ++i) {
      if ((group >> i & 1U) != 0 && visits[i]->mask != mask) return false;
    }
    return true;
  }
};

struct cluster {
  barrier all;
  unsigned first_block = 0, n_blocks = 0;
};

struct block {
  uint3 index{};
  unsigned rank = 0;  // number in its cluster
  cluster* home = nullptr;
  barrier all;
  std::vector<warp> warps;
  thread* first_thread = nullptr;
  std::unique_ptr<unsigned char[]> shared;
};

struct thread {
  explicit thread(void (*entry)(), std::size_t number) : stack(entry, number) {}

  fiber stack;
  uint3 index{};
  unsigned rank = 0;  // number in its block
  block* home = nullptr;
  warp* team = nullptr;
  unsigned lane = 0;
  bool finished = false;
  bool has_awaited = false;  // for the end of the grid before this one
  const char* waits_in = nullptr;
};

//! A grid that has passed all checks. `body` runs one thread of it.
struct launch {
  dim3 grid, block, cluster;
  std::size_t shared = 0;
  bool cooperative = false;
  bool overlaps = false;  // may begin before the grid before it has ended
  void (*body)(const void*) = nullptr;
  const void* closure = nullptr;
};

inline std::size_t volume(dim3 d) {
  return std::size_t{d.x} * d.y * d.z;
}

inline uint3 place(std::size_t i, dim3 extent) {
  return {static_cast<unsigned>(i % extent.x), static_cast<unsigned>(i / extent.x % extent.y),
          static_cast<unsigned>(i / extent.x / extent.y)};
}

//! Runs grids, one fiber for each thread. Threads change places only when they wait, and the next thread is drawn by
//! chance.
class scheduler {
 public:
  thread* running = nullptr;
  barrier grid_barrier;
  std::size_t patience = 50'000'000;  // switches between polling threads while nothing else happens

  void seed(std::uint64_t value) { random_ = value * 0x9E3779B97F4A7C15U + 1; }
  bool cooperative() const { return job_->cooperative; }
  block& block_of_cluster(unsigned rank) { return blocks_[running->home->home->first_block + rank]; }

  void run(const launch& job) {
    if (running != nullptr) stop("a kernel launched a kernel");
    const std::size_t n_threads = volume(job.block), n_blocks = volume(job.grid), per_cluster = volume(job.cluster);
    const std::size_t n_clusters = n_blocks / per_cluster, at_once = job.cooperative ? n_clusters : 1;
    job_ = &job, gridDim = job.grid, blockDim = job.block;
    furnish(at_once, per_cluster, n_threads);
    const dim3 clusters{job.grid.x / job.cluster.x, job.grid.y / job.cluster.y, job.grid.z / job.cluster.z};
    std::vector<std::size_t> order(n_clusters);
    std::iota(order.begin(), order.end(), std::size_t{0});
    for (std::size_t done = 0; done < n_clusters; done += at_once) {
      for (std::size_t i = 0; i < at_once; ++i) {
        std::swap(order[done + i], order[done + i + draw(n_clusters - done - i)]);
        const uint3 corner = place(order[done + i], clusters);
        clusters_[i].all.reset(per_cluster * n_threads);
        for (unsigned rank = 0; rank < per_cluster; ++rank) {
          const uint3 at = place(rank, job.cluster);
          begin(blocks_[i * per_cluster + rank], n_threads,
                {corner.x * job.cluster.x + at.x, corner.y * job.cluster.y + at.y, corner.z * job.cluster.z + at.z});
        }
      }
      n_unfinished_ = runnable_.size(), idle_ = 0;
      resume(host_, take());
      running = nullptr;
      if (n_unfinished_ != 0) explain_deadlock();
      for (const block& b : blocks_)
        check_shared(b);
    }
    job_ = nullptr;
  }

  //! Parks the running thread until wake() is called for it.
  void wait(const char* name) {
    running->waits_in = name;
    leave();
  }

  void wake(thread* t) {
    t->waits_in = nullptr, idle_ = 0;
    runnable_.push_back(t);
  }

  //! Lets any other thread run; for loops that wait for another thread's write.
  void yield() {
    if (++idle_ > patience) stop("the threads have been polling in vain for %zu switches", patience);
    runnable_.push_back(running);
    leave();
  }

  void arrive(barrier& b) {
    if (++b.arrived != b.expected) return;
    b.arrived = 0, ++b.phase;
    b.true_at_last = std::exchange(b.true_so_far, 0);
    for (thread* t : b.waiting)
      wake(t);
    b.waiting.clear();
  }

  void await(barrier& b, unsigned phase, const char* name) {
    if (b.phase != phase) return;
    b.waiting.push_back(running);
    wait(name);
  }

  //! Returns the number of threads whose predicate is true.
  int sync(barrier& b, const char* name, bool predicate = false) {
    const unsigned phase = b.phase;
    b.true_so_far += predicate ? 1 : 0;
    arrive(b);
    await(b, phase, name);
    return b.true_at_last;
  }

 private:
  static constexpr std::size_t fence_bytes = 64;
  static constexpr unsigned char garbage = 0xCD, fence = 0xFB;

  std::uint64_t next() {  // xorshift64*
    random_ ^= random_ >> 12, random_ ^= random_ << 25, random_ ^= random_ >> 27;
    return random_ * 0x2545F4914F6CDD1DU;
  }
  std::size_t draw(std::size_t n) { return static_cast<std::size_t>((next() >> 32) * n >> 32); }

  // The next thread is drawn one switch in advance, so that its stack is in the cache by then. Pre: there is one.
  thread& take() {
    if (next_ == nullptr) next_ = draw_thread();
    return *std::exchange(next_, draw_thread());
  }

  thread* draw_thread() {
    if (runnable_.empty()) return nullptr;
    const std::size_t i = draw(runnable_.size());
    thread* t = runnable_[i];
    runnable_[i] = runnable_.back();
    runnable_.pop_back();
    t->stack.fetch();
    return t;
  }

  void resume(fiber& from, thread& to) {
    running = &to, threadIdx = to.index, blockIdx = to.home->index;
    from.switch_to(to.stack);
  }

  void leave() {
    thread& self = *running;
    if (next_ == nullptr && runnable_.empty()) {
      self.stack.switch_to(host_);
      return;
    }
    thread& t = take();
    if (&t != &self) resume(self.stack, t);
  }

  static void live_on();

  void finish() {
    thread& self = *running;
    if (job_->overlaps && !self.has_awaited) stop("a kernel that overlaps did not wait for the one before it");
    warp& w = *self.team;
    self.finished = true, --n_unfinished_, idle_ = 0;
    w.live &= ~(1U << self.lane);
    for (unsigned i = 0; w.waiting != 0 && i < 32; ++i) {
      if ((w.waiting >> i & 1U) == 0 || w.visits[i]->elected || !w.complete(w.visits[i]->mask)) continue;
      w.visits[i]->elected = true;
      wake(w.lanes[i]);
      break;
    }
    leave();
  }

  //! Makes room for the blocks that run at the same time.
  void furnish(std::size_t n_clusters, std::size_t per_cluster, std::size_t n_threads) {
    const std::size_t n_blocks = n_clusters * per_cluster;
    while (threads_.size() < n_blocks * n_threads)
      threads_.emplace_back(&scheduler::live_on, threads_.size());
    runnable_.reserve(n_blocks * n_threads);
    grid_barrier.reset(n_blocks * n_threads);
    clusters_ = std::vector<cluster>(n_clusters);
    blocks_ = std::vector<block>(n_blocks);
    auto t = threads_.begin();
    for (std::size_t i = 0; i < n_blocks; ++i) {
      block& b = blocks_[i];
      b.home = &clusters_[i / per_cluster], b.rank = static_cast<unsigned>(i % per_cluster);
      b.home->first_block = static_cast<unsigned>(i - b.rank), b.home->n_blocks = static_cast<unsigned>(per_cluster);
      b.warps.resize((n_threads + 31) / 32);
      b.first_thread = &*t;
      b.shared.reset(new unsigned char[job_->shared + fence_bytes]);
      for (std::size_t k = 0; k < n_threads; ++k, ++t) {
        t->index = place(k, job_->block), t->rank = static_cast<unsigned>(k), t->lane = k % 32;
        t->home = &b, t->team = &b.warps[k / 32], t->team->lanes[t->lane] = &*t;
      }
    }
  }

  void begin(block& b, std::size_t n_threads, uint3 index) {
    b.index = index;
    b.all.reset(n_threads);
    for (warp& w : b.warps)
      w.live = w.waiting = 0;
    std::memset(b.shared.get(), garbage, job_->shared);
    std::memset(b.shared.get() + job_->shared, fence, fence_bytes);
    auto t = threads_.begin() + (&b - blocks_.data()) * static_cast<std::ptrdiff_t>(n_threads);
    for (std::size_t k = 0; k < n_threads; ++k, ++t) {
      t->finished = t->has_awaited = false, t->waits_in = nullptr;
      t->team->live |= 1U << t->lane;
      runnable_.push_back(&*t);
    }
  }

  void check_shared(const block& b) const {
    for (std::size_t i = 0; i < fence_bytes; ++i) {
      if (b.shared[job_->shared + i] == fence) continue;
      stop(
          "block (%u, %u, %u) wrote at byte %zu of its %zu bytes of shared "
          "memory",
          b.index.x, b.index.y, b.index.z, job_->shared + i, job_->shared);
    }
  }

  [[noreturn]] void explain_deadlock() {
    const std::size_t n = volume(job_->block);
    const thread *stuck = nullptr, *other = nullptr;
    for (std::size_t i = 0; i < blocks_.size() * n && stuck == nullptr; ++i) {
      if (!threads_[i].finished) stuck = &threads_[i];
    }
    for (std::size_t i = 0; i < blocks_.size() * n; ++i) {
      const thread& t = threads_[i];
      if (t.finished || std::strcmp(t.waits_in, stuck->waits_in) != 0) {
        if (other == nullptr || (other->home != stuck->home && t.home == stuck->home)) other = &t;
      }
    }
    const uint3 b = stuck->home->index, t = stuck->index;
    if (other == nullptr) {
      stop(
          "deadlock: thread (%u, %u, %u) of block (%u, %u, %u) waits in %s, "
          "and so do all others",
          t.x, t.y, t.z, b.x, b.y, b.z, stuck->waits_in);
    }
    const uint3 c = other->home->index, u = other->index;
    stop(
        "deadlock: thread (%u, %u, %u) of block (%u, %u, %u) waits in %s, but "
        "thread (%u, %u, %u) of block (%u, %u, %u) "
        "%s%s",
        t.x, t.y, t.z, b.x, b.y, b.z, stuck->waits_in, u.x, u.y, u.z, c.x, c.y, c.z,
        other->finished ? "has finished" : "waits in ", other->finished ? "" : other->waits_in);
  }

  std::deque<thread> threads_;
  std::vector<thread*> runnable_;
  thread* next_ = nullptr;  // drawn in advance; its stack is being loaded into the cache
  std::vector<cluster> clusters_;
  std::vector<block> blocks_;
  fiber host_;
  const launch* job_ = nullptr;
  std::size_t n_unfinished_ = 0, idle_ = 0;
  std::uint64_t random_ = initial_seed() * 0x9E3779B97F4A7C15U + 1;

  static std::uint64_t initial_seed() {
    const char* text = std::getenv("ESPALIER_EMULATOR_SEED");
    return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
  }
};

inline scheduler the_scheduler;

inline void scheduler::live_on() {
  fiber::arrived();
  for (;;) {
    the_scheduler.job_->body(the_scheduler.job_->closure);
    the_scheduler.finish();
  }
}

inline thread& self() {
  if (the_scheduler.running == nullptr) stop("a device function was called outside a kernel");
  return *the_scheduler.running;
}

//! Waits until every running lane of `mask` has come with its item. The last one to come completes the operation for
//! all: complete(items), where items[lane] is null for a lane that takes no part.
template <class ItemT, class CompleteT>
void meet(unsigned mask, const char* name, ItemT& item, CompleteT complete) {
  thread& me = self();
  warp& w = *me.team;
  if ((mask >> me.lane & 1U) == 0) {
    stop(
        "thread (%u, %u, %u) of block (%u, %u, %u) calls %s with the mask "
        "%08x, in which lane %u is missing",
        me.index.x, me.index.y, me.index.z, blockIdx.x, blockIdx.y, blockIdx.z, name, mask, me.lane);
  }
  visit mine{mask, name, &item, false};
  w.visits[me.lane] = &mine;
  w.waiting |= 1U << me.lane;
  if (!w.complete(mask)) {
    the_scheduler.wait(name);
    if (!mine.elected) return;
  }
  const unsigned group = mask & w.live;
  ItemT* items[32];
  for (unsigned i = 0; i < 32; ++i) {
    const bool here = (group >> i & 1U) != 0;
    items[i] = here ? static_cast<ItemT*>(w.visits[i]->item) : nullptr;
    if (here && w.visits[i]->name != name && std::strcmp(w.visits[i]->name, name) != 0) {
      stop(
          "lanes %u and %u of one warp in block (%u, %u, %u) meet in "
          "different operations, %s and %s",
          me.lane, i, blockIdx.x, blockIdx.y, blockIdx.z, name, w.visits[i]->name);
    }
  }
  complete(items);
  w.waiting &= ~group;
  for (unsigned i = 0; i < 32; ++i) {
    if (items[i] != nullptr && i != me.lane) the_scheduler.wake(w.lanes[i]);
  }
}

}  // namespace detail

//! Chooses another order of threads for the launches to come.
inline void seed(std::uint64_t value) {
  detail::the_scheduler.seed(value);
}

//! Number of times that threads may poll while nothing else happens before the emulator reports a deadlock.
inline std::size_t& patience() {
  return detail::the_scheduler.patience;
}

}  // namespace emulator

//! The running block's dynamic shared memory.
inline void* emulator_shared_memory() {
  return emulator::detail::self().home->shared.get();
}
