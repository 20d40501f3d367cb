package top

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/berthd/berth/clients/internal/table"
)

// column is a column of rows. A narrow screen leaves out the columns with the largest ranks. If least is set, cells are shortened, down to
// that width, before a column is left out that has at most the rank essential.
type column struct {
	header      string
	rank, least int
}

// essential is the last rank for which names are shortened.
const essential = 3

// columns are the columns of rows, from left to right.
var columns = []column{
	{"POD", 0, 16}, {"CONTAINER", 3, 10}, {"CPU", 1, 0}, {"EXCLUSIVE", 5, 0}, {"BUSY", 7, 0}, {"THROTTLED", 4, 0}, {"MEMORY", 2, 0},
	{"NODES", 9, 0}, {"HUGE", 10, 0}, {"PRESSURE", 8, 0}, {"DRIFT", 6, 0},
}

// headers returns the headers of columns.
func headers(of []column) (out []string) {
	for _, c := range of {
		out = append(out, c.header)
	}
	return out
}

// gap is the space between two columns of a table.
const gap = 2

// layout is which columns a screen shows, and how wide their cells are.
type layout struct {
	shown  []int // in columns, from left to right
	widths []int // of columns
}

// layoutOf chooses the columns of a screen for all rows, so that it does not change with the rows that are visible. The column of the order
// is as important as MEMORY.
func layoutOf(rows [][]string, width int, order string) layout {
	natural, ranks := make([]int, len(columns)), make([]int, len(columns))
	for i, c := range columns {
		natural[i] = utf8.RuneCountInString(c.header)
		for _, cells := range rows {
			natural[i] = max(natural[i], utf8.RuneCountInString(cells[i]))
		}
		if ranks[i] = 2 * c.rank; c.header == order {
			ranks[i] = min(ranks[i], 5) // behind MEMORY
		}
	}
	byRank := make([]int, len(columns))
	for i := range byRank {
		byRank[i] = i
	}
	slices.SortFunc(byRank, func(a, b int) int { return cmp.Compare(ranks[a], ranks[b]) })
	out := layout{widths: slices.Clone(natural)}
	spare := width + gap
	widen := func() {
		for _, i := range out.shown {
			more := max(0, min(spare, natural[i]-out.widths[i]))
			out.widths[i], spare = out.widths[i]+more, spare-more
		}
	}
	for _, i := range byRank {
		if least := columns[i].least; least > 0 {
			out.widths[i] = min(natural[i], least)
		}
		if ranks[i] > 2*essential {
			widen()
		}
		if out.widths[i]+gap > spare && len(out.shown) > 0 {
			break
		}
		spare -= out.widths[i] + gap
		out.shown = append(out.shown, i)
	}
	widen()
	slices.Sort(out.shown)
	return out
}

// table returns rows with the columns of the layout.
func (l layout) table(rows [][]string) *table.Table {
	out := table.New(l.cells(headers(columns))...)
	for _, cells := range rows {
		out.Row(l.cells(cells)...)
	}
	return out
}

func (l layout) cells(all []string) (out []string) {
	for _, i := range l.shown {
		out = append(out, shorten(all[i], l.widths[i]))
	}
	return out
}

// left lists the columns that are not shown.
func (l layout) left() string {
	var out []string
	for i, c := range columns {
		if !slices.Contains(l.shown, i) {
			out = append(out, c.header)
		}
	}
	return strings.Join(out, " ")
}

// shorten leaves out the middle of a text that is longer than a width: replicas of a pod differ at the end.
func shorten(text string, width int) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	head := width / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-max(0, width-head-1):])
}
