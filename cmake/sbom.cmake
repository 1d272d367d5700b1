# espalier_write_sbom(<file>): writes what the installed programs are made of, as SPDX 2.3 in JSON: the library, the bundled models, and
# each package that the programs link or whose headers they include, with the version that CMake found.

# espalier_sbom_package(<name> <licence> <version>): adds one of these packages.
set(espalier_sbom_packages "")
set(espalier_sbom_relations "")
macro(espalier_sbom_package name licence version)
  set(known "${version}")
  if(known STREQUAL "")
    set(known NOASSERTION)  # built as a part of this project, or without a version of its own
  endif()
  string(APPEND espalier_sbom_packages ",
    {\"SPDXID\": \"SPDXRef-${name}\", \"name\": \"${name}\", \"versionInfo\": \"${known}\", \"downloadLocation\": \"NOASSERTION\",
     \"filesAnalyzed\": false, \"licenseConcluded\": \"NOASSERTION\", \"licenseDeclared\": \"${licence}\",
     \"copyrightText\": \"NOASSERTION\"}")
  string(APPEND espalier_sbom_relations ",
    {\"spdxElementId\": \"SPDXRef-Espalier\", \"relationshipType\": \"DEPENDS_ON\", \"relatedSpdxElement\": \"SPDXRef-${name}\"}")
endmacro()

function(espalier_write_sbom file)
  espalier_sbom_package(Boost.Hana BSL-1.0 "${Boost_VERSION}")
  espalier_sbom_package(CLI11 BSD-3-Clause "${CLI11_VERSION}")
  espalier_sbom_package(fmt MIT "${fmt_VERSION}")
  espalier_sbom_package(nlohmann-json MIT "${nlohmann_json_VERSION}")
  espalier_sbom_package(PCRE2 BSD-3-Clause "${espalier_PCRE2_VERSION}")
  espalier_sbom_package(range-v3 BSL-1.0 "${range-v3_VERSION}")
  espalier_sbom_package(SentencePiece Apache-2.0 "${espalier_sentencepiece_VERSION}")
  espalier_sbom_package(utf8proc MIT "${espalier_utf8proc_VERSION}")
  if(TARGET serve)
    set(version "${httplib_VERSION}")
    if(TARGET PkgConfig::cpp_httplib)
      set(version "${cpp_httplib_VERSION}")
    endif()
    espalier_sbom_package(cpp-httplib MIT "${version}")
  endif()
  if(TARGET xgrammar)
    espalier_sbom_package(xgrammar Apache-2.0 "")
  endif()
  if(TARGET generate_on_cuda AND ESPALIER_HAS_GPU)
    espalier_sbom_package(CUDA-Toolkit NOASSERTION "${CUDAToolkit_VERSION}")
  endif()
  string(TIMESTAMP now "%Y-%m-%dT%H:%M:%SZ" UTC)
  string(SHA256 unique "${espalier_sbom_packages}")
  file(CONFIGURE OUTPUT "${file}" CONTENT [[{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "espalier-tools-@PROJECT_VERSION@",
  "documentNamespace": "https://example.org/espalier/spdx/tools-@PROJECT_VERSION@-@unique@",
  "creationInfo": {"created": "@now@", "creators": ["Tool: espalier-cmake-@PROJECT_VERSION@"]},
  "packages": [
    {"SPDXID": "SPDXRef-Espalier", "name": "Espalier", "versionInfo": "@PROJECT_VERSION@", "downloadLocation": "NOASSERTION",
     "filesAnalyzed": false, "licenseConcluded": "NOASSERTION", "licenseDeclared": "BSL-1.0", "copyrightText": "NOASSERTION"},
    {"SPDXID": "SPDXRef-models", "name": "espalier-models", "versionInfo": "@PROJECT_VERSION@", "downloadLocation": "NOASSERTION",
     "filesAnalyzed": false, "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION", "copyrightText": "NOASSERTION",
     "comment": "The licences of the data that the models were trained with stand in share/espalier/models/README.md."}@espalier_sbom_packages@
  ],
  "relationships": [
    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-Espalier"},
    {"spdxElementId": "SPDXRef-Espalier", "relationshipType": "CONTAINS", "relatedSpdxElement": "SPDXRef-models"}@espalier_sbom_relations@
  ]
}
]] @ONLY)
endfunction()
