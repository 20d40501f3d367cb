package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/berthd/berth/clients/berthlet/builtin"
)

// isTerminal reports whether a file is a terminal.
func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// terminal connects a terminal's size and keys with the program. It does nothing for other files.
func (e *executing) terminal(x *builtin.Execution, in io.Reader, out io.Writer) (restore func(), err error) {
	restore = func() {}
	if o, ok := out.(*os.File); ok && isTerminal(o) {
		size := func() builtin.Size {
			width, height, err := term.GetSize(int(o.Fd()))
			if err != nil {
				return builtin.Size{}
			}
			return builtin.Size{Width: uint16(width), Height: uint16(height)}
		}
		now := size()
		x.Width, x.Height = now.Width, now.Height
		changed, sizes := make(chan os.Signal, 1), make(chan builtin.Size, 1)
		signal.Notify(changed, syscall.SIGWINCH)
		x.Sizes = sizes
		done := make(chan struct{})
		go func() {
			for {
				select {
				case <-changed:
					select {
					case sizes <- size():
					case <-done:
						return
					}
				case <-done:
					return
				}
			}
		}()
		restore = func() { signal.Stop(changed); close(done) }
	}
	i, ok := in.(*os.File)
	if !ok || !e.stdin || !isTerminal(i) {
		return restore, nil
	}
	before, err := term.MakeRaw(int(i.Fd()))
	if err != nil {
		restore()
		return nil, fmt.Errorf("-t: %w", err)
	}
	stop := restore
	return func() { stop(); _ = term.Restore(int(i.Fd()), before) }, nil
}
