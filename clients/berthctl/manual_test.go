package main

import (
	"testing"

	"github.com/berthd/berth/api/manual/manualtest"
	"github.com/berthd/berth/clients/internal/command"
)

func TestManual(t *testing.T) {
	t.Parallel()
	c := &command.Ctl{}
	manualtest.Check(t, root(c), "1", manualNotes)
}
