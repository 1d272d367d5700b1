# Every public header, by the target that offers it. Never globbed: a header that is not listed here is
# neither installed nor tested, and the test headers.listed names it.

# espalier::espalier: the standard library and Boost.Hana. include/espalier/espalier.hpp includes all of these.
set(espalier_headers
  include/espalier/version.hpp
)

# espalier::views: adds range-v3.
set(espalier_views_headers
)

# espalier::llama: adds Eigen, nlohmann-json and threads.
set(espalier_llama_headers
)
