// SPDX-License-Identifier: BSL-1.0
// A server of ggml's RPC over the processor, for the tests: rpc_server HOST:PORT
#include <cstddef>
#include <cstdio>

#include <ggml-backend.h>

int main(int argc, char** argv) {
  using start_server = void (*)(const char*, const char*, std::size_t, std::size_t, ggml_backend_dev_t*);
  ggml_backend_load_all();
  const ggml_backend_reg_t rpc = ggml_backend_reg_by_name("RPC");
  if (argc != 2 || rpc == nullptr) {
    std::fprintf(stderr, "usage: rpc_server HOST:PORT, of a llama.cpp that has RPC\n");
    return 1;
  }
  const auto start =
      reinterpret_cast<start_server>(ggml_backend_reg_get_proc_address(rpc, "ggml_backend_rpc_start_server"));
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  start(argv[1], nullptr, 1, 1, &device);
  return 0;
}
