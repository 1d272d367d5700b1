// SPDX-License-Identifier: BSL-1.0
// The functions of include/espalier/c/espalier_cuda.h.
#define ESPALIER_C_LIBRARY
#include "espalier/c/espalier_cuda.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "boundary.hpp"
#include "device_verifiers.cuh"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/sampling/sampler.hpp"
#include "given_rows.hpp"

using namespace espalier;
using parts::array, parts::at, parts::data_of, parts::guarded, parts::require_size;

namespace {

constexpr std::int32_t most_draws = 1 << 20;  // of a tree
constexpr std::int32_t most_nodes = 1 << 26;  // of all trees of a call

// The texts, rows and sizes of one call of espalier_cuda_verify, after they are checked.
//
// Shapes      texts [n_texts]; target_row_of, draft_row_of [nodes of all trees]
struct checked_call {
  std::span<const espalier_cuda_text> texts;
  vocab_rows<float> target, draft;
  std::vector<std::int32_t> target_row_of, draft_row_of;
  std::int32_t n_draws = 0;  // of the largest tree
  bool reads_draft = false;
  int device = 0;
};

// Where the data of a call lie in one piece of memory that is copied at once, in 32-bit words from its beginning.
struct call_layout {
  call_layout(std::size_t n_texts, std::int32_t n_draws)
      : tree_words(cuda::tree::n_words(n_draws)), n_nodes(static_cast<std::size_t>(n_draws) + 1) {
    lanes = n_texts * (sizeof(cuda::text_state) / sizeof(std::int32_t));
    target_row_of = lanes + n_texts * (sizeof(batch_sequence) / sizeof(std::int32_t));
    draft_row_of = target_row_of + n_texts * n_nodes;
    trees = draft_row_of + n_texts * n_nodes;
    size = trees + n_texts * tree_words;
  }

  std::size_t tree_words, n_nodes;  // of each text
  std::size_t lanes, target_row_of, draft_row_of, trees, size;
};

// The memory of a verifier for calls on one device, of at most so many texts with trees of so many draws.
class device_work {
 public:
  device_work(const parts_on_device::verifier& verifier, int device, std::int32_t n_texts, std::int32_t n_draws,
              std::int32_t vocab)
      : device_(device),
        n_texts_(n_texts),
        n_draws_(n_draws),
        vocab_(vocab),
        verification_(verifier.prepare(n_draws + 1, vocab, n_texts)),
        samplings_(static_cast<std::size_t>(n_texts)),
        words_(call_layout(samplings_.size(), n_draws).size),
        staged_(words_.size()),
        found_(samplings_.size()),
        found_here_(samplings_.size()),
        decided_(samplings_.size()) {}

  std::int32_t n_texts() const { return n_texts_; }
  std::int32_t n_draws() const { return n_draws_; }
  bool is_of(const checked_call& call) const { return device_ == call.device && vocab_ == call.target.vocab; }
  bool has_room(const checked_call& call) const {
    return is_of(call) && static_cast<std::int32_t>(call.texts.size()) <= n_texts_ && call.n_draws <= n_draws_;
  }

  // Returns the verdicts of a call for which there is room; waits for them.
  std::span<const verdict> run(const checked_call& call, cudaStream_t stream) {
    const std::size_t n = call.texts.size();
    const call_layout at(n, call.n_draws);
    stage(call, at);
    words_.upload(staged_.span().first(at.size), stream);
    found_.fill_bytes(0, stream);
    for (std::size_t i = 0; i < n; ++i) {
      const sampling_options wanted = parts::sampling_of(call.texts[i].sampling);
      if (samplings_[i] == wanted) continue;
      samplings_[i].reset();
      verification_->sample(static_cast<std::int32_t>(i), wanted, stream);
      samplings_[i] = wanted;
    }
    std::int32_t* const words = words_.data();
    auto texts = cuda::text_batch::of(cuda::tree::at(words + at.trees, call.n_draws),
                                      {nullptr, reinterpret_cast<cuda::text_state*>(words), 0});
    texts.n = static_cast<std::int32_t>(n);
    texts.tree_words = static_cast<std::ptrdiff_t>(at.tree_words);
    const auto n_nodes = static_cast<std::int32_t>(at.n_nodes);
    verification_->run(texts, {call.draft, words + at.draft_row_of, n_nodes}, call.target, words + at.target_row_of,
                       n_nodes, found_.data(), stream, reinterpret_cast<batch_sequence*>(words + at.lanes));
    found_.download(found_here_.span().first(n), stream);
    cuda::require(cudaMemcpyAsync(decided_.data(), verification_->decisions(), n * sizeof(verdict),
                                  cudaMemcpyDeviceToHost, stream),
                  "cudaMemcpyAsync to the host");
    cuda::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    return decided_.span().first(n);
  }

