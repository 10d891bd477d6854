# `make demo` and `make test` work on a fresh machine with Python 3.11 and make; both set .venv up first.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: setup demo test lint bench docs wheel-test clean

setup: .venv/.ready

.venv/.ready: pyproject.toml
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --progress-bar off -e '.[all,dev,docs]'
	@touch $@

demo: setup
	@$(BIN)/sta demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Ray's tests share one cluster of two nodes; spread over processes, each would start its own.
RAY_TESTS := tests/test_inference_ray.py
test: lint
	@sh scripts/install-browser
	$(BIN)/python -m pytest $(RAY_TESTS)
	$(BIN)/python -m pytest --ignore $(RAY_TESTS) -n auto --dist worksteal

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Uses the wheel in empty environments, base and each extra; takes minutes and up to 7 GB for a while.
wheel-test: setup
	$(BIN)/python scripts/test-wheel

bench: setup
	$(BIN)/python benchmarks/vit.py
	$(BIN)/python benchmarks/swin.py

clean:
	rm -rf .venv build dist out site .pytest_cache .mypy_cache .ruff_cache .hypothesis
