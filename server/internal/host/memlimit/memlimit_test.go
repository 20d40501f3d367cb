package memlimit_test

import (
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/server/internal/host/memlimit"
)

func TestOwn(t *testing.T) {
	t.Parallel()
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	for name, row := range map[string]struct {
		cgroup string
		mount  fstest.MapFS
		want   int64
		ok     bool
		wrong  bool
	}{
		"v2": {"0::/system.slice/berthd.service\n", fstest.MapFS{"system.slice/berthd.service/memory.max": file("1048576\n"),
			"system.slice/memory.max": file("max\n")}, 1 << 20, true, false},
		"v2, above":  {"0::/a/b\n", fstest.MapFS{"a/b/memory.max": file("4096\n"), "a/memory.max": file("1024\n")}, 1024, true, false},
		"v2, none":   {"0::/a\n", fstest.MapFS{"a/memory.max": file("max\n")}, 0, false, false},
		"v2, root":   {"0::/\n", fstest.MapFS{}, 0, false, false},
		"v2, inside": {"0::/\n", fstest.MapFS{"memory.max": file("4096\n")}, 4096, true, false},
		"v1": {"4:cpu,memory:/a\n0::/\n", fstest.MapFS{"memory/a/memory.limit_in_bytes": file("4096\n"),
			"memory/memory.limit_in_bytes": file("9223372036854771712\n")}, 4096, true, false},
		"v1, none":     {"4:memory:/\n", fstest.MapFS{"memory/memory.limit_in_bytes": file("9223372036854771712\n")}, 0, false, false},
		"v1, outside":  {"4:memory:/docker/x\n", fstest.MapFS{"memory/memory.limit_in_bytes": file("4096\n")}, 4096, true, false},
		"no memory":    {"1:cpu:/a\n", fstest.MapFS{}, 0, false, false},
		"not a number": {"0::/a\n", fstest.MapFS{"a/memory.max": file("much\n")}, 0, false, true},
	} {
		got, ok, err := memlimit.Own(fstest.MapFS{"self/cgroup": file(row.cgroup)}, row.mount)
		if got != row.want || ok != row.ok || (err != nil) != row.wrong {
			t.Errorf("%s: %d, %t, %v; want %d, %t", name, got, ok, err, row.want, row.ok)
		}
	}
	if _, _, err := memlimit.Own(fstest.MapFS{}, fstest.MapFS{}); err == nil {
		t.Error("no /proc is no error")
	}
}
