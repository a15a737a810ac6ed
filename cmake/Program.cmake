# What stands on the libraries of the kernels, the model and torch: data, charts, evaluation, inference, training, and
# the program `gsa`.

gsa_find(sentencepiece PACKAGE libsentencepiece-dev HEADER sentencepiece_processor.h
         LIBRARIES sentencepiece_train sentencepiece)
gsa_find(pcre2 PACKAGE libpcre2-dev HEADER pcre2.h LIBRARIES pcre2-8)
gsa_find(utf8proc PACKAGE libutf8proc-dev HEADER utf8proc.h LIBRARIES utf8proc)
if(GSA_TORCH)
  gsa_find(cli11 PACKAGE libcli11-dev HEADER CLI/CLI.hpp)
  gsa_find(toml PACKAGE libtomlplusplus-dev HEADER toml++/toml.h)
endif()

# Text, tokens and datasets. No torch. Like gsa_model it leaves src/core to who links it: gsa_kernels, or libgsa.so.
gsa_sources(data_sources "src/data/*.cc")
gsa_library(gsa_data STATIC ${data_sources})
target_link_libraries(gsa_data PUBLIC gsa::json PRIVATE gsa::sentencepiece gsa::pcre2 gsa::utf8proc)

# What of inference is no tensor: sampling, text, the cache's book-keeping and its files. No torch.
gsa_sources(infer_core_sources "src/infer/core/*.cc")
gsa_library(gsa_infer_core STATIC ${infer_core_sources})
target_link_libraries(gsa_infer_core PUBLIC gsa::json)

# Charts as SVG. No torch, and src/core as in gsa_data.
gsa_sources(plot_sources "src/plot/*.cc")
gsa_library(gsa_plot STATIC ${plot_sources})
gsa_quick_to_compile(gsa_plot)

# RULER: tasks, prompts, scores, report. No torch, and src/core as in gsa_data.
gsa_sources(ruler_sources "src/ruler/*.cc")
gsa_library(gsa_ruler STATIC ${ruler_sources})
gsa_quick_to_compile(gsa_ruler)
target_link_libraries(gsa_ruler PUBLIC gsa_plot gsa::json)

# The paper's tables: plan, data, results, verdicts, pages. No torch: steps are commands of the program.
gsa_sources(paper_sources "src/paper/*.cc")
gsa_library(gsa_paper STATIC ${paper_sources})
gsa_quick_to_compile(gsa_paper)
target_link_libraries(gsa_paper PUBLIC gsa_data gsa_ruler gsa_plot gsa::json)

# The server but for its model: HTTP by Boost.Beast, the API, the scheduler. No torch, and src/core as in gsa_data.
gsa_find(boost PACKAGE libboost-dev HEADER boost/beast/http/parser.hpp)
gsa_sources(serve_http_sources "src/serve/http/*.cc")
gsa_library(gsa_serve_http STATIC ${serve_http_sources})
target_link_libraries(gsa_serve_http PRIVATE gsa::boost Threads::Threads)
gsa_sources(serve_core_sources "src/serve/core/*.cc")
set(page "${PROJECT_SOURCE_DIR}/src/serve/core/page")
set(page_source "${PROJECT_BINARY_DIR}/page_html.cc")
set(embed "${PROJECT_SOURCE_DIR}/cmake/EmbedText.cmake")
add_custom_command(OUTPUT "${page_source}" DEPENDS "${page}.html" "${page}.css" "${page}.js" "${embed}" VERBATIM
                   COMMAND "${CMAKE_COMMAND}" "-DINPUT=${page}.html" "-DOUTPUT=${page_source}"
                           -DPARTS=page.css:page.js -DHEADER=serve/core/page.h -DNAMESPACE=gsa::serve
                           -DFUNCTION=page_html -P "${embed}")
