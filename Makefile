# A thin front for the CMake presets and scripts/. Every target is safe to repeat.
PREFIX ?= /usr/local
MODEL = models/SmolLM2-135M-Instruct.Q4_1.gguf
WEFT = build/release/weft
JOBS := $(shell nproc 2>/dev/null || echo 2)

.PHONY: help demo compare compare-serve test test-long lint release install clean

help:
	@echo 'make demo       build, fetch a 135M chat model, answer on 1 rank and on several, compare bytes'
	@echo 'make compare    measure weft and llama.cpp side by side (ARGS=--quick: shorter jobs)'
	@echo 'make compare-serve  measure weft serve and llama-server side by side, and what serving costs'
	@echo 'make test       build and run every test (also under sanitizers; the long ones excepted)'
	@echo 'make test-long  the tests that take minutes each'
	@echo 'make lint       formatting, clang-tidy, cppcheck, direction of includes'
	@echo 'make release    build only: $(WEFT)'
	@echo 'make install    install the release build under PREFIX=$(PREFIX)'
	@echo 'make clean      remove build/'
	@echo 'Missing Debian 12 packages are installed first (sudo only when not root).'

release:
	@scripts/install-packages build
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target weft_cli weft_pages

demo: release
	@scripts/fetch-model
	@scripts/demo $(WEFT) $(MODEL)

compare: release
	@scripts/install-packages compare
	@scripts/fetch-model
	@scripts/compare --weft $(WEFT) --demo $(MODEL) $(ARGS)

compare-serve: release
	@scripts/install-packages compare
	@scripts/fetch-model
	@scripts/compare-serve --weft $(WEFT) --model $(MODEL) $(ARGS)

test:
	@scripts/install-packages build test
	@scripts/fetch-model
	@scripts/run-tests

test-long:
	@scripts/install-packages build test
	@scripts/fetch-model
	@scripts/run-tests long

lint:
	@scripts/install-packages build test lint
	@scripts/lint

install: release
	cmake --install build/release --prefix $(PREFIX)

clean:
	rm -rf build
