# Two commands for a newcomer: `make demo` and `make test`. Everything is installed into .venv and .cache, nothing elsewhere.
PYTHON ?= python3
BIN := .venv/bin
DESCRIPTIONS := .cache/npm/.ready
COMPILED := .cache/.compiled
# Tests wait for processes of theirs: with three workers beyond the cores all of these are busy.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + $(BEYOND))))
BEYOND = 3
# Tests that are not slow wait little, and each worker collects all tests.
check: BEYOND = 1

# Without compiled files each worker compiles all tests by itself, which takes as long as a tenth of the suite.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo docs test check test-agents test-pytorch bench bench-environment bench-gateway bench-live-log bench-lists bench-setup crash chaos fuzz gpu hostile mutation pictures properties lint linted setup clean
demo: setup
	$(BIN)/ptq-bot demo $(ARGS)

test: setup $(DESCRIPTIONS) linted
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not agents and not pytorch"

check: setup $(DESCRIPTIONS) linted
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "not slow and not agents and not pytorch"

# The service is killed at every point of a story, on both databases; `make test` takes four points, the same ones each time.
crash: setup
	PTQ_CRASH=all $(BIN)/pytest -n $(WORKERS) tests/crash $(ARGS)

# The whole story with the real command lines of agents, against a scripted model.
test-agents: setup $(DESCRIPTIONS)
	$(BIN)/python -m tests.support.clis
	$(BIN)/pytest -n $(WORKERS) -m agents

# A real issue of PyTorch, from its label to a draft pull request: it fetches a wheel of 192 MB, once, and needs 5 GB of disk.
test-pytorch: setup $(DESCRIPTIONS)
	$(BIN)/pip download --quiet --no-deps --retries 0 --dest .cache/pytorch --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
	$(BIN)/pytest -m pytorch $(ARGS)

# One job on this machine's NVIDIA GPU. It needs the driver, and a `python3` with PyTorch.
gpu: setup
	$(BIN)/python -m tests.gpu

# Replicas, machines and GitHub break while 200 jobs run, in `make test` while three do; ARGS="--seed N --jobs M" repeats a run.
chaos: setup $(DESCRIPTIONS)
	$(BIN)/python -m tests.chaos $(ARGS)

# Jobs, conversations and deliveries in any order against models; `make test` tries a 25th of the examples, always the same.
properties: setup
	PTQ_PROPERTIES=many $(BIN)/pytest -n $(WORKERS) tests/handlers/test_case_property.py tests/handlers/test_inbox_property.py tests/handlers/test_job_property.py $(ARGS)

# Plays every hostile text against a running service; `/healthz` has to answer soon all the while. It needs two cores.
hostile: setup
	$(BIN)/python -m tests.hostile $(ARGS)

# Nasty texts against GitHub's own Markdown parser; `make test` takes a few hundred; ARGS="--seed N --texts M" repeats a run.
fuzz: setup
	$(BIN)/python -m tests.fuzz $(ARGS)

# Plants small faults in the product and says which of them the tests find. First ARGS=map, once: it runs the whole suite.
mutation: setup $(DESCRIPTIONS)
	$(BIN)/python -m tests.mutation $(ARGS)

# How fast deliveries are acknowledged, beside Probot. It needs two cores that nobody else is using.
bench: setup $(DESCRIPTIONS)
	$(BIN)/python -m tests.bench

# How fast a job has its environment, beside the predecessor's recipe; ARGS="--scale 0.1" is a short one.
bench-environment: setup
	$(BIN)/python -m tests.bench.environment $(ARGS)

# What it costs to ask a model through the gateway, beside asking it directly. It needs two cores.
bench-gateway: setup
	$(BIN)/python -m tests.bench.gateway

# How soon a line on a machine is in 500 browsers, and what they cost the machine. It needs two cores.
bench-live-log: setup
	$(BIN)/python -m tests.bench.live_log

# How long the list of jobs takes with 10,000 of them, beside one with a page of them.
bench-lists: setup
	$(BIN)/python -m tests.bench.lists

# From a fresh clone to a first report by the pages of set-up, against the stand-in. It needs a Chromium.
bench-setup: setup
	$(BIN)/python -m tests.bench.newcomer

# The pictures in the documents, from the running product. It needs a Chromium, and a font with emoji.
pictures: setup $(DESCRIPTIONS)
	PTQ_REWRITE_PICTURES=1 PTQ_TEST_REQUIRE_CHROMIUM=1 $(BIN)/pytest tests/stories/test_browser.py tests/stories/test_walk.py

# The site of the documents, in site/. A link that leads nowhere fails it; --quiet would hide it from --strict, too.
docs: .venv/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: .venv/.ready

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ptq-bot needs Python 3.11 or newer; name one with PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt hatchling
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	@touch $@

.venv/.docs: .venv/.ready
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-build-isolation --editable '.[docs]'
	@touch $@

# GitHub's own descriptions of its API and its example payloads, which the tests compare with the stand-in; and axe-core.
$(DESCRIPTIONS): tests/descriptions/package.json tests/descriptions/package-lock.json | .venv/.ready
	$(BIN)/python -m tests.support.descriptions
	@touch $@

# The tests are compiled while mypy runs.
linted: setup $(DESCRIPTIONS)
	@$(MAKE) --no-print-directory --jobs=2 lint $(COMPILED)

# Once for each clone. What cannot be collected fails the tests themselves.
$(COMPILED): .venv/.ready $(DESCRIPTIONS)
	@$(BIN)/pytest --collect-only --quiet --quiet >/dev/null || true
	@touch $@

clean:
	rm -rf .venv .cache site
