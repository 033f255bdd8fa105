# One word per job; `make` alone lists them. Every job builds .venv first when it is missing or out of date.
.DEFAULT_GOAL := help
SHELL := bash

# The first interpreter that runs and is new enough.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
READY := .venv/.ready

# Tests start some hundred programs, and each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo kafka-demo test test-all durations chaos bench bench-full bench-gate bench-auto bench-peers bench-kafka bench-nexmark bench-kernels bench-files bench-planners bench-scale bench-workers bench-long papers bench-papers docs dist golden pictures lint types fmt clean

help:  ## list the jobs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(READY)  ## build .venv, and find or install Java

$(READY): pyproject.toml constraints.txt tools/ensure-java
	@tools/ensure-java
	@test -n "$(PYTHON)" || { echo "setup: needs Python 3.11 or newer on PATH (or: make PYTHON=/path/to/python)"; exit 1; }
	@echo "setup: building .venv with $$($(PYTHON) --version); it takes two to three minutes"
	@$(PYTHON) -m venv .venv || { echo "setup: on Debian run: sudo apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m compileall -q -j 0 .venv/lib || true    # on all cores; pip uses one
	@touch $(READY)
	@echo "setup: done; source .venv/bin/activate, then joinengine --help"

demo: $(READY)  ## a hot key by the clock: Spark, Spark salted by hand, hash, the default (out/demo)
	@echo "demo: one product has 30 % of views and purchases; nothing is emulated"
	$(BIN)/python -m benchmarks.demo --out out/demo

kafka-demo: $(READY)  ## a broker, two topics joined into a third one and a Delta table, checked (out/kafka-demo)
	@tools/ensure-kafka >/dev/null
	@echo "kafka-demo: messages are sent for a minute; then topics and table are compared with DuckDB"
	$(BIN)/python -m benchmarks.kafka.demo --out out/kafka-demo

# Two processes have a Spark session (tests/conftest.py). They wait more than half their time for its
# tasks, and other tests for programs that they have started: there are two processes more than cores.
PARALLEL := --numprocesses $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 ))) --maxprocesses 4

test: $(READY)  ## run the tests (eleven to fifteen minutes)
	@echo "test: everything but the slow matrices, on all cores"
	@tools/ensure-chromium --find >/dev/null || \
		echo "test: no Chromium: the tests that look at pages are skipped (tools/ensure-chromium gets one)"
	@tools/ensure-kafka >/dev/null || echo "test: no Kafka: the tests of topics are skipped"
	@$(BIN)/joinengine archive &    # some fifty JVMs start twice as fast
	@$(BIN)/python -m compileall -q joinengine    # also where Python may write nothing by itself
	$(BIN)/pytest -m "not slow" $(PARALLEL)

durations: $(READY)  ## measure how long each test takes, and store it (tests/durations.json)
	@echo "durations: as make test; read the diff"
	@$(BIN)/joinengine archive
	JOINENGINE_WRITE_DURATIONS=1 $(BIN)/pytest -m "not slow" $(PARALLEL)

test-all: $(READY)  ## the tests and the slow matrices; finds or installs Chromium
	@tools/ensure-chromium
	@tools/ensure-kafka >/dev/null || echo "test-all: no Kafka: the tests of topics are skipped"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[dev,docs,slow]'
	@echo "test-all: everything, on all cores"
	@$(BIN)/joinengine archive
	JOINENGINE_WANTS_CHROMIUM=1 JOINENGINE_EXAMPLES=25 $(BIN)/pytest $(PARALLEL)

chaos: $(READY)  ## run thousands of simulated faults, then harm real processes and disks (over an hour)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[dev,slow]'
	@echo "chaos: 5,000 seeds, some fifteen minutes on two cores"
	$(BIN)/python -m tests.simulator --seeds 5000
	@echo "chaos: 30 runs of real processes, an hour"
	$(BIN)/python -m tests.chaos --runs 30

bench: $(READY)  ## rank the layouts under skew, with checked results (out/bench); QUICK=1: seven layouts
	@echo "bench: EQ5 and BNCI, z = 0, 0.8, 1.5, with emulated work; then hot keys on both sides, without any"
	$(BIN)/python -m benchmarks.layouts --out out/bench $(if $(QUICK),--quick)

bench-full: $(READY)  ## all layouts at scale 1: skew, shifts, growth, a loss (out/bench); QUICK=1: two minutes
	@echo "bench-full: hours; what is done stays if you interrupt it, and is not run again"
	$(BIN)/python -m benchmarks.layouts --full --out out/bench $(if $(QUICK),--quick)

bench-gate: $(READY)  ## is this tree slower than where its branch left main? BASE=rev: another version
	@echo "bench-gate: kernels and runs of both versions in turn, at most ten minutes; fails beyond 1.10 and the noise"
	$(BIN)/python -m benchmarks.gate --out out/bench $(if $(BASE),--base $(BASE))

bench-auto: $(READY)  ## the default beside eight single layouts, in forty cells (out/auto)
	@echo "bench-auto: seconds of the busiest instance, without Spark and without emulated work; an hour or more"
	$(BIN)/python -m benchmarks.auto --out out/auto

