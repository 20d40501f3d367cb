package table

import (
	"strings"
	"unicode/utf8"
)

// Table collects rows under a line of headers.
type Table struct {
	headers []string
	narrow  int
	rows    [][]string
}

// New makes a table.
func New(headers ...string) *Table {
	return &Table{headers: headers, narrow: len(headers)}
}

// Wide adds columns at the end that are there if the table is wide.
func (t *Table) Wide(wide bool, headers ...string) *Table {
	t.headers = append(t.headers, headers...)
	if wide {
		t.narrow = len(t.headers)
	}
	return t
}

// Row adds a row; it has a cell for every column, the wide ones included.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// String gives the table, headers included.
func (t *Table) String() string {
	lines := [][]string{t.headers[:t.narrow]}
	for _, row := range t.rows {
		line := make([]string, t.narrow)
		for i := range line {
			if line[i] = "-"; i < len(row) && row[i] != "" {
				line[i] = row[i]
			}
		}
		lines = append(lines, line)
	}
	return align("", lines)
}

const gap = 2

// printable spells every cell so that a terminal shows it.
func printable(lines [][]string) [][]string {
	out := make([][]string, len(lines))
	for i, line := range lines {
		for _, cell := range line {
			out[i] = append(out[i], Printable(cell))
		}
	}
	return out
}

// align puts lines of cells into columns.
func align(indent string, lines [][]string) string {
	lines = printable(lines)
	var widths []int
	for _, line := range lines {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, line := range lines {
		var s strings.Builder
		s.WriteString(indent)
		for i, cell := range line {
			s.WriteString(cell)
			s.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap))
		}
		b.WriteString(strings.TrimRight(s.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}
