# The tests. Each suite leaves a report in reports/, from which tools/test_summary.py counts cases.

gsa_find(gtest PACKAGE libgtest-dev HEADER gtest/gtest.h LIBRARIES gtest_main gtest)

enable_testing()
set(reports "${PROJECT_BINARY_DIR}/reports")

if(NOT GSA_SANITIZE)
  add_test(NAME layers COMMAND "${GSA_PYTHON}" tools/check_layers.py)
  add_test(NAME layers_self_test COMMAND "${GSA_PYTHON}" tools/check_layers.py --self-test)
  add_test(NAME format COMMAND tools/format.sh check)
  add_test(NAME names COMMAND "${GSA_PYTHON}" tools/check_names.py)
  add_test(NAME names_self_test COMMAND "${GSA_PYTHON}" tools/check_names.py --self-test)
  add_test(NAME width COMMAND "${GSA_PYTHON}" tools/check_width.py)
  add_test(NAME width_self_test COMMAND "${GSA_PYTHON}" tools/check_width.py --self-test)
  set_tests_properties(layers layers_self_test names names_self_test width width_self_test format PROPERTIES
    WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set_tests_properties(format PROPERTIES SKIP_RETURN_CODE 77)
endif()

# The plain reference that kernels and modules are compared with.
gsa_sources(reference_sources "tests/reference/*.cc")
gsa_library(gsa_reference STATIC ${reference_sources})
target_link_libraries(gsa_reference PUBLIC gsa_kernels)
target_compile_options(gsa_reference PUBLIC "SHELL:-iquote ${PROJECT_SOURCE_DIR}/tests")

gsa_sources(kernel_tests "tests/kernels/*_test.cc")
gsa_sources(cuda_only_tests "tests/kernels/cuda_*.cc")
list(REMOVE_ITEM kernel_tests ${cuda_only_tests})
if(kernel_tests)
  gsa_executable(gsa_kernels_tests ${kernel_tests} tests/kernels/backend_cpu.cc)
  gsa_quick_to_compile(gsa_kernels_tests)
  set_target_properties(gsa_kernels_tests PROPERTIES UNITY_BUILD OFF)  # every file has a Case and a Problem
  target_link_libraries(gsa_kernels_tests PRIVATE gsa_kernels gsa_reference gsa::gtest)
  add_test(NAME kernels COMMAND gsa_kernels_tests --gtest_brief=1 "--gtest_output=xml:${reports}/kernels.xml")
  # No detect_stack_use_after_return: g++ 12 puts 64-byte vectors on its fake stack without aligning them.
  set_tests_properties(kernels PROPERTIES TIMEOUT 3600 COST 80 ENVIRONMENT
    "ASAN_OPTIONS=halt_on_error=1:detect_stack_use_after_return=0;UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
endif()

# gsa_suite(<name> <library>...): tests/<name>/*_test.cc (tests/infer/core for infer_core) as a suite of that name, for
# what is no tensor: it runs under the sanitizers too.
function(gsa_suite name)
  string(REPLACE "infer_" "infer/" folder "${name}")
  gsa_sources(sources "tests/${folder}/*_test.cc")
  gsa_executable(gsa_${name}_tests ${sources})
  target_link_libraries(gsa_${name}_tests PRIVATE ${ARGN} gsa_kernels gsa::gtest)
  target_compile_options(gsa_${name}_tests PRIVATE "SHELL:-iquote ${PROJECT_SOURCE_DIR}/tests")
  gsa_quick_to_compile(gsa_${name}_tests)
  add_test(NAME ${name} COMMAND gsa_${name}_tests --gtest_brief=1 "--gtest_output=xml:${reports}/${name}.xml")
  set_tests_properties(${name} PROPERTIES TIMEOUT 600 ENVIRONMENT "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
endfunction()
gsa_suite(model gsa_model)
gsa_suite(data gsa_data)
gsa_suite(plot gsa_plot)
gsa_suite(ruler gsa_ruler gsa_data)
gsa_suite(paper gsa_paper gsa_ruler gsa_plot gsa_data)
gsa_suite(infer_core gsa_infer_core gsa_data gsa_model)
gsa_suite(serve gsa_serve_core gsa_serve_http gsa_infer_core gsa_data gsa_model)

gsa_executable(gsa_tokenizer_probe tests/probe/tokenizer_probe.cc)  # for tests/program/test_tokenizer_json.py
target_link_libraries(gsa_tokenizer_probe PRIVATE gsa_data gsa_kernels)

# The fuzzer of those parsers (`make fuzz`), which compiles them once more with calls at every edge; the tests replay
# its corpus. It links one by one what it does not compile, so gsa_data must have its files apart.
if(NOT GSA_UNITY)
  set(fuzzed core/crc32c.cc core/dangling_link.cc core/file.cc core/json.cc core/safetensors.cc core/suggest.cc
             core/utf8.cc data/added_tokens.cc data/bpe.cc data/byte_tokenizer.cc data/dataset.cc data/json_tokenizer.cc
             data/regex.cc data/text_steps.cc data/tokenizer_json.cc infer/core/cache_file.cc infer/core/cache_shape.cc
             infer/core/sampling.cc infer/core/text_stream.cc model/config.cc model/config_json.cc model/model_config.cc
             model/weight_files.cc serve/core/chat_template.cc serve/core/completion_request.cc
             serve/core/json_fields.cc)
  list(TRANSFORM fuzzed PREPEND "${PROJECT_SOURCE_DIR}/src/")
  gsa_sources(fuzz_sources "tests/fuzz/*.cc")
  gsa_executable(gsa_fuzz ${fuzz_sources} ${fuzzed})
  target_compile_options(gsa_fuzz PRIVATE -fsanitize-coverage=trace-pc)
  target_link_libraries(gsa_fuzz PRIVATE gsa_data gsa::json gsa::pcre2 gsa::utf8proc)  # gsa_data: what is not fuzzed
  add_test(NAME fuzz_corpus COMMAND gsa_fuzz replay tests/corpus)
  set_tests_properties(fuzz_corpus PROPERTIES TIMEOUT 600 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    ENVIRONMENT "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
endif()

# The fuzzer of the whole server, sockets and all.
if(GSA_SANITIZE)
  gsa_sources(serve_fuzz_sources "tests/serve_fuzz/*.cc")
  gsa_executable(gsa_serve_fuzz ${serve_fuzz_sources})
  target_compile_options(gsa_serve_fuzz PRIVATE "SHELL:-iquote ${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(gsa_serve_fuzz PRIVATE gsa_serve_core gsa_serve_http gsa_infer_core gsa_data gsa_model
                                               gsa_kernels)
  add_test(NAME serve_fuzz COMMAND gsa_serve_fuzz --requests 10000)
  set_tests_properties(serve_fuzz PROPERTIES TIMEOUT 600 ENVIRONMENT "UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1")
endif()

# The same bodies against the CUDA operators, and what only these have. Without a GPU: skipped, and said so.
if(gsa_cuda)
  set(cuda_tests ${kernel_tests} ${cuda_only_tests})
  list(REMOVE_ITEM cuda_tests "${PROJECT_SOURCE_DIR}/tests/kernels/parallel_test.cc"
       "${PROJECT_SOURCE_DIR}/tests/kernels/decode_test.cc" "${PROJECT_SOURCE_DIR}/tests/kernels/simd_test.cc")
  gsa_executable(gsa_cuda_tests ${cuda_tests} tests/kernels/backend_cuda.cc)
  set_target_properties(gsa_cuda_tests PROPERTIES UNITY_BUILD OFF)
  target_include_directories(gsa_cuda_tests SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_link_libraries(gsa_cuda_tests PRIVATE gsa_kernels_cuda gsa_kernels gsa_reference gsa::gtest)
  add_test(NAME cuda COMMAND gsa_cuda_tests --gtest_brief=1 "--gtest_output=xml:${reports}/cuda.xml")
  set_tests_properties(cuda PROPERTIES TIMEOUT 3600 SKIP_RETURN_CODE 77)
endif()

if(NOT TARGET gsa)
  return()
endif()

gsa_sources(nn_tests "tests/nn/*.cc")
if(nn_tests)
  gsa_torch_program(gsa_nn_tests ${nn_tests})
  target_link_libraries(gsa_nn_tests PRIVATE gsa_reference gsa::gtest)
  add_test(NAME nn COMMAND gsa_nn_tests --gtest_brief=1 "--gtest_output=xml:${reports}/nn.xml")
  # Suites run beside each other: more threads than cores would wait for each other.
  set_tests_properties(nn PROPERTIES TIMEOUT 3600 ENVIRONMENT "OMP_NUM_THREADS=1")
endif()

gsa_torch_program(gsa_model_probe tests/probe/model_probe.cc)  # for tests/torch/test_transformers.py and tests/python
target_link_libraries(gsa_model_probe PRIVATE gsa_infer)

# gsa_torch_suite(<name> <seconds>): the tests of src/<name> as a program and a suite of that name. Matrices are tiny
# there: beside other suites a second thread would only be waited for.
function(gsa_torch_suite name seconds)
  gsa_sources(sources "tests/${name}/*_test.cc")
  gsa_torch_program(gsa_${name}_tests ${sources})
  target_link_libraries(gsa_${name}_tests PRIVATE gsa_${name} gsa::gtest)
  target_compile_options(gsa_${name}_tests PRIVATE "SHELL:-iquote ${PROJECT_SOURCE_DIR}/tests")
  add_test(NAME ${name} COMMAND gsa_${name}_tests --gtest_brief=1 "--gtest_output=xml:${reports}/${name}.xml")
  set_tests_properties(${name} PROPERTIES TIMEOUT ${seconds} ENVIRONMENT "OMP_NUM_THREADS=1")
endfunction()
gsa_torch_suite(eval 1800)
gsa_torch_suite(train 1800)
gsa_torch_suite(demo 600)
gsa_torch_suite(infer 1800)

gsa_sources(torch_tests "tests/torch/test_*.py")
if(torch_tests)
  add_test(NAME pytest COMMAND "${GSA_PYTHON}" -m pytest -q -rs -p no:cacheprovider
                               "--junitxml=${reports}/pytest.xml" tests/torch)
  set_tests_properties(pytest PROPERTIES TIMEOUT 3600 COST 100 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    ENVIRONMENT "GSA_LIBRARY=$<TARGET_FILE:gsa>;PYTHONDONTWRITEBYTECODE=1"
    ENVIRONMENT_MODIFICATION "PYTHONPATH=path_list_append:${PROJECT_SOURCE_DIR}/.deps/python")
endif()

# Projects of others, against an install tree.
add_test(NAME package COMMAND "${GSA_PYTHON}" -m pytest -q -rs -p no:cacheprovider
                              "--junitxml=${reports}/package.xml" tests/package)
set_tests_properties(package PROPERTIES TIMEOUT 600 COST 60 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  ENVIRONMENT "GSA_BUILD=${PROJECT_BINARY_DIR};PYTHONDONTWRITEBYTECODE=1"
  ENVIRONMENT_MODIFICATION "PYTHONPATH=path_list_append:${PROJECT_SOURCE_DIR}/.deps/python")

if(NOT TARGET gsa_cli)
  return()
endif()

# The Python package, as pip installs it: the wheel in an environment of its own. Beside it stand the program and the
# probe, which its models are compared with; a test a file.
execute_process(COMMAND "${GSA_PYTHON}" -c "import pip, scikit_build_core, venv" RESULT_VARIABLE no_wheel ERROR_QUIET)
if(no_wheel)
  # Beside the reports, where tools/test_summary.py finds it: ctest itself says no reason.
  set(reason "${GSA_PYTHON} lacks scikit-build-core, pip or venv: the Python package is tested in the tree")
  add_test(NAME wheel COMMAND sh -c "mkdir -p '${reports}' && echo '${reason}' >'${reports}/wheel.skipped' && echo skipped")
  set_tests_properties(wheel PROPERTIES SKIP_REGULAR_EXPRESSION "skipped")
  set(package_python "${GSA_PYTHON}")
  set(package_environment "GSA_LIBRARY=$<TARGET_FILE:gsa>")
else()
  add_test(NAME wheel COMMAND tools/wheel.sh "${GSA_PYTHON}" "${PROJECT_BINARY_DIR}" "${PROJECT_BINARY_DIR}/wheel"
                              "${PROJECT_BINARY_DIR}/wheel/environment")
  set_tests_properties(wheel PROPERTIES TIMEOUT 600 COST 200 FIXTURES_SETUP wheel
                       WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
  set(package_python "${PROJECT_BINARY_DIR}/wheel/environment/bin/python")
  set(package_environment "GSA_BUILD=${PROJECT_BINARY_DIR}")
endif()
gsa_sources(python_tests "tests/python/test_*.py")
# These want 620 MB of packages: `make clients` runs them, and so does CI.
list(FILTER python_tests EXCLUDE REGEX "test_(lm_eval|trainer)\\.py$")
list(FILTER python_tests EXCLUDE REGEX "test_cuda\\.py$")  # tools/gpu_run.sh runs it, where there is a GPU
foreach(source IN LISTS python_tests)
  cmake_path(GET source STEM name)
  string(REPLACE "test_" "python_" name "${name}")
  add_test(NAME ${name} COMMAND "${package_python}" -m pytest -q -rs -p no:cacheprovider
                                "--junitxml=${reports}/${name}.xml" "${source}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 3600 COST 60 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    ENVIRONMENT "${package_environment};PYTHONDONTWRITEBYTECODE=1;OMP_NUM_THREADS=1"
    ENVIRONMENT_MODIFICATION "PYTHONPATH=path_list_append:${PROJECT_SOURCE_DIR}/.deps/python")
  if(NOT no_wheel)
    set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED wheel)
  endif()
endforeach()

# The program as its users run it; a test a file, so that they run side by side, the longest first.
gsa_sources(program_tests "tests/program/test_*.py")
foreach(source IN LISTS program_tests)
  cmake_path(GET source STEM name)
  string(REPLACE "test_" "program_" name "${name}")
  add_test(NAME ${name} COMMAND "${GSA_PYTHON}" -m pytest -q -rs -p no:cacheprovider
                                "--junitxml=${reports}/${name}.xml" "${source}")
  set_tests_properties(${name} PROPERTIES TIMEOUT 3600 COST 60 WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
    ENVIRONMENT "GSA_PROGRAM=$<TARGET_FILE:gsa_cli>;PYTHONDONTWRITEBYTECODE=1"
    ENVIRONMENT_MODIFICATION "PYTHONPATH=path_list_append:${PROJECT_SOURCE_DIR}/.deps/python")
endforeach()
