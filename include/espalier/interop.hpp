// SPDX-License-Identifier: BSL-1.0
// Tested by tests/headers/linked_one.cpp
#pragma once

//! Includes every conversion to and from other engines' layouts of a tree, on the host (target espalier::interop).

#include "espalier/interop/dense_mask.hpp"
#include "espalier/interop/flashinfer_mask.hpp"
#include "espalier/interop/medusa_tree.hpp"
#include "espalier/interop/row_parents.hpp"
#include "espalier/interop/sequence_mask.hpp"
#include "espalier/interop/sglang_mask.hpp"
#include "espalier/interop/sglang_tree.hpp"
#include "espalier/interop/tensorrt_tree.hpp"
