package service

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/berthd/berth/managers/errdefs"
)

// States of sd_notify(3).
const (
	Ready     = "READY=1"
	Stopping  = "STOPPING=1"
	Reloading = "RELOADING=1"
	Alive     = "WATCHDOG=1"
)

// firstSocket is the number of the first descriptor that systemd passes.
const firstSocket = 3

// Manager is the service manager. The zero value, and nil, stand for none.
type Manager struct {
	notify   string
	watchdog time.Duration
	// status is the last one that was sent, guarded by mu.
	mu     sync.Mutex
	status string
	// sockets are the activated ones by their path.
	sockets map[string]*net.UnixListener
}

// Present reports whether a service manager has started this program.
func (m *Manager) Present() bool { return m != nil && (m.notify != "" || len(m.sockets) > 0) }

// FromEnvironment finds the service manager by the variables that it has set, and takes over the
// sockets. The variables stay: a program that this process executes finds the manager too, but
// not the sockets.
func FromEnvironment() (*Manager, error) { return open(os.Getenv, os.Getpid(), firstSocket) }

func open(env func(string) string, pid, first int) (*Manager, error) {
	m := &Manager{notify: env("NOTIFY_SOCKET"), sockets: map[string]*net.UnixListener{}}
	if us, err := strconv.ParseInt(env("WATCHDOG_USEC"), 10, 64); err == nil && us > 0 {
		if of := env("WATCHDOG_PID"); of == "" || of == strconv.Itoa(pid) {
			m.watchdog = time.Duration(us) * time.Microsecond
		}
	}
	if env("LISTEN_PID") != strconv.Itoa(pid) {
		return m, nil // none, or another process's
	}
	n, err := strconv.Atoi(env("LISTEN_FDS"))
	if err != nil || n < 0 {
		return nil, errdefs.Invalidf("the variable LISTEN_FDS is %q: expected the number of sockets that systemd passes", env("LISTEN_FDS"))
	}
	for fd := first; fd < first+n; fd++ {
		if err := m.take(fd); err != nil {
			return nil, errors.Join(err, m.Close())
		}
	}
	return m, nil
}

// take takes over one socket.
func (m *Manager) take(fd int) error {
	syscall.CloseOnExec(fd)
	f := os.NewFile(uintptr(fd), "socket of systemd")
	defer f.Close() // the listener has a descriptor of its own
	l, err := net.FileListener(f)
	if err != nil {
		return errdefs.Invalidf("descriptor %d, which systemd passes, is not a listening socket: %w", fd, err)
	}
	unix, ok := l.(*net.UnixListener)
	if !ok || l.Addr().Network() != "unix" {
		return errors.Join(errdefs.Invalidf("systemd passes a socket at %s: berthd takes only unix sockets with a path", l.Addr()),
			l.Close())
	}
	path := unix.Addr().String()
	if m.sockets[path] != nil {
		return errors.Join(errdefs.Invalidf("systemd passes two sockets at %s", path), l.Close())
	}
	m.sockets[path] = unix
	return nil
}

// Socket returns the activated socket at a path, nil if there is none. The caller closes it; it can be had once.
func (m *Manager) Socket(path string) *net.UnixListener {
	if m == nil {
		return nil
	}
	l := m.sockets[path]
	delete(m.sockets, path)
	return l
}

// Has reports whether an activated socket at a path has not been taken yet.
func (m *Manager) Has(path string) bool { return m != nil && m.sockets[path] != nil }

// Left returns the paths of activated sockets that have not been taken.
func (m *Manager) Left() (paths []string) {
	if m == nil {
		return nil
	}
	for path := range m.sockets {
		paths = append(paths, path)
	}
	return paths
}

// Close closes the activated sockets that have not been taken.
func (m *Manager) Close() (err error) {
	if m == nil {
		return nil
	}
	for _, l := range m.sockets {
		err = errors.Join(err, l.Close())
	}
	m.sockets = nil
	return err
}

// Watchdog is the service manager's timeout between two Alive notifications; 0 if there is none.
func (m *Manager) Watchdog() time.Duration {
	if m == nil {
		return 0
	}
	return m.watchdog
}

// Notify sends states to the service manager, in one datagram.
func (m *Manager) Notify(states ...string) error {
	if m == nil || m.notify == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: m.notify, Net: "unixgram"})
	if err == nil {
		_, err = c.Write([]byte(strings.Join(states, "\n")))
		err = errors.Join(err, c.Close())
	}
	if err != nil {
		return fmt.Errorf("notify the service manager of %s: %w", states[0], err)
	}
	return nil
}

// Status sends a status line for systemctl status, with states. An unchanged status without
// states is not sent again.
func (m *Manager) Status(text string, states ...string) error {
	if m == nil {
		return nil
	}
	text = strings.ReplaceAll(text, "\n", "; ")
	m.mu.Lock()
	same := m.status == text
	m.status = text
	m.mu.Unlock()
	if same && len(states) == 0 {
		return nil
	}
	return m.Notify(append(states, "STATUS="+text)...)
}
