package table

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Table collects rows under a line of headers.
type Table struct {
	headers []string
	narrow  int
	rows    [][]string
	// key are the columns that name a row.
	key []int
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

// Key names the columns that identify a row, including hidden ones.
func (t *Table) Key(headers ...string) *Table {
	t.key = t.columns(headers)
	return t
}

// Has returns whether there is such a column.
func (t *Table) Has(header string) bool { return slices.Contains(t.headers, header) }

func (t *Table) columns(headers []string) []int {
	out := make([]int, len(headers))
	for i, h := range headers {
		out[i] = slices.Index(t.headers, h)
	}
	return out
}

// Columns returns the names of all columns, hidden ones included.
func (t *Table) Columns() []string { return t.headers }

// SortBy sorts the rows by a column, whatever the case of its name, and with a minus sign before it the other way round. Rows
// that are equal keep their order, and rows without a value are the last ones. False means that there is no such column.
func (t *Table) SortBy(name string) bool {
	name, back := strings.CutPrefix(name, "-")
	at := slices.IndexFunc(t.headers, func(h string) bool { return strings.EqualFold(h, name) })
	if at < 0 {
		return false
	}
	cells := make([]string, len(t.rows))
	for i, row := range t.rows {
		cells[i] = cell(row, at)
	}
	m := unitOfM(cells)
	slices.SortStableFunc(t.rows, func(x, y []string) int {
		a, b := cell(x, at), cell(y, at)
		switch {
		case a == "" || b == "":
			return cmp.Compare(len(b), len(a)) // what is empty is last, in either direction
		case back:
			a, b = b, a
		}
		return compare(a, b, m)
	})
	return true
}

// Row adds a row; it has a cell for every column, the wide ones included.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Empty returns a table with the same columns and no rows.
func (t *Table) Empty() *Table {
	out := *t
	out.rows = nil
	return &out
}

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.rows) }

// Names returns the name of every row: the cells of its key, with slashes.
func (t *Table) Names() []string {
	out := make([]string, len(t.rows))
	for i, row := range t.rows {
		out[i] = t.name(row)
	}
	return out
}

func (t *Table) name(row []string) string {
	var parts []string
	for _, at := range t.key {
		parts = append(parts, cell(row, at))
	}
	return strings.Join(parts, "/")
}

// The column that Changes adds, and its words, which are those of kubectl.
const (
	eventColumn = "EVENT"
	added       = "ADDED"
	modified    = "MODIFIED"
	deleted     = "DELETED"
)

// EventWidth is the width of the column of events.
const EventWidth = len(modified)

// Changes returns the new, changed and removed rows since an earlier table with the same columns;
// all rows without an earlier table. Columns that only depend on the time are ignored.
func (t *Table) Changes(before *Table, ignored ...string) *Table {
	out := &Table{headers: append([]string{eventColumn}, t.headers...), narrow: t.narrow + 1}
	for _, at := range t.key {
		out.key = append(out.key, at+1)
	}
	known := map[string][]string{}
	if before != nil {
		for _, row := range before.rows {
			known[t.name(row)] = row
		}
	}
	skip := t.columns(ignored)
	same := func(a, b []string) bool {
		for i := range t.headers {
			if !slices.Contains(skip, i) && cell(a, i) != cell(b, i) {
				return false
			}
		}
		return true
	}
	for _, row := range t.rows {
		old, was := known[t.name(row)]
		delete(known, t.name(row))
		switch {
		case !was:
			out.Row(append([]string{added}, row...)...)
		case !same(old, row):
			out.Row(append([]string{modified}, row...)...)
		}
	}
	if before != nil {
		for _, row := range before.rows {
			if _, gone := known[t.name(row)]; gone {
				out.Row(append([]string{deleted}, row...)...)
			}
		}
	}
	return out
}

// cell returns a cell of a row, empty for one that is not there.
func cell(row []string, at int) string {
	if at < 0 || at >= len(row) {
		return ""
	}
	return row[at]
}

// Style is the style of a printed table. Its zero value is plain text with headers.
type Style struct {
	NoHeaders bool
	// Paint returns the color of a cell: the parameters of an SGR sequence, such as "31", or nothing. Nil paints nothing.
	Paint func(column, cell string) string
	// Widths, if not nil, are the least widths of the columns. Print makes them larger, so that tables below each other
	// are aligned.
	Widths *[]int
}

// String gives the table as plain text, headers included.
func (t *Table) String() string { return t.Print(Style{}) }

// Print gives the table in a style.
func (t *Table) Print(style Style) string {
	var lines [][]string
	if !style.NoHeaders {
		lines = append(lines, t.headers[:t.narrow])
	}
	for _, row := range t.rows {
		line := make([]string, t.narrow)
		for i := range line {
			if line[i] = cell(row, i); line[i] == "" {
				line[i] = "-"
			}
		}
		lines = append(lines, line)
	}
	return align("", lines, func(line, column int, text string) string {
		if style.Paint == nil || line == 0 && !style.NoHeaders {
			return ""
		}
		return style.Paint(t.headers[column], text)
	}, style.Widths)
}

const gap = 2

// printable returns every cell so that a terminal shows it.
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
func align(indent string, lines [][]string, paint func(line, column int, text string) string, least *[]int) string {
	lines = printable(lines)
	var widths []int
	if least != nil {
		widths = slices.Clone(*least)
	}
	for _, line := range lines {
		for i, cell := range line {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	if least != nil {
		*least = widths
	}
	var b strings.Builder
	for n, line := range lines {
		var s strings.Builder
		s.WriteString(indent)
		for i, cell := range line {
			blanks := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap)
			if paint != nil {
				cell = Painted(paint(n, i, cell), cell)
			}
			s.WriteString(cell)
			s.WriteString(blanks)
		}
		b.WriteString(strings.TrimRight(s.String(), " "))
		b.WriteByte('\n')
	}
	return b.String()
}

// Painted puts a text between the sequences of a terminal for a color; without a color it is the text. The text has to be
// printable.
func Painted(color, text string) string {
	if color == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}
