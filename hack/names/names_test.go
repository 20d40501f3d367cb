package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Names that stand in no file of the project: otherwise TestRename could not choose them.
var (
	chosenDomain = "k8s.moored" + ".dev"
	chosen       = names{"module": "git.moored" + ".dev/tools/moor", "domain": chosenDomain, "images": "registry.moored" + ".dev/moor",
		"homepage": "https://git.moored" + ".dev/tools/moor",
		"apt":      "https://apt.moored" + ".dev/stable", "contact": "team@moored" + ".dev"}
)

func setting(n names) string {
	var pairs []string
	for _, k := range kinds {
		pairs = append(pairs, k.name+"="+n[k.name])
	}
	return strings.Join(pairs, ",")
}

// ofProject are the names of this repository.
func ofProject(t *testing.T) names {
	t.Helper()
	n, err := repository{dir: "../.."}.names()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestNamesAreTheProjects: names.yaml has what the other files have.
func TestNamesAreTheProjects(t *testing.T) {
	t.Parallel()
	n := ofProject(t)
	for name, place := range map[string]string{"module": "go.mod", "domain": "api/convert/names.go", "images": "hack/image.sh",
		"homepage": "deploy/package/nfpm.yaml", "apt": "docs/install.md", "contact": "SECURITY.md"} {
		text, err := os.ReadFile(filepath.Join("../..", place))
		if err != nil || !strings.Contains(string(text), n[name]) {
			t.Errorf("%s does not have the %s %s, which is in %s (%v)", place, name, n[name], file, err)
		}
	}
}

func TestBadNames(t *testing.T) {
	t.Parallel()
	now := ofProject(t)
	for set, want := range map[string]string{
		"module":                                       "must be NAME=VALUE",
		"modul=a.example/b":                            `no name "modul"; there are module, domain, images`,
		"module=a.dev/b,module=a.dev/c":                "module is given twice",
		"module=":                                      "module: it is empty",
		"module=berth":                                 "module: \"berth\" must be a module path",
		"module=Git.dev/Berth":                         "in lower case",
		"module=git.dev/berth/v2":                      "leave it out",
		"module=git.dev/berth/":                        "must be a module path",
		"module=git.dev/../berth":                      "must be a module path",
		"domain=berth":                                 "domain: \"berth\" must be a DNS name in lower case with a dot",
		"domain=-a.dev":                                "must be a DNS name",
		"domain=a.dev\nb: c":                           "must be a DNS name",
		"domain=a.dev/x":                               "must be a DNS name",
		"domain=berth.kubernetes.io":                   "belongs to Kubernetes",
		"domain=k8s.io":                                "belongs to Kubernetes",
		"domain=" + strings.Repeat("a", 47) + ".dev":   "at most 50 characters",
		"images=berth":                                 "images: \"berth\" must be a registry and a path",
		"images=berth/berthd":                          "must be a registry",
		"images=registry.example/a:1":                  "must be a registry",
		"images=registry.example/A":                    "in lower case",
		"homepage=http://a.dev/b":                      "homepage: \"http://a.dev/b\" must be an https URL",
		"homepage=https://a.dev/b/":                    "without a slash at its end",
		"homepage=https://a.dev/b#c":                   "must be an https URL",
		"homepage=https://a.dev/`id`":                  "must be an https URL",
		"apt=a.dev/apt":                                "apt: \"a.dev/apt\" must be an https URL",
		"apt=https://a.dev/b,homepage=https://a.dev/b": "each name needs a value of its own",
		"contact=berth":                                "contact: \"berth\" must be an email address",
		"contact=a b@c.dev":                            "must be an email address",
	} {
		if _, err := parse(now, set); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("-set %s: %v, want %s", set, err, want)
		}
	}
	next, err := parse(now, "images=registry.anchor.example:5000/a/b-c")
	if err != nil || next["images"] != "registry.anchor.example:5000/a/b-c" || next["module"] != now["module"] {
		t.Error(next, err)
	}
}

// project makes a repository with some files, names.yaml among them, and commits them. The calls of other programs are
// in the list, and not done.
func project(t *testing.T, files map[string]string) (r repository, called *[]string) {
	t.Helper()
	r = repository{ctx: t.Context(), out: io.Discard, dir: t.TempDir()}
	called = new([]string)
	r.call = func(program string, args ...string) error {
		*called = append(*called, strings.Join(append([]string{program}, args...), " "))
		return nil
	}
	write(t, r.dir, map[string]string{file: yamlOf(now)})
	write(t, r.dir, files)
	git(t, r.dir, "init", "-q")
	commit(t, r.dir)
	return r, called
}

