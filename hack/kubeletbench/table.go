package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/hack/kubeletbench/cases"
)

// row is a case with the samples of each program.
type row struct {
	cases.Case
	samples [][]cases.Sample
	late    []bool
}

// median is the middle of a figure of some samples, and spread how far the others are from it at most, as a part of it.
func median(samples []cases.Sample, figure func(cases.Sample) float64) (middle, spread float64) {
	var all []float64
	for _, s := range samples {
		all = append(all, figure(s))
	}
	slices.Sort(all)
	middle = all[len(all)/2]
	if middle > 0 {
		spread = max(all[len(all)-1]-middle, middle-all[0]) / middle
	}
	return middle, spread
}

func total(s cases.Sample) float64        { return s.NS }
func withoutAside(s cases.Sample) float64 { return s.NS - s.AsideNS }

// table prints the medians as Markdown: berth is the first program, and the last column compares it with the last program.
func table(w io.Writer, programs []*program, rows []row, limit time.Duration) {
	var heads, lines []string
	for _, p := range programs {
		heads, lines = append(heads, p.name), append(lines, "---")
	}
	last := len(programs) - 1
	fmt.Fprintf(w, "| operation | nodes | %s | %s : berth |\n| --- | --- | %s | --- |\n",
		strings.Join(heads, " | "), programs[last].name, strings.Join(lines, " | "))
	operation := ""
	for _, r := range rows {
		var cells []string
		for i := range programs {
			cells = append(cells, r.cell(i, limit))
		}
		name := r.Operation
		if name == operation {
			name = ""
		}
		operation = r.Operation
		fmt.Fprintf(w, "| %s | %d | %s | %s |\n", name, r.Nodes, strings.Join(cells, " | "), r.ratio(last, limit))
	}
}

func (r row) cell(program int, limit time.Duration) string {
	samples := r.samples[program]
	if r.late[program] {
		return fmt.Sprintf("over %g s", limit.Seconds())
	}
	ns, spread := median(samples, total)
	allocs, _ := median(samples, func(s cases.Sample) float64 { return float64(s.Allocs) })
	text := fmt.Sprintf("%s ± %.0f %%, %.0f allocs", duration(ns), 100*spread, allocs)
	if without, _ := median(samples, withoutAside); without != ns {
		text += fmt.Sprintf("; %s without Allocate of devices", duration(without))
	}
	return text
}

// ratio is how many times as long as berth another program takes, without what is aside.
func (r row) ratio(program int, limit time.Duration) string {
	if r.late[0] {
		return "unknown"
	}
	own, _ := median(r.samples[0], withoutAside)
	if r.late[program] {
		return "over " + times(float64(limit)/own)
	}
	other, _ := median(r.samples[program], withoutAside)
	return times(other / own)
}

// times and duration have two or three digits, and more only below the next unit.
func times(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.0f million", x/1e6)
	case x >= 1e4:
		return fmt.Sprintf("%.0f thousand", x/1e3)
	case x >= 10:
		return fmt.Sprintf("%.0f", x)
	default:
		return fmt.Sprintf("%.1f", x)
	}
}

func duration(ns float64) string {
	for _, unit := range []struct {
		ns   float64
		name string
	}{{1e9, "s"}, {1e6, "ms"}, {1e3, "µs"}} {
		if v := ns / unit.ns; v >= 1 {
			digits := 0
			if v < 10 {
				digits = 2
			} else if v < 100 {
				digits = 1
			}
			return fmt.Sprintf("%.*f %s", digits, v, unit.name)
		}
	}
	return fmt.Sprintf("%.0f ns", ns)
}
