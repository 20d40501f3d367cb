package manifest_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berthlet/manifest"
)

func pod(name string) string {
	return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: {containers: [{name: c}]}\n"
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func names(manifests []podspec.Manifest) []string {
	out := []string{}
	for _, m := range manifests {
		out = append(out, m.Pod.GetMetadata().GetName())
	}
	return out
}

func read(t *testing.T, f *manifest.Folder, want ...string) {
	t.Helper()
	manifests, _, err := f.Read()
	if got := names(manifests); err != nil || !slices.Equal(got, want) && len(got)+len(want) > 0 {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "m")
	var log bytes.Buffer
	f := manifest.Open(dir, slog.New(slog.NewTextHandler(&log, nil)))
	read(t, f)
	read(t, f)
	if got := strings.Count(log.String(), "the manifest directory does not exist"); got != 1 {
		t.Errorf("said %d times: %s", got, &log)
	}
	log.Reset()
	if err := os.MkdirAll(filepath.Join(dir, "folder"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "b.yaml", pod("b")+"---\n"+pod("b2"))
	write(t, dir, "a.json", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"c"}]}}`)
	write(t, dir, ".hidden", pod("hidden"))
	read(t, f, "a", "b", "b2")
	if log.Len() > 0 {
		t.Errorf("log: %s", &log)
	}

	// A file that became wrong keeps its pods, and is reported once.
	write(t, dir, "b.yaml", pod("b")+"---\nkind: Secret\n")
	read(t, f, "a", "b", "b2")
	read(t, f, "a", "b", "b2")
	if got := strings.Count(log.String(), "b.yaml"); got != 1 {
		t.Errorf("reported %d times: %s", got, &log)
	}
	write(t, dir, "b.yaml", pod("b"))
	read(t, f, "a", "b")

	// Of two pods of one uid the first counts.
	write(t, dir, "c.yaml", pod("a"))
	read(t, f, "a", "b")
	if !strings.Contains(log.String(), "c.yaml") {
		t.Errorf("nothing said about c.yaml: %s", &log)
	}
	for _, name := range []string{"a.json", "b.yaml"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	read(t, f, "a")
}

// TestAll shows when the found pods are not all pods of the folder.
func TestAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := manifest.Open(dir, slog.New(slog.DiscardHandler))
	expect := func(want bool, pods ...string) {
		t.Helper()
		manifests, all, err := f.Read()
		if err != nil || all != want || strings.Join(names(manifests), " ") != strings.Join(pods, " ") {
			t.Errorf("%v, %v, %v; want %v, %v", names(manifests), all, err, pods, want)
		}
	}
	write(t, dir, "a.yaml", pod("a"))
	write(t, dir, "b.yaml", "kind: [")
	expect(false, "a")
	expect(false, "a")
	write(t, dir, "b.yaml", pod("b"))
	expect(true, "a", "b")
	write(t, dir, "b.yaml", "kind: [")
	expect(true, "a", "b")
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(true, "a")
}

func TestNames(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"uid":       "apiVersion: v1\nkind: Pod\nmetadata: {name: a, uid: ../a}\nspec: {containers: [{name: c}]}\n",
		"container": "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: ../c}]}\n",
		"volume":    "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {volumes: [{name: /, emptyDir: {}}], containers: [{name: c}]}\n",
		"namespace": "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: a/b}\nspec: {containers: [{name: c}]}\n",
		"name":      "apiVersion: v1\nkind: Pod\nmetadata: {name: a/b}\nspec: {containers: [{name: c}]}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var log bytes.Buffer
			write(t, dir, "a.yaml", text)
			read(t, manifest.Open(dir, slog.New(slog.NewTextHandler(&log, nil))))
			if !strings.Contains(log.String(), name) {
				t.Errorf("log: %s", &log)
			}
		})
	}
}

func TestFolderThatIsNone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	write(t, filepath.Dir(path), "file", "")
	if _, _, err := manifest.Open(path, slog.New(slog.DiscardHandler)).Read(); err == nil {
		t.Error("a file was read as a folder: its pods would be ended")
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", pod("a"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	told := make(chan []string)
	done := make(chan error, 1)
	go func() {
		done <- manifest.Open(dir, slog.New(slog.DiscardHandler)).Watch(ctx, func(m []podspec.Manifest, _ bool) {
			select {
			case told <- names(m):
			case <-ctx.Done():
			}
		}, func([]manifest.Problem) {})
	}()
	expect := func(want ...string) {
		t.Helper()
		for {
			select {
			case got := <-told:
				if slices.Equal(got, want) {
					return
				}
			case <-ctx.Done():
				t.Fatalf("waited in vain for %v", want)
			}
		}
	}
	expect("a")
	write(t, dir, "b.yaml", pod("b"))
	expect("a", "b")
	if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	expect("b")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestProblems: files that cannot be read, and kinds that are no pods, are named until they are mended or gone.
func TestProblems(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", pod("a"))
	write(t, dir, "b.yaml", "kind: Deployment\napiVersion: apps/v1\n")
	write(t, dir, "c.yaml", "a: [")
	f := manifest.Open(dir, slog.New(slog.DiscardHandler))
	problems := func() (out []string) {
		t.Helper()
		if _, _, err := f.Read(); err != nil {
			t.Fatal(err)
		}
		for _, p := range f.Problems() {
			out = append(out, filepath.Base(p.File)+": "+p.Error)
		}
		return out
	}
	got := problems()
	if len(got) != 2 || !strings.Contains(got[0], `b.yaml: document 1: kind Deployment of apiVersion "apps/v1": expected Pod or List`) ||
		!strings.HasPrefix(got[1], "c.yaml: document 1: not YAML") {
		t.Errorf("%q", got)
	}
	write(t, dir, "c.yaml", pod("c"))
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	if got := problems(); got != nil {
		t.Errorf("mended: %q", got)
	}
}
