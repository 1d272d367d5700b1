# The wheel in an environment of Python that has nothing else but what pip fetches for it, and the README's program with it.
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")
set(WORK "${WORK}/pip")
file(REMOVE_RECURSE "${WORK}")
# Without the verifiers on a device, for which nvcc takes minutes where it is.
step("${CMAKE_COMMAND}" -E env "BUILD=${WORK}" NO_INSTALL=1 CMAKE_ARGS=-DESPALIER_CUDA=OFF "${PROJECT}/run" wheel)
file(GLOB wheel "${WORK}/wheels/espalier-*.whl")

step("${PYTHON}" -m venv "${WORK}/environment")
step("${WORK}/environment/bin/pip" install "${wheel}")
file(COPY "${PROJECT}/examples/python/sing.py" DESTINATION "${WORK}")  # away from the sources of the package
sing(1 "${CMAKE_COMMAND}" -E env --unset=PYTHONPATH --unset=ESPALIER_LIBRARY
  "${WORK}/environment/bin/python" -B "${WORK}/sing.py")
