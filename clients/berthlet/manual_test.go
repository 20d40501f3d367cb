package main

import (
	"io"
	"testing"

	"github.com/berthd/berth/api/manual/manualtest"
)

func TestManual(t *testing.T) {
	t.Parallel()
	manualtest.Check(t, command(io.Discard, io.Discard), "8", manualNotes)
}
