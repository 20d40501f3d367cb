package main

import (
	"testing"

	"github.com/berthd/berth/api/manual/manualtest"
)

func TestManual(t *testing.T) {
	t.Parallel()
	manualtest.Check(t, command(), "8", manualNotes)
}
