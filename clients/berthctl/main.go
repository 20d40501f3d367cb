// Command berthctl shows and changes the state of berthd from a shell.
//
// The packages below it have its commands by group: get, pods, ledger, simulate and machine. What they share is in
// clients/internal/command.
//
// Invariants: answers go to standard output, everything else to standard error. -o json and yaml
// print only what clients/internal/output and docs/cli-output.md define. The exit code is the result (0
// done, 1 error, 2 usage, 3 rejected, 4 deferred). Nothing is stored between two runs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
)

func main() {
	os.Exit(execute())
}

// execute runs berthctl on the process's own streams.
func execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, command.Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Dial: func(ctx context.Context, endpoint string) (*berth.Client, error) {
			return berth.Dial(ctx, endpoint, berth.Options{UserAgent: "berthctl"})
		},
		Now: time.Now, Getenv: os.Getenv,
	}, os.Args[1:])
}
