package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berthd/berth/hack/conformance/vector"
)

// moduleRoot returns the folder of the go.mod that the working directory is
// under.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod in the working directory or above; run this inside the module")
		}
		dir = parent
	}
}

// loadEnv reads what all cases share: the machines beside the recordings, and
// the project's list of deviations.
func loadEnv(root, dir string) (*Env, error) {
	machines, err := vector.LoadMachines(filepath.Join(dir, "topologies.json"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "deviations.md"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	return &Env{Machines: machines, Deviations: deviations(string(text))}, nil
}

// deviations returns the ids of the entries in the tables of a Markdown text: a
// row's first cell, if it is one word in backquotes and the row has something to
// say besides.
func deviations(markdown string) map[string]bool {
	ids := map[string]bool{}
	for line := range strings.Lines(markdown) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		id := strings.TrimSpace(cells[0])
		if len(cells) < 2 || len(id) < 3 || id[0] != '`' || id[len(id)-1] != '`' || strings.TrimSpace(cells[1]) == "" {
			continue
		}
		ids[id[1:len(id)-1]] = true
	}
	return ids
}

// suiteNames lists the suites that can be run, for a message.
func suiteNames() string {
	names := make([]string, len(suites))
	for i, s := range suites {
		names[i] = s.Name
	}
	return fmt.Sprintf("%q", names)
}
