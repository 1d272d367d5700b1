# Builds the Debian package, asks lintian about it, and runs its autopkgtest with the package unpacked in a folder.
cmake_minimum_required(VERSION 3.24)
include("${CMAKE_CURRENT_LIST_DIR}/step.cmake")
set(WORK "${WORK}/debian")
file(REMOVE_RECURSE "${WORK}")
step("${CMAKE_COMMAND}" -E env "BUILD=${WORK}" NO_INSTALL=1 "${PROJECT}/run" deb)
file(GLOB changes "${WORK}/deb/*.changes")
# No bug of Debian asks for the package.
step("${LINTIAN}" --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "${changes}")

file(GLOB package "${WORK}/deb/libespalier-dev_${VERSION}-*.deb")
step(dpkg-deb -x "${package}" "${WORK}/root")
file(MAKE_DIRECTORY "${WORK}/test")
sing(2 "${CMAKE_COMMAND}" -E chdir "${WORK}/deb/espalier-${VERSION}"
  "${CMAKE_COMMAND}" -E env "AUTOPKGTEST_TMP=${WORK}/test" "PKG_CONFIG_PATH=${WORK}/root/usr/share/pkgconfig"
  "CMAKE_PREFIX_PATH=${WORK}/root/usr" debian/tests/sing)
