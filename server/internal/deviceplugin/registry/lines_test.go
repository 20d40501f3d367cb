package registry_test

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/server/internal/deviceplugin/registry"
)

// TestSocketsDoNotFillTheLog: sockets of no process that come and go cause a limited rate of lines.
func TestSocketsDoNotFillTheLog(t *testing.T) {
	t.Parallel()
	b := startWith(t, registry.Config{Dir: directory(t), Deadlines: registry.Deadlines{Dial: time.Millisecond}})
	const sockets = 100
	began := time.Now()
	for i := range sockets {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(b.Dir, fmt.Sprintf("%d.sock", i)), Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range sockets {
		b.paused()
	}
	// The rate is 20 lines at once and one for each second.
	lines, most := strings.Count(b.log.String(), "plugin in the registry is not connected"), 21+int(time.Since(began)/time.Second)
	if lines == 0 || lines > most {
		t.Errorf("%d lines of %d sockets, and there may be %d", lines, sockets, most)
	}
}
