package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// journal takes entries as systemd's does.
type journal struct {
	t    *testing.T
	conn *net.UnixConn
	path string
}

func open(t *testing.T, path string) *journal {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &journal{t, conn, path}
}

// next gives the fields of an entry, without the program's name.
func (j *journal) next() map[string]string {
	j.t.Helper()
	data := make([]byte, 1<<20)
	n, err := j.conn.Read(data)
	if err != nil {
		j.t.Fatal(err)
	}
	fields, err := parse(data[:n])
	if err != nil {
		j.t.Fatal(err)
	}
	if fields["SYSLOG_IDENTIFIER"] != filepath.Base(os.Args[0]) {
		j.t.Errorf("SYSLOG_IDENTIFIER=%s", fields["SYSLOG_IDENTIFIER"])
	}
	delete(fields, "SYSLOG_IDENTIFIER")
	return fields
}

// parse reads an entry by the protocol.
func parse(data []byte) (map[string]string, error) {
	fields := map[string]string{}
	for len(data) > 0 {
		line, rest, ok := bytes.Cut(data, []byte("\n"))
		if !ok {
			return nil, errors.New("a field without an end")
		}
		name, value, short := strings.Cut(string(line), "=")
		if !short {
			size := binary.LittleEndian.Uint64(rest)
			value, rest = string(rest[8:8+size]), rest[8+size:]
			if len(rest) == 0 || rest[0] != '\n' {
				return nil, fmt.Errorf("%s ends with %q", name, rest)
			}
			rest = rest[1:]
		}
		fields[name], data = value, rest
	}
	return fields, nil
}

// TestFields: a line is an entry with a field for each key.
func TestFields(t *testing.T) {
	t.Parallel()
	j := open(t, filepath.Join(t.TempDir(), "s"))
	var fallback bytes.Buffer
	h := New(j.path, slog.LevelInfo, slog.NewTextHandler(&fallback, nil))
	log := slog.New(h)
	for _, row := range []struct {
		name string
		log  func()
		want map[string]string
	}{
		{
			"plain", func() { log.Info("ready") },
			map[string]string{"MESSAGE": "ready", "PRIORITY": "6"},
		},
		{
			"keys", func() {
				log.Warn("pod rejected", "event", "verdict", "message", "no room: \"gpu\"", "grpc.time_ms", 1.5, "after", 2*time.Second,
					"error", errors.New("x"), "empty", "")
			},
			map[string]string{
				"MESSAGE":  `pod rejected event=verdict message="no room: \"gpu\"" grpc.time_ms=1.5 after=2s error=x empty=""`,
				"PRIORITY": "4", "BERTH_EVENT": "verdict", "BERTH_MESSAGE": `no room: "gpu"`, "BERTH_GRPC_TIME_MS": "1.5",
				"BERTH_AFTER": "2s",
				"BERTH_ERROR": "x", "BERTH_EMPTY": "",
			},
		},
		{
			"lines", func() { log.Error("panic", "stack", "a\nb=c\n") },
			map[string]string{"MESSAGE": `panic stack="a\nb=c\n"`, "PRIORITY": "3", "BERTH_STACK": "a\nb=c\n"},
		},
		{
			"no second field comes out of a value", func() { log.Info("x\nPRIORITY=0", "a", "1\nBERTH_B=2") },
			map[string]string{"MESSAGE": "x\nPRIORITY=0 a=\"1\\nBERTH_B=2\"", "PRIORITY": "6", "BERTH_A": "1\nBERTH_B=2"},
		},
		{
			"groups", func() {
				log.With("a", 1).WithGroup("g").With("b", 2).Info("m", slog.Group("h", "c", 3), slog.Group("", "d", time.Unix(0, 0).UTC()))
			},
			map[string]string{
				"MESSAGE": "m a=1 g.b=2 g.h.c=3 g.d=1970-01-01T00:00:00Z", "PRIORITY": "6",
				"BERTH_A": "1", "BERTH_G_B": "2", "BERTH_G_H_C": "3", "BERTH_G_D": "1970-01-01T00:00:00Z",
			},
		},
		{
			"a long key", func() { log.Info("m", strings.Repeat("k", 100), 1) },
			map[string]string{"MESSAGE": "m " + strings.Repeat("k", 100) + "=1", "PRIORITY": "6", "BERTH_" + strings.Repeat("K", 58): "1"},
		},
	} {
		row.log()
		if got := j.next(); !maps.Equal(got, row.want) {
			t.Errorf("%s: %q, want %q", row.name, got, row.want)
		}
	}
	log.Debug("not at this level")
	if fallback.Len() > 0 {
		t.Errorf("the fallback has %s", fallback.String())
	}
}

// TestFallback: a line that the journal does not take is not lost, and the next one goes there again.
func TestFallback(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	var fallback bytes.Buffer
	log := slog.New(New(path, slog.LevelInfo, slog.NewTextHandler(&fallback, nil))).With("a", 1)
	log.Info("before")
	if !strings.Contains(fallback.String(), "msg=before a=1") {
		t.Errorf("no journal: the fallback has %q", fallback.String())
	}
	j := open(t, path)
	log.Info("there")
	if got := j.next()["MESSAGE"]; got != "there a=1" {
		t.Errorf("MESSAGE=%s", got)
	}
	_ = j.conn.Close()
	_ = os.Remove(path)
	j = open(t, path)
	log.Info("another journal")
	if got := j.next()["MESSAGE"]; got != "another journal a=1" {
		t.Errorf("MESSAGE=%s", got)
	}
	fallback.Reset()
	log.Info("too long", "text", strings.Repeat("x", 16<<20))
	if fallback.Len() < 16<<20 {
		t.Errorf("an entry that is too long: the fallback has %d bytes", fallback.Len())
	}
}

// TestConnected: standard error is the journal if JOURNAL_STREAM has its device and inode.
func TestConnected(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	s := info.Sys().(*syscall.Stat_t)
	for text, want := range map[string]bool{
		"": false, fmt.Sprintf("%d:%d", s.Dev, s.Ino): true, fmt.Sprintf("%d:%d", s.Dev, s.Ino+1): false, "x": false,
	} {
		if got := Connected(func(string) string { return text }, f); got != want {
			t.Errorf("JOURNAL_STREAM=%q: %t", text, got)
		}
	}
}
