package main

import (
	"io"
	"os"

	"golang.org/x/term"
)

// terminalWidth is the number of columns of a terminal; 0 if the output is none.
func terminalWidth(out io.Writer) int {
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

// terminalOf returns the terminal of two streams; nil if one of them is none.
func terminalOf(in io.Reader, out io.Writer) screen {
	i, ok := in.(*os.File)
	o, ok2 := out.(*os.File)
	if !ok || !ok2 || !term.IsTerminal(int(i.Fd())) || !term.IsTerminal(int(o.Fd())) {
		return nil
	}
	return terminal{i, o}
}

func (t terminal) raw() (restore func(), err error) {
	state, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(t.in.Fd()), state) }, nil
}

func (t terminal) size() (width, height int) {
	width, height, err := term.GetSize(int(t.out.Fd()))
	if err != nil {
		return 80, 24
	}
	return width, height
}
