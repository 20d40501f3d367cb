package manifest

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// TestManifestsOfOthers: a file or a directory that another user can change is not read, at the first reading and at
// later ones. The pods of an earlier reading stay.
func TestManifestsOfOthers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pods")
	file := filepath.Join(dir, "web.yaml")
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: main, image: x, securityContext: {privileged: true}}]}\n"
	for _, err := range []error{os.Mkdir(dir, 0o755), os.WriteFile(file, []byte(text), 0o600), os.Chmod(file, 0o666)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	f := Open(dir, slog.New(slog.DiscardHandler))
	read := func(pods int, all bool, problem string) {
		t.Helper()
		found, complete, err := f.Read()
		if err != nil || len(found) != pods || complete != all {
			t.Fatalf("%d pods, all %t, %v; want %d, %t", len(found), complete, err, pods, all)
		}
		problems := f.Problems()
		if (problem == "") != (len(problems) == 0) || len(problems) > 0 && !strings.Contains(problems[0].Error, problem) {
			t.Errorf("problems %+v, want %q", problems, problem)
		}
	}
	read(0, false, "can be written to by everybody: chmod go-w "+file)
	must(t, os.Chmod(file, 0o644))
	read(1, true, "")
	must(t, os.Chmod(file, 0o666))
	read(1, true, "can be written to by everybody")
	must(t, os.Chmod(file, 0o644))
	must(t, os.Chmod(dir, 0o777))
	if _, _, err := f.Read(); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), "chmod go-w "+dir) {
		t.Errorf("a directory that all write to: %v", err)
	}
	must(t, os.Chmod(dir, 0o755))
	if os.Geteuid() != 0 {
		t.Skip("files of another user need root")
	}
	must(t, os.Chown(file, 65534, 65534))
	read(1, true, "belongs to user 65534 (mode 0644), who could change it: chown root "+file)
	must(t, os.Chown(dir, 65534, 65534))
	if _, _, err := f.Read(); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("a directory of another user: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
