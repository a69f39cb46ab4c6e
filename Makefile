# Thin by rule: a target is a line or two; what needs more is in tools/.
PYTHON ?= python3
BIN := .venv/bin
CORE := $(wildcard runtime/csrc/CMakeLists.txt runtime/csrc/*/*)
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: setup demo test test-all test-exhaustive lint format wheel peers horovod horovod-tensorflow tensorflows sagemaker-sdk \
	sagemaker-training docker-demo docker-demo-mpi site-tools docs bench bench-device clean

setup: .venv/ready
.venv/ready: pyproject.toml constraints.txt tools/setup.sh $(CORE)
	PYTHON="$(PYTHON)" sh tools/setup.sh

demo: setup
	python examples/digits_torch/run.py

test: setup
	sh tools/tier.sh test 600 sh tools/test.sh "not slow and not exhaustive"

test-all: setup
	sh tools/tier.sh test-all 1980 sh tools/test.sh "not exhaustive"

test-exhaustive: setup
	sh tools/tier.sh test-exhaustive 900 sh tools/test.sh "exhaustive"

lint: setup
	sh tools/tier.sh lint 40 sh tools/lint.sh

format: setup
	ruff check --fix-only -q . && ruff format .
	clang-format -i runtime/csrc/src/*.cc runtime/csrc/src/*.h runtime/csrc/tests/*.cc runtime/csrc/tests/*.h runtime/csrc/tensorflow/*.cc runtime/csrc/tensorflow/*.h

peers: setup
	sh tools/peers.sh

horovod: peers
	sh tools/horovod.sh torch

horovod-tensorflow: peers
	sh tools/horovod.sh tensorflow

tensorflows: setup
	sh tools/tensorflows.sh

sagemaker-sdk: setup
	sh tools/sdk.sh

sagemaker-training: setup
	sh tools/sagemaker_training.sh

docker-demo: setup
	sh tools/docker_demo.sh hdp

docker-demo-mpi: setup
	sh tools/docker_demo.sh mpi

site-tools: setup
	sh tools/site.sh

docs: site-tools
	python tools/docs.py

bench: setup
	python benchmarks/allreduce.py

bench-device:
	PYTHON="$(PYTHON)" sh benchmarks/device.sh

wheel: setup
	sh tools/wheel.sh

clean:
	rm -rf .venv build dist
