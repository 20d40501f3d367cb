package logs

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLimit: a message that comes too often is left out and counted. It takes no room of other messages.
func TestLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := Limit(slog.New(slog.NewTextHandler(&out, nil)))
		for i := range 10_000 {
			log.With("socket", i).Warn("a socket is gone")
		}
		log.Error("the disk is full")
		if n := strings.Count(out.String(), "a socket is gone"); n != linesBurst || !strings.Contains(out.String(), "the disk is full") {
			t.Errorf("%d lines: %s", n, out.String())
		}
		out.Reset()
		time.Sleep(linesEvery)
		for range 2 {
			log.WithGroup("g").Warn("a socket is gone", "socket", "last")
		}
		if got := out.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "left_out=9980") ||
			!strings.Contains(got, "g.socket=last") {
			t.Errorf("afterwards: %s", got)
		}
	})
}
