# `make` prints what there is to do. Everything runs in .venv, made from uv.lock by tools/setup.

PYTEST_ARGS ?=
# Most tests wait for servers: more processes than cores. A file stays in one process, which starts its servers once;
# in the order of their folders, as the slow ones with servers stand in the first.
PYTEST_JOBS ?= 4
# Modules are compiled once, not by each of the many processes that tests and demo start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test check bench scoreboard clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## only the virtual environment, without the tools for tests
	@tools/setup

demo: ## the whole product with a faulty cluster to heal, on this machine; Ctrl-C ends it
	@tools/setup
	@exec .venv/bin/healer demo

test: ## sets up everything tests need (Slurm, Chromium), then checks and runs all tests
	@tools/setup --dev --system
	@$(MAKE) --no-print-directory check
	@.venv/bin/pytest -n $(PYTEST_JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: ## format, lint, types, import rules
	@tools/setup --dev
	@failed=; for each in "ruff format --check ." "ruff check ." pyright "lint-imports --no-cache"; do \
	    echo "== $$each"; .venv/bin/$$each || failed="$$failed ($$each)"; done; \
	if [ -n "$$failed" ]; then echo "make check failed:$$failed" >&2; exit 1; fi

bench: ## every benchmark; each prints its figure
	@tools/setup --dev
	@set -e; for each in benchmarks/[a-z]*.py; do echo "== $$each"; .venv/bin/python $$each; done

scoreboard: ## how good the detectors are; public sets from the folder SCOREBOARD_DATA (docs/detection.md)
	@tools/setup --dev
	@.venv/bin/python -m benchmarks.scoreboard

clean: ## removes the virtual environment, caches and the demo's data
	@tools/clean
