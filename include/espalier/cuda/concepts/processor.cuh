// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/text_processors.cu
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <span>

#include "espalier/concepts/processor.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/row_changes.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! A processor of the host whose texts can be written on the device, since it can say which changes it makes to a row
//! without seeing the row. It stays on the host, where rounds ask it about the nodes of their trees; its list of
//! changes is copied to the device.
//!
//! Minimal definition, besides espalier::Processor
//!   changes(path, list)            adds to `list`, a row_changes, the changes that process(path, logits) makes to any
//!                                  row
//! Laws
//!   The listed changes turn a row of float, without NaN and plus infinity, into the row that process(path, logits)
//!   makes of it, bit for bit.
//! Models
//!   logit_bias, penalties, minimum_length, banned_sequences, forced_tokens; constrained; processors that consist of
//!   such processors
template <class ProcessorT>
concept ListingProcessor = espalier::Processor<ProcessorT> && espalier::detail::ListsChanges<ProcessorT, row_changes>;

//! A reference to the processors of the texts, through which the logits of a drafter pass in a round; the drafter need
//! not know the processors' type. A reference made without processors converts to false, and must not be called.
template <class NumberT>
class row_processor {
 public:
  row_processor() = default;
  //! Refers to `with`, which must outlive this object. Its process(texts, nodes, logits, stream) enqueues the work that
  //! changes the rows in place.
  template <class WithT>
  explicit row_processor(WithT& with)
      : with_(&with),
        call_([](void* one, const text_batch& texts, node_list nodes, vocab_rows<NumberT> logits, cudaStream_t stream) {
          static_cast<WithT*>(one)->process(texts, nodes, logits, stream);
        }) {}

  explicit operator bool() const { return with_ != nullptr; }

  //! Enqueues the changes that the processors make to the logits after these nodes.
  //!
  //! Shapes      logits [lanes][nodes.n][vocab], in the order of each lane's nodes
  void operator()(const text_batch& texts, node_list nodes, vocab_rows<NumberT> logits, cudaStream_t stream) const {
    call_(with_, texts, nodes, logits, stream);
  }

 private:
  void* with_ = nullptr;
  void (*call_)(void*, const text_batch&, node_list, vocab_rows<NumberT>, cudaStream_t) = nullptr;
};

//! espalier::ProcessingDrafter on the device: process_rows(process) gives the drafter the processors that its logits
//! must pass through. It is called before the launches of a round are enqueued or captured, not before a captured round
//! is replayed.
//!
//! Models
//!   autoregressive
template <class DrafterT>
concept ProcessingDrafter = requires(DrafterT& drafter, row_processor<typename DrafterT::number> process) {
  drafter.process_rows(process);
};

}  // namespace espalier::cuda
