// expect: Drafters of the host cannot be: a round does not wait for the host
// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/drafter/ngram.hpp"

#ifdef ESPALIER_VALID
using second = espalier::cuda::prompt_lookup;
#else
using second = espalier::ngram;
#endif

static_assert(sizeof(espalier::cuda::joint<espalier::cuda::prompt_lookup, second>) > 0);
