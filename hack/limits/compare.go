package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// place is a kind of figure and where it was measured.
type place struct{ kind, at string }

// parseAllowed reads the list of figures above their limits: a line has kind, place and figure; "#" begins a comment.
func parseAllowed(text string) (map[place]int, error) {
	out := map[place]int{}
	for n, line := range strings.Split(text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) != 3 || !slices.ContainsFunc(limits, func(l limit) bool { return l.kind == f[0] }) {
			return nil, fmt.Errorf("line %d: %q is not a kind, a place and a figure", n+1, line)
		}
		value, err := strconv.Atoi(f[2])
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n+1, err)
		}
		if _, twice := out[place{f[0], f[1]}]; twice {
			return nil, fmt.Errorf("line %d: %s of %s is there twice", n+1, f[0], f[1])
		}
		out[place{f[0], f[1]}] = value
	}
	return out, nil
}

// compare lists the figures that are beyond their limits and are not what the list has, and the lines of the list that nothing needs.
func compare(allowed map[place]int, all []figure) (wrong []string) {
	needed := map[place]bool{}
	for _, f := range all {
		l, at := limitOf(f.kind), place{f.kind, f.place}
		if f.value <= l.max {
			continue
		}
		needed[at] = true
		switch had, listed := allowed[at]; {
		case !listed:
			wrong = append(wrong, fmt.Sprintf("%s: %d %s, the limit is %d", f.place, f.value, l.unit, l.max))
		case f.value > had:
			wrong = append(wrong, fmt.Sprintf("%s: %d %s, above.txt allows %d, and the limit is %d", f.place, f.value, l.unit, had, l.max))
		case f.value < had:
			wrong = append(wrong, fmt.Sprintf("%s: %d %s, above.txt still has %d: run `go run ./hack/limits -update`", f.place, f.value, l.unit, had))
		}
	}
	for at := range allowed {
		if !needed[at] {
			wrong = append(wrong, fmt.Sprintf("%s meets the limit of %s: run `go run ./hack/limits -update`", at.at, at.kind))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// lowered gives the list with today's figures where they are lower, without the lines that nothing needs.
func lowered(text string, allowed map[place]int, all []figure) string {
	today := map[place]int{}
	for _, f := range all {
		if f.value > limitOf(f.kind).max {
			today[place{f.kind, f.place}] = f.value
		}
	}
	var out strings.Builder
	for line := range strings.Lines(text) {
		entry, comment, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "#")
		f := strings.Fields(entry)
		if len(f) != 3 {
			out.WriteString(line)
			continue
		}
		at := place{f[0], f[1]}
		if value, above := today[at]; above {
			if comment != "" {
				comment = " #" + comment
			}
			fmt.Fprintf(&out, "%s %s %d%s\n", f[0], f[1], min(value, allowed[at]), comment)
		}
	}
	return out.String()
}
