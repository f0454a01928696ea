# Everything a newcomer or CI runs. Each target sets up what it needs: a bare machine with make and Python 3.11 will do.
PYTHON ?= python3
EVENTS ?= all
BROKERS ?= 1
FIRST ?= 0
MINUTES ?= 10
SEEDS ?= 200
BIN := .venv/bin
STAMP := .venv/installed-from-lock
JAVA = JAVA_HOME="$$(sh scripts/java_home.sh)"

.DEFAULT_GOAL := help
.PHONY: help setup run test check format fuzz interop bench sim lock clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	PYTHON="$(PYTHON)" sh scripts/setup.sh
	touch $(STAMP)

setup: $(STAMP) ## make .venv from the lock, with hashes; a second run installs nothing

run: $(STAMP) ## the main job: flights through a broker, a consumer group and two Spark applications (EVENTS=20000: a part; BROKERS=3: on a cluster)
	@$(JAVA) $(BIN)/python -m pipeline.run --events $(EVENTS) --brokers $(BROKERS)

test: $(STAMP) ## all tests that need PyPI and Debian only
	@PYTHONDONTWRITEBYTECODE= $(JAVA) $(BIN)/python -m pytest -q -m "not interop" --numprocesses auto --maxprocesses 5 --dist loadscope \
	  --no-loadscope-reorder

check: $(STAMP) ## types, style, and no row of the catalogue without a test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/rows.py

format: $(STAMP) ## let ruff write the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(STAMP) ## bend bytes for every decoder, and ask a live broker anything, for MINUTES each (MINUTES=10)
	$(BIN)/python tests/fuzz/run.py --minutes $(MINUTES)
	cd tests && ../$(BIN)/python -m anyrequest --minutes $(MINUTES)

sim: $(STAMP) ## SEEDS scenarios of the simulator from seed FIRST on (SEEDS=200 FIRST=0); a failing one prints how to see it again
	@$(BIN)/python -m swarm --seeds $(SEEDS) --first $(FIRST) --jobs 2 --keep-going

interop: $(STAMP) ## Apache Kafka's own clients and tools, and the recorded scenarios, against our broker
	@$(JAVA) $(BIN)/python -m interop

bench: $(STAMP) ## every claim of speed and memory, side by side with Apache Kafka
	@$(JAVA) $(BIN)/python -m bench

lock: $(STAMP) ## write requirements.lock anew from pyproject.toml and requirements.in
	sh scripts/lock.sh

clean: ## forget what was installed and made
	rm -rf .venv run .cache .mypy_cache .ruff_cache .hypothesis