  // The faults that the last call has met, which was of n texts.
  std::span<const cuda::fault> found(std::size_t n) const { return found_here_.span().first(n); }

 private:
  // Writes the data of a call as they are to lie on the device. Errors: input_error for arrays that are no tree
  void stage(const checked_call& call, const call_layout& at) {
    const std::span<std::int32_t> words = staged_.span().first(at.size);
    std::fill(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(at.target_row_of), 0);
    std::fill(words.begin() + static_cast<std::ptrdiff_t>(at.target_row_of),
              words.begin() + static_cast<std::ptrdiff_t>(at.trees), -1);
    std::size_t first = 0;  // among the nodes of all trees
    for (std::size_t i = 0; i < call.texts.size(); ++i) {
      const espalier_cuda_text& text = call.texts[i];
      const cuda::text_state state{static_cast<std::int32_t>(text.seed.length), 0, text.seed.stream, text.seed.seed};
      std::memcpy(&words[i * (sizeof state / sizeof words[0])], &state, sizeof state);
      const auto n_nodes = static_cast<std::size_t>(text.tree->n_nodes);
      std::copy_n(&call.target_row_of[first], n_nodes, &words[at.target_row_of + i * at.n_nodes]);
      std::copy_n(&call.draft_row_of[first], n_nodes, &words[at.draft_row_of + i * at.n_nodes]);
      const tree_writer tree = cuda::tree::at(&words[at.trees + i * at.tree_words], call.n_draws);
      redraw(*text.tree, i, tree);
      if (call.reads_draft)
        parts::require_draft_rows(tree.view(), std::span(call.draft_row_of).subspan(first, n_nodes));
      first += n_nodes;
    }
  }

  // Makes a tree again, draw by draw: what is not equal is no tree.
  static void redraw(const espalier_tree_arrays& from, std::size_t text, const tree_writer& to) {
    to.reset(from.token[root_node], from.n_draws);
    for (std::int32_t i = 0; i < from.n_draws; ++i) {
      const node_id child = from.drawn_node[i];
      const node_id above = child > 0 && child < from.n_nodes ? from.parent[child] : no_node;
      if (above < 0 || above >= to.size->n_nodes || to.draw(above, from.token[child], from.log_prob[child]) != child)
        raise<input_error>("draw ", i, " of the tree of text ", text, " chose node ", child,
                           ", which is not the node that this draw makes: these arrays are no tree.");
    }
    if (to.size->n_nodes != from.n_nodes)
      raise<input_error>("the tree of text ", text, " is said to have ", from.n_nodes, " nodes, but its draws make ",
                         to.size->n_nodes, ".");
  }

