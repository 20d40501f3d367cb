// Command berthctl shows and changes the state of berthd from a shell.
//
// Words:
//
//   - verb: a command with its subcommand (admit, get pods). Each is in the file with its name.
//   - session: one run of a verb, with its connection and its output.
//   - name map: pods by uid, to print names where the API has uids.
//
// Invariants: answers go to standard output, everything else to standard error. -o json and yaml
// print only what package output and docs/cli-output.md define. The exit code is the result (0
// done, 1 error, 2 usage, 3 rejected, 4 deferred). Nothing is stored between two runs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthd/berth/clients/berth"
)

func main() {
	os.Exit(command())
}

// command runs berthctl on the process's own streams.
func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, env{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		dial: func(ctx context.Context, endpoint string) (*berth.Client, error) {
			return berth.Dial(ctx, endpoint, berth.Options{UserAgent: "berthctl"})
		},
		now: time.Now, getenv: os.Getenv,
	}, os.Args[1:])
}
