package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// check holds the licences against a list of those that are accepted, one to a line, with
// notes behind a #. A line "MODULE LICENCE" says what the licence of a module is that has a
// file which the classifier does not know. A line that nothing needs any more is an error.
func (c contents) check(list string) error {
	accepted, told, used := map[string]bool{}, map[string]string{}, map[string]bool{}
	for line := range strings.Lines(list) {
		line, _, _ = strings.Cut(line, "#")
		switch f := strings.Fields(line); len(f) {
		case 0:
		case 1:
			accepted[f[0]] = true
		case 2:
			told[f[0]] = f[1]
		default:
			return fmt.Errorf("%q: expected a licence, or a module and its licence", strings.TrimSpace(line))
		}
	}
	var wrong []error
	for i := range c.modules {
		m := &c.modules[i]
		if len(m.licences) == 0 && told[m.path] != "" {
			m.licences = []string{told[m.path]}
			used[m.path] = true
		}
		if len(m.licences) == 0 {
			wrong = append(wrong, fmt.Errorf("%s %s: no licence was found in its files %q", m.path, m.version,
				slices.Sorted(maps.Keys(m.texts))))
		}
		for _, l := range m.licences {
			used[l] = true
			if !accepted[l] {
				wrong = append(wrong, fmt.Errorf("%s %s: licence %s is not in the list", m.path, m.version, l))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(accepted)) {
		if !used[name] {
			wrong = append(wrong, fmt.Errorf("no module has licence %s: take it out of the list", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(told)) {
		if !used[name] {
			wrong = append(wrong, fmt.Errorf("the line for module %s is not needed: take it out of the list", name))
		}
	}
	return errors.Join(wrong...)
}

// writeBundle writes the texts of all licences and notices.
func (c contents) writeBundle(path string) error {
	var b strings.Builder
	fmt.Fprintln(&b, "berth's programs contain the modules below, each under its own licence.")
	for _, m := range c.modules {
		for _, name := range slices.Sorted(maps.Keys(m.texts)) {
			fmt.Fprintf(&b, "\n---- %s %s: %s\n\n%s", m.path, m.version, name, m.texts[name])
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
