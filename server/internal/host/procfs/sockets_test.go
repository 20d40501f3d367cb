package procfs

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestListening: a socket that takes connections is found without a connection, and who has it.
func TestListening(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") // paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	proc, path := os.DirFS("/proc"), filepath.Join(dir, "s p")
	if inode, err := Listening(proc, path); inode != "" || err != nil {
		t.Errorf("nobody listens, and there is %q, %v", inode, err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	inode, err := Listening(proc, path)
	if inode == "" || err != nil {
		t.Fatalf("the socket is not found: %v", err)
	}
	if !HasSocket(proc, os.Getpid(), inode) || HasSocket(proc, os.Getpid(), "1") || HasSocket(proc, 1<<30, inode) {
		t.Error("it is not known who has the socket")
	}
	datagrams := filepath.Join(dir, "d")
	d, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: datagrams, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if inode, err := Listening(proc, datagrams); inode != "" || err != nil {
		t.Errorf("a socket for datagrams takes no connections: %q, %v", inode, err)
	}
}

func TestFlockHolder(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	proc := os.DirFS("/proc")
	if pid, err := FlockHolder(proc, info); pid != 0 || err != nil {
		t.Errorf("nobody has the lock, and it is %d, %v", pid, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if pid, err := FlockHolder(proc, info); pid != os.Getpid() || err != nil {
		t.Errorf("holder %d, %v, want %d", pid, err, os.Getpid())
	}
}
