package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// printFigures prints the figures of packages, directories, importers and calls.
func printFigures(ctx context.Context, w io.Writer, pkgs []pkg) error {
	if err := printPackages(w, pkgs); err != nil {
		return err
	}
	if err := printImporters(ctx, w); err != nil {
		return err
	}
	return printCalls(ctx, w)
}

// printPackages prints a line for each package: lines, exported names, the most methods and fields of a type, arrows, and how many
// run back. A line for each directory has the sum of the lines.
func printPackages(w io.Writer, pkgs []pkg) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "lines\tnames\tmethods\tfields\tarrows\tback\tpackage")
	sums := map[string]int{}
	for _, p := range pkgs {
		arrows, back := p.arrows()
		var methods, fields int
		for _, t := range p.declared() {
			methods = max(methods, t.methods)
			if !t.given {
				fields = max(fields, t.fields)
			}
		}
		fmt.Fprintf(table, "%d\t%d\t%d\t%d\t%d\t%d%%\t%s\n", p.lines(), p.names(), methods, fields, arrows, percent(back, arrows), p.path)
		dir, _, _ := strings.Cut(p.path, "/")
		sums[dir] += p.lines()
	}
	for _, dir := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(table, "%d\t\t\t\t\t\t%s/...\n", sums[dir], dir)
	}
	return table.Flush()
}

// printImporters prints how many modules of others, and how large a program, the import of a client brings.
func printImporters(ctx context.Context, w io.Writer) error {
	dir, err := os.MkdirTemp("", "berth-importers")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nmodules\tMB\timported")
	for _, imported := range []string{"clients/berth", "clients/hintprovider"} {
		source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
		text := "package main\n\nimport _ \"" + module + imported + "\"\n\nfunc main() {}\n"
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			return err
		}
		list := exec.CommandContext(ctx, "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", source)
		list.Stderr = os.Stderr
		out, err := list.Output()
		if err != nil {
			return fmt.Errorf("list the modules of %s: %w", imported, err)
		}
		modules := map[string]bool{}
		for path := range strings.FieldsSeq(string(out)) {
			modules[path] = true
		}
		delete(modules, strings.TrimSuffix(module, "/"))
		if err := command(ctx, "go", "build", "-o", program, source).Run(); err != nil {
			return fmt.Errorf("build a program with %s: %w", imported, err)
		}
		info, err := os.Stat(program)
		if err != nil {
			return err
		}
		fmt.Fprintf(table, "%d\t%.1f\t%s\n", len(modules), float64(info.Size())/1e6, imported)
	}
	return table.Flush()
}
