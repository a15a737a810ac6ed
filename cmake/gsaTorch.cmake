# gsa_find_torch(<python> <torch_config.py> <error variable>): makes the imported target gsa::libtorch from the torch
# that this interpreter imports, and sets torch_version, torch_cuda, torch_libraries, torch_openmp; or says in
# <error variable> why not. Ours and, installed, that of gsaConfig.cmake.
#
# find_package(Torch) is not used: with a CUDA wheel it demands the CUDA toolkit, which our C++ does not need.
macro(gsa_find_torch python script error)
  set(${error} "")
  execute_process(
    COMMAND "${python}" "${script}"
    OUTPUT_VARIABLE torch_config ERROR_VARIABLE torch_error RESULT_VARIABLE torch_result
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_STRIP_TRAILING_WHITESPACE)
  if(NOT torch_result EQUAL 0)
    set(${error} "no usable torch in GSA_PYTHON=${python}: ${torch_error}")
    if(torch_error STREQUAL "")
      string(APPEND ${error} "${torch_result}")  # the interpreter did not start
    endif()
  else()
    foreach(key version cuda include_dirs libraries openmp cxx11_abi)
      if(NOT torch_config MATCHES "(^|\n)${key}=([^\n]*)")
        set(${error} "${script} printed no ${key}:\n${torch_config}")
      endif()
      set(torch_${key} "${CMAKE_MATCH_2}")
    endforeach()
    if(NOT torch_cxx11_abi)
      set(${error} "torch: expected a build with the C++11 ABI, got one without (${python})")
    endif()
  endif()

  if("${${error}}" STREQUAL "" AND NOT TARGET gsa::libtorch)
    add_library(gsa::libtorch INTERFACE IMPORTED GLOBAL)
    target_include_directories(gsa::libtorch SYSTEM INTERFACE ${torch_include_dirs})
    # libstdc++ comes before torch: libtorch.so of a CUDA wheel exports parts of std::filesystem (2.11: a remove_all
    # that jumps to nowhere), and the first library that has a symbol answers for the whole program.
    target_link_libraries(gsa::libtorch INTERFACE stdc++ ${torch_libraries} "${torch_openmp}")
    if(torch_cuda)
      # libtorch.so is what brings torch's CUDA libraries into a program, though nobody calls it by name.
      target_link_options(gsa::libtorch INTERFACE LINKER:--no-as-needed)
    endif()
    # at::parallel_for lives in a header and is serial unless that header is compiled with OpenMP. Only compiled:
    # linking with -fopenmp would bring the system's libgomp beside the one that torch has loaded.
    target_compile_options(gsa::libtorch INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp>")
  endif()
endmacro()