// packed is an archive of one file.
func packed(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	archive := tar.NewWriter(zipped)
	err := archive.WriteHeader(&tar.Header{Name: "a.yaml", Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = archive.Write([]byte(text))
	}
	if err := errors.Join(err, archive.Close(), zipped.Close()); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// now are the names before.
var now = names{"module": "old.dev/dock", "domain": "dock.old.dev", "images": "localhost/dock", "homepage": "https://old.dev/dock",
	"apt": "https://old.dev/apt", "contact": "dock@old.dev"}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.com"}, args...)...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %q: %v: %s", args, err, text)
	}
	return string(text)
}

func commit(t *testing.T, dir string) {
	t.Helper()
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "files")
}

func read(t *testing.T, r repository, name string) string {
	t.Helper()
	text, err := os.ReadFile(r.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestSet(t *testing.T) {
	t.Parallel()
	r, called := project(t, map[string]string{
		"go.mod":       "module old.dev/dock\n",
		"tools/go.mod": "module old.dev/dock/tools\n",
		"a.go":         "package a\n\nimport (\n\t_ \"hold.dev/b\"\n\t_ \"old.dev/dock/c\"\n)\n",
		"a.pb.go":      "\x0cold.dev/dock",
		"page.md": "`dra.dock.old.dev/claim`, `dra\\.dock\\.old\\.dev/claim`, " +
			"[a](https://old.dev/dock/blob/main/a), dock@old.dev\n",
		"deploy.yaml":          "image: localhost/dock/dockd\napt: https://old.dev/apt\n",
		"others.md":            "kubernetes.io/os, https://old.dev/other, sock.old.dev\n",
		"run.sh":               "#!/bin/sh\n",
		"proto/released.binpb": "\x0cold.dev/dock",
	})
	if err := os.Chmod(r.path("deploy.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, r.dir, map[string]string{"old.tar.gz": packed(t, "a: dra.dock.old.dev/v1"), "others.tar.gz": packed(t, "a: b")})
	commit(t, r.dir)
	if err := r.set(now, chosen); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"go.mod":       "module git.moored" + ".dev/tools/moor\n",
		"tools/go.mod": "module git.moored" + ".dev/tools/moor/tools\n",
		"a.go":         "package a\n\nimport (\n\t_ \"git.moored" + ".dev/tools/moor/c\"\n\t_ \"hold.dev/b\"\n)\n",
		"a.pb.go":      "\x0cold.dev/dock",
		"page.md": "`dra.k8s.moored" + ".dev/claim`, `dra\\.k8s\\.moored" + "\\.dev/claim`, [a](https://git.moored" +
			".dev/tools/moor/blob/main/a), team@moored" + ".dev\n",
		"deploy.yaml":          "image: registry.moored" + ".dev/moor/dockd\napt: https://apt.moored" + ".dev/stable\n",
		"others.md":            "kubernetes.io/os, https://old.dev/other, sock.old.dev\n",
		"proto/released.binpb": "\x0cold.dev/dock",
	} {
		if got := read(t, r, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if text := unzipped(t, r.path("old.tar.gz")); !strings.Contains(text, "a: dra."+chosenDomain+"/v1\x00") {
		t.Errorf("in the archive: %q", text)
	}
	if read(t, r, "others.tar.gz") != packed(t, "a: b") {
		t.Error("an archive without a name has changed")
	}
	if info, err := os.Stat(r.path("deploy.yaml")); err != nil || info.Mode().Perm() != 0o755 {
		t.Error(info.Mode(), err)
	}
	want := []string{"go mod edit -fmt go.mod", "go mod edit -fmt tools/go.mod", "go tool -modfile=hack/tools/go.mod buf generate",
		"hack/gen.sh", "make released"}
	if !slices.Equal(*called, want) {
		t.Errorf("called %q, want %q", *called, want)
	}
	if err := r.set(chosen, now); err == nil || !strings.Contains(err.Error(), "the tree has changes") {
		t.Errorf("in a tree with changes: %v", err)
	}
	commit(t, r.dir)
	again, err := r.names()
	if err != nil || setting(again) != setting(chosen) {
		t.Fatal(again, err)
	}
	*called = nil
	if err := r.set(again, chosen); err != nil || len(*called) > 0 || git(t, r.dir, "status", "--porcelain") != "" {
		t.Errorf("the same names again: %v, called %q", err, *called)
	}
}

// TestSetRefuses: a choice that could not be replaced again changes nothing.
func TestSetRefuses(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ text, set, want string }{
		"a name that is there": {"a\nexample.com/gpu\n", "domain=example.com", "file.md:2: a new name is part of this file already"},
		"a part of a word":     {"subdock.dev\n", "domain=dock.dev", "file.md:1: a new name is part"},
		"not text":             {"old.dev/dock\x00", "module=new.dev/dock", "file.md: this file is not text"},
	} {
		r, called := project(t, map[string]string{"file.md": row.text})
		next, err := parse(now, row.set)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.set(now, next); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %s", name, err, row.want)
		}
		if changes := git(t, r.dir, "status", "--porcelain"); changes != "" || len(*called) > 0 {
			t.Errorf("%s: changed %s, called %q", name, changes, *called)
		}
	}
}
