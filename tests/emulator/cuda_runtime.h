// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "emulator/annotations.hpp"
#include "emulator/api.hpp"
#include "emulator/device.hpp"
#include "emulator/launch.hpp"
#include "emulator/vectors.hpp"
