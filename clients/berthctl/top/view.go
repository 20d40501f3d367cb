package top

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/berthd/berth/clients/internal/table"
)

// cells returns a row. BUSY is how busy each exclusive CPU is, in percent; PRESSURE is that of CPU,
// memory and I/O.
func cells(r Row) []string {
	var own, busy, nodes, huge []string
	for _, c := range r.CPUs {
		own = append(own, fmt.Sprint(c.CPU))
		busy = append(busy, strings.TrimSuffix(percent(c.Busy), "%"))
	}
	for _, n := range r.Nodes {
		if n.Bytes > 0 {
			nodes = append(nodes, fmt.Sprintf("%d:%s", n.Node, table.Bytes(n.Bytes)))
		}
	}
	for _, h := range r.HugePages {
		if h.Bytes > 0 {
			huge = append(huge, fmt.Sprintf("%s:%s", table.Bytes(h.Size), table.Bytes(h.Bytes)))
		}
	}
	pressure := ""
	if largest(r.CPUPressure, r.MemoryPressure, r.IOPressure) != nil {
		pressure = percent(r.CPUPressure) + " " + percent(r.MemoryPressure) + " " + percent(r.IOPressure)
	}
	drift := ""
	if r.Drifts > 0 {
		drift = fmt.Sprint(r.Drifts)
	}
	return []string{
		r.Pod, r.Container, amount(r.CPU), brief(own), brief(busy), percent(r.Throttled), table.Bytes(r.WorkingSet),
		strings.Join(nodes, " "), strings.Join(huge, " "), pressure, drift,
	}
}

// printableCells returns a row as a terminal shows it.
func printableCells(r Row) []string {
	out := cells(r)
	for i, text := range out {
		if out[i] = table.Printable(text); text == "" {
			out[i] = "-"
		}
	}
	return out
}

// shownCPUs is how many exclusive CPUs of a container a row names.
const shownCPUs = 8

func brief(list []string) string {
	if len(list) > shownCPUs {
		return strings.Join(list[:shownCPUs], " ") + fmt.Sprintf(" +%d", len(list)-shownCPUs)
	}
	return strings.Join(list, " ")
}

func amount(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", *v)
}

func percent(v *float64) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", math.Abs(*v*100)) // not "-0%"
}

// Text is the table for people without a terminal: a summary and all rows.
func (t Table) Text() string {
	out := table.New(headers(columns)...)
	for _, r := range t.Rows {
		out.Row(cells(r)...)
	}
	return strings.Join(t.summary(), "\n") + "\n\n" + out.String()
}

func (t Table) summary() []string {
	first := fmt.Sprintf("%s   revision %d   %s, %s", t.Time.UTC().Format(time.TimeOnly), t.Revision, table.Count(t.Pods, "pod"),
		table.Count(len(t.Rows), "container"))
	if t.Time.IsZero() {
		first = "waiting for the first reading"
	}
	if t.Omitted > 0 {
		first += fmt.Sprintf("   %d not read", t.Omitted)
	}
	return []string{first, "shared CPUs     " + t.Shared.text(), "exclusive CPUs  " + t.Exclusive.text()}
}

func (p Pool) text() string {
	if p.Size == 0 {
		return "none"
	}
	text := fmt.Sprintf("%s (%d)", p.CPUs, p.Size)
	if p.Busy != nil {
		share := *p.Busy / float64(p.Size)
		text = fmt.Sprintf("%.2f of %d busy (%s): %s", *p.Busy, p.Size, percent(&share), p.CPUs)
	}
	return text
}

// Help is the last line of a screen.
const (
	help     = "↑↓ PgUp PgDn scroll   enter open   s sort   r reverse   / filter   q quit"
	helpOpen = "↑↓ PgUp PgDn scroll   esc back"
)

// Line is a line of a screen. Selected is the row that is selected.
type Line struct {
	Text     string
	Selected bool
}

// View draws the screen in a number of columns and lines.
func (m *Model) View(width, height int) []Line {
	width, height = max(width, 1), max(height, 1)
	var out []Line
	add := func(text string, selected bool) {
		out = append(out, Line{cut(text, width), selected})
	}
	status := help
	if m.open != "" {
		from, to := m.window(len(m.text), m.scroll, m.scroll, page(height, true))
		status = fmt.Sprintf("%s   lines %d-%d of %d", helpOpen, from+1, to, len(m.text))
		for _, line := range m.text[from:to] {
			add(table.Printable(line), false)
		}
	} else {
		for _, line := range m.Table.summary() {
			add(line, false)
		}
		rows := m.Rows()
		at := m.at(rows)
		from, to := m.window(len(rows), m.first, at, page(height, false))
		cells := make([][]string, len(rows))
		for i, r := range rows {
			cells[i] = printableCells(r)
		}
		l := layoutOf(cells, width, strings.ToUpper(m.By))
		add(m.shown(from, to, len(rows), l), false)
		for i, line := range strings.Split(strings.TrimSuffix(l.table(cells[from:to]).String(), "\n"), "\n") {
			add(line, i > 0 && from+i-1 == at)
		}
		switch {
		case m.typing:
			status = "filter: " + table.Printable(m.Filter) + "_"
		case m.Filter != "":
			status += "   filter " + table.Printable(m.Filter) + fmt.Sprintf(" (%d of %d)", len(rows), len(m.Table.Rows))
		}
	}
	if m.Problem != "" {
		status = table.Printable(m.Problem)
	}
	out = out[:min(len(out), height-1)]
	for len(out) < height-1 {
		out = append(out, Line{})
	}
	add(status, false)
	return out
}

// shown says which rows and columns a screen has, and in which order.
func (m *Model) shown(from, to, all int, l layout) string {
	switch {
	case all == 0:
		return ""
	case from == to:
		return fmt.Sprintf("no room for %s", table.Count(all, "row"))
	}
	text := fmt.Sprintf("rows %d-%d of %d", from+1, to, all)
	if m.By != "" {
		text += " by " + m.By
	}
	if m.Reverse {
		text += ", reversed"
	}
	if left := l.left(); left != "" {
		text += "   hidden: " + left
	}
	return text
}

// cut shortens a line to a width.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width])
}
