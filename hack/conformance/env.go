package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"

	"github.com/berthd/berth/hack/conformance/vector"
)

// moduleRoot returns the folder of the module that the working directory belongs to.
func moduleRoot() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	return filepath.Dir(string(mod)), err
}

// loadEnv reads the shared data of all cases: the machines, and the project's list of deviations.
func loadEnv(root, dir string) (*Env, error) {
	machines, err := vector.LoadMachines(filepath.Join(dir, "topologies.json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "deviations.md"))
	if err != nil {
		return nil, fmt.Errorf("%w; run this in the module berth", err)
	}
	return &Env{Machines: machines, Deviations: deviations(string(text))}, nil
}

// deviationRow is a row of a table whose first cell is an entry's id.
var deviationRow = regexp.MustCompile(`(?m)^\| ([A-Z][0-9]+) \|`)

// deviations returns the ids of the entries in the tables of a Markdown text.
func deviations(markdown string) map[string]bool {
	ids := map[string]bool{}
	for _, row := range deviationRow.FindAllStringSubmatch(markdown, -1) {
		ids[row[1]] = true
	}
	return ids
}
