PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# heart-disease has four hospitals of its own; without its files the built-in breast-cancer is dealt to three silos.
FEDERATION_DATA := $(if $(wildcard $(ULDP_DATA)/heart_disease),heart-disease,breast-cancer)
FEDERATION_SILOS := $(if $(filter breast-cancer,$(FEDERATION_DATA)),--set data.silos=3)

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: install
install: $(STAMP) ## Create .venv with everything a developer needs

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Train four methods on built-in data, compare, draw, explain
	$(BIN)/uldp demo

.PHONY: test
test: $(STAMP) ## Run the tests
	$(BIN)/python -m pytest -n 2 -m 'not slow'

.PHONY: test-all
test-all: $(STAMP) ## Run the tests, the slow ones too
	$(BIN)/python -m pytest -n 2

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
federation: $(STAMP) ## Rehearse a server and three silos over Flower and TLS; the model must be the simulation's
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[flower]'
	$(BIN)/uldp rehearse --dataset $(FEDERATION_DATA) --method uldp-avg-w $(FEDERATION_SILOS) \
	  --aggregation masked --aggregation paillier \
	  --set method.rounds=3 --set privacy.noise_multiplier=0 --set run.threads=1

.PHONY: bench
bench: $(STAMP) ## Measure the trainer and the private weighting against simple code
	$(BIN)/uldp bench train
	$(BIN)/uldp bench protocol

.PHONY: clean
clean: ## Remove .venv and caches
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
