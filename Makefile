# Every target creates or reuses .venv; only Python 3.11 or later is required.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := all,test,check
PIP := PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip --disable-pip-version-check install --quiet
DATA ?= data
ASSETS := $(wildcard src/msdscore/*/assets serve/src/msdscore_serve/assets)

.PHONY: help setup demo test test-all test-light test-transformers4 test-lowest coverage check format bench evidence paper paper-docs train-mini docs notebooks release clean

help:
	@echo "make demo      score sample photographs and write a page"
	@echo "make test      run the fast tests"
	@echo "make test-all  also run the slow tests: training, clusters, notebooks"
	@echo "make test-light   run the tests of the metric in an environment without torch"
	@echo "make test-transformers4   run the encoder tests with transformers 4.57"
	@echo "make test-lowest   run the light tests with the lowest supported versions"
	@echo "make coverage  run the fast tests and fail below the coverage floor"
	@echo "make check     check format, lint, types and import layers"
	@echo "make bench     measure the speed relative to a plain loop"
	@echo "make evidence  measure agreement with human judgements (DATA=folder ROWS=rows.jsonl)"
	@echo "make paper     run the plan of the paper, and compare with its values (ENCODER=name DATA=folder [ALIGNER=folder] [ALSO='names'] [LOCAL=checkpoints] [LIMIT=items] [ARGS='--list'])"
	@echo "make train-mini train the shipped encoder (ARGS='--data rows.jsonl --images folder -o run')"
	@echo "make docs      build the documentation in build/docs"
	@echo "make notebooks execute and store the notebooks of the documentation"
	@echo "make release   build and try all distributions, with SBOM and licences, in dist"
	@echo "make clean     remove the environment and all build outputs"

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# Only the dependencies of the demo, without torch.
$(VENV)/demo-ready: $(VENV)/bin/python pyproject.toml weights/pyproject.toml constraints.txt
	$(PIP) --editable weights --editable '.[demo]'
	touch $@

$(VENV)/ready: $(VENV)/bin/python pyproject.toml backbones/pyproject.toml lab/pyproject.toml serve/pyproject.toml weights/pyproject.toml constraints.txt
	$(PIP) --editable weights --editable '.[$(EXTRAS)]' --editable backbones --editable serve --editable 'lab[all]'
	touch $(VENV)/demo-ready $@

setup: $(VENV)/ready

demo: $(VENV)/demo-ready
	$(BIN)/msdscore demo --output demo-out --overwrite

test: setup
	$(BIN)/python -m pytest -n 2 -m "not slow"

# Also training runs, clusters, notebooks and stress tests.
test-all: test
	$(BIN)/python -m pytest -n 2 -m slow

# The metric in an environment without torch, PyArrow and DuckDB.
LIGHT := .venv-light
$(LIGHT)/ready: pyproject.toml weights/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LIGHT)
	PIP_CONSTRAINT=constraints.txt $(LIGHT)/bin/python -m pip --disable-pip-version-check install --quiet \
	  ./weights --editable '.[demo]' pytest hypothesis beartype jaxtyping
	touch $@

test-light: $(LIGHT)/ready
	$(LIGHT)/bin/python -m pytest tests/test_light.py
	$(LIGHT)/bin/python perf/weight.py

# The encoders work with transformers 4 and 5; the default environment has 5.
TF4 := .venv-transformers4
$(TF4)/ready: pyproject.toml backbones/pyproject.toml lab/pyproject.toml weights/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TF4)
	grep -viE '^(transformers|huggingface_hub|tokenizers)==' constraints.txt > $(TF4)/constraints.txt
	PIP_CONSTRAINT=$(TF4)/constraints.txt $(TF4)/bin/python -m pip --disable-pip-version-check install --quiet \
	  transformers==4.57.1 huggingface_hub==0.36.0 tokenizers==0.22.1 \
	  beartype hatchling hypothesis pytest --editable weights --editable '.[hf,openclip]' --editable backbones --editable lab
	touch $@

test-transformers4: $(TF4)/ready
	$(TF4)/bin/python -m pytest tests/test_encoders_*.py

# The lower bounds of [project] instead of the pins in constraints.txt.
LOWEST := .venv-lowest
test-lowest:
	$(PYTHON) -m venv $(LOWEST)
	$(PYTHON) tools/lowest_bounds.py pyproject.toml > $(LOWEST)/constraints.txt
	PIP_CONSTRAINT=$(LOWEST)/constraints.txt $(LOWEST)/bin/python -m pip --disable-pip-version-check install --quiet \
	  '.[files]' ./weights pytest hypothesis beartype jaxtyping
	$(LOWEST)/bin/python -m pytest tests/test_light.py

coverage: setup
	$(PIP) pytest-cov
	$(BIN)/python -m pytest -n 2 -m "not slow" --cov=msdscore --cov=msdscore_torch --cov=msdscore_lab --cov=msdscore_serve --cov-report=term:skip-covered --cov-fail-under=$(FLOOR)
FLOOR ?= 90

check: setup
	$(BIN)/ruff format --check src backbones lab serve weights tests tools perf
	$(BIN)/ruff check src backbones lab serve weights tests tools perf
	$(BIN)/ruff check --isolated --select F811,F821 tests  # the shapes of src look like undefined names
	$(BIN)/oxfmt --check $(ASSETS)
	$(BIN)/oxlint $(ASSETS)
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini tests perf
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format src backbones lab serve weights tests tools perf
	$(BIN)/ruff check --fix src backbones lab serve weights tests tools perf
	$(BIN)/oxfmt $(ASSETS)

bench: setup
	$(BIN)/python perf/scoring.py
	$(BIN)/python perf/mini.py

# Existing result files are not computed again; benchmarks that are missing in DATA are omitted from the page.
JUDGED := sugarcrepe flickr8k-expert composite pascal50s thumb long-captions rsicd
COMPARED := -m cosine -m precision -m information -m penalty -m invented -m msd -m max-sim-cal -m length -m shorter --samples 300
ROWS ?=
evidence: setup
	mkdir -p build/evidence
	for name in $(JUDGED); do test -f build/evidence/$$name.json || $(BIN)/msdscore bench $$name --root $(DATA) \
	  $(COMPARED) --cache build/cache -o build/evidence || echo "$$name: skipped"; done
	study() { file=build/evidence/$$1.json; shift; test -f $$file || \
	  $(BIN)/msdscore study "$$@" --cache build/cache -o $$file || exit 1; }; \
	for name in balance delta; do study $$name sweep $$name --root $(DATA) --samples 300 $(addprefix -b ,$(JUDGED)); done; \
	study changed words --root $(DATA) --marks changed; \
	study chair words --root $(DATA) --marks chair --synonyms $(DATA)/coco_object_synonyms.txt --limit 400; \
	if test -n "$(ROWS)"; then study words words --marks captions --rows $(ROWS); \
	  study match match --rows $(ROWS) --limit 300; fi
	$(BIN)/python -m msdscore_lab.paper fill docs/lab/evidence.md --results build/evidence

# Tables and figures of the paper for any encoder, and verdicts on its values, in OUT/paper.md, paper.tex and paper.json.
# Finished steps are not repeated; ARGS='--only NAME' runs one. `make paper-docs` fills docs/lab/paper.md.
ENCODER ?= clip-l14
OUT ?= build/paper/$(ENCODER)
paper: setup
	$(BIN)/python -m msdscore_lab.paper --encoder $(ENCODER) --data $(DATA) -o $(OUT) $(if $(LOCAL),--local $(LOCAL)) \
	  $(if $(ALIGNER),--aligner $(ALIGNER)) $(if $(LIMIT),--limit $(LIMIT)) $(foreach name,$(ALSO),--also $(name)) $(ARGS)

paper-docs: setup
	$(BIN)/python -m msdscore_lab.paper fill docs/lab/paper.md --results $(OUT)

train-mini: setup
	$(PIP) --editable 'lab[train]'
	$(BIN)/python weights/recipe/train.py $(ARGS)

notebooks: setup
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/jupyter execute --inplace docs/notebooks/*.ipynb
	$(BIN)/python tools/slim_notebooks.py docs/notebooks/*.ipynb

docs: setup
	$(PIP) furo myst-nb sphinx sphinx-copybutton sphinx-design
	$(BIN)/sphinx-build --quiet --fail-on-warning docs build/docs

# All distributions, tried in environments with nothing but their wheels and the libraries that these need: one as users
# of the metric and the service have it, of which SBOM and licences are written, and one with torch and the laboratory.
RELEASE := .venv-release
VERSION = $(shell $(PYTHON) -c 'exec(open("src/msdscore/version.py").read()); print(__version__)')
WHEELS = PIP_CONSTRAINT=constraints.txt $(RELEASE)/$(1)/bin/python -m pip --disable-pip-version-check install --quiet --find-links dist
release:
	rm -rf dist $(RELEASE)
	for name in tools users research; do $(PYTHON) -m venv $(RELEASE)/$$name || exit 1; done
	$(call WHEELS,tools) hatchling cyclonedx-bom pip-licenses
	$(RELEASE)/tools/bin/python -m hatchling build -d dist
	for part in weights backbones lab serve; do (cd $$part && ../$(RELEASE)/tools/bin/python -m hatchling build -t wheel -d ../dist) || exit 1; done
	$(call WHEELS,users) 'msdscore[demo,serve]==$(VERSION)'
	$(PYTHON) tools/smoke.py $(RELEASE)/users/bin/python
	$(call WHEELS,research) 'msdscore[serve]==$(VERSION)' 'msdscore-lab==$(VERSION)'
	$(PYTHON) tools/smoke.py $(RELEASE)/research/bin/python all
	$(RELEASE)/tools/bin/cyclonedx-py environment --output-reproducible --of JSON -o dist/sbom.json $(RELEASE)/users
	$(RELEASE)/tools/bin/pip-licenses --python=$(RELEASE)/users/bin/python --format=markdown --order=license --with-urls --output-file=dist/licences.md

clean:
	rm -rf $(VENV) .venv-* build dist demo-out site .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src backbones lab serve weights tests tools perf -name __pycache__ -type d -prune -exec rm -rf {} +
