package kubelet

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOldSocket: a kubelet that had the Pods API and was replaced by an older one leaves the file. Its web server has the pods.
func TestOldSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, PodsSocket)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	accounts := t.TempDir() // without a token, so that the web server's error tells that it was asked
	web, err := NewWeb("127.0.0.1:1", "n", accounts, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (Source{Web: web, Now: time.Now}).Pods(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "token") {
		t.Errorf("the web server is not asked: %v", err)
	}
}
