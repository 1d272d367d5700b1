// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_config.cpp
#pragma once

namespace espalier {

//! The shape of a mixture of experts, which stands in the place of an MLP: a router gives a number for each expert, and
//! of the experts, each an MLP of its own, a row uses the few with the greatest numbers. The outputs of these are added
//! up, each multiplied by a factor: the softmax of the expert's number among those of all experts. A shared expert, if
//! there is one, is used by all rows; the factor of its outputs is the sigmoid of one more number, which the router
//! gives after those of the experts.
//!
//! Source      Shazeer et al., Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer (2017);
//!             Jiang et al., Mixtral of Experts (2024)
struct mixture_shape {
  int experts = 0;          //!< number of experts of a layer; 0: the model has no mixtures
  int used = 0;             //!< number of experts that a row uses
  int size = 0;             //!< intermediate size of an expert
  int shared_size = 0;      //!< intermediate size of the shared expert; 0: there is none
  bool sums_to_one = true;  //!< the factors of a row are divided by their sum
  bool biased = false;      //!< the router and the experts' products have biases
  //! limit, gain: with a limit of 0, an expert's activation is SiLU(gate) * up. Otherwise it is
  //! gate * sigmoid(gain * gate) * (up + 1), where a gate above limit counts as limit, and up is brought between -limit
  //! and limit.
  float limit = 0.0F;
  float gain = 1.0F;

  //! Number of outputs of the router.
  int routed_size() const { return experts + (shared_size > 0 ? 1 : 0); }
};

}  // namespace espalier