gsa_library(gsa_serve_core STATIC ${serve_core_sources} "${page_source}")
gsa_quick_to_compile(gsa_serve_core)
target_link_libraries(gsa_serve_core PUBLIC gsa_serve_http gsa_infer_core gsa_data gsa::json)

if(NOT GSA_TORCH)
  return()
endif()

# Evaluation: perplexity, sinks, the quality of selections, and which charts show them.
gsa_sources(eval_sources "src/eval/*.cc")
gsa_sources(eval_text_sources "src/eval/documents.cc" "src/eval/windows.cc")
set_source_files_properties(${eval_text_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
gsa_library(gsa_eval STATIC ${eval_sources})
target_link_libraries(gsa_eval PUBLIC gsa_plot gsa_data gsa)
target_precompile_headers(gsa_eval REUSE_FROM torch_pch)

# Inference: engine, cache, generation. CUDA graphs need torch's CUDA library, which libgsa.so does without.
gsa_sources(infer_sources "src/infer/*.cc")
if(gsa_cuda AND torch_cuda)
  list(REMOVE_ITEM infer_sources "${PROJECT_SOURCE_DIR}/src/infer/cuda_absent.cc")
else()
  list(REMOVE_ITEM infer_sources "${PROJECT_SOURCE_DIR}/src/infer/cuda_graph.cc")
endif()
gsa_library(gsa_infer STATIC ${infer_sources})
target_link_libraries(gsa_infer PUBLIC gsa_infer_core gsa_data gsa)
target_precompile_headers(gsa_infer REUSE_FROM torch_pch)
if(gsa_cuda AND torch_cuda)
  target_include_directories(gsa_infer SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  list(GET torch_libraries 0 torch_library)
  cmake_path(GET torch_library PARENT_PATH torch_library_dir)
  find_package(CUDAToolkit REQUIRED)  # torch's headers call the runtime
  target_link_libraries(gsa_infer PUBLIC "${torch_library_dir}/libtorch_cuda.so" "${torch_library_dir}/libc10_cuda.so"
                                         CUDA::cudart_static)
endif()

# The server's model: the engine.
gsa_sources(serve_sources "src/serve/*.cc")
gsa_library(gsa_serve STATIC ${serve_sources})
target_link_libraries(gsa_serve PUBLIC gsa_serve_core gsa_infer gsa)
target_precompile_headers(gsa_serve REUSE_FROM torch_pch)

# Training: the loop, its configuration and its checkpoints.
gsa_sources(train_sources "src/train/*.cc")
gsa_library(gsa_train STATIC ${train_sources})
target_link_libraries(gsa_train PUBLIC gsa_data gsa PRIVATE gsa::toml)
target_precompile_headers(gsa_train REUSE_FROM torch_pch)

# The demo: an experiment made of all of these, and its report.
gsa_sources(demo_sources "src/demo/*.cc")
gsa_sources(demo_text_sources "src/demo/pace.cc" "src/demo/report.cc" "src/demo/results.cc")
set_source_files_properties(${demo_text_sources} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
gsa_library(gsa_demo STATIC ${demo_sources})
target_link_libraries(gsa_demo PUBLIC gsa_train gsa_infer gsa_eval gsa_data gsa)
target_precompile_headers(gsa_demo REUSE_FROM torch_pch)

if(NOT GSA_BUILD_PROGRAM)
  return()
endif()

# ---- The program `gsa`, in bin/: beside the library's target of the same name it would be one rule too many.

gsa_sources(cli_sources "src/cli/*.cc")
gsa_executable(gsa_cli ${cli_sources})
set_target_properties(gsa_cli PROPERTIES OUTPUT_NAME gsa RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
target_link_libraries(gsa_cli PRIVATE gsa_demo gsa_paper gsa_serve gsa_serve_core gsa_train gsa_infer gsa_eval gsa_ruler
                                      gsa_data gsa gsa::cli11)
target_precompile_headers(gsa_cli REUSE_FROM torch_pch)
