package main

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// name is that of a benchmark: Subject/operation/size/implementation.
type name struct {
	subject, operation, size, implementation string
}

// sample is one run of a benchmark: processor time if it reports that, else time
// on the clock.
type sample struct {
	ns     float64
	allocs int
	// parts are the metrics that the benchmark splits its time into.
	parts []part
}

// part is a metric: nanoseconds, MiB, or how many times something else.
type part struct {
	name  string
	value float64
}

// times is the part that compares a whole with what it is made of.
const times = "times"

// grown is the part about how much more memory a process has used.
const grown = "grown"

func (p part) String() string {
	switch p.name {
	case times:
		return fmt.Sprintf("%.2f times", p.value)
	case grown:
		return fmt.Sprintf("%.0f MiB more", p.value)
	}
	return p.name + " " + short(p.value)
}

// results are the samples of all benchmarks.
type results struct {
	machine []string // lines on the machine, as go test prints them
	order   []name
	samples map[name][]sample
}

var line = regexp.MustCompile(`^Benchmark([^/]+)/(.+)/([^/]+)/([^/]+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op(?:\s+([0-9.]+) cpu-ns/op)?(?:.*\s(\d+) allocs/op)?`)

var metric = regexp.MustCompile(`([-0-9.]+) (?:([a-z]+)-ns|(times)|(grown)-MiB)\b`)

// partsOf reads the metrics of a line.
func partsOf(text string) (parts []part) {
	for _, m := range metric.FindAllStringSubmatch(text, -1) {
		if value, err := strconv.ParseFloat(m[1], 64); err == nil && m[2] != "cpu" {
			parts = append(parts, part{cmp.Or(m[2], m[3], m[4]), value})
		}
	}
	return parts
}

// read takes a line of go test's output.
func (r *results) read(text string) {
	facts := []string{"goos:", "goarch:", "cpu:"}
	if slices.ContainsFunc(facts, func(f string) bool { return strings.HasPrefix(text, f) }) && !slices.Contains(r.machine, text) {
		r.machine = append(r.machine, text)
	}
	m := line.FindStringSubmatch(text)
	if m == nil {
		return
	}
	n := name{m[1], strings.ReplaceAll(m[2], "_", " "), m[3], m[4]}
	// Processor time, where a benchmark reports it, is not that of others.
	ns, err := strconv.ParseFloat(cmp.Or(m[6], m[5]), 64)
	if err != nil {
		return
	}
	allocs, _ := strconv.Atoi(m[7])
	if r.samples == nil {
		r.samples = map[name][]sample{}
	}
	if r.samples[n] == nil {
		r.order = append(r.order, n)
	}
	r.samples[n] = append(r.samples[n], sample{ns, allocs, partsOf(text)})
}

// median is the middle one of the samples by time; false if there is none.
func (r *results) median(n name) (sample, bool) {
	list := slices.Clone(r.samples[n])
	if len(list) == 0 {
		return sample{}, false
	}
	slices.SortFunc(list, func(a, b sample) int { return cmp.Compare(a.ns, b.ns) })
	return list[len(list)/2], true
}

// print writes a table for each subject, and the promises.
func (r *results) print(w io.Writer) {
	fmt.Fprintln(w, strings.Join(r.machine, ", "))
	var subjects []string
	for _, n := range r.order {
		if !slices.Contains(subjects, n.subject) {
			subjects = append(subjects, n.subject)
		}
	}
	for _, s := range subjects {
		r.printSubject(w, s)
	}
	r.printParts(w)
	r.printPromises(w)
}

// printParts writes what the benchmarks that split their time say.
func (r *results) printParts(w io.Writer) {
	head := "\nParts\n\n"
	for _, n := range r.order {
		s, _ := r.median(n)
		if len(s.parts) == 0 {
			continue
		}
		var texts []string
		for _, p := range s.parts {
			texts = append(texts, p.String())
		}
		fmt.Fprintf(w, "%s%s, %s of %s: %s\n", head, n.subject, n.operation, n.size, strings.Join(texts, ", "))
		head = ""
	}
}

