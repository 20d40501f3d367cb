package table

import "slices"

// Part is a table of one source, whose name its rows get.
type Part struct {
	Name  string
	Table *Table
}

// Join puts the tables of several sources into one. Its first column has the sources' names. A column that a source does not have is
// empty in its rows.
func Join(column string, parts ...Part) *Table {
	out := New(column)
	for _, wide := range []bool{false, true} {
		for _, p := range parts {
			from, to := 0, p.Table.narrow
			if wide {
				from, to = to, len(p.Table.headers)
			}
			for _, h := range p.Table.headers[from:to] {
				if !slices.Contains(out.headers, h) {
					out.headers = append(out.headers, h)
				}
			}
		}
		if !wide {
			out.narrow = len(out.headers)
		}
	}
	for _, p := range parts {
		if out.key == nil {
			out.key = append([]int{0}, out.columns(p.Table.names(p.Table.key))...)
		}
		at := out.columns(p.Table.headers)
		for _, row := range p.Table.rows {
			cells := make([]string, len(out.headers))
			cells[0] = p.Name
			for i := range row {
				cells[at[i]] = row[i]
			}
			out.Row(cells...)
		}
	}
	return out
}

// names are those of columns.
func (t *Table) names(columns []int) (out []string) {
	for _, at := range columns {
		out = append(out, t.headers[at])
	}
	return out
}
