# One line each: `make` lists them. Everything runs as root or as an ordinary user.

GO       := .ci/go
WITHPG   := $(GO) run ./outbox/outboxtest/withpg
PKG      ?= ./...
RUN      ?=
BENCH    ?= .
FUZZTIME ?= 30s
SEED     ?= 1
STORM_DIR ?= bin/storm
ONLY     ?=

TEST      = $(WITHPG) go test -timeout 30m$(if $(RACE), -race)$(if $(RUN), -run '$(RUN)')
TESTLONG  = OUTBOXCTL_TEST_LONG=1 $(WITHPG) go test -count=1 -timeout 90m$(if $(RUN), -run '$(RUN)')
OTHERS    = $$($(GO) list ./... | grep -v 'cmd/storm$$')
STORMS    = ./cmd/storm# they load the machine, and have it to themselves

VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT    = $(shell git rev-parse HEAD 2>/dev/null)
DATE      = $(shell git log -1 --format=%cI 2>/dev/null)
LDFLAGS   = -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT) -X main.date=$(DATE)

.PHONY: help demo test test-long storm storm-long mutants bench fuzz lint build postgres needs

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: postgres ## orders, a flaky receiver, and the proof that nothing was lost, under a minute
	@$(GO) run ./cmd/demo

test: postgres needs ## every test, on a PostgreSQL of its own; PKG=./migrate RUN=TestName narrow it, RACE=1 looks for races
ifeq ($(PKG),./...)
	$(TEST) $(OTHERS); others=$$?; $(TEST) $(STORMS) && exit $$others
else
	$(TEST) $(PKG)
endif

test-long: postgres needs ## the same in the long form: more rows, more crashes, many minutes
ifeq ($(PKG),./...)
	$(TESTLONG) $(OTHERS); others=$$?; $(TESTLONG) $(STORMS) && exit $$others
else
	$(TESTLONG) $(PKG)
endif

storm: postgres ## a minute of crashes, cut wires and failing receivers, judged promise by promise; SEED=7 is another one
	$(GO) run ./cmd/storm --seed $(SEED)

storm-long: postgres ## an hour of it with control runs between; what it leaves is in STORM_DIR
	$(GO) run ./cmd/storm --long --rate 200 --every 1300ms --seed $(SEED) --dir $(STORM_DIR)

mutants: postgres needs ## programs with one mistake each, every one of which storms or tests must find: 10 to 30 minutes; ONLY=lease picks some
	$(WITHPG) $(GO) run ./cmd/mutants $(ONLY)

bench: postgres ## speed in events/s, each beside the ceiling of the same run; BENCH=Name narrows it
	$(WITHPG) go test -run '^$$' -bench '$(BENCH)' -timeout 60m ./outbox/... ./cmd/outboxctl

fuzz: ## every fuzz target, each for FUZZTIME (30s)
	@grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sort | while IFS=: read -r file func; do \
		echo "$${func#func } in $${file%/*}"; \
		$(GO) test -run '^$$' -fuzz "^$${func#func }\$$" -fuzztime $(FUZZTIME) "$${file%/*}" </dev/null || exit 1; \
	done

lint: ## formatting, go vet, staticcheck, tidy modules
	@.ci/run format vet staticcheck modules

build: ## bin/outboxctl, with its version
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/outboxctl ./cmd/outboxctl

# Installs the PostgreSQL server where there is none; says nothing where there is.
postgres:
	@.ci/postgres

# What some tests on Linux need beside it, likewise.
needs:
	@.ci/needs
