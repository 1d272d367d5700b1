# What a small machine must not pay for: names as nm prints them, as regular expressions.
set(unwanted_symbols
  # heap
  "_?(m|c|re|aligned_|v|pv)alloc(_r)?" "(posix_)?memalign(_r)?" "_?c?free(_r)?" "_?sbrk(_r)?" "_Zn[wa].*" "_Zd[la].*"
  # exceptions, RTTI, guards, and what is to be done when a program ends
  "__cxa_.*" "_Unwind.*" "__gxx_personality.*" "__aeabi_(unwind_cpp.*|atexit)" "at(_quick_)?exit" "_ZSt9terminatev"
  "_ZSt[0-9]+__throw.*" "_ZT[IS].*" "__dynamic_cast"
  # clock and threads
  "_?(clock|times?|gettimeofday|clock_gettime|ftime|nanosleep)(_r)?" ".*NSt6chrono.*" ".*pthread.*" "__gthread.*"
  ".*St6thread.*"
  # locale, numbers from text, text from numbers, streams
  ".*locale.*" "_*(strto|ato|wcsto)[a-z]+(_r|_l)?" ".*(printf|scanf).*" "f?(puts|putc|putchar|open|close|write|read)(_r)?"
  "_ZNS[io].*" "_ZNKS[io].*" "_ZSt[0-9]+(cin|cout|cerr|clog)" ".*(ios_base|basic_[io]*stream|streambuf).*")

# The first unwanted name in the output of nm; empty where there is none.
function(find_unwanted variable names)
  set(${variable} "" PARENT_SCOPE)
  foreach(name IN LISTS unwanted_symbols)
    string(REPLACE ".*" "[^ \n]*" name "${name}")
    if(names MATCHES " (${name})(\n|$)")
      set(${variable} "${CMAKE_MATCH_1}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
endfunction()
