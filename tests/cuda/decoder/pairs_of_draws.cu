// SPDX-License-Identifier: BSL-1.0
#include "cuda/decoder/device_text.cuh"

#include "catch.hpp"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_COUNTS_CALLS
#endif

using namespace espalier_test;

// For decoder.cu, too.
template written espalier_test::host_text(const part<iid_paths, iid_paths_options>&, std::string_view, const setting&);
template written espalier_test::host_text(const part<delayed, delayed_options>&, std::string_view, const setting&);
template written espalier_test::device_text(const part<iid_paths, iid_paths_options>&, std::string_view, const setting&,
                                            bool);
template written espalier_test::device_text(const part<delayed, delayed_options>&, std::string_view, const setting&,
                                            bool);

TEST_CASE("Host and device write the same text, whatever the parts: independent draws") {
  CHECK(for_each_device_pair_of<trees::independent_draws>(check_same_text) >= 20);
}

TEST_CASE("Host and device write the same text over padded vocabularies and grammars: independent draws", "[long]") {
  CHECK(for_each_device_pair_of<trees::independent_draws>(check_same_padded_text) >= 20);
}

#if defined(ESPALIER_TEST_COUNTS_CALLS)
TEST_CASE("A round in a graph is one launch, two copies and one event, and the host never waits for the stream") {
  setting s;
  s.options.text.sampling.temperature = 1;
  s.stop.max_tokens = 100;
  device_text_backend target(s.vocab, target_model, 32), draft(s.vocab, draft_model, 32);
  espalier::cuda::contiguous_kv<float> kv(1, 1, 1, s.context), draft_kv(1, 1, 1, s.context);
  espalier::cuda::autoregressive drafter(draft, draft_kv, s.draft);
  auto decode = espalier::cuda::make_decoder(drafter, espalier::cuda::iid_paths({.paths = 3, .length = 3}),
                                             named_verifier<iid_paths::sampling>{"traversal"}, kv, target, s.options);
  decode.begin(s.prompt, s.stop);
  for (int i = 0; i < 3; ++i)
    REQUIRE(decode.step());
  emulator::reset();
  REQUIRE(decode.step());
  CHECK(emulator::calls("cudaGraphLaunch") == 1);
  CHECK(emulator::calls("cudaMemcpyAsync") == 2);
  CHECK(emulator::calls("cudaEventRecord") == 1);
  CHECK(emulator::calls("cudaEventSynchronize") == 1);
  for (const char* call : {"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaMalloc",
                           "cudaMallocHost", "cudaFree", "cudaLaunchKernelEx", "cudaStreamBeginCapture"})
    CHECK(emulator::calls(call) == 0);
}
#endif
