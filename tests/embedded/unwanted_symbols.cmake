# cmake -DROOT=<repository> -P unwanted_symbols.cmake: what firmware is searched for is found, and nothing else is.
cmake_minimum_required(VERSION 3.24)
include("${ROOT}/examples/embedded/unwanted.cmake")
foreach(name malloc _malloc_r free cfree realloc aligned_alloc _sbrk _Znwj _ZnamSt11align_val_t _ZdlPv _ZdaPvm
    __cxa_throw __cxa_guard_acquire __cxa_atexit __aeabi_atexit atexit _Unwind_Resume __gxx_personality_v0 _ZSt9terminatev
    _ZSt20__throw_length_errorPKc _ZTISt9exception _ZTSSt9exception __dynamic_cast clock time gettimeofday
    clock_gettime _ZNSt6chrono3_V212steady_clock3nowEv pthread_create _ZNSt6thread4joinEv setlocale __global_locale
    _ZNSt6localeC1Ev strtod _strtod_l strtoul atoi snprintf _vfprintf_r sscanf puts fopen _ZSt4cout
    _ZNSo5flushEv _ZNSt8ios_base4InitC1Ev _ZNSt15basic_streambufIcSt11char_traitsIcEE6xsputnEPKcl)
  find_unwanted(found "00000000 T start\n00000010 T ${name}\n00000020 B decode\n")
  if(NOT found STREQUAL name)
    message(SEND_ERROR "${name} is not found")
  endif()
endforeach()
foreach(name start memcpy setjmp expf instructions timer _ZN8espalier5arena7currentEv _ZGVZN8espalier5arena7currentEvE3now
    _ZN8espalier9stopwatch5clockEv freedom)
  find_unwanted(found "00000010 T ${name}\n")
  if(found)
    message(SEND_ERROR "${name} is not wanted")
  endif()
endforeach()
