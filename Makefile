# `make` prints what there is to do. Everything runs in .venv, made from uv.lock by tools/setup.

PYTEST_ARGS ?=
# Most tests wait for servers: more processes than cores. A file stays in one process, which starts its servers once;
# in the order of their folders, as the slow ones with servers stand in the first.
PYTEST_JOBS ?= 5
# A command that the tests run in: CI's is tools/lived-in.
WITHIN ?=
# Pure tests wait for nothing: as many as there are cores.
FAST_JOBS ?= auto
# Modules are compiled once, not by each of the many processes that tests and demo start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-fast fresh golden check lint types collect audit sbom packages packages-test image \
	release bench scoreboard healbench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## only the virtual environment, without the tools for tests
	@tools/setup

demo: ## the whole product with a faulty cluster to heal, on this machine; Ctrl-C ends it
	@tools/setup
	@exec .venv/bin/healer demo

test: ## sets up everything tests need (Slurm, Chromium), then checks and runs all tests
	@tools/setup --dev --system
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target check collect
	@$(WITHIN) .venv/bin/pytest -n $(PYTEST_JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-fast: ## lint, import rules and the pure unit tests, in about a minute
	@tools/setup --dev
	@$(MAKE) --no-print-directory lint
	@.venv/bin/pytest tests/unit tests/stories -p tests.support.fast -n $(FAST_JOBS) --dist loadfile -q $(PYTEST_ARGS)

fresh: ## a second checkout without development packages, on each Python of this machine: make demo, healer up
	@tools/fresh --lowest

golden: ## what healer prints and shows, byte for byte as it is kept; KEEP=1 keeps what it does today
	@tools/setup --dev
	@.venv/bin/python -m tests.support.golden $(if $(KEEP),--keep) $(ONLY)

# Beside pyright, which has one core: else each process of the tests compiles all of them.
collect:
	-@.venv/bin/pytest --collect-only -qq >/dev/null

lint: ## format, lint, import rules, declared packages
	@tools/setup --dev
	@failed=; for each in "ruff format --check ." "ruff check ." "lint-imports --no-cache" \
	    "deptry healer workers migrations" "deptry tests benchmarks clients --ignore DEP002,DEP004"; do \
	    echo "== $$each"; .venv/bin/$$each || failed="$$failed ($$each)"; done; \
	if [ -n "$$failed" ]; then echo "make lint failed:$$failed" >&2; exit 1; fi

check: types lint audit ## lint, types, and known vulnerabilities

types: ## pyright
	@tools/setup --dev
	@echo "== pyright"; .venv/bin/pyright

audit: ## the locked packages against known vulnerabilities, by pip-audit: OSV, PyPI, else tools/advisories.yaml
	@tools/setup --dev
	@echo "== advisories"; .venv/bin/python tools/check-advisories

sbom: ## the software bill of materials (CycloneDX), in build/healer.cdx.json
	@tools/setup
	@mkdir -p build && .venv/bin/python tools/sbom build/healer.cdx.json && echo build/healer.cdx.json

packages: ## deb and rpm of server and node, in dist/ (docs/install.md)
	@tools/packages

packages-test: ## runs, upgrades and removes them and the image in roots of distributions; root, half an hour or more
	@tools/setup --dev --packages
	@.venv/bin/python -m tests.packages.builds
	@.venv/bin/pytest tests/packages -n 2 --dist loadfile $(PYTEST_ARGS)

image: ## OCI image of the package for Debian 12, in dist/, without a daemon; root, mmdebstrap, umoci
	@tools/image

release: ## packages, changes, bill of materials, sums in dist/; signed with KEYS=FOLDER of healer node-keys
	@tools/release $(if $(KEYS),--keys $(KEYS))

bench: ## every benchmark; each prints its figure
	@tools/setup --dev
	@set -e; for each in benchmarks/[a-z]*.py; do echo "== $$each"; .venv/bin/python $$each; done

scoreboard: ## how good the detectors are; public sets from the folder SCOREBOARD_DATA (docs/detection.md)
	@tools/setup --dev
	@.venv/bin/python -m benchmarks.scoreboard --fleet-days 54

healbench: ## the public benchmark: healer and others on 40 made recordings; plot in build/healbench.svg
	@tools/setup
	@.venv/bin/python -m healbench --plot build/healbench.svg

clean: ## removes the virtual environment, caches and the demo's data
	@tools/clean
