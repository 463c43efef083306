# What people type. Everything lives in .venv; a second run installs nothing that has not changed.
#
#   make demo    three brokers, a real text file, kill -9 of the master again and again
#   make demo-spark   rows through Spark to a queue and back into Parquet, kill -9 of Spark and the master both ways (Java 17)
#   make examples   programs that lose their broker and go on: examples/failover, cluster, replication
#   make test    a sample of every area, three minutes; TEST_ARGS=tests/journal narrows it
#   make test-deep   all other tests, 18 minutes
#   make test-thorough   more seeds, versions, moments and benchmarks than make test-deep, before a release
#   make package   source distribution and wheel, tried in clean environments of each Python that is here
#   make lint    ruff, import-linter and mypy; codespell and proselint for the documents
#   make docs    the documents as a site with search: build/site/index.html
#   make sbom    what a broker host gets, as CycloneDX: build/amq.cdx.json; SBOM_EXTRAS=[spark] for more
#   make audit   known vulnerabilities of the same packages
#   make pictures   the pictures of the console in docs/pictures (chromium, root)
#   make bench   a few minutes of every benchmark
#   make nfs-test   brokers on real NFS servers with real partitions (root, User-mode Linux); nfs-test-all: and GFS2, SMB
#   make simulate   brokers in a simulated world, until Ctrl-C; SEED=… STEPS=… replays; FEATURES=…
#
# PYTHON=/path/to/python chooses the interpreter (3.11 or later); without it the first fitting one on PATH is taken.

VENV := .venv
BIN := $(VENV)/bin
METADATA := setup.cfg pyproject.toml
CANDIDATES := $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11)
TEST_ARGS ?=
DEMO_ARGS ?=
EXAMPLES ?=
SEED ?=
STEPS ?=
BENCH_ARGS ?=
SBOM_EXTRAS ?=
NFS_TEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo demo-spark examples test test-deep test-thorough package lint docs sbom audit pictures bench simulate nfs-test nfs-test-all clean

help:
	@sed -n '3,19s/^# \{0,1\}//p' Makefile

demo: $(VENV)/.installed
	$(BIN)/amq demo $(DEMO_ARGS)

demo-spark: $(VENV)/.installed-spark
	$(BIN)/amq demo-spark $(DEMO_ARGS)

examples: $(VENV)/.installed
	$(BIN)/python examples/failover/demo.py $(EXAMPLES)
	$(BIN)/python examples/cluster/three_nodes.py
	$(BIN)/python examples/cluster/two_hosts.py
	$(BIN)/python examples/replication/three_copies.py

# Compiled once, also where PYTHONDONTWRITEBYTECODE is set: hundreds of processes start, 0.3 s sooner each.
# tests/conftest.py says in which order files come.
# Compiled tests are kept for the same reason: each worker imports all of them. pytest compiles them itself, and in a
# fresh clone each worker would compile all: two processes do it before, half of them each. Three workers more than
# there are cores, for tests wait for processes: 177 s on two cores, 195 to 212 s with two more.
WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 3)))
PYTEST = @$(BIN)/python -m compileall -q amq cli migrate spark; \
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

build/.compiled-tests: $(VENV)/.installed-test
	@mkdir -p build
	@for half in 'tests/[a-l]*/' 'tests/[m-z]*/ tests/test_*.py'; do \
	  PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -q $$half >/dev/null & \
	done; wait
	@touch $@

test: build/.compiled-tests
	$(PYTEST) -m 'not deep and not thorough' $(TEST_ARGS)

# More workers, as these wait longer for what they started.
test-deep: WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 7)))
test-deep: build/.compiled-tests
	$(PYTEST) -m 'deep and not thorough' $(TEST_ARGS)

test-thorough: WORKERS := $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 5)))
test-thorough: build/.compiled-tests
	$(PYTEST) -m 'thorough' $(TEST_ARGS)
	$(PYTEST) -m 'hypothesis and not deep and not thorough' --hypothesis-profile thorough $(TEST_ARGS)

package: $(VENV)/.installed-test
	$(BIN)/python -m tests.packages

