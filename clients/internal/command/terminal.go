package command

import (
	"io"
	"os"

	"golang.org/x/term"
)

// TerminalWidth is the number of columns of a terminal; 0 if the output is none.
func TerminalWidth(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// terminal is a person's terminal.
type terminal struct{ in, out *os.File }

// TerminalOf returns the terminal of two streams; nil if one of them is none.
func TerminalOf(in io.Reader, out io.Writer) Screen {
	i, ok := in.(*os.File)
	o, ok2 := out.(*os.File)
	if !ok || !ok2 || !term.IsTerminal(int(i.Fd())) || !term.IsTerminal(int(o.Fd())) {
		return nil
	}
	return terminal{i, o}
}

func (t terminal) Raw() (restore func(), err error) {
	state, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(t.in.Fd()), state) }, nil
}

func (t terminal) Size() (width, height int) {
	width, height, err := term.GetSize(int(t.out.Fd()))
	if err != nil {
		return 80, 24
	}
	return width, height
}

// Screen is the terminal of a person.
type Screen interface {
	// raw lets each key through at once; restore undoes that.
	Raw() (restore func(), err error)
	Size() (width, height int)
}
