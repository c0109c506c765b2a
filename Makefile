# `make demo` and `make test` do all their own set-up in a fresh clone; see README.md.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

SOURCES := pyproject.toml CMakeLists.txt README.md LICENSE $(wildcard cmake/*.cmake) \
           $(shell find native src -type f \( -name '*.cpp' -o -name '*.h' -o -name '*.py' -o -name '*.pyi' -o -name '*.txt' -o -name py.typed \))

.PHONY: demo test lint docs native clean
.DELETE_ON_ERROR:

# The virtual environment with what builds the wheel. The build runs in this environment and not in an isolated one, so
# that a second build compiles only what changed.
$(VENV)/.tools: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ninfer needs Python 3.11 or newer; name one with: make PYTHON=python3.11 ..." >&2; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "ninfer needs a C++20 compiler (g++ or clang++) to build its kernels; none was found on PATH" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	  { echo "no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PIP) install --quiet $$($(BIN)/python -c \
	  'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"])') cmake ninja
	touch $@

# The product, as the wheel a user would install; demo and tests run this and never the source tree.
$(VENV)/.product: $(VENV)/.tools $(SOURCES)
	rm -rf build/dist
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir build/dist .
	$(PIP) install --quiet --force-reinstall --no-deps build/dist/ninfer-*.whl
	$(PIP) install --quiet build/dist/ninfer-*.whl
	touch $@

# What tests and checks need besides; only a change of pyproject.toml installs it again.
$(VENV)/.dev: pyproject.toml | $(VENV)/.product
	wheel=$$(ls build/dist/ninfer-*.whl) && $(PIP) install --quiet "$$wheel[dev]"
	touch $@

demo: $(VENV)/.product
	$(BIN)/ninfer pull smollm2
	$(PIP) install --quiet "openai>=1.50"
	$(BIN)/python examples/serve_and_ask.py smollm2 "What is the capital of France?"
	rm -rf build/demo
	$(BIN)/ninfer bench scenarios smollm2 smollm2:spec=ngram --out build/demo/runs \
	  --suite workloads --scenario copy --language en --max-new 96 --repeats 3
	$(BIN)/ninfer bench compare build/demo/runs --out build/demo/report

lint: $(VENV)/.product $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/ninfer pull smollm2
	$(BIN)/python -m pytest

# Writes the pages that are generated from code; a test fails when they are stale.
docs: $(VENV)/.product $(VENV)/.dev
	$(BIN)/python docs/generate.py

# Fast inner loop for developers: builds the extension into the source tree of the active environment.
native:
	cmake -S . -B build/dev -G Ninja -DPython_EXECUTABLE="$$(command -v python3)"
	cmake --build build/dev
	cp build/dev/_native*.so src/ninfer/backends/cpu/

clean:
	rm -rf build $(VENV) src/ninfer/backends/cpu/_native*.so
