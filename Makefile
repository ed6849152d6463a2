# The two commands of the README, and what they are made of. On a fresh Debian or Ubuntu machine with git, make and
# Rust, both set up what they need: packages through apt when root, otherwise they say what is missing.

.PHONY: demo test test-all build lint tests unit structures simulator without-rdma docs laboratory planted doctests examples python memcached engines verbs fuzz instructions mutants fresh fresh-setup soak setup help

CARGO ?= cargo
# What these commands build is built once. What an incremental build would keep for the next one takes five times the room.
export CARGO_INCREMENTAL ?= 0
FUZZ_SECONDS ?= 15
SOAK_HOURS ?= 8
FRESH ?= demo test
MUTANTS ?= node client softnic/core
MUTANTS_SHARD ?= 0/4
# The tests of the product. The laboratory's wait for `make test-all`, except for a sample of the simulator. All commands
# select from the whole workspace, so that each crate has the same features everywhere and is built once.
LAB = portcullis-lab portcullis-models portcullis-sim
PRODUCT = test --workspace $(LAB:%=--exclude %) --locked --no-fail-fast
# The simulator has the mistakes that its tests plant. No program and no binding that is tested has any.
PLANTED = portcullis-sim/planted,portcullis-structures/planted,portcullis-blocks/planted,portcullis-directory/planted
SIMULATOR = test --workspace --features portcullis-sim/planted --test simulator --locked --no-fail-fast
help:
	@echo 'make demo   see what Portcullis does, on this folder'"'"'s own files (a minute and a half with the build)'
	@echo 'make test   whether the product keeps its promises (13 minutes with the build on two processors, and 5 GB)'
	@echo 'make test-all  everything else: all seeds, bindings, documents, fuzzing, Soft-RoCE (forty minutes after make test)'
	@echo 'make engines  the Python package under the real LMCache, SGLang and vLLM, in environments of their own of 6 GB each'
	@echo 'make verbs  the part of test-all that needs an RDMA device, in a virtual machine with Soft-RoCE'
	@echo 'make fresh  make demo and make test on a fresh machine, a minimal Debian in a folder; FRESH=demo for one of them (root only)'
	@echo 'make mutants  whether the tests notice mistakes: one in four (MUTANTS_SHARD=0/4) of MUTANTS (node client softnic/core)'
	@echo 'make soak   clusters in virtual time, seed after seed, for SOAK_HOURS (8)'

build: setup
	$(CARGO) build --release --locked -p portcullis-cli -p portcullis-lab -p portcullis-preload

demo: setup
	$(CARGO) run --quiet --profile demo --locked -p portcullis-lab --no-default-features -- demo .

test: setup lint tests
	@echo 'All of make test passed.'

# Style is a test: formatting, lints, which crate uses which, and no file that has outgrown one idea.
lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@# All targets but those that are only built by name.
	$(CARGO) clippy --workspace --test structures --test model_check --locked -- -D warnings
	scripts/tidy
	scripts/arrows

# The tests of the product wait more than they compute, except those of the structures. These and the simulator, which is built
# and run at the same time, fill the gaps: their output is kept, and printed at their end.
tests: setup
	@scripts/setup etcd || echo 'SKIPPED: what the tests of the directory try with a real etcd'
	@scripts/setup clang pkg-config valgrind || echo 'SKIPPED: programs in C with clang, and under valgrind'
	$(CARGO) $(PRODUCT) --test structures --no-run
	$(CARGO) $(PRODUCT) --tests --no-run
	@kept=$$(mktemp); $(MAKE) --no-print-directory structures simulator >"$$kept" 2>&1 & beside=$$!; \
	$(MAKE) --no-print-directory unit; unit=$$?; \
	wait $$beside; beside=$$?; cat "$$kept"; rm -f "$$kept"; \
	[ $$unit -eq 0 ] && [ $$beside -eq 0 ]

unit: setup
	$(CARGO) $(PRODUCT) --tests

structures: setup
	$(CARGO) $(PRODUCT) --test structures

# A sample: a tenth of the seeds, and each planted mistake on its pinned seed.
simulator: setup
	$(CARGO) $(SIMULATOR)

# What `make test` leaves out. It uses what `make test` has built.
test-all: setup fresh-setup without-rdma docs laboratory planted doctests examples python memcached verbs fuzz instructions
	@echo 'All of make test-all passed.'

without-rdma: setup
	scripts/without-rdma

docs: setup
	scripts/docs

# The laboratory's own tests, the model checker, all seeds and all explorations. Unit tests of the product run again, in seconds.
laboratory: setup
	$(CARGO) test --workspace --lib --bins --test laboratory --test models --test model_check --locked --no-fail-fast
	PORTCULLIS_TESTS=all $(CARGO) $(SIMULATOR) -- --include-ignored

# Mistakes in the structures and in the directory, which their tests have to find, and deaths at each step of a split.
planted: setup
	$(CARGO) clippy --workspace --all-targets --features $(PLANTED) --locked -- -D warnings
	PORTCULLIS_TESTS=all $(CARGO) test --workspace --features portcullis-structures/planted --test structures --locked --no-fail-fast
	$(CARGO) test -p portcullis-directory --features planted --lib --locked --no-fail-fast
	$(CARGO) test -p portcullis-blocks --features planted --test promises planted --locked --no-fail-fast

doctests: setup
	$(CARGO) test --workspace --doc --locked --no-fail-fast

# The commands and programs of the documents, as a plain user in a clean home. They use the crates that `unit` has built, and
# the native part of the Python package.
examples: setup
	@scripts/setup c++ pkg-config python-venv || echo 'SKIPPED: see above for what is missing'
	$(CARGO) build --workspace --lib --bins --examples --locked
	@if command -v python3 >/dev/null; then scripts/examples || [ $$? -eq 77 ]; else echo 'SKIPPED the examples: no python3'; fi

# The Python package, as users install it, on the oldest and the newest Python here. It uses what `unit` has built.
python: setup
	@scripts/setup python-venv || echo 'SKIPPED: see above for what is missing'
	scripts/python

# The gateway under unmodified clients of memcached, and under memcached's own tests. It uses the program that `unit` has built.
memcached: setup
	@scripts/memcached-clients $${CARGO_TARGET_DIR:-target}/debug/portcullis || [ $$? -eq 77 ]

# The Python package under the real LMCache, SGLang and vLLM, whose dependencies take 6 GB each: not a part of `make test-all`, which
# tries it without them.
engines: setup
	scripts/engines lmcache
	scripts/engines sglang
	scripts/engines vllm

# What needs an RDMA device: on Soft-RoCE, in a virtual machine. Skipped aloud where there can be none.
verbs: setup
	scripts/verbs

fuzz: setup
	fuzz/run $(FUZZ_SECONDS)

# The README's commands where nobody has installed anything before.
fresh:
	scripts/fresh/run $(FRESH)

# What is cheap of it: whether the set-up scripts bring there what is needed. Skipped aloud where it cannot be tried.
fresh-setup:
	@scripts/fresh/run --changes setup || [ $$? -eq 77 ]

# Seeds that no run before this one had: they begin where the clock says.
soak: build
	$(CARGO) run --quiet --release --locked -p portcullis-lab -- sim --hours $(SOAK_HOURS) --seed $$(date +%s)000000

# Mistakes that are made in the sources, one after another: does a test find each? Takes hours; docs/mutants.md has what
# came of it.
mutants: setup
	MUTANTS_SHARD=$(MUTANTS_SHARD) scripts/mutants $(MUTANTS)

instructions: setup
	scripts/instructions

setup:
	@scripts/setup linker
