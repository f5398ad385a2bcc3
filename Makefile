# Every target that needs the environment creates it first, so `make test` works on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 8765

.DEFAULT_GOAL := help
.PHONY: $(shell grep -oE '^[a-z-]+:' $(lastword $(MAKEFILE_LIST)) | tr -d ':')

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## create the environment in .venv

# pip, not another client: constraints.txt pins the exact torch build that pip finds.
$(VENV)/.ready: pyproject.toml setup.py constraints.txt midreel/ops/neighbours.c
	@echo "installing into $(VENV); this takes a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: setup ## generate videos, train on them, index them: runs/demo/report.md
	$(BIN)/midreel demo

serve: runs/demo/library/library.json setup ## search the demo's videos in a browser (PORT=0: any free port)
	@$(BIN)/midreel serve runs/demo/library --port $(PORT)

runs/demo/library/library.json:
	@echo "runs/demo/library is missing. Run: make demo"; exit 1

test: setup ## run the fast tests and the doctests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m "not slow" tests midreel

test-slow: setup ## run the slow tests: the page in a browser, ONNX export, killed writers, damaged files
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist loadfile -m slow tests
	$(BIN)/python -m tools.crash_library --times 200
	$(BIN)/python -m tools.fuzz_library --times 200
	$(BIN)/python -m tools.fuzz_videos --times 900

test-wheel: setup ## build the wheel, install it without torch, and use it
	$(BIN)/python -m tools.wheel

check: setup ## check format, lint, types, import rules and spelling
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/typos

docs: setup ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: setup ## serve the documentation at http://127.0.0.1:8000 while you edit it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

format: setup ## format the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-train: setup ## measure the training step; writes docs/results/training-speed.md
	$(BIN)/python -m benchmarks.training_speed --write docs/results/training-speed.md

bench-extract: setup ## measure extraction; writes docs/results/extraction-speed.md
	$(BIN)/python -m benchmarks.extraction --write docs/results/extraction-speed.md

bench-still: runs/demo/library/library.json setup ## measure --min-change; writes docs/results/still-frames.md
	$(BIN)/python -m benchmarks.still_frames --write docs/results/still-frames.md

bench-start: runs/demo/library/library.json setup ## measure cold searches; writes docs/results/start-speed.md
	$(BIN)/python -m benchmarks.start --write docs/results/start-speed.md

bench-search: setup ## measure searching; writes docs/results/search-speed.md
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[rivals]"
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.search_speed --write docs/results/search-speed.md

bench-engines: setup ## measure PostgreSQL and the core of Qdrant; writes docs/results/engines.md
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.engines --write docs/results/engines.md

bench-serve: setup ## measure the server; writes docs/results/serving-speed.md
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[rivals]"
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m benchmarks.serving --write docs/results/serving-speed.md

bench-queries: setup ## measure the operators of queries; writes docs/results/queries.md
	$(BIN)/python -m benchmarks.queries --write docs/results/queries.md

bench-methods: setup ## compare all methods on the playhouse; writes docs/results/methods.md
	$(BIN)/python -m benchmarks.methods --write docs/results/methods.md

bench-training-size: setup ## measure what training brings by the number of videos; writes docs/results/training-size.md
	$(BIN)/python -m benchmarks.learning_curves --write docs/results/training-size.md

bench-convergence: setup ## measure methods by epoch on thousands of videos; writes docs/results/convergence.md
	$(BIN)/python -m benchmarks.convergence --write docs/results/convergence.md

bench-moments: setup ## measure ranges and repeated events; writes docs/results/moment-ranges.md
	$(BIN)/python -m benchmarks.moments --write docs/results/moment-ranges.md --picture docs/pictures/moment-ranges.png

bench-confidence: setup ## measure confidence on absent queries; writes docs/results/confidence.md
	$(BIN)/python -m benchmarks.confidence --write docs/results/confidence.md

bench-feedback: setup ## measure what a library learns from feedback; writes docs/results/feedback.md
	$(BIN)/python -m benchmarks.feedback --write docs/results/feedback.md

bench-offline: setup ## measure the backbone offline on the films in VIDEOS; writes docs/results/offline.md
	$(BIN)/python -m benchmarks.offline --videos $(VIDEOS) --stamps $(STAMPS) --write docs/results/offline.md

bench-subtitles: setup ## measure the weight of what is said; writes docs/results/subtitles.md
	$(BIN)/python -m benchmarks.subtitles --write docs/results/subtitles.md

clean: ## remove the environment, compiled files, the built documentation and every cache
	rm -rf $(VENV) build site *.egg-info midreel/ops/_neighbours.*.so .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
