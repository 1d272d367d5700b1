// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/parallel/communicator.hpp"

namespace espalier {

//! Options of an mpi_communicator.
struct mpi_options {
  double timeout = 30.0;  //!< seconds; a call that has not ended after half of this time raises an error before the
                          //!< whole time is over

  static constexpr void describe(auto see) {
    see(option{"timeout", &mpi_options::timeout, "seconds that ranks wait for one another", 0.01, 1e6});
  }
};

//! A communicator between ranks that are processes, over MPI: non-blocking collectives with a deadline.
//!
//! A call waits for half of the timeout. If it has not ended by then, the ranks ask one another for an answer during
//! the other half, and the error names the ranks that do not answer. MPI cannot end a collective that a rank is missing
//! from. So once broken() is true, this communicator cannot be used, and MPI_Finalize must not be called, because it
//! would wait for ever; std::_Exit ends the process. If the process makes MPI calls before that, with new ranks, the
//! memory that was given to the call that failed must still be there: a rank that was late may write to it. Start with
//! `mpirun --enable-recovery` (Open MPI); without this option mpirun itself ends the other ranks when one dies.
//!
//! Complexity  all_gather: one MPI_Iallgatherv; all_to_all: one MPI_Ialltoallv; the waiting thread polls, and gives its
//!             processor to others between polls
//! Errors      rank_error: within the timeout, on each rank that is alive; option_error for a timeout out of range;
//!             input_error for more than 2 GiB
//! Pre         MPI_Init or MPI_Init_thread has been called; all ranks make and destroy their communicators together;
//!             one call at a time
class mpi_communicator {
 public:
  explicit mpi_communicator(MPI_Comm ranks, const mpi_options& options = {})
      : timeout_(require_options(options).timeout) {
    MPI_Comm_dup(ranks, &ranks_);
    MPI_Comm_dup(ranks, &questions_);
    MPI_Comm_set_errhandler(ranks_, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(questions_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(ranks_, &rank_);
    MPI_Comm_size(ranks_, &size_);
    for (std::vector<int>* list : {&sent_, &sent_at_, &received_, &received_at_})
      list->resize(static_cast<std::size_t>(size_));
  }

  mpi_communicator(const mpi_communicator&) = delete;
  mpi_communicator& operator=(const mpi_communicator&) = delete;
  ~mpi_communicator() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) return;
    if (broken_) {  // the call that failed has not ended
      for (std::vector<int>* list : {&sent_, &sent_at_, &received_, &received_at_})
        leave(*list);
      return;
    }
    MPI_Comm_free(&ranks_);
    MPI_Comm_free(&questions_);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  rank_traffic traffic() const { return traffic_; }
  //! Returns whether a call has failed or was late.
  bool broken() const { return broken_; }

  void all_gather(std::byte* data, std::span<const std::size_t> counts) {
    place(counts, received_, received_at_);
    count(counts[static_cast<std::size_t>(rank_)] * static_cast<std::size_t>(size_ - 1));
    MPI_Request request = MPI_REQUEST_NULL;
    const int failed = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, data, received_.data(), received_at_.data(), MPI_BYTE,
                                       ranks_, &request);
    finish(failed, request, "all-gather");
  }

