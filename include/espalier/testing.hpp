// SPDX-License-Identifier: BSL-1.0
#pragma once

//! Checks that parts keep the laws of their concepts, for the tests of those who write parts. Each check raises a
//! testing::law_error that says what is wrong, or returns what it has covered.
//!
//!     #include <espalier/testing.hpp>
//!     std::cout << espalier::testing::check_lossless(my_policy({.budget = 4}), my_verifier());

#include "espalier/testing/backend_laws.hpp"
#include "espalier/testing/batch_laws.hpp"
#include "espalier/testing/chance_laws.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/decoder_laws.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/feature_step_drafter_laws.hpp"
#include "espalier/testing/kv_store_laws.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/testing/random_tree.hpp"
#include "espalier/testing/recurrent_store_laws.hpp"
#include "espalier/testing/rounds.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/script_chance.hpp"
#include "espalier/testing/sequence_drafter_laws.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "espalier/testing/tested_parts.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"
#include "espalier/testing/traced_chance.hpp"
#include "espalier/testing/tree_policy_laws.hpp"
#include "espalier/testing/verifier_laws.hpp"
#include "espalier/testing/windowed_kv_store_laws.hpp"
