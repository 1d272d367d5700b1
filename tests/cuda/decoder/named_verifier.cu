// SPDX-License-Identifier: BSL-1.0
#include "cuda/decoder/named_verifier.cuh"

#include <boost/hana/for_each.hpp>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/registry.hpp"

namespace espalier_test {

namespace {

template <class VerifierT>
class one_verification final : public verification_by_name {
 public:
  one_verification(VerifierT verifier, std::int32_t max_nodes, std::int32_t vocab, std::int32_t max_texts)
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

}  // namespace

std::unique_ptr<verification_by_name> make_verification(std::string_view name, std::int32_t max_nodes,
                                                        std::int32_t vocab, std::int32_t max_texts) {
  std::unique_ptr<verification_by_name> found;
  boost::hana::for_each(espalier::verifiers, [&]<class PartT>(const PartT& part) {
    if (part.name == name)
      found = std::make_unique<one_verification<typename PartT::type>>(part.make(), max_nodes, vocab, max_texts);
  });
  if (!found) espalier::raise<espalier::option_error>("there is no verifier ", name, ".");
  return found;
}

}  // namespace espalier_test
