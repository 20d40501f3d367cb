package builtin

import (
	"io"
	"os"
	"time"
)

// Execution is an additional program to run in a container.
type Execution struct {
	// Args are the program and its arguments.
	Args []string
	// Stdin is the program's input; nil for none.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	// TTY gives the program a terminal of the container; all output is on Stdout then. Width and Height are its size, 0 if
	// unknown, until another one comes from Sizes.
	TTY           bool
	Width, Height uint16
	Sizes         <-chan Size
	// Signals are sent to the program.
	Signals <-chan os.Signal
}

// Size is that of a terminal, in columns and lines.
type Size struct{ Width, Height uint16 }

// past is a time that is over.
var past = time.Unix(1, 0)
