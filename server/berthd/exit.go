package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/managers/errdefs"
)

// The exit codes.
const (
	exitDone = iota
	exitError
	exitUsage
)

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func usage(err error) error { return usageError{err} }

// execute runs a command line and returns the exit code.
func execute(ctx context.Context, out, errs io.Writer, args []string) int {
	root := command(args...)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(errs)
	began := false // what fails before a command begins is a matter of usage
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	fmt.Fprintln(errs, "berthd:", err)
	if !began || errors.As(err, new(usageError)) {
		fmt.Fprintf(errs, "hint: see '%s --help'\n", cmd.CommandPath())
		return exitUsage
	}
	// The message has the first of several fields only.
	var wrong *errdefs.Error
	if errors.As(err, &wrong) && len(wrong.Fields) > 1 {
		for _, v := range wrong.Fields {
			fmt.Fprintf(errs, "  %v\n", v)
		}
	}
	return exitError
}
