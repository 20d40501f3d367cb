package app

import (
	"os"
	"testing"
	"testing/fstest"
)

func TestBootID(t *testing.T) {
	t.Parallel()
	const file = "sys/kernel/random/boot_id"
	made := func(text string) fstest.MapFS { return fstest.MapFS{file: {Data: []byte(text)}} }
	if id, err := bootID(made("5f8ad6f0-7d6c-4a3e-9c5b-1c2d3e4f5a6b\n")); err != nil || id != "5f8ad6f0-7d6c-4a3e-9c5b-1c2d3e4f5a6b" {
		t.Errorf("%q, %v", id, err)
	}
	for name, proc := range map[string]fstest.MapFS{"empty": made("\n"), "missing": {}} {
		if id, err := bootID(proc); err == nil {
			t.Errorf("%s: %q", name, id)
		}
	}
	kernel := os.DirFS("/proc")
	first, err := bootID(kernel)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := new(Environment).bootID(kernel); err != nil || again != first {
		t.Errorf("%q, then %q, %v", first, again, err)
	}
	staged := Environment{Stage: &Stage{BootID: "made up"}}
	if id, err := staged.bootID(kernel); err != nil || id != "made up" {
		t.Errorf("%q, %v", id, err)
	}
}
