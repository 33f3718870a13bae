# Go fetches everything else that a fresh machine needs: only Go, make and root must be there. "make generate" needs more:
# clang 14, llvm-strip and the kernel's BPF headers (Debian 12: clang llvm libbpf-dev).

GO ?= go
export CGO_ENABLED := 0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# This is a number of runs, not a time: with a time the fuzzer now and then takes its own end for a failure.
FUZZTIME ?= 100000x
DURATION ?= 10m
# Times that are measured under the race detector or with asserted locks mean nothing.
MEASURING := TestBackgroundStaysAway|TestCrowdedPollers|TestCase_D4|TestBusyQPs|TestManySenders|TestLongRead|TestControlCallsScale
LONG := TestBulk|TestNoAllocation|TestCase_F6|TestCase_F7|TestCase_D14|TestCase_E3_Lost|TestCase_Queues$$|TestConnectGivesUp

.PHONY: all help build demo test support check-support race lockorder lint api fuzz generate check-generated cross bench microbench soak interop interop-full clean

# Builds the command-line tool.
all: build

# Lists the targets.
help:
	@awk '/^# /{ text = text substr($$0, 2); next } /^[a-z-]+:/{ sub(":.*", ""); sub("[.] .*", ".", text); sub("^ ", "", text); printf "  %-16s %s\n", $$0, text } { text = "" }' Makefile

# Builds the command-line tool, into bin.
build:
	$(GO) build -trimpath -o bin/xroce ./cmd/xroce

# Moves a real file between two network namespaces over a veth pair. Needs root.
demo: build
	bin/xroce demo $(DEMOFLAGS)

# Runs all tests. Those that need root skip without it; with CI=true they fail instead.
test:
	@[ "$$(id -u)" = 0 ] || echo "not root: the tests on network devices in namespaces are skipped (go test -v names them)"
	$(GO) test -count=1 -timeout 5m ./...

# Runs all tests and writes what they have shown into docs/support.md and docs/support-details.md.
support:
	$(GO) run ./internal/support/matrix

# Checks that docs/support.md and docs/support-details.md are what the tests show. With RECORDS=folder it takes what "make test" has recorded
# with XROCE_SUPPORT=folder.
check-support:
	$(GO) run ./internal/support/matrix -check $(if $(RECORDS),-records $(RECORDS))

# Runs the tests under the race detector (which needs cgo), with the long run of the test for stranded work, but without
# the tests that measure.
race:
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 10m -skip TestDemoDefaults $$($(GO) list ./... | grep -v -e /verbs$$ -e /simulation$$)
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 10m ./verbs -strand 10s -skip '$(MEASURING)'
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 10m ./internal/simulation -seeds 1000

# Runs tests in a build that asserts the order of the locks (docs/architecture.md), without those that measure and without
# those that only take long.
lockorder:
	$(GO) vet -tags lockorder ./internal/lockorder
	$(GO) test -tags lockorder -short -count=1 -timeout 5m -skip '$(MEASURING)|$(LONG)' ./verbs/... ./roce/driver \
		./roce/link/... ./xsk ./bpf ./internal/lockorder ./internal/backlog ./internal/doortest ./internal/puppet

# Runs go mod tidy, gofmt, go vet and staticcheck, and fails if they find anything, or if the public API is not the one in docs/api.
lint:
	$(GO) run ./hack/api -check
	$(GO) mod tidy -diff
	test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

# Writes the public API into docs/api: after a change that is meant, with a line in CHANGELOG.md.
api:
	$(GO) run ./hack/api

# Runs every fuzz target FUZZTIME times.
fuzz:
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "fuzz $$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

# Compiles the XDP program again with clang 14, and makes the layout of the rings from its table.
generate:
	$(GO) generate ./...

# Checks that the committed output of "make generate" is what the sources give.
check-generated: generate
	git diff --exit-code -- bpf roce/queue

# Checks that all builds for other architectures of Linux, also of 32 bits, and that the tool and the public packages build on macOS and Windows.
cross:
	GOOS=linux GOARCH=arm64 $(GO) vet ./...
	GOOS=linux GOARCH=arm64 $(GO) vet -tags lockorder ./internal/lockorder
	GOOS=linux GOARCH=arm64 $(GO) build -trimpath -o /dev/null ./cmd/xroce
	for architecture in 386 arm; do GOOS=linux GOARCH=$$architecture $(GO) build ./... || exit 1; done
	for system in darwin/arm64 windows/amd64; do \
		GOOS=$${system%/*} GOARCH=$${system#*/} $(GO) build -o /dev/null ./verbs ./verbs/verbstest ./xsk ./bpf ./cmd/xroce || exit 1; done

# Measures RDMA, raw AF_XDP and TCP over veth pairs, as docs/performance.md explains. Needs root; BENCHFLAGS=--quick takes a minute.
bench:
	$(GO) build -trimpath -o bin/ ./hack/bench ./hack/rawprobe
	bin/bench $(BENCHFLAGS)

# Runs xroce against Linux's rdma_rxe in a virtual machine (docs/interop.md). It needs apt, but neither root nor KVM; the first time it fetches
# 250 MB of packages into a cache.
interop:
	$(GO) build -trimpath -o bin/ ./hack/interop
	bin/interop run $(INTEROPFLAGS)

# Runs everything of interop, on all kernels, with loss and with zero copy, and writes docs/interop.md. It takes hours and is the nightly run;
# "make support" comes after it. What fails does not keep the rest from running.
interop-full:
	$(GO) build -trimpath -o bin/ ./hack/interop
	status=0; \
	run() { bin/interop run "$$@" || status=1; }; \
	run --kernel 6.1,6.12 --parts cells,faults,cases,stock,ladder --limit 1h; \
	run --full --parts cells,faults,cases,stock,ladder,bulk --limit 6h; \
	for nic in virtio igb; do \
		run --kernel 6.12,new --nic $$nic --left xroce --copy zero --netdev-mtu 3000 --parts bulk; \
		run --kernel 6.1,6.12,new --nic $$nic --copy zero --netdev-mtu 3000 --parts ladder,bulk; \
	done; \
	bin/interop report || status=1; \
	exit $$status

# Runs the Go benchmarks of single packages.
microbench:
	$(GO) test -run '^$$' -bench . -benchmem ./roce/... ./verbs

# Runs the long cases at full size, and then random programs until DURATION is over. Needs root, and an hour.
soak:
	$(GO) test -count=1 -timeout 0 -p 1 $$(grep -rl --include='*_test.go' 'flag.Bool("full"' . | xargs -n1 dirname | sort -u) -full
	$(GO) test -count=1 -timeout 0 ./internal/simulation -soak $(DURATION)

# Removes what was built.
clean:
	rm -rf bin
