# The torch that ${GSA_PYTHON} imports, as gsa::libtorch; torch_version, torch_cuda and more beside it.

set(GSA_TORCH_OLDEST 2.11)

include(gsaTorch)
gsa_find_torch("${GSA_PYTHON}" "${PROJECT_SOURCE_DIR}/tools/torch_config.py" torch_missing)
if(torch_missing)
  message(FATAL_ERROR "${torch_missing}\n"
                      "`make setup` makes an environment with torch; `make PYTHON=/path/to/python3 test` uses yours.")
endif()
if(torch_version VERSION_LESS GSA_TORCH_OLDEST)
  message(FATAL_ERROR "torch: expected version ${GSA_TORCH_OLDEST} or newer, got ${torch_version} (${GSA_PYTHON})")
endif()
message(STATUS "torch: ${torch_version} (${GSA_PYTHON})")
message(STATUS "OpenMP runtime: ${torch_openmp}")
