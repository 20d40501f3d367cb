package top

import (
	"slices"
	"unicode"
	"unicode/utf8"
)

// Key is a key that a person pressed: a character, or one of the constants.
type Key rune

// Keys that are no characters.
const (
	KeyUp Key = -1 - iota
	KeyDown
	KeyPageUp
	KeyPageDown
	KeyHome
	KeyEnd
	KeyEnter
	KeyEscape
	KeyBackspace
	KeyInterrupt
)

// Model is the screen.
type Model struct {
	// Table is the last reading; Problem is why there is no newer one.
	Table   Table
	Problem string
	// By is a column of Orders.
	By      string
	Reverse bool
	Filter  string
	// typing is set while a person types the filter.
	typing bool
	// selected is the selected row by pod and container, so that it stays when rows move.
	selected [2]string
	// first is the first visible row. A row that is selected is visible.
	first int
	// open is the uid of the open pod, with its text; empty for none.
	open   string
	text   []string
	scroll int
}

// Effect names what the program does after a key.
type Effect int

// The effects.
const (
	None Effect = iota
	// Quit ends the program.
	Quit
	// Open reads the text of the pod that Opened names, for Show.
	Open
)

// Rows are the visible rows in their order.
func (m *Model) Rows() []Row {
	rows := Filter(m.Table.Rows, m.Filter)
	Sort(rows, m.By, m.Reverse)
	return rows
}

// at is the index of the selected row; 0 if it was removed.
func (m *Model) at(rows []Row) int {
	return max(0, slices.IndexFunc(rows, func(r Row) bool { return [2]string{r.PodUID, r.Container} == m.selected }))
}

// Opened is the uid of the open pod; empty for none.
func (m *Model) Opened() string { return m.open }

// Show gives the text of the open pod. A text that comes after the pod was closed is dropped.
func (m *Model) Show(uid string, lines []string) {
	if uid == m.open {
		m.text = lines
	}
}

// The lines of a screen that have no rows: the summary, the line with the visible rows, the headers, and the last line; of an open pod
// only the last line.
const (
	otherLines     = 6
	otherLinesOpen = 1
)

// page is how many rows, or lines of an open pod, a screen shows.
func page(height int, open bool) int {
	if open {
		return max(0, height-otherLinesOpen)
	}
	return max(0, height-otherLines)
}

// window returns which of a number of rows are visible: a page from the first one, or as near to that as one row is visible, and no line is
// empty while there are rows for it.
func (m *Model) window(rows, first, visible, page int) (from, to int) {
	from = max(0, min(max(first, visible-page+1), visible, rows-page))
	return from, min(rows, from+page)
}

// Press changes the screen by a key. Height is the number of lines of the screen.
func (m *Model) Press(k Key, height int) Effect {
	switch {
	case k == KeyInterrupt:
		return Quit
	case m.typing:
		m.edit(k)
		return None
	case m.open != "":
		return m.pressOpen(k, page(height, true))
	}
	page := page(height, false)
	rows := m.Rows()
	at := m.at(rows)
	switch k {
	case 'q':
		return Quit
	case KeyUp, 'k':
		at--
	case KeyDown, 'j':
		at++
	case KeyPageUp:
		at -= page
	case KeyPageDown, ' ':
		at += page
	case KeyHome, 'g':
		at = 0
	case KeyEnd, 'G':
		at = len(rows)
	case 's':
		orders := Orders()
		m.By = orders[(slices.Index(orders, m.By)+1)%len(orders)]
		return None
	case 'r':
		m.Reverse = !m.Reverse
		return None
	case '/':
		m.typing = true
		return None
	case KeyEscape:
		m.Filter = ""
		return None
	case KeyEnter:
		if len(rows) == 0 {
			return None
		}
		m.open, m.text, m.scroll = rows[at].PodUID, []string{"reading the pod"}, 0
		m.selected = [2]string{rows[at].PodUID, rows[at].Container}
		return Open
	}
	if len(rows) > 0 {
		at = max(0, min(at, len(rows)-1))
		m.selected = [2]string{rows[at].PodUID, rows[at].Container}
		m.first, _ = m.window(len(rows), m.first, at, page)
	}
	return None
}

// edit changes the filter.
func (m *Model) edit(k Key) {
	switch {
	case k == KeyEnter:
		m.typing = false
	case k == KeyEscape:
		m.typing, m.Filter = false, ""
	case k == KeyBackspace:
		_, size := utf8.DecodeLastRuneInString(m.Filter)
		m.Filter = m.Filter[:len(m.Filter)-size]
	case k >= ' ' && unicode.IsPrint(rune(k)) && len(m.Filter) < maxFilter:
		m.Filter += string(rune(k))
	}
}

// maxFilter bounds the filter: names of pods are not longer.
const maxFilter = 253

// pressOpen is Press while a pod is open.
func (m *Model) pressOpen(k Key, page int) Effect {
	switch k {
	case 'q', KeyEscape, KeyEnter, KeyBackspace:
		m.open, m.text = "", nil
		return None
	case KeyUp, 'k':
		m.scroll--
	case KeyDown, 'j':
		m.scroll++
	case KeyPageUp:
		m.scroll -= page
	case KeyPageDown, ' ':
		m.scroll += page
	case KeyHome, 'g':
		m.scroll = 0
	case KeyEnd, 'G':
		m.scroll = len(m.text)
	}
	m.scroll, _ = m.window(len(m.text), m.scroll, m.scroll, page)
	return None
}

// Keys decodes keys from a terminal's bytes, and returns the rest of an incomplete sequence. An
// escape character alone at the end is the key.
func Keys(input []byte) (keys []Key, rest []byte) {
	for len(input) > 0 {
		if input[0] != 0x1b {
			r, size := utf8.DecodeRune(input)
			if r == utf8.RuneError && size == 1 && !utf8.FullRune(input) {
				return keys, input
			}
			input = input[size:]
			switch {
			case r == '\r' || r == '\n':
				keys = append(keys, KeyEnter)
			case r == 0x7f || r == '\b':
				keys = append(keys, KeyBackspace)
			case r == 3 || r == 4:
				keys = append(keys, KeyInterrupt)
			case r >= ' ' && r != utf8.RuneError:
				keys = append(keys, Key(r))
			}
			continue
		}
		if len(input) == 1 || input[1] != '[' && input[1] != 'O' {
			keys, input = append(keys, KeyEscape), input[1:]
			continue
		}
		end := 2
		for end < len(input) && (input[end] < '@' || input[end] > '~') {
			end++
		}
		if end == len(input) {
			if end > maxSequence {
				return keys, nil // no key is that long
			}
			return keys, input
		}
		if k, ok := sequences[string(input[2:end+1])]; ok {
			keys = append(keys, k)
		}
		input = input[end+1:]
	}
	return keys, nil
}

const maxSequence = 32

// sequences are the sequences of ECMA-48 and of xterm, after the introducer.
var sequences = map[string]Key{
	"A": KeyUp, "B": KeyDown, "H": KeyHome, "F": KeyEnd,
	"5~": KeyPageUp, "6~": KeyPageDown, "1~": KeyHome, "4~": KeyEnd, "7~": KeyHome, "8~": KeyEnd,
}