bench-peers: $(READY)  ## against Spark's own stream join and DuckDB (out/peers); QUICK=1: a tenth; ONLY=part,..
	@echo "bench-peers: orders join lineitem within an interval; nine parts, some two hours"
	$(BIN)/python -m benchmarks.peers --out out/peers $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

bench-kafka: $(READY)  ## topics joined, beside Spark's Kafka source and join (out/kafka)
	@tools/ensure-kafka >/dev/null
	@tools/ensure-jars spark-kafka >/dev/null
	@echo "bench-kafka: rows per second flat out, then milliseconds from topic to topic; ten minutes"
	$(BIN)/python -m benchmarks.kafka --out out/kafka

bench-nexmark: $(READY)  ## q3, q8 and q20 of Nexmark beside Flink's SQL and Pathway (out/bench); QUICK=1: a tenth
	@echo "bench-nexmark: rows per core-second; Flink and Pathway get environments of their own, once"
	$(BIN)/python -m benchmarks.nexmark --out out/bench $(if $(QUICK),--quick)

bench-kernels: $(READY)  ## hashing, scattering, sorting, probing, expanding; a join task of many instances
	@echo "bench-kernels: rows per second of the array kernels, ms per instance of a join task"
	$(BIN)/pytest benchmarks/kernels --benchmark-only --benchmark-columns=min,median,rounds

bench-files: $(READY)  ## find files in a folder of a million files, and start on it
	@echo "bench-files: the folder lies in memory; some minutes, most of them to make it"
	$(BIN)/pytest benchmarks/files --benchmark-only --benchmark-columns=min,median,max,rounds

bench-planners: $(READY)  ## seconds for one plan as keys and instances grow (out/planners)
	@echo "bench-planners: up to a million keys on 64 instances; readj takes minutes"
	$(BIN)/python -m benchmarks.planners --out out/planners

bench-scale: $(READY)  ## seconds of the driver for a batch as instances, tasks and keys grow (out/scale)
	@echo "bench-scale: up to 4,096 instances and 1,024 tasks, which are simulated; some ten minutes"
	$(BIN)/python -m benchmarks.scale --out out/scale

bench-workers: $(READY)  ## a hot key and emulated work on 1, 2, 4 and 8 executors, beside Spark's join (out/workers)
	@echo "bench-workers: EQ5, Zipf 1.2, on executors of one core each; some forty minutes, nearly all of them waiting"
	$(BIN)/python -m benchmarks.workers --out out/workers

bench-long: $(READY)  ## 2,000 small batches over a window: does anything grow? (out/long)
	@echo "bench-long: seconds of a batch, files, descriptors, memory maps, memory; some five minutes"
	$(BIN)/python -m benchmarks.long --out out/long

papers: $(READY)  ## the papers' figures, made anew, and docs/reproduction.md about them (out/papers); FIGURE=000-13: one
	@echo "papers: up to 90 minutes, less if some are made already; what is made stays if you interrupt it"
	$(BIN)/python -m benchmarks.papers --out out/papers \
		$(if $(FIGURE),$(FIGURE:%=--figure %),--page docs/reproduction.md)

bench-papers: papers  ## the same as make papers, which it is called now

docs: $(READY)  ## build the documentation site (out/site) and check its links
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --constraint constraints.txt --editable '.[dev,docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo "docs: out/site/index.html; each page also as Markdown, listed in out/site/llms.txt"
	@echo "docs: for the search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory out/site"

dist: $(READY)  ## build the wheel and the source archive (dist)
	@rm -rf dist build
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
	@rm -rf build *.egg-info && $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@ls -l dist

golden: $(READY)  ## rewrite the golden files and the generated tables of the docs; review the diff
	@echo "golden: tests/golden/plans, tests/golden/steps, docs/options.md, docs/metrics.md"
	JOINENGINE_WRITE_GOLDEN=1 $(BIN)/pytest -q tests/golden

pictures: $(READY)  ## redraw the pictures of the docs
	@tools/ensure-chromium
	@echo "pictures: runs of eq5, looked at in Chromium; some minutes"
	JOINENGINE_WANTS_CHROMIUM=1 JOINENGINE_WRITE_PICTURES=1 $(BIN)/pytest -q tests/stream/test_watched.py

lint: $(READY)  ## check style
	@echo "lint: ruff"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)  ## check types
	@echo "types: mypy"
	$(BIN)/mypy

fmt: $(READY)  ## format in place
	@echo "fmt: ruff"
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Where generated streams may lie (joinengine.lab.tpch.generate.home).
CACHES := $(or $(JOINENGINE_HOME),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/joinengine $(HOME)/Library/Caches/joinengine)

clean:  ## remove what the other jobs made
	@echo "clean: removing .venv, out and caches"
	rm -rf .venv out build dist *.egg-info .mypy_cache .ruff_cache .hypothesis .benchmarks spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@for cache in $(CACHES); do [ ! -d "$$cache" ] || \
		echo "clean: left: generated streams in $$cache, $$(du -sh "$$cache" | cut -f1);" \
		"\`joinengine cache --clear\` removes them"; done
