package quickstart

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestUninstall: what an installation from source has installed goes again, but the configuration and what others have there.
func TestUninstall(t *testing.T) {
	t.Parallel()
	bin, root := t.TempDir(), t.TempDir()
	others := filepath.Join(root, "share/man/man1/other.1")
	made := []string{others}
	for _, name := range []string{"berthd", "berthctl", "kubectl-berth", "berthlet", "berth-nri", "berth-dra", "share/man/man8/berthd.8"} {
		made = append(made, filepath.Join(bin, name))
	}
	for _, path := range made {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	installed := func() (files []string) {
		_ = filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
			if err != nil || !info.IsDir() {
				files = append(files, strings.TrimPrefix(path, root+"/"))
			}
			return err
		})
		return files
	}
	run := func(arg string, env ...string) error {
		cmd := exec.CommandContext(t.Context(), "bash", "../install.sh", arg)
		cmd.Env = append(append(os.Environ(), "PREFIX="+root, "SYSCONFDIR="+filepath.Join(root, "etc"), "DESTDIR="), env...)
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		return err
	}
	if err := run("--remove"); err == nil {
		t.Error("it removes what was not installed")
	}
	// Twice: what only the older version had goes, too.
	older := filepath.Join(bin, "share/man/man8/older.8")
	if err := os.WriteFile(older, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := run(bin); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(older)
	}
	if err := run("--remove", "DESTDIR="+t.TempDir()); err == nil {
		t.Error("it removes files that are not below DESTDIR")
	}
	moved := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(moved, os.DirFS(root)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(moved, "share/doc")); err != nil { // as by those who need no documentation
		t.Fatal(err)
	}
	if err := run("--remove", "PREFIX="+moved); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(moved, "bin/berthd")); err == nil {
		t.Error("a file of the copy is left")
	}
	if files := installed(); !slices.Contains(files, "bin/berthd") || !slices.Contains(files, "share/man/man8/berthd.8") {
		t.Errorf("installed: %q", files)
	}
	if err := run("--remove"); err != nil {
		t.Fatal(err)
	}
	if left := installed(); !slices.Equal(left, []string{"etc/berth/berthd.yaml", "share/man/man1/other.1"}) {
		t.Errorf("left: %q", left)
	}
	if _, err := os.Stat(filepath.Join(root, "share/doc/berth")); err == nil {
		t.Error("a directory of berth is left")
	}
}
