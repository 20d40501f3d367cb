# The commands of the project. Nothing needs to be installed beside Go, make,
# git and a C compiler: the tools are pinned in hack/tools.

GO       ?= go
FUZZTIME ?= 10s
CHAOSTIME ?= 10m
BENCH    ?= .

.DEFAULT_GOAL := help
.PHONY: help build install uninstall package image release generate released captures check check-release outdated update sbom test test-vm test-cluster test-all mutants demo bench fuzz cover clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## Build the programs, their manual and completions into bin/ as for a release; berthlet needs a C compiler
	GO="$(GO)" hack/build.sh bin
	GO="$(GO)" hack/pages.sh bin

install: ## Install what is in bin/, and build nothing: PREFIX (/usr/local), DESTDIR, SYSCONFDIR (/etc)
	hack/install.sh bin

uninstall: ## Remove what 'make install' has installed; configuration and ledger stay
	hack/install.sh --remove

package: ## Make deb and rpm packages for amd64 and arm64 in dist/
	hack/package.sh

image: ## Make OCI images of berthd, berth-nri, berth-dra and berthlet in dist/, without a container engine
	hack/image.sh

release: ## Make packages, images, tarballs, SBOM and checksums of the committed version in dist/
	hack/release.sh

generate: ## Generate api/ and the reference of the API from proto/
	hack/gen.sh

released: ## Keep the schema of proto/ as the released one, which make check compares with; only for a release that may break clients
	$(GO) tool -modfile=hack/tools/go.mod buf build --exclude-source-info -o proto/released.binpb

captures: ## Make the recordings that server/internal/app replays from ../shared/captures
	$(GO) run ./hack/captures

check: ## Check format, vet, lint, dead code, proto, generated code, go.mod, architecture rules, licences, vulnerabilities (no other tests)
	hack/lint.sh
	hack/verify.sh
	hack/supply.sh check

check-release: ## Check what a tag needs: names, version, changelog, images in deploy/, links, nothing left to do, a clean tree
	@$(GO) run ./hack/names -check-release

outdated: ## List modules of programs and tools that have a newer release
	hack/outdated.sh

update: ## Take these releases, or only MODULES, and write those of the programs into CHANGELOG.md
	hack/outdated.sh update $(MODULES)

sbom: build ## Write a bill of materials (CycloneDX) and all licences of the programs into bin/
	hack/supply.sh sbom bin

test: ## Run all tests except those that need a virtual machine or third-party programs
	@GO="$(GO)" hack/needs-go.sh
	@echo "make test usually takes about 3 minutes with a warm build cache on two cores, and twice that without"
	$(GO) test -timeout 30m ./...

test-cluster: ## Run the tests that need a Kubernetes cluster; the first build of Kubernetes and of two older kubelets takes about 25 minutes
	hack/cluster/test.sh

test-vm: ## Run the tests that need another kernel set-up, in virtual machines: cgroup v1, hybrid, v2, NUMA
	hack/vm/test.sh

test-all: ## Run the tests at full length under the race detector, 500,000 histories of berth-nri, 10 min of random device plugin failures, every fuzz target for FUZZTIME (10s), make mutants, make test-vm, the package (amd64 and arm64) and the commands of docs/walk.md in virtual machines, Prometheus, third-party programs, containerd and a Kubernetes cluster, also in a virtual machine; build with other names; make a release twice, compare, and rehearse it
	BERTH_LONG=1 $(GO) test -race -timeout 1h ./...
	BERTH_HISTORY=0-500000 $(GO) test -count=1 -timeout 3h -run '^TestRandomHistories$$' ./clients/nri/policy
	BERTH_CHAOS=$(CHAOSTIME) $(GO) test -count=1 -timeout 1h -v -run '^TestPluginChaos$$' ./server/berthd
	hack/fuzz.sh $(FUZZTIME)
	$(GO) run ./hack/mutants
	hack/vm/test.sh
	hack/installtest/test.sh
	cd hack/thirdparty && $(GO) test ./...
	hack/apiconformance/test.sh
	hack/containerd/test.sh
	hack/monitoring/test.sh
	hack/cluster/test.sh
	hack/cluster/test.sh vm
	hack/cluster/test.sh vm observe
	hack/cluster/test.sh vm claims
	hack/cluster/test.sh vm claims 4
	BERTH_RENAME=1 $(GO) test -count=1 -timeout 1h -run '^TestRename$$' ./hack/names
	hack/release.sh rehearse

mutants: ## Add defects to the managers and to berth-nri one by one; the recorded decisions, or a named test, must detect each one (about twelve minutes)
	$(GO) run ./hack/mutants

demo: ## Build what the demo needs, and run pods on this machine, from registration to removal
	GO="$(GO)" hack/demo.sh

bench: ## Print the medians of the benchmarks and their limits; BENCH=regexp selects; AGAINST=COMMIT compares with a commit in turns
	$(GO) run ./hack/bench -bench '$(BENCH)' -against '$(AGAINST)'

fuzz: ## Run every fuzz target for FUZZTIME (10s)
	hack/fuzz.sh $(FUZZTIME)

cover: ## Run the tests with coverage and print it for each function
	$(GO) test -coverprofile=cover.out ./managers/... ./server/... ./clients/... ./api/convert/...
	$(GO) tool cover -func=cover.out

clean: ## Remove the files that the commands above built
	rm -rf bin dist cover.out
