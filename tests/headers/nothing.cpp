// SPDX-License-Identifier: BSL-1.0
// Nothing: what is precompiled with it counts.
