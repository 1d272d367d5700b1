# Installs what depends on where the programs PROGRAMS were installed to: the page of the manual of each, which says what its --help says,
# and the unit of systemd.
cmake_minimum_required(VERSION 3.24)
set(staged "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
foreach(program IN LISTS PROGRAMS)
  set(page "${staged}/${MAN}/man1/${program}.1")
  execute_process(COMMAND "${staged}/${BIN}/${program}" --help
    COMMAND "${AWK}" -v "name=${program}" -v "version=${VERSION}" -f "${CMAKE_CURRENT_LIST_DIR}/man_page.awk"
    OUTPUT_VARIABLE text RESULTS_VARIABLE results)
  if(NOT results STREQUAL "0;0")
    message(WARNING "${program} has no page of the manual, since ${program} --help failed: ${results}")
    continue()
  endif()
  if(NOT "$ENV{DESTDIR}" STREQUAL "")
    string(REPLACE "$ENV{DESTDIR}" "" text "${text}")
  endif()
  message(STATUS "Installing: ${page}")
  file(WRITE "${page}" "${text}")
endforeach()
if(serve IN_LIST PROGRAMS)
  set(unit "${staged}/lib/systemd/system/espalier-serve.service")
  message(STATUS "Installing: ${unit}")
  configure_file("${CMAKE_CURRENT_LIST_DIR}/../cmake/packages/systemd/espalier-serve.service.in" "${unit}" @ONLY)
endif()
