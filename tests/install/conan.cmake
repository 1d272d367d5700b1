cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")
set(ENV{CONAN_HOME} "${WORK}/conan")
file(REMOVE_RECURSE "$ENV{CONAN_HOME}")
step("${CONAN}" profile detect)
sing(1 "${CONAN}" create "${PROJECT}/cmake/packages/conan" -s compiler.cppstd=20 --no-remote
  -c "tools.cmake.cmake_layout:test_folder=${WORK}/conan/test_package" -c "tools.cmake.cmaketoolchain:user_presets=")
