// expect: a cascade merges deterministic trees only
// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/cascade.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/sampled_chain.cuh"

#ifdef ESPALIER_VALID
using second = espalier::cuda::chain;
#else
using second = espalier::cuda::sampled_chain;
#endif

static_assert(sizeof(espalier::cuda::cascade<espalier::cuda::chain, second>) > 0);
