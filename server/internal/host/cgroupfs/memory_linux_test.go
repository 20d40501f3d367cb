package cgroupfs

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// user runs a process in a cgroup that uses so many bytes, for as long as the test.
func user(t *testing.T, d *Driver, name cgroup.Name, bytes int) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%d", workerEnv, bytes))
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	said := bufio.NewReader(out)
	expect := func(line string) {
		t.Helper()
		if got, err := said.ReadString('\n'); got != line+"\n" {
			t.Fatalf("the process says %q, %v", got, err)
		}
	}
	expect("ready")
	if err := d.Move(t.Context(), name, c.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(in, "go"); err != nil {
		t.Fatal(err)
	}
	expect("done")
}

// A limit below what is in use is refused, and the process lives; other values of a
// cgroup can be written, and a limit that is above the use, too.
func TestLimitBelowUse(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	name := append(place(t, d), "pod")
	limit := func(bytes int64) cgroup.Node {
		return cgroup.Node{Name: name, Values: cgroup.Values{MemoryBytes: &bytes}}
	}
	const used = 32 << 20
	if _, err := d.Ensure(t.Context(), limit(4*used)); err != nil {
		t.Fatal(err)
	}
	user(t, d, name, used)
	_, err := d.Ensure(t.Context(), limit(used/2))
	if !errors.Is(err, cgroup.ErrBelowUse) || errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("below the use: %v", err)
	}
	seen, err := d.Observe(t.Context(), name, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := seen.Find(name); *got.Values.MemoryBytes != 4*used || got.MemoryUsageBytes < used || !got.Populated {
		t.Errorf("the limit is %d, the use %d, populated %t", *got.Values.MemoryBytes, got.MemoryUsageBytes, got.Populated)
	}
	if _, err := d.Ensure(t.Context(), limit(2*used)); err != nil {
		t.Errorf("above the use: %v", err)
	}
}
