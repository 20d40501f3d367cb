# The commands of the project. `make help` prints them.

GO    ?= go
TOOL  := $(GO) tool -modfile=hack/tools/go.mod

.DEFAULT_GOAL := help
.PHONY: help generate

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

generate: ## Generate api/ from proto/
	hack/gen.sh
