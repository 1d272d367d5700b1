// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <type_traits>

#include "espalier/c/espalier.h"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/sampling_options.hpp"

//! The pieces of which functions of C over the library are made: errors as statuses, arguments as objects.
namespace parts {

//! The sentence of the last error of this thread.
inline std::string& sentence() {
  thread_local std::string text;
  return text;
}

inline espalier_status refuse(espalier_status status, const char* text) noexcept {
  try {
    sentence() = text;
  } catch (...) {  // no memory for the sentence: the status tells
  }
  return status;
}

//! Calls f, and returns the status of what it throws.
template <class FunctionT>
espalier_status guarded(const FunctionT& f) noexcept {
  try {
    f();
    return ESPALIER_OK;
  } catch (const espalier::option_error& e) {
    return refuse(ESPALIER_OPTION_ERROR, e.what());
  } catch (const espalier::input_error& e) {
    return refuse(ESPALIER_INPUT_ERROR, e.what());
  } catch (const espalier::numeric_error& e) {
    return refuse(ESPALIER_NUMERIC_ERROR, e.what());
  } catch (const std::bad_alloc&) {
    return refuse(ESPALIER_MEMORY_ERROR, "there is no memory left.");
  } catch (const std::exception& e) {
    return refuse(ESPALIER_OTHER_ERROR, e.what());
  } catch (...) {
    return refuse(ESPALIER_OTHER_ERROR, "something was thrown that is no std::exception.");
  }
}

//! The object behind a pointer.
//!
//! Errors      input_error for a null pointer
template <class T>
T& at(T* pointer, const char* name) {
  if (pointer == nullptr) espalier::raise<espalier::input_error>("the argument ", name, " is a null pointer.");
  return *pointer;
}

//! Checks the member `size` of a struct that the caller gives: it is at least what the first ABI had.
inline void require_size(std::size_t size, std::size_t least, const char* name) {
  if (size < least)
    espalier::raise<espalier::input_error>("the member size of ", name, " is ", size, ", but must be sizeof(", name,
                                           "), ", least, ".");
}

template <class T>
std::span<const T> array(const T* data, std::int32_t n, const char* name) {
  if (n < 0) espalier::raise<espalier::input_error>("the array ", name, " is said to have ", n, " elements.");
  if (n > 0) (void)at(data, name);
  return {data, static_cast<std::size_t>(n)};
}

//! The numbers of espalier_rows, or of espalier_double_rows.
template <class RowsT>
auto data_of(const RowsT& rows, const char* name) {
  if (rows.n_rows < 0 || rows.vocab < 1)
    espalier::raise<espalier::input_error>(name, " is said to be ", rows.n_rows, " rows of ", rows.vocab, " tokens.");
  if (rows.n_rows > 0) (void)at(rows.data, name);
  return espalier::vocab_rows<std::remove_cvref_t<decltype(*rows.data)>>{rows.data, rows.n_rows, rows.vocab};
}

inline espalier::sampling_options sampling_of(const espalier_sampling& s) {
  return {.temperature = s.temperature, .top_k = s.top_k, .top_p = s.top_p == 0 ? 1.0F : s.top_p, .min_p = s.min_p};
}

}  // namespace parts
