// SPDX-License-Identifier: BSL-1.0
#pragma once

//! All of espalier::cuda: the round on the device. The bundled transformer is espalier/cuda/backend/llama.cuh.

#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/pinned_array.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/core/tree_compile.cuh"
#include "espalier/cuda/core/tree_order.cuh"
#include "espalier/cuda/core/tree_source.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/prefix_heap.cuh"
#include "espalier/cuda/tree_policy/prefix_levels.cuh"
#include "espalier/cuda/tree_policy/prefix_nodes.cuh"
