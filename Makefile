SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

GO      ?= go
BIN     ?= bin
EXE     ?= cohort
VERSION ?=
COMMIT  := $(shell git describe --always --dirty --exclude '*' --abbrev=12 2>/dev/null)
CLI     := github.com/cohort-dist/cohort/cmd/cohort/internal/cli
LDFLAGS := -s -w -X $(CLI).version=$(VERSION) -X $(CLI).commit=$(COMMIT)
TOOLS   := .tmp/bin
COUNTS  := .tmp/counts
TESTCOUNT := $(GO) run ./internal/devtools/testcount -log $(COUNTS)
# Tests that failed are the counter's business: it runs them again. Any other end of "go test" is an error.
COUNTED := [ $$? = 1 ]
FUZZ    ?= 2s
SEEDS   ?= 200
PYTHON  ?= /usr/bin/python3
# "make check" gives stages that compute the lowest priority: they use the time in which others wait.
LOW     ?=
# Lint vets all packages, so that "go test" need not. Without the path of the checkout, all its copies share what was built.
export GOFLAGS := -mod=readonly -buildvcs=false -vet=off -trimpath
# All but the race detector builds without cgo, as a release does, so that one build serves them all.
export CGO_ENABLED := 0

.PHONY: help
help: ## say what each target does
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binary into bin/cohort
	@$(GO) build -ldflags "$(LDFLAGS)" -o $(BIN)/$(EXE) ./cmd/cohort

.PHONY: demo
demo: build ## run the demonstration: a store and four processes on this machine
	@$(BIN)/cohort demo

# Every target covers all modules of go.work: the library, the command, the benchmarks and the OpenTelemetry hook.
ALL := $(shell scripts/modules packages)

# All packages but those that need PyTorch. The ones that take longest come first, so that none of them runs alone at the end.
LONGEST = ./internal/rpc/rrefcore ./cmd/cohort ./store/tcpstore ./internal/testing/conformance/...
ALONE   = $(GO) list $(LONGEST) $(ALL) | grep -v /interop/

# "make check" names a file for the coverage profile: then the stage says how much of each package its own tests reach.
COVER ?=

# Many tests wait for timeouts and for processes: more packages than processors run at once.
.PHONY: test
test: ## run the tests that need nothing but Go (no gcc, no PyTorch)
	@mkdir -p .tmp; export COHORT_INTEROP=; \
	{ $(GO) test -p 4 -json -timeout 10m $(COVER:%=-coverprofile=%) $$($(ALONE)) || $(COUNTED); } | \
	$(TESTCOUNT) -as test $(COVER:%=-cover %) -- $(GO) test
	@echo "left out: the race detector (make race, needs gcc) and real PyTorch (make interop, needs PyTorch)"

# Packages whose code starts no goroutine, and whose parallel tests share nothing: the race detector takes ten times as long there.
# The first has invariants to check; the others were run by "make test" as they are.
CHECKED = ./internal/store/storecore
SERIAL  = $(CHECKED) ./internal/store/keytable ./internal/store/storewire ./internal/autograd/backwardcore ./internal/repolint \
	./internal/rpc/aten ./internal/rpc/rrefcore ./internal/rpc/worldcore \
	./internal/devtools/compat ./internal/devtools/crosscheck ./internal/devtools/release ./internal/devtools/testcount \
	./internal/testing/pathcount ./store/cluster/internal/membercore ./python

.PHONY: race
race: ## run the tests under the race detector (needs gcc)
	@export GORACE=atexit_sleep_ms=0 COHORT_INTEROP= CGO_ENABLED=1; packages=$$($(ALONE) | grep -vxF "$$($(GO) list $(SERIAL))"); \
	{ $(GO) test -p 4 -race -tags invariants -json -timeout 15m $$packages || $(COUNTED); } | \
	$(TESTCOUNT) -as race -- $(GO) test -race -tags invariants
	@$(GO) test -tags invariants -json -timeout 10m $(CHECKED) | $(TESTCOUNT) -as "machines with invariants"

