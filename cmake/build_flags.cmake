# Flags of this repository's own programs. They are private to them: nothing here reaches a user.
include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)

add_library(espalier_build_flags INTERFACE)
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  target_compile_options(espalier_build_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wconversion -Wshadow>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 22)
    # __COUNTER__, by which Catch2 names test cases.
    target_compile_options(espalier_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-c2y-extensions>)
  endif()
elseif(MSVC)
  target_compile_options(espalier_build_flags INTERFACE /W4 /permissive- /utf-8)
endif()

# For translation units whose only product is the verdict of the compiler.
if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(espalier_no_optimisation -O0)
endif()

# True, with GCC and Clang, in a build folder that has tests and no benchmarks, as ./run test makes it: programs run for
# moments there, so little is optimised. With -O1 a model's pass takes twice as long.
set(espalier_for_tests_alone FALSE)
if(ESPALIER_BUILD_TESTS AND NOT ESPALIER_BUILD_BENCH AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
  set(espalier_for_tests_alone TRUE)
endif()

if(ESPALIER_NATIVE)
  check_cxx_compiler_flag(-march=native espalier_has_march_native)
  if(espalier_has_march_native)
    target_compile_options(espalier_build_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=native>)
  endif()
endif()

# Linking is a part of building that gold halves.
check_linker_flag(CXX -fuse-ld=gold espalier_has_gold)
if(espalier_has_gold)
  target_link_options(espalier_build_flags INTERFACE $<$<LINK_LANGUAGE:CXX>:-fuse-ld=gold>)
endif()