// printSubject writes one line for each operation and implementation.
func (r *results) printSubject(w io.Writer, subject string) {
	type row struct{ operation, implementation string }
	var rows []row
	var sizes []string
	for _, n := range r.order {
		if n.subject != subject {
			continue
		}
		if at := (row{n.operation, n.implementation}); !slices.Contains(rows, at) {
			rows = append(rows, at)
		}
		if !slices.Contains(sizes, n.size) {
			sizes = append(sizes, n.size)
		}
	}
	fmt.Fprintf(w, "\n%s: median time and allocations by size\n\n", subject)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintf(t, "operation\t\t%s\tgrowth\n", strings.Join(sizes, "\t"))
	for i, at := range rows {
		operation := at.operation
		if i > 0 && rows[i-1].operation == operation {
			operation = ""
		}
		fmt.Fprintf(t, "%s\t%s", operation, at.implementation)
		var first, last sample
		var from, to string
		for _, size := range sizes {
			s, ok := r.median(name{subject, at.operation, size, at.implementation})
			if !ok {
				fmt.Fprint(t, "\t-")
				continue
			}
			fmt.Fprintf(t, "\t%s (%d)", short(s.ns), s.allocs)
			if from == "" {
				first, from = s, size
			}
			last, to = s, size
		}
		fmt.Fprintf(t, "\t%s\n", growth(first, last, from, to))
	}
}

// growth compares the time of the largest size with that of the smallest.
func growth(first, last sample, from, to string) string {
	a, errA := strconv.Atoi(from)
	b, errB := strconv.Atoi(to)
	if errA != nil || errB != nil || a == b || a == 0 || first.ns == 0 {
		return ""
	}
	digits, times := 1, last.ns/first.ns
	if times >= 10 {
		digits = 0
	}
	return fmt.Sprintf("x%.*f for x%d", digits, times, b/a)
}

// printPromises compares medians with what berth promises.
func (r *results) printPromises(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	head := "\nPromises\n\nbenchmark\tmedian\tpromised\tallocations\tpromised\t\n"
	for _, p := range promises {
		s, ok := r.median(p.name)
		if !ok {
			continue
		}
		fmt.Fprint(t, head)
		head = ""
		allocs, kept := "-", s.ns <= float64(p.time)
		if p.allocs > 0 {
			allocs = strconv.Itoa(p.allocs)
			kept = kept && s.allocs <= p.allocs
		}
		fmt.Fprintf(t, "%s, %s of %s\t%s\t%s\t%d\t%s\t%s\n", p.name.subject, p.name.operation, p.name.size,
			short(s.ns), p.time, s.allocs, allocs, verdict(kept))
	}
	for _, p := range ratios {
		s, _ := r.median(p.name)
		if i := slices.IndexFunc(s.parts, func(p part) bool { return p.name == times }); i >= 0 {
			fmt.Fprint(t, head)
			head = ""
			fmt.Fprintf(t, "%s, %s of %s\t%v\t%v times\t%d\t-\t%s\n", p.name.subject, p.name.operation, p.name.size,
				s.parts[i], p.most, s.allocs, verdict(s.parts[i].value <= p.most))
		}
		if i := slices.IndexFunc(s.parts, func(p part) bool { return p.name == grown }); i >= 0 {
			fmt.Fprintf(t, "%s, %s of %s\t%v\t%d MiB\t%d\t-\t%s\n", p.name.subject, p.name.operation, p.name.size,
				s.parts[i], mostGrown, s.allocs, verdict(s.parts[i].value <= mostGrown))
		}
	}
	for _, p := range limits {
		s, _ := r.median(p.name)
		if i := slices.IndexFunc(s.parts, func(o part) bool { return o.name == p.part }); i >= 0 {
			fmt.Fprint(t, head)
			head = ""
			fmt.Fprintf(t, "%s, %s of %s\t%v\t%s\t%d\t-\t%s\n", p.name.subject, p.name.operation, p.name.size,
				s.parts[i], p.time, s.allocs, verdict(s.parts[i].value <= float64(p.time)))
		}
	}
	for _, p := range scalings {
		other := p.name
		other.size = p.than
		s, ok := r.median(p.name)
		if o, also := r.median(other); ok && also {
			fmt.Fprint(t, head)
			head = ""
			fmt.Fprintf(t, "%s, %s of %s\t%.2f times that of %s\t%.1f times\t%d\t-\t%s\n", p.name.subject, p.name.operation, p.name.size,
				s.ns/o.ns, p.than, p.most, s.allocs, verdict(s.ns <= p.most*o.ns))
		}
	}
}

func verdict(kept bool) string {
	if kept {
		return "kept"
	}
	return "MISSED"
}

// short prints nanoseconds with three digits.
func short(ns float64) string {
	unit := "ns"
	for _, u := range []string{"µs", "ms", "s"} {
		if max(ns, -ns) < 1000 {
			break
		}
		ns, unit = ns/1000, u
	}
	digits := max(0, 3-len(strconv.Itoa(int(max(ns, -ns)))))
	return strconv.FormatFloat(ns, 'f', digits, 64) + unit
}