# The package that takes longest comes first, so that it does not run alone at the end.
.PHONY: interop
interop: ## run the tests with real PyTorch; COHORT_INTEROP=required makes a missing version fail
	@mkdir -p .tmp; export COHORT_INTEROP=$${COHORT_INTEROP:-auto}; \
	{ $(GO) test -p 3 -json -count=1 -timeout 30m ./interop/launch ./interop/... ./internal/testing/torchtest/ || $(COUNTED); } | \
	tee .tmp/interop.json | $(TESTCOUNT) -as interop $$([ $$COHORT_INTEROP = required ] && echo -noskip) -- $(GO) test

.PHONY: compat
compat: ## write the table of docs/compatibility.md from the results of make interop
	@$(GO) run ./internal/devtools/compat .tmp/interop.json docs/compatibility.md

# A leak of 21 bytes per call, 84 over uv, shows. CALLS=1000000 shows half as much.
CALLS    ?= 500000
CONTEXTS ?= 10000
.PHONY: memory
memory: ## very many calls and references, and autograd contexts with PyTorch: memory must not grow
	@$(GO) test -json -count=1 -timeout 15m -run '^TestMemory$$' ./rpc -rpc.rounds $(CALLS) | $(TESTCOUNT) -as memory
	@$(GO) test -json -count=1 -timeout 15m -run '^TestManyContexts$$' ./autograd/distautograd -distautograd.contexts $(CONTEXTS) | \
	$(TESTCOUNT) -as "memory of contexts"
	@export COHORT_INTEROP=$${COHORT_INTEROP:-auto}; \
	$(GO) test -json -count=1 -timeout 60m -run '^TestAutogradManyContexts$$' ./interop/rpc -rpc.contexts $(CONTEXTS) | \
	$(TESTCOUNT) -as "memory with PyTorch"

.PHONY: model
model: ## explore the large worlds of the reference protocol, which takes minutes
	@$(LOW) $(GO) test -json -timeout 40m -run '^Test(CheckerFinds|MixedWorlds$$|Forger)' ./internal/rpc/rrefcore -rref.large | \
	$(TESTCOUNT) -as model

# Lint compiles the same with the same tags. The moments wait most of the time: more packages than processors run at once.
TAGS = moments,invariants
.PHONY: moments
moments: ## make things happen at chosen moments of execution (SEEDS=10000 for more)
	@{ $(GO) test -p 4 -tags $(TAGS) -json -timeout 60m ./internal/testing/failpointtest/... -moments.seeds $(SEEDS) || $(COUNTED); } | \
	$(TESTCOUNT) -as moments -- $(GO) test -tags $(TAGS)

.PHONY: soak
soak: ## run simulations and faults with many seeds: FIRST=1 COUNT=1000 RUN="machines moments jobs"; adds lines to docs/internals/soak.md
	@scripts/soak $(or $(FIRST),1) $(or $(COUNT),1000) $(RUN)

.PHONY: fuzz
fuzz: ## fuzz every decoder for a moment (FUZZ=10m for longer)
	@FUZZ=$(FUZZ) GO=$(GO) COUNTS=$(COUNTS) scripts/fuzz

# Two files are left out with these tags. The second run looks at them.
LINT = $(LOW) $(TOOLS)/golangci-lint run
.PHONY: lint
lint: $(TOOLS)/golangci-lint ## check format and style
	@$(LINT) --build-tags $(TAGS) $(ALL)
	@$(LINT) ./internal/util/failpoint ./internal/util/invariants

$(TOOLS)/golangci-lint: tools/go.mod tools/go.sum
	@echo "building golangci-lint (once)"
	@mkdir -p $(TOOLS) && GOWORK=off GOFLAGS=-buildvcs=false $(LOW) \
	$(GO) build -C tools -o ../$(TOOLS)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint

