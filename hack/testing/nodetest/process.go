package nodetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// Log is a file that programs write to.
type Log string

// String is what they have written so far.
func (l Log) String() string {
	text, err := os.ReadFile(string(l))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Process is a program that runs, or has ended.
type Process struct {
	// Cmd is its command; Ended is closed when it has ended.
	Cmd   *exec.Cmd
	Ended <-chan struct{}
	err   error
}

// Start starts a program. Who calls it ends it, too.
func Start(t testing.TB, cmd *exec.Cmd, log Log) *Process {
	t.Helper()
	p, err := StartWith((*exec.Cmd).Start, cmd, log)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// StartWith is Start with another way to start the command, such as in another namespace.
func StartWith(start func(*exec.Cmd) error, cmd *exec.Cmd, log Log) (*Process, error) {
	f, err := os.OpenFile(string(log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the program has it too
	cmd.Stdout, cmd.Stderr = f, f
	if err := start(cmd); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	p := &Process{Cmd: cmd, Ended: ended}
	go func() {
		defer close(ended)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// Wait waits until the program has ended, and reports how: nil is in good order.
func (p *Process) Wait() error {
	<-p.Ended
	return p.err
}

// Context ends when the program does, so that nobody waits for what an ended program would have to do.
func (p *Process) Context(parent context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		select {
		case <-p.Ended:
			cancel(fmt.Errorf("%s has ended: %w", p.Cmd.Path, cmp.Or(p.err, errors.New("in good order"))))
		case <-parent.Done():
		}
	}()
	return ctx
}

// End sends a signal and waits until the program has ended.
func (p *Process) End(s os.Signal) error {
	_ = p.Cmd.Process.Signal(s) // it may have ended already
	return p.Wait()
}
