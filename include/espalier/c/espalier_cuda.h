/* SPDX-License-Identifier: BSL-1.0 */
#ifndef ESPALIER_C_ESPALIER_CUDA_H
#define ESPALIER_C_ESPALIER_CUDA_H

#include "espalier/c/espalier.h"

/* Verification of trees whose rows lie in the memory of a CUDA device, by the kernels of the library. It is a shared
 * library of its own, the CMake target espalier::c_cuda, for which nvcc is needed, and it needs no other library, not
 * even CUDA's runtime. Errors, memory and threads are as in espalier.h; espalier_cuda_error() has the sentences.
 *
 * ABI         espalier_cuda_abi() of the library must be ESPALIER_CUDA_ABI; the rule is that of espalier.h. The file of
 *             the library has this number in its name. */

#define ESPALIER_CUDA_ABI 1

#ifdef __cplusplus
extern "C" {
#endif

ESPALIER_C_API int32_t espalier_cuda_abi(void);

/* The sentence of the last error of this thread; "" before the first. Valid until the next error of the thread. */
ESPALIER_C_API const char* espalier_cuda_error(void);

/* A verifier of the library with the memory that it needs on a device. */
typedef struct espalier_cuda_verifier espalier_cuda_verifier;

/* Makes a verifier by its name and options, as espalier_verifier_create() does. It takes no memory of a device before
 * its first call. */
ESPALIER_C_API espalier_status espalier_cuda_verifier_create(const char* name, const char* options,
                                                             espalier_cuda_verifier** verifier);
ESPALIER_C_API void espalier_cuda_verifier_destroy(espalier_cuda_verifier* verifier);

/* A text whose tree is verified. */
typedef struct espalier_cuda_text {
  const espalier_tree_arrays* tree; /* in the memory of the host, as espalier_tree_read() gives it */
  espalier_sampling sampling;
  espalier_seed seed; /* the seed that the tree's draws were made with */
} espalier_cuda_text;

/* Verifies the trees of several texts over one vocabulary. The verdicts are those of espalier_verify() over the same
 * numbers.
 *
 * The call waits until what was enqueued in the stream before it and its own kernels are done. The memory that it needs
 * on the device is kept for the next call, and grows with the number of texts, the size of their trees and the
 * vocabulary. The device is the one that `target` lies on.
 *
 * Shapes      texts, verdicts [n_texts]. draft: the rows that the children of each node were drawn from, on the same
 *             device; NULL for verifiers that read the target alone. target: the target's logits. data of both: on the
 *             device; row_of of both: in the memory of the host, [nodes of all trees], one tree after the other. NULL:
 *             the rows stand in that order. stream: a cudaStream_t, NULL for the default stream
 * Errors      ESPALIER_INPUT_ERROR for what does not fit, for rows that are not in the memory of a device or are on
 *             different ones, and for arrays that are no tree; ESPALIER_NUMERIC_ERROR if a row of the target that is
 *             read holds NaN or plus infinity, or minus infinity alone. The draft's rows are not checked: if they are
 *             no distributions, the verdict is of no use, or ESPALIER_NUMERIC_ERROR says that there is none.
 *             ESPALIER_OTHER_ERROR if a call of CUDA fails, such as where there is no device or no memory */
ESPALIER_C_API espalier_status espalier_cuda_verify(espalier_cuda_verifier* verifier, const espalier_cuda_text* texts,
                                                    int32_t n_texts, const espalier_rows* draft,
                                                    const espalier_rows* target, void* stream,
                                                    espalier_verdict* verdicts);

#ifdef __cplusplus
}
#endif

#endif
