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
	reference, err := loadReference(filepath.Join(dir, "reference.json"))
	if err != nil {
		return nil, err
	}
	return &Env{Machines: machines, Deviations: deviations(string(text)), Reference: reference}, nil
}

// version is a minor version of Kubernetes, as 36 for v1.36.3.
type version int

// oldest is the version of recordings that name none; newest is the one that berth decides as.
const (
	oldest version = 36
	newest version = 37
)

// loadReference reads the version of the kubelet that has made the recordings.
func loadReference(path string) (version, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return oldest, nil
	}
	if err != nil {
		return 0, err
	}
	var reference struct {
		Kubernetes string `json:"kubernetes"`
	}
	if err := decode(text, &reference); err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	var v version
	if _, err := fmt.Sscanf(reference.Kubernetes, "v1.%d.", &v); err != nil || v < oldest || v > newest {
		return 0, fmt.Errorf("%s: expected a version from v1.%d to v1.%d, got %q", path, oldest, newest, reference.Kubernetes)
	}
	return v, nil
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
