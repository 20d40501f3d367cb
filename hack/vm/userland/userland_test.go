package userland

import (
	"archive/tar"
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/vm/archive"
	"github.com/berthd/berth/hack/vm/job"
)

func TestMerged(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"./": ".", "./lib/x86_64-linux-gnu/libc.so.6": "usr/lib/x86_64-linux-gnu/libc.so.6", "./lib64/ld.so": "usr/lib64/ld.so",
		"./usr/lib/systemd/systemd": "usr/lib/systemd/systemd", "./bin": "usr/bin", "./etc/binfmt.d/": "etc/binfmt.d",
		"./library/a": "library/a",
	} {
		if got := merged(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestAdd(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	a := archive.New(&out)
	for _, h := range []*tar.Header{
		{Typeflag: tar.TypeDir, Name: "./bin/"},
		{Typeflag: tar.TypeReg, Name: "./bin/one", Mode: 0o755, Size: 3},
		{Typeflag: tar.TypeLink, Name: "./bin/two", Linkname: "./bin/one"},
		{Typeflag: tar.TypeSymlink, Name: "./bin/three", Linkname: "one"},
		{Typeflag: tar.TypeReg, Name: "./usr/share/doc/one/copyright"},
		{Typeflag: tar.TypeReg, Name: "./usr/lib/aarch64-linux-gnu/gconv/UTF-16.so"},
	} {
		if err := add(a, h, strings.NewReader("abc")); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]bool{
		"usr/bin/one\x00": true, "/usr/bin/one": true, "usr/bin/two\x00": true, "usr/bin/three\x00": true,
		"copyright": false, "UTF-16": false,
	} {
		if got := strings.Contains(out.String(), part); got != want {
			t.Errorf("the image has %q: %t, want %t", part, got, want)
		}
	}
	if err := add(a, &tar.Header{Typeflag: tar.TypeFifo, Name: "./pipe"}, nil); err == nil {
		t.Error("a pipe was taken")
	}
}

func TestKernelArgs(t *testing.T) {
	t.Parallel()
	for version, want := range map[job.Cgroup]string{
		job.V1: "systemd.legacy_systemd_cgroup_controller=1", job.Hybrid: "systemd.legacy_systemd_cgroup_controller=0",
		job.V2: "systemd.unified_cgroup_hierarchy=1",
	} {
		if args := KernelArgs(version); !slices.Contains(args, want) || !slices.Contains(args, "systemd.unit=berth.service") {
			t.Errorf("%s: %q lacks %s", version, args, want)
		}
	}
}
