# step(<command>...): runs it, or stops with what it said.
function(step)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " words)
    message(FATAL_ERROR "${words}\n${output}")
  endif()
endfunction()
