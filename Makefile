# The front door. `make help` lists the targets; CMake, ctest and the scripts in tools/ do the work.
#
#   PYTHON=/path/python3   use the torch that this interpreter has, instead of making .venv
#   PRESET=debug           another CMake preset than release, for test, pytest, bench and example
#   ARGS="..."             handed to ctest (test), pytest (pytest), gsa demo (demo), gsa paper (paper), GoogleTest
#                          (cuda) or the benchmark (bench and its kin)
#   TEXT=file              what bench-trained trains on
#   MODEL=folder           what bench-serve serves
#   JOBS=n                 compiler processes, default: one a core
#   PACKAGES="..."         Debian packages for deps

.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

PRESET ?= release
JOBS ?= $(shell nproc)
BUILD := build/$(PRESET)

# Only what is said on the command line counts: a stray variable of the environment must not change what is tested.
ifneq ($(origin ARGS),command line)
  override ARGS :=
endif
ifneq ($(origin PYTHON),command line)
  override undefine PYTHON
endif
ifdef PYTHON
  INTERPRETER := $(abspath $(shell command -v $(PYTHON) || echo $(PYTHON)))
else
  INTERPRETER := $(CURDIR)/.venv/bin/python
endif

.PHONY: help
help: ## list the targets (default)
	@echo "usage: make [PYTHON=/path/python3] <target>"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

# ---- Set-up

.PHONY: packages setup configure programs build
# What must be there: all that the tests want, or what the program does.
demo paper: SETUP := --run
packages:
	@tools/setup_system.sh $(SETUP) $(if $(PYTHON),,--venv)

setup: packages ## install what is missing: system packages (apt as root), .venv with torch
	@tools/setup_python.sh $(if $(PYTHON),$(INTERPRETER),$(SETUP))

# CMake runs by itself when its own files change; here it runs when the interpreter or the environment does.
configure: setup
	@key="$(INTERPRETER) $$(cat .venv/.requirements.sha256 2>/dev/null || true)"; \
	if [ ! -e $(BUILD)/build.ninja ] || [ "$$key" != "$$(cat $(BUILD)/.configured 2>/dev/null)" ]; then \
	  cmake --preset $(PRESET) -DGSA_PYTHON=$(INTERPRETER); \
	  echo "$$key" >$(BUILD)/.configured; \
	fi

programs: configure  # what the tests need
	@cmake --build --preset $(PRESET) -j $(JOBS)

build: configure ## build everything
	@cmake --build --preset $(PRESET) -j $(JOBS) --target all benchmarks

.PHONY: deps
deps: ## unpack libraries into .deps without root, also for a machine that is cut off (PACKAGES="...")
	@tools/fetch_deps.sh $(PACKAGES)

# ---- The demo: only the program is built, the newcomer waits

.PHONY: demo
demo: configure ## train a tiny gsa model beside its dense twin in minutes and write a report (ARGS="--steps 600")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa_cli
	@$(BUILD)/bin/gsa demo --output build/demo $(ARGS)

# ---- The paper's tables

.PHONY: paper
paper: configure ## train the paper's systems and write its tables into build/paper (ARGS="--scale small --seeds 2")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa_cli
	@$(BUILD)/bin/gsa paper --output build/paper $(ARGS)

# ---- Tests and checks

.PHONY: test retest pytest clients sanitize format format-check
test: programs ## set up, build, run every test (ARGS="-R kernels" for one suite)
	@key=$$(tools/state_key.sh $(INTERPRETER)); passed=$(BUILD)/.passed; \
	if [ -z "$(ARGS)" ] && [ "$$key" = "$$(head -n 1 $$passed 2>/dev/null)" ]; then \
	  tail -n +2 $$passed; \
	  echo "make test: passed before, and no file has changed since (make retest runs it again)"; \
	  exit 0; \
	fi; \
	rm -rf $(BUILD)/reports $$passed; \
	status=0; ctest --preset $(PRESET) -j $(JOBS) $(ARGS) || status=1; \
	$(INTERPRETER) tools/test_summary.py $(BUILD) | tee $(BUILD)/.summary || status=1; \
	if [ $$status != 0 ]; then echo "make test: FAILED, see above"; exit 1; fi; \
	if [ -z "$(ARGS)" ]; then { echo "$$key"; cat $(BUILD)/.summary; } >$$passed; fi; \
	echo "make test: all passed"

