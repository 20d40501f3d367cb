package service

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// folder is for sockets, whose paths are short (unix(7)).
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "service")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func from(pairs ...string) func(string) string {
	return func(name string) string {
		for _, p := range pairs {
			if value, ok := strings.CutPrefix(p, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

// TestNone: without a service manager nothing happens.
func TestNone(t *testing.T) {
	t.Parallel()
	for _, m := range []*Manager{nil, {}} {
		if err := m.Notify(Ready); err != nil {
			t.Error(err)
		}
		if err := m.Status("idle"); err != nil {
			t.Error(err)
		}
		if m.Watchdog() != 0 || m.Has("/x") || m.Socket("/x") != nil || len(m.Left()) != 0 || m.Close() != nil {
			t.Error("there is something")
		}
	}
}

func TestNotify(t *testing.T) {
	t.Parallel()
	for _, path := range []string{filepath.Join(folder(t), "notify"), "@berth-service-test-" + strconv.Itoa(os.Getpid())} {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		m, err := open(from("NOTIFY_SOCKET="+path), 7, 0)
		if err != nil {
			t.Fatal(err)
		}
		told := func() string {
			buffer := make([]byte, 1000)
			if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			n, err := l.Read(buffer)
			if err != nil {
				t.Fatal(err)
			}
			return string(buffer[:n])
		}
		for _, row := range []struct {
			do   func() error
			want string
		}{
			{func() error { return m.Notify(Ready, "STATUS=x") }, "READY=1\nSTATUS=x"},
			{func() error { return m.Status("3 pods\nand more") }, "STATUS=3 pods; and more"},
			// The second is not sent.
			{func() error { _ = m.Status("3 pods\nand more"); return m.Status("4 pods") }, "STATUS=4 pods"},
			{func() error { return m.Status("4 pods", Ready) }, "READY=1\nSTATUS=4 pods"},
		} {
			if err := row.do(); err != nil {
				t.Fatal(err)
			}
			if got := told(); got != row.want {
				t.Errorf("told %q, want %q", got, row.want)
			}
		}
	}
	m, err := open(from("NOTIFY_SOCKET=/nowhere/notify"), 7, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Notify(Ready); err == nil || !strings.Contains(err.Error(), "notify the service manager of READY=1") {
		t.Error(err)
	}
}

func TestReloading(t *testing.T) {
	t.Parallel()
	s := ReloadingNow()
	if s[0] != "RELOADING=1" || len(s) != 2 {
		t.Fatal(s)
	}
	if n, err := strconv.ParseInt(strings.TrimPrefix(s[1], "MONOTONIC_USEC="), 10, 64); err != nil || n <= 0 {
		t.Error(s[1], err)
	}
}

func TestWatchdog(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		env  []string
		want time.Duration
	}{
		{nil, 0},
		{[]string{"WATCHDOG_USEC=30000000"}, 30 * time.Second},
		{[]string{"WATCHDOG_USEC=30000000", "WATCHDOG_PID=7"}, 30 * time.Second},
		{[]string{"WATCHDOG_USEC=30000000", "WATCHDOG_PID=8"}, 0},
		{[]string{"WATCHDOG_USEC=never"}, 0},
	} {
		m, err := open(from(row.env...), 7, 0)
		if err != nil || m.Watchdog() != row.want {
			t.Errorf("%v: %s, %v, want %s", row.env, m.Watchdog(), err, row.want)
		}
	}
}

// passed gives a descriptor of a socket as systemd does.
func passed(t *testing.T, network, address string) int {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.(interface{ File() (*os.File, error) }).File()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(f.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(false)
	}
	_ = f.Close()
	_ = l.Close()
	return fd
}

func TestSockets(t *testing.T) {
	path := filepath.Join(folder(t), "s")
	m, err := open(from("LISTEN_PID=7", "LISTEN_FDS=1"), 7, passed(t, "unix", path))
	if err != nil {
		t.Fatal(err)
	}
	// A connection waits for the next owner of the socket.
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !m.Has(path) || m.Has("/other") || m.Socket("/other") != nil || !slices.Equal(m.Left(), []string{path}) {
		t.Error("the socket is not there, or another one is")
	}
	l := m.Socket(path)
	if l == nil || m.Socket(path) != nil {
		t.Fatal("the socket cannot be had once")
	}
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file of the socket is gone: %v", err)
	}
}

func TestWrongSockets(t *testing.T) {
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	fd, err := syscall.Dup(int(file.Fd()))
	_ = file.Close()
	if err != nil {
		t.Fatal(err)
	}
	for want, row := range map[string]struct {
		env   []string
		first int
	}{
		"is not a listening socket":    {[]string{"LISTEN_PID=7", "LISTEN_FDS=1"}, fd},
		"only unix sockets with a pat": {[]string{"LISTEN_PID=7", "LISTEN_FDS=1"}, passed(t, "tcp", "localhost:0")},
		"LISTEN_FDS is \"many\"":       {[]string{"LISTEN_PID=7", "LISTEN_FDS=many"}, 0},
	} {
		if _, err := open(from(row.env...), 7, row.first); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	m, err := open(from("LISTEN_PID=8", "LISTEN_FDS=1"), 7, 0)
	if err != nil || len(m.Left()) != 0 {
		t.Errorf("sockets of another process: %v, %v", m, err)
	}
}
