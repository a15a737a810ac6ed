# Makes the imported target gsa::torch from the torch that ${GSA_PYTHON} imports.
#
# find_package(Torch) is not used: with a CUDA wheel it demands the CUDA toolkit, which our C++ does not need.

set(GSA_TORCH_OLDEST 2.11)

execute_process(
  COMMAND "${GSA_PYTHON}" "${PROJECT_SOURCE_DIR}/tools/torch_config.py"
  OUTPUT_VARIABLE torch_config ERROR_VARIABLE torch_error RESULT_VARIABLE torch_result
  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
if(NOT torch_result EQUAL 0)
  message(FATAL_ERROR "No usable torch in GSA_PYTHON=${GSA_PYTHON}\n${torch_error}\n"
                      "`make setup` makes an environment with torch; `make PYTHON=/path/to/python3 test` uses yours.")
endif()

foreach(key version cuda include_dirs libraries openmp cxx11_abi)
  if(NOT torch_config MATCHES "(^|\n)${key}=([^\n]*)")
    message(FATAL_ERROR "tools/torch_config.py printed no ${key}:\n${torch_config}")
  endif()
  set(torch_${key} "${CMAKE_MATCH_2}")
endforeach()

if(torch_version VERSION_LESS GSA_TORCH_OLDEST)
  message(FATAL_ERROR "torch: expected version ${GSA_TORCH_OLDEST} or newer, got ${torch_version} (${GSA_PYTHON})")
endif()
if(NOT torch_cxx11_abi)
  message(FATAL_ERROR "torch: expected a build with the C++11 ABI, got one without (${GSA_PYTHON})")
endif()
message(STATUS "torch: ${torch_version} (${GSA_PYTHON})")
message(STATUS "OpenMP runtime: ${torch_openmp}")

add_library(gsa::torch INTERFACE IMPORTED)
target_include_directories(gsa::torch SYSTEM INTERFACE ${torch_include_dirs})
# libstdc++ comes before torch: libtorch.so of a CUDA wheel exports parts of std::filesystem (2.11: a remove_all that
# jumps to nowhere), and the first library that has a symbol answers for the whole program.
target_link_libraries(gsa::torch INTERFACE stdc++ ${torch_libraries} "${torch_openmp}")
if(torch_cuda)
  # libtorch.so is what brings torch's CUDA libraries into a program, though nobody calls it by name.
  target_link_options(gsa::torch INTERFACE LINKER:--no-as-needed)
endif()
# at::parallel_for lives in a header and is serial unless that header is compiled with OpenMP. Only compiled:
# linking with -fopenmp would bring the system's libgomp beside the one that torch has loaded.
target_compile_options(gsa::torch INTERFACE -fopenmp)
# Who links torch calls it, and computes little: -O3 would take half again as long to compile, for code that runs no
# faster. At -O1 GCC 12 warns of what is not there inside torch's headers (an empty std::optional<SymInt>).
target_compile_options(gsa::torch INTERFACE
                       "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O1;-Wno-maybe-uninitialized>")
