package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// TestFullDisk fills the disk under the ledger: admissions and removals are
// unavailable, nothing is half-done, and both work again when there is room.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	state := filepath.Join(n.root, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("berthtest", state, "tmpfs", 0, "size=512k,mode=0700"); err != nil {
		t.Skipf("needs the right to mount a file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(state, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := n.start()
	d.admitted(burstable("before"))
	filler := filepath.Join(state, "filler")
	n.fill(filler)
	// A commit may find free pages inside the file; in the end none are left.
	full := false
	for i := 0; i < 200 && !full; i++ {
		uid := "full" + string(rune('a'+i/26)) + string(rune('a'+i%26))
		resp, err := d.admission.Admit(n.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: burstable(uid)}})
		if full = status.Code(err) == codes.Unavailable; !full && err != nil {
			t.Fatalf("%v, %v", resp, err)
		}
		if full && d.pods()[uid] != nil {
			t.Error("the pod was refused and is there")
		}
	}
	if !full {
		t.Fatal("the disk never was too full to admit a pod")
	}
	d.check()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	d.admitted(burstable("after"))
	d.remove("before")
	d.check()
	before := texts(d.pods())
	d.kill()
	d = n.start()
	for uid, text := range texts(d.pods()) {
		if before[uid] != text {
			t.Errorf("pod %s changed over a crash:\n%s\n%s", uid, before[uid], text)
		}
	}
	d.stop() // lets go of the file system
}

// fill writes a file until the file system is full.
func (n *node) fill(path string) {
	n.t.Helper()
	f, err := os.Create(path)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	chunk := make([]byte, 4096)
	for {
		if _, err := f.Write(chunk); err != nil {
			return
		}
	}
}
