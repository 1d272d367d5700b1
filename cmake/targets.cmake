# espalier::espalier  the library: the standard library and Boost.Hana, nothing else
# espalier::views     range-v3 views over trees
# espalier::llama     the bundled host transformer: nlohmann-json, threads
#
# The last two are defined without looking for what they need, so that whoever does not use them needs nothing.

function(espalier_target name headers)
  cmake_parse_arguments(PARSE_ARGV 2 arg "" "EXPORT_NAME" "LINK")
  add_library(${name} INTERFACE)
  add_library(espalier::${arg_EXPORT_NAME} ALIAS ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${arg_EXPORT_NAME})
  target_compile_features(${name} INTERFACE cxx_std_20)
  target_sources(${name} INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/include"
    FILES ${headers})
  target_link_libraries(${name} INTERFACE ${arg_LINK})
endfunction()

espalier_target(espalier "${espalier_headers}" EXPORT_NAME espalier LINK Boost::headers)
espalier_target(espalier_views "${espalier_views_headers}" EXPORT_NAME views
  LINK espalier::espalier range-v3::range-v3)
espalier_target(espalier_llama "${espalier_llama_headers}" EXPORT_NAME llama
  LINK espalier::espalier nlohmann_json::nlohmann_json Threads::Threads)
