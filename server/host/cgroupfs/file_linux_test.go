package cgroupfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
)

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cpuset.cpus")
	if err := writeFile(path, "0"); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("writing to nothing gave %v, want an error that names the file: none is made", err)
	}
	if _, err := readFile(path); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("reading nothing gave %v", err)
	}
	if _, err := readFile(filepath.Dir(path)); err == nil {
		t.Error("a directory was read")
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("0,2,4,", 500) + "6"
	if err := writeFile(path, long); err != nil {
		t.Fatal(err)
	}
	if got, err := readFile(path); err != nil || got != long {
		t.Errorf("read back %d bytes, %v, want %d", len(got), err, len(long))
	}
	link := path + "-link"
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := writeFile(link, "1"); err == nil {
		t.Error("a link was followed")
	}
}

// What the library does more than write for is left to it.
func TestPlain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		values cgroup.Values
		want   bool
	}{
		"a pod": {cgroup.Values{
			CPUShares: ptr(uint64(102)), CPUQuotaUS: ptr(int64(10_000)), CPUPeriodUS: ptr(uint64(100_000)),
			MemoryBytes: ptr(int64(1 << 20)), PIDs: ptr(int64(10)), Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(0)},
		}, true},
		"the fewest shares":  {cgroup.Values{CPUShares: ptr(uint64(2))}, true},
		"too few shares":     {cgroup.Values{CPUShares: ptr(uint64(1))}, false},
		"the most shares":    {cgroup.Values{CPUShares: ptr(uint64(262144))}, true},
		"too many shares":    {cgroup.Values{CPUShares: ptr(uint64(262145))}, false},
		"no memory limit":    {cgroup.Values{MemoryBytes: ptr(cgroup.Unlimited)}, false},
		"a swap limit":       {cgroup.Values{MemoryBytes: ptr(int64(1 << 20)), MemorySwapBytes: ptr(int64(1 << 20))}, false},
		"a huge pages limit": {cgroup.Values{HugePages: map[int64]int64{2 << 20: 0}}, false},
	} {
		if got := plain(c.values); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// Shares that the kernel does not take as they are, and whose file it writes
// without a word, are an error all the same.
func TestSharesBeyond(t *testing.T) {
	t.Parallel()
	d, err := Open(Options{})
	if err != nil {
		t.Skipf("no usable tree: %v", err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if d.Facts().Version != cgroup.V1 {
		t.Skipf("the tree is of version %v: shares are v1's", d.Facts().Version)
	}
	name := place(t, d)
	for _, shares := range []uint64{1, 1 << 19} {
		if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: cgroup.Values{CPUShares: &shares}}); err == nil {
			t.Errorf("%d shares were taken", shares)
		}
	}
	for _, shares := range []uint64{fewestShares, mostShares} {
		if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: cgroup.Values{CPUShares: &shares}}); err != nil {
			t.Error(err)
		}
		seen, err := d.Observe(t.Context(), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := value(seen.Nodes[0].Values.CPUShares); got != shares {
			t.Errorf("the kernel keeps %d shares, want %d", got, shares)
		}
	}
}