.PHONY: tidy
tidy: ## check that go.mod and go.sum of all modules are what `go mod tidy` would write
	@scripts/tidy

# What README says this builds for, with the tests, except on Windows, where many besides those of stores need what it does not have.
# Machine code is made for one of them here, and for all by "make release".
CROSS = $(LOW) $(GO) run ./internal/devtools/crosscheck
.PHONY: cross
cross: ## check every package for the other platforms
	@$(CROSS) -tests linux/386 linux/arm64 darwin/arm64 -- $(ALL)
	@$(CROSS) windows/amd64 -- $(ALL)
	@$(CROSS) -tests windows/amd64 -- ./store/...
	@echo "cross linux/arm64: the command"
	@GOOS=linux GOARCH=arm64 $(LOW) $(GO) build -gcflags='all=-N -l' -ldflags=-s -o /dev/null ./cmd/cohort

.PHONY: fips
fips: ## run the tests of the job's key, certificates and TLS with Go's FIPS 140-3 module (part of make check)
	@GODEBUG=fips140=on $(GO) test -count=1 -timeout 5m ./internal/security/...

.PHONY: cover
cover: ## print how much of the code the tests of all packages reach (make check counts each package's own)
	@mkdir -p .tmp; export COHORT_INTEROP=; covered=$$(echo $(ALL) | tr ' ' ,); \
	$(GO) test -timeout 15m -coverpkg=$$covered -coverprofile=.tmp/cover.out $$($(ALONE)) >.tmp/cover.log || { cat .tmp/cover.log; exit 1; }
	@$(GO) tool cover -func .tmp/cover.out | tail -n 1

.PHONY: fmt
fmt: $(TOOLS)/golangci-lint ## format the source
	@$(TOOLS)/golangci-lint fmt

# Two stages run at a time: one of those that wait for sockets, processes and timeouts, and one of those that compute, at the lowest
# priority. What measures memory, and fuzzing, whose worth is the time that it gets, come last. What a stage prints is kept together
# and shown when it ends; that it begins is said at once, because make does not collect the output of a line that runs make.
STAGES = tidy test cross race lint fips interop model moments memory fuzz
stage-race: stage-test
stage-interop: stage-race
stage-moments stage-memory stage-fuzz: stage-interop
stage-cross: stage-tidy
stage-lint: stage-cross
stage-fips: stage-lint
stage-model: stage-fips

.PHONY: $(STAGES:%=stage-%)
$(STAGES:%=stage-%): stage-%:
	@echo "==> $*"; start=$$SECONDS; \
	$(MAKE) $* || { echo "==> $* FAILED after $$((SECONDS - start)) s"; exit 1; }; \
	echo "==> $* passed after $$((SECONDS - start)) s"

.PHONY: check
check: ## everything that CI runs: tidy, lint, fips, cross, test, race, interop, model, memory, moments, fuzz
	@rm -f $(COUNTS)
	@$(MAKE) -j2 --output-sync=target LOW="nice -n 19" COVER=.tmp/cover-own.out $(STAGES:%=stage-%)
	@echo "make check passed (test and race skip what interop runs, and measurements; what interop skips was left out):"
	@sed 's/^/  /' $(COUNTS)

.PHONY: torch
torch: ## install PyTorch 1.13, 2.6 and the newest for the interop tests (Debian, root)
	@scripts/install-torch-1.13 && scripts/install-torch-2.6 && scripts/install-torch-newest

.PHONY: bench
bench: build ## measure cohort beside its peers in one table (see docs/benchmarks.md)
	@bench/run

.PHONY: release
release: ## write archives, wheels, sdist, image, SBOMs and checksums into .tmp/release, and test them (go doc ./internal/devtools/release)
	@$(GO) run ./internal/devtools/release
	@$(GO) test -count=1 ./internal/devtools/release -release.dir $(CURDIR)/.tmp/release

.PHONY: clean
clean: ## remove what was built
	@rm -rf $(BIN) .tmp