  int device_;
  std::int32_t n_texts_, n_draws_, vocab_;
  std::unique_ptr<parts_on_device::verification> verification_;
  std::vector<std::optional<sampling_options>> samplings_;  // as the device knows them
  cuda::device_array<std::int32_t> words_;
  cuda::pinned_array<std::int32_t> staged_;
  cuda::device_array<cuda::fault> found_;
  cuda::pinned_array<cuda::fault> found_here_;
  cuda::pinned_array<verdict> decided_;
};

// Makes a device the present one while it lives.
class present_device {
 public:
  explicit present_device(int device) {
    cuda::require(cudaGetDevice(&before_), "cudaGetDevice");
    cuda::require(cudaSetDevice(device), "cudaSetDevice");
  }
  present_device(const present_device&) = delete;
  present_device& operator=(const present_device&) = delete;
  ~present_device() { (void)cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

// Returns the device in whose memory rows lie. Errors: input_error if it is the host's memory
int device_of(const vocab_rows<float>& rows, const char* name) {
  cudaPointerAttributes found{};
  cuda::require(cudaPointerGetAttributes(&found, rows.data), "cudaPointerGetAttributes");
  if (found.type != cudaMemoryTypeDevice && found.type != cudaMemoryTypeManaged)
    raise<input_error>("the rows of ", name, " are not in the memory of a device.");
  return found.device;
}

// Checks what a call is given; its trees are checked where they are made again.
checked_call checked(const parts_on_device::verifier& verifier, const espalier_cuda_text* given, std::int32_t n_texts,
                     const espalier_rows* draft, const espalier_rows* target) {
  checked_call call;
  call.texts = array(given, n_texts, "texts");
  call.target = data_of(at(target, "target"), "target");
  std::int64_t n_nodes = 0;
  for (const espalier_cuda_text& text : call.texts) {
    const espalier_tree_arrays& tree = at(text.tree, "tree");
    require_size(tree.size, sizeof tree, "espalier_tree_arrays");
    if (tree.n_nodes < 1 || tree.n_draws < tree.n_nodes - 1 || tree.n_draws > most_draws)
      raise<input_error>("a tree is said to have ", tree.n_nodes, " nodes and ", tree.n_draws,
                         " draws; it has its root, a draw for each other node, and at most ", most_draws, " draws.");
    (void)array(tree.token, tree.n_nodes, "token"), (void)array(tree.parent, tree.n_nodes, "parent");
    (void)array(tree.log_prob, tree.n_nodes, "log_prob"), (void)array(tree.drawn_node, tree.n_draws, "drawn_node");
    tree_view tokens;
    tokens.n_nodes = tree.n_nodes, tokens.token = tree.token;
    parts::require_vocabulary(tokens, call.target.vocab);
    if (verifier.argmax_only() && text.sampling.temperature > 0)
      raise<option_error>("this verifier follows the target's most probable token: the temperature must be 0.");
    (void)sampler<float>(parts::sampling_of(text.sampling));  // checks the options
    call.n_draws = (std::max)(call.n_draws, tree.n_draws);
    n_nodes += tree.n_nodes;
  }
  if (n_nodes > most_nodes)
    raise<input_error>("the trees have ", n_nodes, " nodes, but all of them may have ", most_nodes, " at most.");
  const auto all = static_cast<std::int32_t>(n_nodes);
  call.target_row_of =
      parts::rows_of_nodes("target", array(target->row_of, target->n_nodes, "row_of"), all, call.target.n_rows, false);
  call.draft_row_of.assign(call.target_row_of.size(), -1);
  if (n_texts == 0) return call;
  call.device = device_of(call.target, "target");
  call.reads_draft = !verifier.target_alone() && call.n_draws > 0;
  if (!call.reads_draft) return call;
  call.draft = data_of(at(draft, "draft"), "draft");
  parts::require_one_vocabulary(call.draft.vocab, call.target.vocab);
  call.draft_row_of =
      parts::rows_of_nodes("draft", array(draft->row_of, draft->n_nodes, "row_of"), all, call.draft.n_rows, true);
  if (const int other = device_of(call.draft, "draft"); other != call.device)
    raise<input_error>("the rows of draft are on device ", other, ", but those of target on device ", call.device, ".");
  return call;
}

}  // namespace

struct espalier_cuda_verifier {
  std::unique_ptr<parts_on_device::verifier> part;
  std::optional<device_work> work{};
};

extern "C" {

int32_t espalier_cuda_abi(void) {
  return ESPALIER_CUDA_ABI;
}

const char* espalier_cuda_error(void) {
  return parts::sentence().c_str();
}

espalier_status espalier_cuda_verifier_create(const char* name, const char* options,
                                              espalier_cuda_verifier** verifier) {
  return guarded([&] {
    (void)at(verifier, "verifier");
    auto made = std::make_unique<espalier_cuda_verifier>(
        espalier_cuda_verifier{parts_on_device::make_verifier(&at(name, "name"), options == nullptr ? "" : options)});
    *verifier = made.release();
  });
}
void espalier_cuda_verifier_destroy(espalier_cuda_verifier* verifier) {
  delete verifier;
}

espalier_status espalier_cuda_verify(espalier_cuda_verifier* verifier, const espalier_cuda_text* texts, int32_t n_texts,
                                     const espalier_rows* draft, const espalier_rows* target, void* stream,
                                     espalier_verdict* verdicts) {
  return guarded([&] {
    espalier_cuda_verifier& v = at(verifier, "verifier");
    const checked_call call = checked(*v.part, texts, n_texts, draft, target);
    if (call.texts.empty()) return;
    (void)at(verdicts, "verdicts");
    const present_device here(call.device);
    if (!v.work || !v.work->has_room(call)) {
      const bool grows = v.work && v.work->is_of(call);
      const std::int32_t most_texts = (std::max)(n_texts, grows ? v.work->n_texts() : 0);
      const std::int32_t most_draws = (std::max)(call.n_draws, grows ? v.work->n_draws() : 0);
      v.work.reset();
      v.work.emplace(*v.part, call.device, most_texts, most_draws, call.target.vocab);
    }
    std::span<const verdict> made;
    try {
      made = v.work->run(call, static_cast<cudaStream_t>(stream));
    } catch (const cuda_error&) {
      v.work.reset();  // some of what was enqueued may still use its memory, which CUDA frees when it is done
      throw;
    }
    for (const cuda::fault& fault : v.work->found(made.size()))
      cuda::raise_fault(fault);
    for (std::size_t i = 0; i < made.size(); ++i) {
      if (made[i].accepted < 0 || made[i].token < 0)
        raise<numeric_error>("no token can be drawn for text ", i, ": rows of the draft are no distributions.");
    }
    std::transform(made.begin(), made.end(), verdicts, [](const verdict& one) {
      return espalier_verdict{one.accepted, one.token};
    });
  });
}

}  // extern "C"
