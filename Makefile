# make audit   set everything up in .venv and audit the Adult data that ships with the package
# make test    set everything up and run lint, format check, type check and the whole suite
# make soak    kill a sweep twenty times; it takes minutes
# make docs    set everything up and build the documentation into site/

PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
FILES  := src tests benchmarks examples docs

.PHONY: audit test soak check docs bench clean

audit: $(VENV)/.core
	$(BIN)/leakscope audit adult

test: $(VENV)/.dev check
	$(BIN)/python -m pytest -n 2

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m soak

check: $(VENV)/.dev
	$(BIN)/ruff check $(FILES)
	$(BIN)/ruff format --check $(FILES)
	$(BIN)/mypy

docs: $(VENV)/.dev
	$(BIN)/properdocs build --strict

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/gradients.py
	$(BIN)/python benchmarks/attack.py
	$(BIN)/python benchmarks/defenses.py
	$(BIN)/python benchmarks/alignment.py
	$(BIN)/python benchmarks/federation.py
	$(BIN)/python benchmarks/guards.py
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/golden.py
	$(BIN)/python benchmarks/peers

$(VENV)/.core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || python3 -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache
