# Everything a developer runs. `make setup` first; it is quick when nothing changed.

PYTHON ?= python3
EXTRAS ?= engine,chat,hub,dev
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup
NATIVE := CMakeLists.txt $(shell find kernels -name CMakeLists.txt -o -name '*.cpp' -o -name '*.hpp' \
	-o -name '*.h' -o -name '*.inl' -o -name '*.cmake')

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup serve test test-py test-cpp lint format bench docs clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 14

setup: $(STAMP) ## create .venv and install everything into it, native library included

# Where the usual package index has only CUDA builds of torch, the CPU build comes from TORCH_INDEX.
$(STAMP): pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -c constraints.txt torch || \
		$(BIN)/pip install -c constraints.txt --extra-index-url $(TORCH_INDEX) torch
	$(BIN)/pip install -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

serve: setup ## start a server: make serve ARGS="--port 8001"
	$(BIN)/turing serve $(ARGS)

lint: setup ## formatting, lint, types and import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## rewrite sources in the project's style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: lint test-py test-cpp ## what has to pass before a change lands

test-py: setup
	OMP_NUM_THREADS=2 $(BIN)/pytest -m 'not gpu' $(ARGS)

test-cpp: setup
	cmake --build build/native
	ctest --test-dir build/native --output-on-failure --no-tests=error

bench: setup ## compare servers: make bench ARGS="turing llama-q4_0"
	$(BIN)/python -m bench $(ARGS)

docs: setup ## regenerate the generated pages of docs/
	$(BIN)/python -m scripts.cli_docs
	$(BIN)/python -m scripts.structure_docs

clean: ## remove what setup and test built
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