lint: $(VENV)/.installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m tests.lint
	@# mypy and import-linter follow directories, not setup.cfg: show them cli/, migrate/ and spark/ where they are installed.
	@rm -rf build/mypy && mkdir -p build/mypy/amq
	@ln -s $(CURDIR)/amq/* build/mypy/amq/ && ln -s $(CURDIR)/cli build/mypy/amq/cli
	@ln -s $(CURDIR)/migrate build/mypy/amq_migrate && ln -s $(CURDIR)/spark build/mypy/pyspark_amq
	cd build/mypy && $(CURDIR)/$(BIN)/lint-imports --no-cache $(CURDIR)/importlinter.toml
	$(BIN)/codespell
	$(BIN)/hadolint conf/Containerfile
	$(BIN)/kubernetes-validate --strict --quiet conf/kubernetes.yaml
	@rm -rf build/prose
	$(BIN)/python -m tests.prose build/prose
	$(BIN)/proselint check --config proselint.json build/prose
	cd build/mypy && $(CURDIR)/$(BIN)/python -m mypy --config-file $(CURDIR)/pyproject.toml -p amq -p amq_migrate -p pyspark_amq
	cd nfs-test && MYPYPATH=$(CURDIR)/build/mypy:$(CURDIR) $(CURDIR)/$(BIN)/python -m mypy \
	  --config-file= --cache-dir=$(CURDIR)/.mypy_cache --strict --follow-imports=silent run.py lab
	cd examples/failover && MYPYPATH=$(CURDIR)/build/mypy $(CURDIR)/$(BIN)/python -m mypy \
	  --config-file= --cache-dir=$(CURDIR)/.mypy_cache --strict --follow-imports=silent *.py ../cluster/*.py ../replication/*.py

# The site has the tree of the repository, so that links between documents and to conf/ are the same in both.
docs: $(VENV)/.installed-docs
	@rm -rf build/pages build/site && mkdir -p build/pages/docs
	@ln -s ../../README.md build/pages/index.md
	@ln -s ../../CHANGELOG.md ../../CONTRIBUTING.md ../../SECURITY.md ../../conf ../../examples build/pages/
	@ln -s $(CURDIR)/docs/* build/pages/docs/
	@$(BIN)/python -m amq.cli.reference build/pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "build/site/index.html"

# What is installed where a broker runs, and nothing else.
build/host: $(METADATA) | $(BIN)/python
	@rm -rf $@ && $(BIN)/python -m venv --without-pip $@
	@$(BIN)/python -m pip --python $@/bin/python install --quiet --disable-pip-version-check '.$(SBOM_EXTRAS)'

sbom: build/host $(VENV)/.installed-audit
	$(BIN)/cyclonedx-py environment --output-file build/amq.cdx.json build/host/bin/python
	@echo "build/amq.cdx.json"

audit: build/host $(VENV)/.installed-audit
	$(BIN)/python -m tests.audit build/host

pictures: $(VENV)/.installed-test
	AMQ_PICTURES=$(CURDIR)/docs/pictures $(BIN)/python -m pytest -m deep tests/console/test_console_pictures.py tests/console/test_console_cluster_layout.py

bench: $(VENV)/.installed
	$(BIN)/python -m bench $(BENCH_ARGS)

simulate: $(VENV)/.installed-test
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED)) $(if $(STEPS),--steps $(STEPS)) \
	  $(if $(FEATURES),--features $(FEATURES))

nfs-test: $(VENV)/.installed
	$(BIN)/python nfs-test/run.py $(NFS_TEST_ARGS)

nfs-test-all: $(VENV)/.installed
	$(BIN)/python nfs-test/run.py --all --write-docs $(NFS_TEST_ARGS)

clean:
	rm -rf $(VENV) build *.egg-info .bench .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	@for python in $(CANDIDATES); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "$$python -m venv $(VENV)"; exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo "amq needs Python 3.11 or later; none among: $(CANDIDATES). Install one, or say: make PYTHON=/path/to/python3.11" >&2; \
	exit 1

$(VENV)/.installed: $(METADATA) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[console]'
	@touch $@

# Spark lists the folders of sys.path to find data sources, and an editable install has none there.
define FOR_SPARK
site=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
	  ln -sfn $(CURDIR)/spark "$$site/pyspark_amq"; \
	  ln -sfn $(CURDIR)/spark/pyspark_amq_journal "$$site/pyspark_amq_journal"
endef

$(VENV)/.installed-spark: $(METADATA) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[console,spark]'
	@$(FOR_SPARK)
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-test: $(METADATA) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint,bench,spark,jwt,ldap,sql,zookeeper,console,browser]'
	@$(FOR_SPARK)
	@touch $@ $(VENV)/.installed $(VENV)/.installed-spark

$(VENV)/.installed-audit: $(METADATA) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[audit]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(METADATA) | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ $(VENV)/.installed
