# `make demo` and `make test` do all their own set-up in a fresh clone; see README.md.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: demo test lint native clean

# The product alone: a virtual environment with ninfer built from this tree.
$(VENV)/.product: pyproject.toml CMakeLists.txt cmake/targets.cmake $(shell find native src -name '*.cpp' -o -name '*.h' -o -name '*.py')
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check .
	touch $@

# With tests and oracles.
$(VENV)/.dev: $(VENV)/.product
	$(BIN)/python -m pip install --quiet --disable-pip-version-check '.[dev]'
	touch $@

demo: $(VENV)/.product
	$(BIN)/ninfer pull smollm2
	$(BIN)/ninfer run smollm2 --prompt "What is the capital of France?"

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/ninfer pull smollm2
	$(BIN)/python -m pytest

# Fast inner loop for developers: builds the extension into the source tree of the active environment.
native:
	cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE="$$(command -v python3)"
	cmake --build build/dev
	cp build/dev/_native*.so src/ninfer/backends/cpu/

clean:
	rm -rf build $(VENV) src/ninfer/backends/cpu/_native*.so
