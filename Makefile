PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FLOWER := $(VENV)/.flower
TRACKING := $(VENV)/.tracking
RAY := $(VENV)/.ray
BROWSER := $(VENV)/.browser
DOCS := $(VENV)/.docs
PFL := .venv-pfl
FEDERATED := tests/flower tests/browser tests/federation/test_owner_files.py \
  $(addprefix tests/cli/test_,nasty.py deployed_plan.py foreign_code_commands.py) \
  tests/guarantees/test_errors_show_no_records.py
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable
.DEFAULT_GOAL := help

.PHONY: help
help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## Create .venv with everything a developer needs

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(INSTALL) '.[dev,bench]'
	$(BIN)/python -m uldp.learners.kernels
	@touch $@

$(FLOWER): $(STAMP)
	$(INSTALL) '.[flower]'
	@touch $@

$(TRACKING): $(STAMP)
	$(INSTALL) '.[tracking]'
	@touch $@

$(RAY): $(STAMP)
	$(INSTALL) '.[flower-sim]'
	@touch $@

$(BROWSER): $(STAMP)
	$(INSTALL) '.[browser]'
	@touch $@

$(DOCS): $(FLOWER) docs/site/package.json
	$(INSTALL) '.[docs]'
	@mkdir -p $(VENV)/npm && cp docs/site/package.json $(VENV)/npm/
	@npm install --silent --no-audit --no-fund --prefix $(VENV)/npm || echo "no npm: diagrams are shown as text"
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Train four methods on built-in data, compare, draw, explain
	$(BIN)/uldp demo

.PHONY: test
test: $(FLOWER) $(TRACKING) ## Run the tests
	$(BIN)/python -m uldp.learners.kernels float32 float64
	$(BIN)/python -m pytest -n 2 -m 'not slow'

.PHONY: test-all
test-all: $(FLOWER) $(TRACKING) ## Run the tests, the slow ones too
	$(BIN)/python -m pytest -n 2

.PHONY: test-simulation
test-simulation: $(STAMP) ## Run the tests without real federations, which need Linux
	$(BIN)/python -m uldp.learners.kernels float32 float64
	$(BIN)/python -m pytest -n 2 -m 'not slow' $(addprefix --ignore=,$(FEDERATED))

.PHONY: test-dist
test-dist: $(STAMP) ## Build wheel and sdist, install them in a fresh environment, use them there
	$(BIN)/python -m pytest tests/core/test_distribution.py -rs

.PHONY: coverage
coverage: $(FLOWER) $(TRACKING) ## Run the tests with coverage; below the floor of pyproject.toml it fails
	$(BIN)/python -m uldp.learners.kernels float32 float64
	$(BIN)/python -m pytest -n 2 -m 'not slow' --cov --cov-report=term:skip-covered

.PHONY: dist
dist: $(STAMP) ## Build the sdist and the wheel in dist/
	$(BIN)/python -m build

.PHONY: test-identity
test-identity: $(STAMP) ## Compare whole runs bit by bit under several instruction sets
	$(BIN)/python -m pytest tests/identity \
	  tests/learners/kernels/test_rows.py::test_two_instruction_sets_give_the_same_bits

.PHONY: test-sim
test-sim: $(RAY) ## Run simulations on Flower's engine, which needs Ray
	$(BIN)/python -m pytest tests/flower/test_simulation.py

.PHONY: test-browser
test-browser: $(BROWSER) ## Open reports in headless Chromium; skipped where there is none
	$(BIN)/python -m pytest tests/browser -rs

.PHONY: check
check: $(STAMP) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: format
format: $(STAMP) ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: federation
federation: $(FLOWER) ## Rehearse a server and its silos over Flower and TLS; the model must be the simulation's
	@if $(BIN)/uldp data check heart-disease >/dev/null 2>&1; then \
	  set -- --dataset heart-disease; echo "heart-disease, with its own four hospitals"; \
	else \
	  set -- --dataset breast-cancer --set data.silos=3; \
	  echo "the files of heart-disease are not here (uldp data check heart-disease): breast-cancer, dealt to three silos"; \
	fi; \
	$(BIN)/uldp rehearse "$$@" --method uldp-avg-w --aggregation masked --aggregation paillier \
	  --set method.rounds=3 --set privacy.noise_multiplier=0 --set run.threads=1

.PHONY: docs
docs: $(DOCS) ## Build the documentation site in site/, notebooks executed, warnings as errors
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/mkdocs build --quiet

.PHONY: bench
bench: $(STAMP) ## Measure the trainer and the private weighting against others
	$(BIN)/uldp bench train
	$(BIN)/uldp bench protocol

.PHONY: bench-pfl
bench-pfl: $(PFL)/.installed ## Create .venv-pfl with pfl, a baseline of bench

$(PFL)/.installed: constraints-pfl.txt
	$(PYTHON) -m venv --clear $(PFL)
	$(PFL)/bin/python -m pip install --quiet --constraint constraints-pfl.txt 'pfl[pytorch]'
	@touch $@

.PHONY: fuzz
fuzz: $(STAMP) ## Send a million mutated messages to server and silos, in every phase
	$(BIN)/python -m tests.fuzz.fuzzer --messages 1000000 --seed 0

.PHONY: audit-seeds
audit-seeds: $(STAMP) ## Audit what is right with a hundred seeds; none may refute it
	$(BIN)/python -m tests.audits.seeds --seeds 100

.PHONY: planted
planted: $(STAMP) ## Plant errors in a copy of the package; the audit or a test must catch each
	$(BIN)/python -m tests.planted.plant

.PHONY: planted-seeds
planted-seeds: $(STAMP) ## The same with a hundred seeds each; stopped, it goes on where it was
	$(BIN)/python -m tests.planted.plant --seeds 100

.PHONY: nasty
nasty: $(FLOWER) ## Put hundreds of nasty inputs to every command; each must be refused in one sentence
	$(BIN)/python tests/cli/nasty.py

.PHONY: clean
clean: ## Remove .venv, .venv-pfl and caches
	rm -rf $(VENV) $(PFL) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
