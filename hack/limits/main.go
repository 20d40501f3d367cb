// Command limits compares the Go packages and pages of this repository with the limits that keep it readable, which no
// linter knows.
//
// Words:
//
//   - arrow: a file uses a name, a method or a field that another file of its package declares. Each pair of files counts
//     once in each direction.
//   - back: of two files that use each other, or of several in a circle, an arrow that has to run against the order of the
//     files, in the best order that is found.
//
// A figure beyond its limit is an error, unless hack/limits/above.txt has exactly this figure: what shrinks cannot grow again.
// With -update the program lowers the figures of that list to today's and removes those that meet the limit. It never raises
// one and never adds a line. With -figures it prints all figures instead.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	update := flag.Bool("update", false, "lower the figures of hack/limits/above.txt to today's")
	figures := flag.Bool("figures", false, "print the figures of every package and compare nothing")
	flag.Parse()
	if err := run(*update, *figures); err != nil {
		fmt.Fprintf(os.Stderr, "limits: %v\n", err)
		os.Exit(1)
	}
}

func run(update, figures bool) error {
	pkgs, err := load("./...")
	if err != nil {
		return err
	}
	all := measure(pkgs)
	if figures {
		return printFigures(os.Stdout, pkgs)
	}
	const path = "hack/limits/above.txt"
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	allowed, err := parseAllowed(string(text))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	pages, err := longLines()
	if err != nil {
		return err
	}
	all = append(all, pages...)
	if update {
		return os.WriteFile(path, []byte(lowered(string(text), allowed, all)), 0o644)
	}
	if wrong := compare(allowed, all); len(wrong) > 0 {
		return fmt.Errorf("%d figures are beyond their limits:\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	return nil
}

// limit is the bound of one kind of figure.
type limit struct {
	kind, unit string
	max        int
}

var limits = []limit{
	{"lines", "product lines in a package", 6000},
	{"names", "exported names in a package", 120},
	{"methods", "methods of a type", 60},
	{"fields", "fields of a struct that is neither configuration nor a message", 20},
	{"width", "characters in a line of Go, or of Markdown outside tables", 140},
	{"back", "percent of the arrows between the files of a package that run back", 30},
}

func limitOf(kind string) limit {
	return limits[slices.IndexFunc(limits, func(l limit) bool { return l.kind == kind })]
}

// figure is what was measured at one place: a package, a type of it, or a file.
type figure struct {
	kind, place string
	value       int
}
