package builtin

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// TestProgramThatDoesNotBegin: a container that stops the process that is to become a program blocks no other call.
func TestProgramThatDoesNotBegin(t *testing.T) {
	t.Parallel()
	never, signals := make(chan error), make(chan os.Signal, 1)
	signals <- syscall.SIGINT
	if err := awaitBegun(t.Context(), never, signals); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("a signal: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := awaitBegun(ended, never, nil); errdefs.ClassOf(err) != errdefs.Deadline {
		t.Errorf("the end of the time: %v", err)
	}
	begun, why := make(chan error, 1), errors.New("no")
	begun <- why
	if err := awaitBegun(t.Context(), begun, nil); !errors.Is(err, why) {
		t.Errorf("a program that could not begin: %v", err)
	}
}
