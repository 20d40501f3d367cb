package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/format"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// generated are files that are not replaced but made again: their names have lengths in front of them.
var generated = regexp.MustCompile(`\.pb\.go$|^proto/released\.binpb$`)

// replacement returns what replaces the names of one by those of the other. A longer name goes first, because another
// one may be a part of it. A domain also stands in paths of kubectl, with a backslash before each dot.
func replacement(from, to names) *strings.Replacer {
	pairs := [][2]string{{escaped(from["domain"]), escaped(to["domain"])}}
	for _, k := range kinds {
		pairs = append(pairs, [2]string{from[k.name], to[k.name]})
	}
	slices.SortStableFunc(pairs, func(a, b [2]string) int { return cmp.Compare(len(b[0]), len(a[0])) })
	var flat []string
	for _, p := range pairs {
		flat = append(flat, p[0], p[1])
	}
	return strings.NewReplacer(flat...)
}

func escaped(domain string) string { return strings.ReplaceAll(domain, ".", `\.`) }

// set replaces the names in all tracked files, and makes again what is generated of them. Before it writes anything it
// makes sure that each name could be replaced again.
func (r repository) set(now, next names) error {
	if changes, err := r.changes(); err != nil || changes != "" {
		return cmp.Or(err, fmt.Errorf("the tree has changes; commit or stash them first:\n%s", changes))
	}
	if maps.Equal(now, next) {
		fmt.Fprintln(r.out, "the names are these already")
		return nil
	}
	texts, err := r.replaced(now, next)
	if err != nil {
		return err
	}
	var modules []string
	for name, text := range texts {
		info, err := os.Stat(r.path(name))
		if err == nil {
			err = os.WriteFile(r.path(name), text, info.Mode().Perm())
		}
		if err != nil {
			return err
		}
		if strings.HasSuffix(name, ".mod") {
			modules = append(modules, name)
		}
	}
	fmt.Fprintf(r.out, "%d files have other names\n", len(texts))
	for _, m := range slices.Sorted(slices.Values(modules)) {
		if err := r.call("go", "mod", "edit", "-fmt", m); err != nil {
			return err
		}
	}
	return r.generate()
}

// generate makes again what is generated. The first command is a part of the second, which needs its result: the
// reference of the API is written by a program of this module.
func (r repository) generate() error {
	for _, line := range []string{
		"go tool -modfile=hack/tools/go.mod buf generate",
		"hack/gen.sh",
		"make released",
	} {
		words := strings.Fields(line)
		if err := r.call(words[0], words[1:]...); err != nil {
			return fmt.Errorf("%w; the tree has the new names, and not all of what is generated: git restore . gives it back", err)
		}
	}
	fmt.Fprintln(r.out, "done; now: make check && make test, and commit")
	return nil
}

// replaced returns the new texts of all files that have a name.
func (r repository) replaced(now, next names) (map[string][]byte, error) {
	files, err := r.files()
	if err != nil {
		return nil, err
	}
	there, back := replacement(now, next), replacement(next, now)
	texts := map[string][]byte{}
	var problems []error
	for _, name := range files {
		info, err := os.Lstat(r.path(name))
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || generated.MatchString(name) {
			continue
		}
		old, err := os.ReadFile(r.path(name))
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(name, ".tar.gz") {
			data, err := archive(old, func(text string) (string, error) { return replaceIn(name, text, there, back) })
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", name, err))
			} else if data != nil {
				texts[name] = data
			}
			continue
		}
		text, err := replaceIn(name, string(old), there, back)
		switch {
		case err != nil:
			problems = append(problems, err)
		case name == file:
			texts[name] = list(string(old), next)
		case text != string(old):
			texts[name] = []byte(text)
		}
	}
	return texts, errors.Join(problems...)
}

// replaceIn replaces names in a file. The way back must give the same text: otherwise a new name was there before, or
// ends where the text goes on, and nobody could tell later what of it is the name.
func replaceIn(name, old string, there, back *strings.Replacer) (string, error) {
	text := there.Replace(old)
	if name != file && back.Replace(text) != old {
		return "", fmt.Errorf("%s:%d: a new name is part of this file already, or becomes part of another word; choose another one",
			name, firstDifference(old, back.Replace(text)))
	}
	if text == old || !strings.HasSuffix(name, ".go") {
		if text != old && bytes.IndexByte([]byte(old), 0) >= 0 {
			return "", fmt.Errorf("%s: this file is not text, and has a name; add what makes it to generate in hack/names/set.go", name)
		}
		return text, nil
	}
	formatted, err := format.Source([]byte(text)) // imports are in the order of their paths
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	return string(formatted), nil
}

// firstDifference is the line in which two texts begin to differ.
func firstDifference(a, b string) int {
	one, other := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(one), len(other)) {
		if one[i] != other[i] {
			return i + 1
		}
	}
	return min(len(one), len(other))
}

// list writes the names into the text of names.yaml.
func list(text string, n names) []byte {
	for _, k := range kinds {
		text = regexp.MustCompile(`(?m)^`+k.name+`: .*$`).ReplaceAllLiteralString(text, k.name+": "+n[k.name])
	}
	return []byte(text)
}
