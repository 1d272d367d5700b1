// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "emulator/api.hpp"

// NCCL between processes of one machine, each with an emulated device. Bytes are exchanged through a file that all of
// them map. A captured call is replayed like a launch. As on a device, a call in a stream waits for the other ranks
// until ncclCommAbort is called; and as with `blocking = 0`, calls return that they are in progress.

enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};
enum ncclDataType_t { ncclInt8 = 0 };

struct ncclUniqueId {
  char internal[128];
};
struct ncclConfig_t {
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { INT_MIN }

namespace emulator::detail {

inline constexpr std::size_t nccl_area_bytes = std::size_t{4} << 20;  // area of a rank

//! The data that the ranks share. All are zero at the beginning, as the new file is.
struct nccl_meeting {
  std::atomic<std::uint32_t> joined, arrived, round;
};

}  // namespace emulator::detail

struct ncclComm {
  int rank = 0, size = 0;
  emulator::detail::nccl_meeting* all = nullptr;
  std::byte* areas = nullptr;
  std::size_t mapped = 0;
  std::string path;
  std::atomic<bool> aborted{false};
  std::atomic<int> polls_to_come{0};  // polls before the last call is reported as completed
  ncclResult_t state = ncclSuccess;

  std::byte* area(int r) const { return areas + static_cast<std::size_t>(r) * emulator::detail::nccl_area_bytes; }

  //! Waits until all ranks have come; false if the wait was aborted.
  bool meet() {
    const std::uint32_t now = all->round.load();
    if (all->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(size)) {
      all->arrived = 0;
      all->round = now + 1;
      return true;
    }
    while (all->round.load() == now) {
      if (aborted) return false;
      sched_yield();
    }
    return true;
  }
};
using ncclComm_t = ncclComm*;

namespace emulator::detail {

//! The sends and receives of a group, which has one communicator and one stream.
struct nccl_group {
  struct part {
    int peer;
    const void* from;
    void* to;
    std::size_t bytes;
  };
  int depth = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<part> sends, receives;
};
inline nccl_group& the_group() {
  static nccl_group one;
  return one;
}

//! Puts a call into the stream. With an aborted communicator the call does nothing.
template <class WorkT>
ncclResult_t nccl_call(const char* name, ncclComm_t comm, cudaStream_t stream, WorkT work) {
  const cudaError_t status = call(name, allowed, [&](auto& r) {
    return enqueue(r, stream, cudaGraphNodeTypeKernel, [comm, work] {
      if (!comm->aborted) work();
    });
  });
  if (status != cudaSuccess) return ncclUnhandledCudaError;
  comm->polls_to_come = 2;
  return ncclInProgress;
}

namespace api {

inline const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
  }
  return "unknown result code";
}

inline ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int n = 0;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "/dev/shm/espalier_nccl_%d_%d", static_cast<int>(getpid()), n++);
  return ncclSuccess;
}

inline ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                           ncclConfig_t* config) {
  if (config->blocking != 0 || rank < 0 || rank >= size) return ncclInvalidArgument;
  const std::size_t bytes = sizeof(nccl_meeting) + static_cast<std::size_t>(size) * nccl_area_bytes;
  const int file = open(id.internal, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return ncclSystemError;
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (mapped == MAP_FAILED) return ncclSystemError;
  auto* made = *comm = new ncclComm;
  made->rank = rank, made->size = size, made->mapped = bytes, made->path = id.internal;
  made->all = static_cast<nccl_meeting*>(mapped);
  made->areas = static_cast<std::byte*>(mapped) + sizeof(nccl_meeting);
  if (made->all->joined.fetch_add(1) + 1 == static_cast<std::uint32_t>(size)) unlink(id.internal);
  return ncclInProgress;
}

inline ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const bool waits = comm->all->joined.load() < static_cast<std::uint32_t>(comm->size);
  if (waits || comm->polls_to_come > 0) {
    if (!waits) --comm->polls_to_come;
    *state = ncclInProgress;
  } else {
    *state = comm->state;
  }
  return ncclSuccess;
}

//! Aborts a communicator. Its memory stays, since captured calls still refer to it.
inline ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->aborted = true;
  unlink(comm->path.c_str());
  return ncclSuccess;
}
inline ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return comm->polls_to_come = 2, ncclInProgress;
}
inline ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  munmap(comm->all, comm->mapped);
  delete comm;
  return ncclSuccess;
}

inline ncclResult_t ncclAllGather(const void* from, void* to, std::size_t bytes, ncclDataType_t, ncclComm_t comm,
                                  cudaStream_t stream) {
  if (bytes > nccl_area_bytes) return ncclInvalidArgument;
  return nccl_call(__func__, comm, stream, [=] {
    std::memcpy(comm->area(comm->rank), from, bytes);
    if (!comm->meet()) return;
    for (int r = 0; r < comm->size; ++r)
      std::memcpy(static_cast<std::byte*>(to) + static_cast<std::size_t>(r) * bytes, comm->area(r), bytes);
    comm->meet();
  });
}

inline ncclResult_t ncclGroupStart() {
  return ++the_group().depth, ncclSuccess;
}
inline ncclResult_t ncclSend(const void* from, std::size_t bytes, ncclDataType_t, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  nccl_group& group = the_group();
  if (group.depth == 0) return ncclInvalidUsage;  // not supported, since nothing needs it
  group.comm = comm, group.stream = stream;
  group.sends.push_back({peer, from, nullptr, bytes});
  return ncclSuccess;
}
inline ncclResult_t ncclRecv(void* to, std::size_t bytes, ncclDataType_t, int peer, ncclComm_t comm,
                             cudaStream_t stream) {
  nccl_group& group = the_group();
  if (group.depth == 0) return ncclInvalidUsage;
  group.comm = comm, group.stream = stream;
  group.receives.push_back({peer, nullptr, to, bytes});
  return ncclSuccess;
}
//! The part of a rank's area in which it leaves data for rank r.
inline ncclResult_t ncclGroupEnd() {
  nccl_group group = the_group();
  if (--the_group().depth > 0) return ncclSuccess;
  the_group() = {};
  if (group.comm == nullptr) return ncclSuccess;
  const std::size_t part = nccl_area_bytes / static_cast<std::size_t>(group.comm->size);
  for (const auto& send : group.sends) {
    if (send.bytes > part) return ncclInvalidArgument;
  }
  return nccl_call("ncclGroupEnd", group.comm, group.stream, [group, part, comm = group.comm] {
    for (const auto& send : group.sends)
      std::memcpy(comm->area(comm->rank) + static_cast<std::size_t>(send.peer) * part, send.from, send.bytes);
    if (!comm->meet()) return;
    for (const auto& receive : group.receives)
      std::memcpy(receive.to, comm->area(receive.peer) + static_cast<std::size_t>(comm->rank) * part, receive.bytes);
    comm->meet();
  });
}

}  // namespace api

}  // namespace emulator::detail

using namespace emulator::detail::api;
