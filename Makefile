# Everything that a fresh machine needs beside Go, make and root is fetched by Go itself. Only "make generate" wants more:
# clang 14, llvm-strip and the kernel's BPF headers (Debian 12: clang llvm libbpf-dev).

GO ?= go
export CGO_ENABLED := 0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# A number of runs, not a time: with a time the fuzzer now and then takes its own end for a failure.
FUZZTIME ?= 100000x
DURATION ?= 10m

.PHONY: all help build demo test support check-support race lint api fuzz generate check-generated cross bench microbench soak interop interop-full clean

# The command-line tool.
all: build

# Lists the targets.
help:
	@awk '/^# /{ text = text substr($$0, 2); next } /^[a-z-]+:/{ sub(":.*", ""); sub("[.] .*", ".", text); sub("^ ", "", text); printf "  %-16s %s\n", $$0, text } { text = "" }' Makefile

# The command-line tool, into bin.
build:
	$(GO) build -trimpath -o bin/xroce ./cmd/xroce

# Two namespaces, a veth pair, and a real file over it. Needs root.
demo: build
	bin/xroce demo $(DEMOFLAGS)

# All tests. Those that need root skip without it; with CI=true they fail instead.
test:
	@[ "$$(id -u)" = 0 ] || echo "not root: the tests on network devices in namespaces are skipped (go test -v names them)"
	$(GO) test -count=1 -timeout 5m ./...

# Runs all tests and writes docs/support.md, which says what they have shown.
support:
	$(GO) run ./internal/support/matrix

# Whether docs/support.md is what the tests show. With RECORDS=folder it takes what "make test" has recorded with XROCE_SUPPORT=folder.
check-support:
	$(GO) run ./internal/support/matrix -check $(if $(RECORDS),-records $(RECORDS))

# The tests again under the race detector (which needs cgo), with the long run of the test for stranded work. Times
# measured under the detector mean nothing, so the tests that compare or bound them stay out.
race:
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 10m $$($(GO) list ./... | grep -v -e /verbs$$ -e /simulation$$)
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 10m ./verbs -strand 10s \
		-skip 'TestBackgroundStaysAway|TestCrowdedPollers|TestCase_D4|TestBusyQPs|TestManySenders|TestLongRead|TestControlCallsScale'
	CGO_ENABLED=1 $(GO) test -race -count=1 -timeout 10m ./internal/simulation -seeds 1000

# What go mod tidy, gofmt, go vet and staticcheck find, and whether the public API is the one in docs/api.
lint:
	$(GO) run ./hack/api -check
	$(GO) mod tidy -diff
	test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...

# The public API again, into docs/api: after a change that is meant, with a line in CHANGELOG.md.
api:
	$(GO) run ./hack/api

# Every fuzz target for FUZZTIME runs.
fuzz:
	@set -e; for package in $$($(GO) list ./...); do \
		for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "fuzz $$package $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

# The XDP program's object again, with clang 14.
generate:
	$(GO) generate ./...

# The committed output of "make generate" is what the sources give.
check-generated: generate
	git diff --exit-code -- bpf

# It builds for other architectures of Linux, of 32 bits too, and xroce and the packages that programs import where there is no AF_XDP.
cross:
	GOOS=linux GOARCH=arm64 $(GO) vet ./...
	GOOS=linux GOARCH=arm64 $(GO) build -trimpath -o /dev/null ./cmd/xroce
	for architecture in 386 arm; do GOOS=linux GOARCH=$$architecture $(GO) build ./... || exit 1; done
	for system in darwin/arm64 windows/amd64; do \
		GOOS=$${system%/*} GOARCH=$${system#*/} $(GO) build -o /dev/null ./verbs ./verbs/verbstest ./xsk ./bpf ./cmd/xroce || exit 1; done

# RDMA, raw AF_XDP and TCP over veth pairs, as docs/performance.md explains. Needs root; BENCHFLAGS=--quick takes a minute.
bench:
	$(GO) build -trimpath -o bin/ ./hack/bench ./hack/rawprobe
	bin/bench $(BENCHFLAGS)

# xroce with Linux's rdma_rxe in a virtual machine (docs/interop.md). It needs apt, but neither root nor KVM; the first time it fetches
# 250 MB of packages into a cache.
interop:
	$(GO) build -trimpath -o bin/ ./hack/interop
	bin/interop run $(INTEROPFLAGS)

# All cells, 256 MiB each way with loss, all kernels, zero copy; then docs/interop.md, and docs/support.md with "make support". Takes hours: the
# nightly run. What fails does not keep the rest from running.
interop-full:
	$(GO) build -trimpath -o bin/ ./hack/interop
	status=0; \
	run() { bin/interop run "$$@" || status=1; }; \
	run --kernel 6.1,6.12 --parts cells,faults,cases,stock,ladder --limit 1h; \
	run --full --parts cells,faults,cases,stock,ladder,bulk,speed --limit 6h; \
	for nic in virtio igb; do \
		run --kernel 6.12,new --nic $$nic --left xroce --copy zero --netdev-mtu 3000 --parts bulk; \
		run --kernel 6.1,6.12,new --nic $$nic --copy zero --netdev-mtu 3000 --parts ladder,bulk; \
	done; \
	bin/interop report || status=1; \
	exit $$status

# Go benchmarks of single packages.
microbench:
	$(GO) test -run '^$$' -bench . -benchmem ./roce/... ./verbs

# The cases whose full size takes long at full size, then random programs until DURATION is over. Needs root, and an hour.
soak:
	$(GO) test -count=1 -timeout 0 -p 1 $$(grep -rl --include='*_test.go' 'flag.Bool("full"' . | xargs -n1 dirname | sort -u) -full
	$(GO) test -count=1 -timeout 0 ./internal/simulation -soak $(DURATION)

# Removes what was built.
clean:
	rm -rf bin
