package quickstart

import (
	"archive/zip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// proxy makes a folder that Go takes modules from, with example.com/a and example.com/b in the versions 1.0.0 and 1.1.0.
func proxy(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, module := range []string{"example.com/a", "example.com/b"} {
		at := filepath.Join(dir, module, "@v")
		put(t, filepath.Join(at, "list"), "v1.0.0\nv1.1.0\n")
		for _, version := range []string{"v1.0.0", "v1.1.0"} {
			mod := "module " + module + "\n\ngo 1.25\n"
			put(t, filepath.Join(at, version+".info"), `{"Version": "`+version+`", "Time": "2026-01-01T00:00:00Z"}`)
			put(t, filepath.Join(at, version+".mod"), mod)
			file, err := os.Create(filepath.Join(at, version+".zip"))
			if err != nil {
				t.Fatal(err)
			}
			archive := zip.NewWriter(file)
			for name, text := range map[string]string{"go.mod": mod, "a.go": "package a\n"} {
				w, err := archive.Create(module + "@" + version + "/" + name)
				if err == nil {
					_, err = w.Write([]byte(text))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if err := archive.Close(); err != nil {
				t.Fatal(err)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func put(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestUpdate: newer modules are taken, and those of the programs are in the section of the next release.
func TestUpdate(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../outdated.sh")
	if err != nil {
		t.Fatal(err)
	}
	modules, cache := proxy(t), t.TempDir()
	const (
		both    = "require (\n\texample.com/a v1.0.0\n\texample.com/b v1.0.0\n)\n"
		before  = "# What changed?\n\n## 0.2.0\n\nMuch.\n\n"
		older   = "## 0.1.0\n\n- `example.com/a` is v1.0.0 and was v0.9.0\n"
		a       = "- `example.com/a` is v1.1.0 and was "
		b       = "- `example.com/b` is v1.1.0 and was v1.0.0\n"
		heading = "**Newer modules.**\n\n"
	)
	for name, row := range map[string]struct {
		changelog string // of the next release
		args      []string
		tag       bool
		code      int
		says      string
		want      string // the changelog, if it changes
		mod       []string
	}{
		"all": {changelog: before + older, says: "modules taken: 3", want: before + heading + a + "v1.0.0\n" + b + "\n" + older,
			mod: []string{"a v1.1.0", "b v1.1.0"}},
		"only one": {changelog: before, args: []string{"example.com/b"}, says: "modules taken: 1", want: before + heading + b,
			mod: []string{"a v1.0.0", "b v1.1.0"}},
		"once more": {changelog: before + heading + "- `example.com/a` is v1.0.0 and was v0.9.0\n", says: "modules taken: 3",
			want: before + heading + a + "v0.9.0\n" + b, mod: []string{"a v1.1.0", "b v1.1.0"}},
		"no such module": {changelog: before, args: []string{"example.com"}, code: 2, says: "example.com: there is no newer release",
			mod: []string{"a v1.0.0", "b v1.0.0"}},
		"no section": {changelog: older, code: 2, says: "add its section to CHANGELOG.md", mod: []string{"a v1.0.0", "b v1.0.0"}},
		"released":   {changelog: before, tag: true, code: 2, says: "raise api/version/VERSION", mod: []string{"a v1.0.0", "b v1.0.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for file, text := range map[string]string{
				"hack/outdated.sh":    string(script),
				"hack/outdated.txt":   "",
				"CHANGELOG.md":        row.changelog,
				"api/version/VERSION": "0.2.0\n",
				"go.mod":              "module example.com/own\n\ngo 1.25\n\n" + both,
				"own.go":              "package own\n\nimport (\n\t_ \"example.com/a\"\n\t_ \"example.com/b\"\n)\n",
				"tools/go.mod":        "module example.com/own/tools\n\ngo 1.25\n\nrequire example.com/a v1.0.0\n",
				"tools/tools.go":      "package tools\n\nimport _ \"example.com/a\"\n",
			} {
				put(t, filepath.Join(dir, file), text)
			}
			run := func(program string, args ...string) (string, int) {
				cmd := exec.CommandContext(t.Context(), program, args...)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "GOPROXY=file://"+modules, "GOSUMDB=off", "GOMODCACHE="+cache,
					"GOFLAGS=-modcacherw", "GOTOOLCHAIN=local", "GOWORK=off")
				out, _ := cmd.CombinedOutput()
				return string(out), cmd.ProcessState.ExitCode()
			}
			git := []string{"-c", "user.name=a", "-c", "user.email=a@example.com"}
			run("git", "init", "-q")
			run("git", "add", "-A")
			run("git", append(git, "commit", "-qm", "files")...)
			if row.tag {
				run("git", "tag", "v0.2.0")
			}
			out, code := run("bash", append([]string{"hack/outdated.sh", "update"}, row.args...)...)
			if code != row.code || !strings.Contains(out, row.says) {
				t.Errorf("exit code %d, want %d with %q\n%s", code, row.code, row.says, out)
			}
			if row.want == "" {
				row.want = row.changelog
			}
			if text, err := os.ReadFile(filepath.Join(dir, "CHANGELOG.md")); err != nil || string(text) != row.want {
				t.Errorf("changelog\n%s\nwant\n%s (%v)", text, row.want, err)
			}
			mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			for _, want := range row.mod {
				if err != nil || !strings.Contains(string(mod), "example.com/"+want+"\n") {
					t.Errorf("go.mod lacks %s (%v)\n%s", want, err, mod)
				}
			}
		})
	}
}
