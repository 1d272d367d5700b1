// SPDX-License-Identifier: BSL-1.0
// Measures trees on the device: best_first from given lists, the compilation of the tree in every order, and its
// conversion into the formats of other engines and of a backend of the host.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device_text.cuh"
#include "espalier/cuda/backend/on_host.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/interop/dense_mask.cuh"
#include "espalier/cuda/interop/flashinfer_mask.cuh"
#include "espalier/cuda/interop/sglang_mask.cuh"
#include "espalier/cuda/interop/sglang_tree.cuh"
#include "espalier/cuda/interop/tensorrt_tree.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "inputs.hpp"
#include "program.cuh"

namespace {

using namespace espalier;
namespace device = espalier::cuda;
namespace io = espalier::cuda::interop;

struct asked {
  std::int32_t budget;
  double tree, compile;  // microseconds
};

// The conversion of a batch into a format of another engine, and the number of bytes that it writes.
struct conversion {
  const char* name;
  double bytes;
  std::function<void(cudaStream_t)> work;
};

// The memory of every format for one tree of n rows, root included, in a context of at most so many slots.
class engine_arrays {
 public:
  engine_arrays(std::int32_t n, std::int32_t context)
      : n_(n),
        context_(context),
        dense_(rows() * static_cast<std::size_t>(context)),
        bytes_(rows() * static_cast<std::size_t>(context + n)),
        indptr_(2),
        links_(4 * rows()),
        shape_{.max_tokens = n, .max_path = 16},
        words_(static_cast<std::size_t>(shape_.n_paths() + shape_.n_words() + n)),
        of_host_(n, (n + 31) / 32) {}

  std::vector<conversion> conversions(const device::forward_batch_view& batch) const {
    const io::sglang_mask_layout layout{.n = n_};
    const io::sglang_tree<std::int32_t> tree{links_.data(), links_.data() + n_, links_.data() + 2 * n_,
                                             links_.data() + 3 * n_};
    const io::tensorrt_tree arrays{words_.data(), words_.data() + shape_.n_paths(),
                                   words_.data() + shape_.n_paths() + shape_.n_words()};
    const auto room = static_cast<std::int64_t>(bytes_.size());
    return {{"dense mask of bfloat16", 2.0 * static_cast<double>(dense_.size()),
             [=, this](cudaStream_t s) { io::write_dense_mask(batch, context_, dense_.data(), s); }},
            {"FlashInfer's mask", static_cast<double>(dense_.size()) / 8,
             [=, this](cudaStream_t s) { io::write_flashinfer_mask(batch, bytes_.data(), room, indptr_.data(), s); }},
            {"SGLang's mask", static_cast<double>(dense_.size()),
             [=, this](cudaStream_t s) { io::write_sglang_mask(batch, layout, bytes_.data(), room, s); }},
            {"SGLang's arrays", 4.0 * static_cast<double>(links_.size()),
             [=, this](cudaStream_t s) { io::write_sglang_tree(batch, n_, tree, s); }},
            {"TensorRT-LLM's arrays", 4.0 * static_cast<double>(words_.size()),
             [=, this](cudaStream_t s) { io::write_tensorrt_tree(batch, shape_, arrays, s); }},
            {"copy for a backend of the host", 4.0 * n_ * (6 + (n_ + 31) / 32),
             [=, this](cudaStream_t s) { of_host_.bring(batch, s); }}};
  }

 private:
  std::size_t rows() const { return static_cast<std::size_t>(n_); }

  std::int32_t n_, context_;
  device::device_array<__nv_bfloat16> dense_;
  device::device_array<std::uint8_t> bytes_;
  device::device_array<std::int32_t> indptr_, links_;
  io::tensorrt_tree_shape shape_;
  device::device_array<std::int32_t> words_;
  device::detail::batch_copy of_host_;
};

void measure_one(bench::bench_run& run, const asked& of) {
  constexpr std::int32_t n_rows = 15, prefix = 1000;
  const bench::token_lists host(n_rows, static_cast<std::size_t>(of.budget), run.size<std::size_t>(20000, 2000), 11);
  const device::device_array<token_id> tokens{std::span<const token_id>(host.tokens)};
  const device::device_array<float> log_probs{std::span<const float>(host.log_probs)};
  const device::prefix_lists lists{
      .tokens = tokens.data(), .log_probs = log_probs.data(), .n_rows = n_rows, .n_ranks = of.budget};
  const bench::device_text text(prefix, prefix + 2048);

  const device::best_first policy({.budget = of.budget});
  const device::tree grown(of.budget);
  struct ordered {
    const char* name;
    device::tree_compiler compiler;
  };
  std::array<ordered, 4> orders{ordered{"insertion", {of.budget, node_order::insertion}},
                                ordered{"breadth_first", {of.budget, node_order::breadth_first}},
                                ordered{"depth_first", {of.budget, node_order::depth_first}},
                                ordered{"heavy_path", {of.budget, node_order::heavy_path}}};

  auto race = run.race();
  // In a round the lists have just been written at this point, so the caches hold them.
  race.add({.key = "best_first",
            .work = [&](cudaStream_t s) { policy.take_best(device::text_batch::of(grown.writer(), {}), lists, s); },
            .prepare = [&](cudaStream_t s) { bench::reset_tree(grown.writer(), of.budget, s); },
            .cold = false});
  // A tree that is not grown again.
  const device::tree compiled(of.budget);
  bench::reset_tree(compiled.writer(), of.budget, race.in());
  const auto texts = device::text_batch::of(compiled.writer(), text.view(), prefix + of.budget + 1);
  policy.take_best(texts, lists, race.in());
  for (const ordered& o : orders) {
    race.add({.key = o.name,
              .work = [&](cudaStream_t s) { (void)o.compiler.compile(texts, of.budget + 1, s); },
              .cold = false});
  }
  const engine_arrays to(of.budget + 1, prefix + of.budget + 1);
  const auto formats = to.conversions(orders[1].compiler.compile(texts, of.budget + 1, race.in()));
  for (const auto& [name, bytes, work] : formats)
    race.add({.key = name, .work = work, .cold = false});
  race.run();
  const std::string n = std::to_string(of.budget);
  run.found.add({.key = "tree." + n,
                 .what = "best_first from lists, B = " + n,
                 .measured = race.of("best_first"),
                 .limit = of.tree,
                 .target = "asked for"});
  for (const ordered& o : orders) {
    run.found.add({.key = "compile." + n + "." + o.name,
                   .what = "compile, B = " + n + ", " + o.name,
                   .measured = race.of(o.name),
                   .limit = of.compile,
                   .target = "asked for"});
  }
  for (const auto& [name, bytes, work] : formats) {
    run.found.add({.key = "interop." + n + "." + name,
                   .what = std::string(name) + " of a tree, B = " + n + ", prefix " + std::to_string(prefix - 1),
                   .measured = race.of(name),
                   .reading = run.most.reading(bytes)});
  }
}

void measure(bench::bench_run& run) {
  const std::vector<asked> all{{64, 25, 5}, {512, 80, 10}, {1024, 60, 20}};
  for (const asked& of : all)
    measure_one(run, run.options.tiny ? asked{of.budget / 8, of.tree, of.compile} : of);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_program(argc, argv, "measure_tree", "best_first from lists, and the compilation of trees", measure);
}
