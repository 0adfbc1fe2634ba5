# Every target sets up its own .venv when needed; a second call starts at once.
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python

.PHONY: demo test check bench soak format clean
.DEFAULT_GOAL := demo

demo: $(VENV)/.ready ## Train several methods on embedded data with wrong labels; about a minute.
	$(VENV)/bin/unflip demo --out demo

test: $(VENV)/.ready-dev ## Run the tests.
	$(RUN) -m pytest -n auto -m "not soak"

check: $(VENV)/.ready-dev ## Formatting, lint, types, import layers.
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-cache

bench: $(VENV)/.ready-dev ## Speed as ratios, each pair measured in one run; UNFLIP_DATA names the folder of frozen features.
	@for script in bench/bench_*.py; do echo "== $$script"; $(RUN) $$script || exit 1; done

soak: $(VENV)/.ready-dev ## What takes too long for every commit.
	$(RUN) -m pytest -m soak

format: $(VENV)/.ready-dev
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml | $(VENV)/bin/python
	$(RUN) -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@ $(VENV)/.ready
