package procfs

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/managers/errdefs"
)

func tree(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

func TestMaxPIDs(t *testing.T) {
	t.Parallel()
	const pidMax, threadsMax = "sys/kernel/pid_max", "sys/kernel/threads-max"
	tests := []struct {
		files map[string]string
		want  int64
	}{
		{map[string]string{pidMax: "4194304\n", threadsMax: "511000\n"}, 511000},
		{map[string]string{pidMax: "32768\n", threadsMax: "511000\n"}, 32768},
		{map[string]string{threadsMax: "100\n"}, 100},
		{map[string]string{pidMax: "many\n", threadsMax: "100\n"}, 100},
		{map[string]string{pidMax: "0\n"}, 0},
		{nil, 0},
	}
	for _, tt := range tests {
		got, err := MaxPIDs(tree(tt.files))
		if got != tt.want || (err == nil) != (tt.want > 0) {
			t.Errorf("%v: %d, %v, want %d", tt.files, got, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), pidMax) {
			t.Errorf("%v: the error does not name a file: %v", tt.files, err)
		}
	}
}

func TestSwap(t *testing.T) {
	t.Parallel()
	const heading = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
	tests := []struct {
		name     string
		files    map[string]string
		swapping bool
		bytes    int64
	}{
		{"none", map[string]string{"swaps": heading, "meminfo": "MemTotal: 8 kB\nSwapTotal:             0 kB\n"}, false, 0},
		{"some", map[string]string{"swaps": heading + "/dev/dm-1 partition 8388604 0 -2\n", "meminfo": "SwapTotal:       8388604 kB\n"},
			true, 8388604 << 10},
		{"a kernel without", map[string]string{"meminfo": "MemTotal: 8 kB\n"}, false, 0},
	}
	for _, tt := range tests {
		swapping, err := Swapping(tree(tt.files))
		if err != nil || swapping != tt.swapping {
			t.Errorf("%s: swapping %t, %v", tt.name, swapping, err)
		}
		bytes, err := SwapBytes(tree(tt.files))
		if err != nil || bytes != tt.bytes {
			t.Errorf("%s: %d bytes, %v, want %d", tt.name, bytes, err, tt.bytes)
		}
	}
	if _, err := SwapBytes(tree(map[string]string{"meminfo": "SwapTotal: much kB\n"})); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("a number that is none: %v", err)
	}
}

func TestSetOOMScoreAdj(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "7", "oom_score_adj")
	if err := os.Mkdir(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("1000\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := SetOOMScoreAdj(root, 7, -997); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(file); string(got) != "-997" {
		t.Errorf("the file says %q", got)
	}
	if err := SetOOMScoreAdj(root, 8, 0); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a process that is gone: %v", err)
	}
}

// The kernel takes what the package writes.
func TestSetOwnScore(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot("/proc")
	if err != nil {
		t.Skipf("this system has no /proc: %v", err)
	}
	defer root.Close()
	before, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		t.Fatal(err)
	}
	score, err := strconv.Atoi(strings.TrimSpace(string(before)))
	if err != nil {
		t.Fatal(err)
	}
	// Raising is always allowed, going back below where it began is not needed.
	if err := SetOOMScoreAdj(root, os.Getpid(), min(score+1, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := SetOOMScoreAdj(root, os.Getpid(), 1001); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("a score out of range: %v", err)
	}
}

func TestSince(t *testing.T) {
	t.Parallel()
	const after = " S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 31415 9 10 11"
	for name, row := range map[string]struct {
		stat  string
		want  uint64
		class errdefs.Class
	}{
		"plain":            {"7 (sleep)" + after, 31415, -1},
		"a name with more": {"7 (a) b (c d) 1 2)" + after, 31415, -1},
		"cut off":          {"7 (sleep) S 1 7 7 0 -1", 0, errdefs.Unavailable},
		"no name":          {"7", 0, errdefs.Unavailable},
		"empty":            {"", 0, errdefs.Unavailable},
		"no number":        {"7 (sleep)" + strings.ReplaceAll(after, "31415", "-1"), 0, errdefs.Unavailable},
	} {
		got, err := Since(tree(map[string]string{"7/stat": row.stat}), 7)
		if got != row.want || (err == nil) != (row.class < 0) || err != nil && errdefs.ClassOf(err) != row.class {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
	if _, err := Since(tree(nil), 7); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a process that has gone: %v", err)
	}
	if _, err := Since(os.DirFS("/proc"), os.Getpid()); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("this process: %v", err)
	}
}

func TestKernelThread(t *testing.T) {
	t.Parallel()
	for stat, want := range map[string]bool{
		"7 (sleep) S 1 7 7 0 -1 4194560 1":          false,
		"2 (kthreadd) S 0 0 0 0 -1 2129984 0":       true,
		"7 (x) 2129984) S 1 7 7 0 -1 4194304 1 2 3": false,
	} {
		if got, err := KernelThread(tree(map[string]string{"7/stat": stat}), 7); got != want || err != nil {
			t.Errorf("%s: %t, %v", stat, got, err)
		}
	}
	if _, err := KernelThread(tree(nil), 7); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a process that has gone: %v", err)
	}
	if kernels, err := KernelThread(os.DirFS("/proc"), os.Getpid()); (kernels || err != nil) && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("this process: %t, %v", kernels, err)
	}
}

// TestUIDsOfNobody: the caller reads from the code that a process has ended.
func TestUIDsOfNobody(t *testing.T) {
	t.Parallel()
	_, _, err := UIDs(tree(nil), 7)
	if code, _ := errdefs.CodeOf(err, errdefs.NotFound); err == nil || code != "PROCESS_NOT_FOUND" {
		t.Errorf("%v with code %s", err, code)
	}
}
