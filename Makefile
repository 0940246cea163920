# What people and CI run. Every target installs what it needs first; a second run is quick.
# `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# rustup puts cargo there without touching the PATH of a running shell.
export PATH := $(HOME)/.cargo/bin:$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
VENV := .venv
NEXTEST_VERSION := 0.9.143
# Arguments for `tollgate serve`, as in: make serve ARGS="--config my.yaml"
ARGS ?=
# How many random mixes `make mixes` runs.
MIXES ?= 400

# A heading, so that a long run shows where it is.
say = @printf '\n== %s\n' "$(1)"

.PHONY: help serve test check fmt tidy docs lint doc doctest unit mixes end-to-end wasm prerequisites model nextest test-engines

help:
	@echo 'make serve   build Tollgate and serve the default model on 127.0.0.1:8080'
	@echo '             other arguments: make serve ARGS="--config my.yaml"'
	@echo 'make test    everything that CI runs; cheap checks first'
	@echo 'make test-engines   real llama-server and vLLM behind it; builds the first'
	@echo 'make check   the quick part of it: formatting, tidy, clippy, docs'
	@echo
	@echo 'The first build compiles llama.cpp, once for serve and once for test. On two cores that'
	@echo 'takes some five minutes each; later builds take seconds.'

serve: prerequisites model
	$(call say,build (the first time some five minutes on two cores: llama.cpp is compiled))
	cargo build --release --package tollgate
	@exec $(TARGET_DIR)/release/tollgate serve $(ARGS)

# Parts run one after another, whatever -j says: each is parallel in itself.
test:
	@$(MAKE) check
	@$(MAKE) wasm
	@$(MAKE) doctest
	@$(MAKE) unit
	@$(MAKE) end-to-end

check:
	@scripts/prerequisites.sh --tests
	@$(MAKE) fmt
	@$(MAKE) tidy
	@$(MAKE) docs
	@$(MAKE) lint
	@$(MAKE) doc

fmt:
	$(call say,formatting)
	cargo fmt --all --check

tidy:
	$(call say,tidy)
	cargo xtask tidy

# Numbers in documents are those of the committed results.
docs:
	$(call say,numbers in the documents)
	cargo xtask docs --check

lint:
	$(call say,clippy (the first time it compiles llama.cpp: some five minutes on two cores))
	cargo clippy --workspace --all-targets -- -D warnings

doc:
	$(call say,documentation)
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps

# The policy has no I/O, so it builds where there is no operating system.
wasm:
	$(call say,policy without an operating system)
	@if [ -d "$$(rustc --print sysroot)/lib/rustlib/wasm32-unknown-unknown" ]; then \
		RUSTFLAGS= cargo build --package tollgate-policy --target wasm32-unknown-unknown; \
	else \
		echo 'left out: run `rustup target add wasm32-unknown-unknown` to check it too'; \
	fi

doctest:
	$(call say,examples in the documentation)
	cargo test --workspace --doc

unit: nextest model
	$(call say,tests)
	cargo nextest run --workspace

# Some minutes: on one thread, so that it can run beside other work.
mixes: model
	$(call say,$(MIXES) random mixes of requests against each request alone)
	TOLLGATE_MIXES=$(MIXES) cargo test --package tollgate-engine --lib mixes_on_the_model -- --nocapture

end-to-end: model $(VENV)/installed
	$(call say,the openai client against the built binary)
	cargo build --workspace
	TOLLGATE_BIN=$(TARGET_DIR)/debug/tollgate $(VENV)/bin/python -m pytest -p no:cacheprovider tests/openai

# Not part of `make test`: it builds llama.cpp's server, or takes LLAMA_SERVER, and takes vLLM from a
# virtual environment, if VLLM and VLLM_MODEL name one and its model.
LLAMA_SERVER ?= $(abspath $(TARGET_DIR))/llama-server/build/bin/llama-server
test-engines: model $(VENV)/installed
	$(call say,real engines behind the built binary)
	@[ -x "$(LLAMA_SERVER)" ] || scripts/build-llama-server.sh $(TARGET_DIR)/llama-server
	cargo build --workspace
	TOLLGATE_BIN=$(TARGET_DIR)/debug/tollgate LLAMA_SERVER=$(LLAMA_SERVER) \
		$(VENV)/bin/python -m pytest -p no:cacheprovider tests/engines

prerequisites:
	@scripts/prerequisites.sh

model:
	@scripts/fetch-model.sh

nextest:
	@if ! cargo nextest --version >/dev/null 2>&1; then \
		printf '\n== install cargo-nextest (once, some minutes)\n'; \
		cargo install cargo-nextest --locked --version $(NEXTEST_VERSION); \
	fi

$(VENV)/installed: tests/openai/requirements.txt
	$(call say,Python packages for the end-to-end tests)
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --requirement $<
	@touch $@