retest: ## every test again, changed or not
	@rm -f $(BUILD)/.passed
	@$(MAKE) --no-print-directory test $(if $(PYTHON),PYTHON=$(PYTHON))

# A process for each folder: files of two may share a name.
pytest: programs ## the Python tests alone (ARGS="-k name")
	@export GSA_BUILD=$(BUILD) GSA_LIBRARY=$(BUILD)/libgsa.so GSA_PROGRAM=$(BUILD)/bin/gsa PYTHONDONTWRITEBYTECODE=1 \
	  PYTHONPATH="$${PYTHONPATH:+$$PYTHONPATH:}.deps/python"; \
	ran=; \
	for folder in tests/torch tests/program tests/python tests/package; do \
	  $(INTERPRETER) -m pytest -p no:cacheprovider $$folder $(ARGS) && ran=1 || [ $$? = 5 ]; \
	done; \
	[ -n "$$ran" ] || { echo "make pytest: ARGS chose no case" >&2; exit 1; }

clients: programs ## tests with programs of others (lm-eval, Trainer, openai, a browser); installs them, 650 MB
	@tools/setup_system.sh --browser
	@$(INTERPRETER) -c 'import torch; print(f"torch=={torch.__version__}")' >$(BUILD)/torch.txt
	@$(INTERPRETER) -m pip install --disable-pip-version-check --no-input --quiet \
	  -c $(BUILD)/torch.txt -r tools/requirements-clients.txt
	@export GSA_BUILD=$(BUILD) GSA_LIBRARY=$(BUILD)/libgsa.so GSA_PROGRAM=$(BUILD)/bin/gsa PYTHONDONTWRITEBYTECODE=1; \
	rm -rf $(BUILD)/clients; \
	for file in tests/python/test_lm_eval.py tests/python/test_trainer.py tests/clients/test_*.py tests/browser/test_*.py; do \
	  name=$$(basename $$file .py); \
	  $(INTERPRETER) -m pytest -p no:cacheprovider -rs --junitxml=$(BUILD)/clients/reports/clients_$${name#test_}.xml \
	    $$file $(ARGS) || [ $$? = 5 ]; \
	done  # 5: no case ran; the summary says so, where ARGS did not choose them
	$(if $(ARGS),,@$(INTERPRETER) tools/test_summary.py $(BUILD)/clients)

sanitize: packages ## kernels, file parsers, server and the fuzzer's corpus under ASan and UBSan
	@if [ ! -e build/sanitize/build.ninja ]; then cmake --preset sanitize; fi
	@cmake --build --preset sanitize -j $(JOBS)
	@ctest --preset sanitize -j $(JOBS)
	@echo "make sanitize: clean"

.PHONY: fuzz fuzz-serve
fuzz: packages ## fuzz the parsers of files under the sanitizers (ARGS="--seconds 600 --seed 7 --keep"), then the server
	@if [ ! -e build/sanitize/build.ninja ]; then cmake --preset sanitize; fi
	@cmake --build --preset sanitize -j $(JOBS) --target gsa_fuzz gsa_serve_fuzz
	@cd build/sanitize && UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ./gsa_fuzz run ../../tests/corpus $(ARGS)
	@UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/sanitize/gsa_serve_fuzz
	@echo "make fuzz: nothing found"

fuzz-serve: packages ## fuzz the server alone, sockets and all, under the same (ARGS="--requests 200000 --seed 7")
	@if [ ! -e build/sanitize/build.ninja ]; then cmake --preset sanitize; fi
	@cmake --build --preset sanitize -j $(JOBS) --target gsa_serve_fuzz
	@UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 build/sanitize/gsa_serve_fuzz $(ARGS)
	@echo "make fuzz-serve: nothing found"

format: ## rewrite the sources with clang-format
	@tools/format.sh fix

format-check: ## say which sources are not formatted
	@tools/format.sh check

# ---- The Python package

.PHONY: wheel
wheel: configure ## the Python package with its library, as a wheel in dist/
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa_wheel
	@tools/wheel.sh $(INTERPRETER) $(BUILD) dist

.PHONY: install-test
install-test: packages ## pip install . of a fresh clone in a fresh environment, and the README example with it
	@tools/pip_install.sh $(if $(PYTHON),$(INTERPRETER))

# ---- Programs

.PHONY: example bench
example: build ## run the examples
	@for source in examples/*.cc; do \
	  name=$$(basename $$source .cc); echo "== $$name"; $(BUILD)/example_$$name; \
	done

bench: configure ## measure speed beside torch, JSON in build/ (ARGS="--help"); else bench-train, bench-infer too
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa_bench
	@$(BUILD)/gsa_bench $(ARGS)
	@if [ -z "$(ARGS)" ]; then $(MAKE) --no-print-directory bench-train; fi
	@if [ -z "$(ARGS)" ]; then $(MAKE) --no-print-directory bench-infer; fi

.PHONY: bench-train
bench-train: configure ## measure training steps, on a GPU where there is one beside torch.compile (ARGS="--help")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa_bench_train
	@$(BUILD)/gsa_bench_train $(ARGS)
	@if [ -z "$(ARGS)" ] && grep -q '"device": "cuda' build/bench-train.json; then \
	  $(INTERPRETER) bench/train_torch.py --device cuda --beside build/bench-train.json; \
	fi

.PHONY: bench-infer
bench-infer: configure ## measure prefill and decoding beside the standard model (ARGS="--help"; "--device cuda")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa_bench_infer
	@$(BUILD)/gsa_bench_infer $(ARGS)

.PHONY: bench-serve
bench-serve: configure ## load gsa serve, MODEL=folder: errors, batching, prefixes, gaps, decoding (ARGS="--help")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa_cli
	@$(INTERPRETER) bench/serve.py $(MODEL) --program $(BUILD)/bin/gsa --scratch build --json build/bench-serve.json $(ARGS)

.PHONY: bench-python
bench-python: configure ## time a token of generate() in Python beside gsa generate, behind 32K tokens (ARGS="--help")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa gsa_cli
	@GSA_LIBRARY=$(BUILD)/libgsa.so PYTHONPATH=python $(INTERPRETER) bench/python_generate.py --program $(BUILD)/bin/gsa $(ARGS)

.PHONY: bench-tokenizer
bench-tokenizer: configure ## time gsa tokenize beside the package tokenizers, and the package's import (ARGS="--help")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa gsa_cli
	@GSA_LIBRARY=$(abspath $(BUILD))/libgsa.so PYTHONPATH=python $(INTERPRETER) bench/python_tokenizer.py --program $(BUILD)/bin/gsa $(ARGS)

.PHONY: bench-gpu
bench-gpu: configure ## measure the CUDA operators against torch on a GPU (ARGS="--help")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa
	@$(INTERPRETER) bench/gpu.py --library $(BUILD)/libgsa.so --json build/bench-gpu.json $(ARGS)
	@if [ -z "$(ARGS)" ]; then $(MAKE) --no-print-directory bench-infer ARGS="--device cuda"; fi
	@if [ -z "$(ARGS)" ]; then $(MAKE) --no-print-directory bench-train ARGS="--device cuda --peak-tflops 989"; fi
	@if [ -z "$(ARGS)" ]; then $(INTERPRETER) bench/train_torch.py --device cuda --peak-tflops 989 --beside build/bench-train.json; fi

.PHONY: bench-trained
bench-trained: configure ## train small models on TEXT=file for minutes, then measure on their tensors (ARGS="--help")
	@cmake --build --preset $(PRESET) -j $(JOBS) --target gsa gsa_cli gsa_bench_tensors gsa_bench_train
	@tools/train_for_bench.sh $(TEXT) --build $(BUILD) --python $(INTERPRETER) $(ARGS)

# ---- CUDA: compiled and linked wherever nvcc is, no GPU needed

.PHONY: cuda
cuda: packages ## compile the CUDA operators and their tests (needs nvcc, no GPU); with a GPU run them
	@if [ ! -e build/cuda/build.ninja ]; then cmake --preset cuda; fi
	@cmake --build --preset cuda -j $(JOBS) --target gsa_cuda_tests
	@status=0; build/cuda/gsa_cuda_tests --gtest_brief=1 $(ARGS) || status=$$?; \
	if [ $$status = 77 ]; then echo "make cuda: compiled and linked; not run, no GPU here"; exit 0; fi; \
	exit $$status

.PHONY: clean
clean: ## remove build/ (.venv and .deps stay)
	@rm -rf build
