package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestPodQuota changes files as both versions of cgroups have them, of pods only.
func TestPodQuota(t *testing.T) {
	t.Parallel()
	for version, tt := range map[string]struct{ marker, dir, file, set, none string }{
		"v1": {"cpu/tasks", "cpu/kubepods/burstable/podx", "cpu.cfs_quota_us", "200000\n", "-1"},
		"v2": {"cgroup.controllers", "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx_y.slice", "cpu.max",
			"200000 100000\n", "max"},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, tt.dir, tt.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{path: tt.set, filepath.Join(dir, tt.marker): "",
			filepath.Join(filepath.Dir(dir), "podout"): ""} {
			if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		q, err := newPodQuota(dir)
		if err != nil {
			t.Fatal(err)
		}
		literal := map[string]string{"v1": "/kubepods/burstable/podx", "v2": "kubepods-burstable-podx_y.slice"}[version]
		for _, step := range []struct {
			quota, before int64
			text          string
		}{{0, 200_000, tt.set}, {-1, 200_000, tt.none}, {0, -1, tt.none}, {-1, -1, tt.none}, {300_000, -1, "300000"},
			{300_000, 300_000, "300000"}} {
			before, err := q.set(literal, step.quota)
			text, _ := os.ReadFile(path)
			if err != nil || before != step.before || string(text) != step.text {
				t.Errorf("%s: quota %d: before %d, the file has %q, %v; want %d, %q", version, step.quota, before, text, err, step.before,
					step.text)
			}
		}
		if _, err := q.set("/kubepods/podgone", -1); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: a cgroup that has gone: %v", version, err)
		}
		for _, name := range []string{"", "/", "/podx", "/kubepods", "/kubepods/burstable", "kubepods.slice", "-.slice", "a--podx.slice",
			"/kubepods/../../podout", "/../podout", "/kubepods/podx/.."} {
			if before, err := q.set(name, -1); err == nil {
				t.Errorf("%s: cgroup %q was changed from %d", version, name, before)
			}
		}
	}
	if _, err := newPodQuota(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
