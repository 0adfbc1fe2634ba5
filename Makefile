# Every target sets up its own .venv when needed; a second call starts at once.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
# The extra to check and test with; `make EXTRA=ci test` has timm and ray too, by one resolution of all dependencies.
EXTRA  ?= dev
MKDOCS := NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs

.PHONY: demo test check bench soak matrix docs docs-serve format clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.ready ## Train several methods on embedded data with wrong labels; about a minute.
	$(VENV)/bin/unflip demo --out demo

test: $(VENV)/.ready-$(EXTRA) ## Run the tests and the examples in docstrings.
	$(RUN) -m pytest -n auto --dist loadfile -m "not soak"

check: $(VENV)/.ready-$(EXTRA) ## Formatting, lint, types, import layers.
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

bench: $(VENV)/.ready-$(EXTRA) ## All benchmarks; fails in the end if one missed its limit. UNFLIP_DATA names the folder of frozen features.
	@failed=; for script in bench/bench_*.py; do echo "== $$script"; $(RUN) $$script || failed="$$failed $$script"; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

soak: $(VENV)/.ready-$(EXTRA) ## What takes too long for every commit.
	$(RUN) -m pytest -m soak

matrix: $(VENV)/.ready-$(EXTRA) ## Tests on other versions of Python and torch, types on other systems; says what cannot be had here.
	.ci/matrix

docs: $(VENV)/.ready-$(EXTRA) ## Build the documentation into site/; a broken link or reference is an error. site/index.html opens without a server.
	$(MKDOCS) build --strict

docs-serve: $(VENV)/.ready-$(EXTRA) ## Show the documentation, and every change of it at once.
	$(MKDOCS) serve

format: $(VENV)/.ready-$(EXTRA)
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) build dist site

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@ $(VENV)/.ready

$(VENV)/.ready-ci: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[ci]"
	@touch $@ $(VENV)/.ready-dev $(VENV)/.ready
