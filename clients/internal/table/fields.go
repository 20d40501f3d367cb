package table

// Fields collects names and values.
type Fields struct {
	indent string
	lines  [][]string
}

// NewFields makes fields that are printed behind an indentation.
func NewFields(indent string) *Fields { return &Fields{indent: indent} }

// Add adds a field. Empty values are dropped, and a field without any value is.
func (f *Fields) Add(name string, values ...string) {
	label := name + ":"
	for _, v := range values {
		if v == "" {
			continue
		}
		f.lines = append(f.lines, []string{label, v})
		label = ""
	}
}

// String gives the fields, a line for each value.
func (f *Fields) String() string { return align(f.indent, f.lines, nil, nil) }
