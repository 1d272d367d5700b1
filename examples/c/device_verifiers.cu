// SPDX-License-Identifier: BSL-1.0
// The registry's verifiers behind parts_on_device::verifier.
#include "device_verifiers.cuh"

#include <boost/hana/for_each.hpp>
#include <utility>

#include "espalier/concepts/verifier.hpp"
#include "espalier/cuda/verifier/verify.cuh"
#include "espalier/registry.hpp"
#include "options_from_text.hpp"

namespace parts_on_device {

namespace {

template <class VerifierT>
class verification_of final : public verification {
 public:
  verification_of(VerifierT verifier, std::int32_t max_nodes, std::int32_t vocab, std::int32_t max_texts)
      : held_(std::move(verifier), max_nodes, vocab, max_texts) {}

  void sample(std::int32_t place, espalier::sampling_options sampling, cudaStream_t stream) override {
    held_.sample(place, sampling, stream);
  }
  void run(const espalier::cuda::text_batch& texts, const espalier::cuda::text_rows& draft,
           const espalier::vocab_rows<float>& logits, const std::int32_t* row_of_node, std::int32_t n_rows,
           espalier::cuda::fault* found, cudaStream_t stream, const espalier::batch_sequence* lanes) override {
    held_.run(texts, draft, logits, row_of_node, n_rows, found, stream, lanes);
  }
  const espalier::verdict* decisions() const override { return held_.decisions(); }

 private:
  espalier::cuda::verification<VerifierT, float> held_;
};

template <class VerifierT>
class verifier_of final : public verifier {
 public:
  explicit verifier_of(VerifierT verifier) : verifier_(std::move(verifier)) {}

  bool argmax_only() const override { return espalier::ArgmaxVerifier<VerifierT>; }
  bool target_alone() const override { return espalier::detail::reads_target_alone<VerifierT>(); }
  std::unique_ptr<verification> prepare(std::int32_t max_nodes, std::int32_t vocab,
                                        std::int32_t max_texts) const override {
    return std::make_unique<verification_of<VerifierT>>(verifier_, max_nodes, vocab, max_texts);
  }

 private:
  VerifierT verifier_;
};

}  // namespace

std::unique_ptr<verifier> make_verifier(std::string_view name, std::string_view options) {
  std::unique_ptr<verifier> made;
  parts::with_part_of(espalier::verifiers, "verifier", name, [&]<class PartT>(const PartT& part) {
    PartT own = part;
    parts::read_options(options, own.options);
    made = std::make_unique<verifier_of<typename PartT::type>>(own.make());
  });
  return made;
}

}  // namespace parts_on_device