  void all_to_all(const std::byte* from, std::span<const std::size_t> to_each, std::byte* to,
                  std::span<const std::size_t> from_each) {
    place(to_each, sent_, sent_at_);
    place(from_each, received_, received_at_);
    std::size_t bytes = 0;
    for (std::size_t r = 0; r < to_each.size(); ++r)
      bytes += r == static_cast<std::size_t>(rank_) ? 0 : to_each[r];
    count(bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    const int failed = MPI_Ialltoallv(from, sent_.data(), sent_at_.data(), MPI_BYTE, to, received_.data(),
                                      received_at_.data(), MPI_BYTE, ranks_, &request);
    finish(failed, request, "all-to-all");
  }

 private:
  using clock = std::chrono::steady_clock;

  void place(std::span<const std::size_t> counts, std::vector<int>& to, std::vector<int>& at) const {
    if (broken_) raise<rank_error>(message_);
    std::size_t sum = 0;
    for (std::size_t r = 0; r < counts.size(); ++r) {
      at[r] = static_cast<int>(sum);
      to[r] = static_cast<int>(counts[r]);
      sum += counts[r];
    }
    if (sum > 0x7FFFFFFFU) raise<input_error>("ranks exchange ", sum, " bytes at once, but MPI takes at most 2 GiB.");
  }

  void count(std::size_t bytes) {
    ++traffic_.calls;
    traffic_.bytes += static_cast<std::int64_t>(bytes);
  }

  // Polls until done(), and returns true, or until the time is over, and returns false. Ranks may share processors, so
  // a rank that waits lets others run.
  template <class DoneT>
  static bool wait(double seconds, const DoneT& done) {
    const clock::time_point end =
        clock::now() + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(seconds));
    for (int polls = 0;; ++polls) {
      if (done()) return true;
      if (polls % 16 != 15) continue;
      if (clock::now() > end) return false;
      std::this_thread::yield();
    }
  }

  void finish(int failed, MPI_Request& request, const char* what) {
    int done = 0;
    const bool in_time = failed != MPI_SUCCESS || wait(timeout_ / 2, [&] {
                           failed = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
                           return failed != MPI_SUCCESS || done != 0;
                         });
    if (in_time && failed == MPI_SUCCESS) return;
    broken_ = true;
    const std::string absent = ask();
    message_ =
        "call " + std::to_string(traffic_.calls) + " between the ranks (" + what + ") " +
        (in_time ? "failed" : "did not end in time") + ", says rank " + std::to_string(rank_) + ": " +
        (absent.empty() ? "all ranks answer, but one was late or made another call" : "no answer from rank " + absent) +
        ". The text goes on from its last committed token with new ranks.";
    raise<rank_error>(message_);
  }

  // Returns the numbers of the ranks that do not answer. The messages to them are not cancelled: a rank that is gone
  // never takes them. The receives from them are cancelled, since a late answer would be written to memory
  // that is no longer there.
  std::string ask() {
    constexpr int tag = 1;
    static constexpr int word = 1;
    std::vector<int> answers(static_cast<std::size_t>(size_), 0);
    std::vector<MPI_Request> requests(static_cast<std::size_t>(size_), MPI_REQUEST_NULL);
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      MPI_Request sent = MPI_REQUEST_NULL;
      MPI_Irecv(&answers[static_cast<std::size_t>(r)], 1, MPI_INT, r, tag, questions_,
                &requests[static_cast<std::size_t>(r)]);
      MPI_Isend(&word, 1, MPI_INT, r, tag, questions_, &sent);
      if (sent != MPI_REQUEST_NULL) MPI_Request_free(&sent);
    }
    const auto have_ended = [&] {
      bool all = true;
      for (MPI_Request& request : requests) {
        int done = 1;
        if (request != MPI_REQUEST_NULL && MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) done = 0;
        all = all && done != 0;
      }
      return all;
    };
    wait(timeout_ / 2, have_ended);
    for (MPI_Request& request : requests) {
      if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
    }
    const bool all_ended = wait(0, have_ended);
    std::string absent;
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && answers[static_cast<std::size_t>(r)] == 0)
        absent += (absent.empty() ? "" : ", ") + std::to_string(r);
    }
    if (!all_ended) leave(answers);
    return absent;
  }

  // Keeps the memory of a list for the rest of the process: MPI may still use it.
  static void leave(std::vector<int>& list) { new std::vector<int>(std::move(list)); }

  double timeout_;
  MPI_Comm ranks_ = MPI_COMM_NULL;
  MPI_Comm questions_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  bool broken_ = false;
  std::string message_;
  rank_traffic traffic_;
  std::vector<int> sent_, sent_at_, received_, received_at_;  // [ranks] numbers of bytes, and where these bytes begin
};

static_assert(Communicator<mpi_communicator>);

}  // namespace espalier
