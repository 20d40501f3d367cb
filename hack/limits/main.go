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
// A figure beyond its limit is an error. With -figures the program prints all figures instead: those of each package, the lines of each
// directory, what an importer of a client needs, and how many files a call of berthd executes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

func main() {
	figures := flag.Bool("figures", false, "print all figures and compare nothing")
	flag.Parse()
	if err := run(*figures); err != nil {
		fmt.Fprintf(os.Stderr, "limits: %v\n", err)
		os.Exit(1)
	}
}

func run(figures bool) error {
	pkgs, err := load("./...")
	if err != nil {
		return err
	}
	if figures {
		return printFigures(context.Background(), os.Stdout, pkgs)
	}
	pages, err := longLines()
	if err != nil {
		return err
	}
	if wrong := beyond(append(measure(pkgs), pages...)); len(wrong) > 0 {
		return fmt.Errorf("%d figures are beyond their limits:\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	return nil
}

// beyond lists the figures that are beyond their limits.
func beyond(all []figure) (wrong []string) {
	for _, f := range all {
		if l := limitOf(f.kind); f.value > l.max {
			wrong = append(wrong, fmt.Sprintf("%s: %d %s, the limit is %d", f.place, f.value, l.unit, l.max))
		}
	}
	slices.Sort(wrong)
	return wrong
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
