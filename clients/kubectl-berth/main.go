package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthd/berth/clients/internal/command"
)

func main() { os.Exit(execute()) }

// execute runs kubectl-berth on the process's own streams.
func execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, command.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Now: time.Now, Getenv: os.Getenv}, "kubectl", os.Args[1:])
}
