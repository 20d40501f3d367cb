package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// unsupported lists the signals that would end the process by default and that people and tools send to daemons for other
// purposes.
var unsupported = []os.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}

// holdSignals catches the unsupported signals from now on, and takes no notice of nobody reading the log any more
// (SIGPIPE: caught and not ignored, since processes inherit what is ignored). The
// function that it returns logs every caught signal until ctx ends.
func holdSignals() (tell func(ctx context.Context, log *slog.Logger)) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, unsupported...)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return func(ctx context.Context, log *slog.Logger) {
		for {
			select {
			case s := <-caught:
				log.WarnContext(ctx, "this signal is not supported yet and changes nothing; to read the configuration again, restart berthd",
					"signal", s.String())
			case <-ctx.Done():
				return
			}
		}
	}
}
