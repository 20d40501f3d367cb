package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// unsupported lists the signals that would end the process by default and that people and tools send to daemons for other
// purposes. SIGHUP is held with them, and reads the configuration again.
var unsupported = []os.Signal{syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2}

// holdSignals catches the unsupported signals from now on, and ignores the end of the reader of the log
// (SIGPIPE: caught and not ignored, since processes inherit what is ignored). reloads has an element after SIGHUP;
// several that come before it is read count as one. The function that it returns logs the others until ctx ends.
func holdSignals() (reloads <-chan os.Signal, logIgnored func(ctx context.Context, log *slog.Logger)) {
	hangup, caught := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	signal.Notify(caught, syscall.SIGUSR1, syscall.SIGUSR2)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return hangup, func(ctx context.Context, log *slog.Logger) {
		for {
			select {
			case s := <-caught:
				log.WarnContext(ctx, "this signal changes nothing; SIGHUP reads the configuration again", "signal", s.String())
			case <-ctx.Done():
				return
			}
		}
	}
}
