package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// releasable are files of a project that may be released.
func releasable() map[string]string {
	return map[string]string{
		file:                  yamlOf(chosen),
		"api/version/VERSION": "0.2.0\n",
		"CHANGELOG.md":        "# What changed?\n\n## 0.2.0\n\nMuch.\n\n## 0.1.0\n\nThe first.\n",
		"hack/image.sh": "for program in berthd berthctl; do\n\tcheck\ndone\n" +
			"for program in berthd berth-nri; do\n\tmake\ndone\n",
		"deploy/base/daemonset.yaml":     "image: " + chosen["images"] + "/berthd\nimage: \"" + chosen["images"] + "/berth-nri:0.2.0\"\n",
		"deploy/base/kustomization.yaml": "images:\n- {name: " + chosen["images"] + "/berthd, newTag: 0.2.0}\n",
		"deploy/examples/pod.yaml":       "image: example.com/app:1\n",
	}
}

func yamlOf(n names) (text string) {
	for name, value := range n {
		text += name + ": " + value + "\n"
	}
	return text
}

func TestCheckRelease(t *testing.T) {
	t.Parallel()
	placeholders := names{"module": "git.moored" + ".dev/moor", "domain": "berth.example", "images": "localhost/berth",
		"homepage": "https://example.org/berth", "apt": "https://berth.invalid/apt", "contact": "a@berth.test"}
	for name, row := range map[string]struct {
		files  map[string]string
		change func(t *testing.T, r *repository)
		want   []string
	}{
		"all is there": {},
		"placeholders": {files: map[string]string{file: yamlOf(placeholders)}, want: []string{
			"domain is berth.example, a placeholder; choose a DNS name",
			"images is localhost/berth, a placeholder; choose a registry and a path in lower case, as ghcr.io/OWNER: " +
				"go run ./hack/names -set images=...",
			"homepage is https://example.org/berth", "apt is https://berth.invalid/apt", "contact is a@berth.test",
			"deploy/base/daemonset.yaml:1: the image " + chosen["images"] + "/berthd is none of localhost/berth/{berthd,berth-nri}",
			"deploy/base/daemonset.yaml:2: ", "deploy/base/kustomization.yaml:2: ",
			"no manifest has an image of localhost/berth"}},
		"no number": {files: map[string]string{"api/version/VERSION": "0.2\n"}, want: []string{
			`"0.2" must be a number of semantic versioning`, "the first section is \"0.2.0\"", "the version is 0.2", "the version is 0.2"}},
		"released": {change: func(t *testing.T, r *repository) { git(t, r.dir, "tag", "v0.2.0") },
			want: []string{"0.2.0 is released, the tag v0.2.0 exists; raise the number"}},
		"another tag": {change: func(t *testing.T, r *repository) { git(t, r.dir, "tag", "v0.2.0-rc.1") }},
		"no changelog": {files: map[string]string{"CHANGELOG.md": "# What changed?\n"},
			want: []string{"write one with the heading ## 0.2.0"}},
		"no section": {files: map[string]string{"CHANGELOG.md": "## 0.1.0\n\nA.\n"},
			want: []string{"the first section is \"0.1.0\"; write one for 0.2.0"}},
		"an old section": {files: map[string]string{"CHANGELOG.md": "## 0.3.0\n\nA.\n\n## 0.2.0\n\nB.\n"},
			want: []string{"the first section is \"0.3.0\""}},
		"not ready": {files: map[string]string{"CHANGELOG.md": "## 0.2.0 (not released yet)\n\nA.\n"},
			want: []string{"it must be ## 0.2.0 in a release"}},
		"empty section": {files: map[string]string{"CHANGELOG.md": "## 0.2.0\n\n## 0.1.0\n\nA.\n"},
			want: []string{"the section 0.2.0 is empty"}},
		"tag of an image": {files: map[string]string{"deploy/base/daemonset.yaml": "image: " + chosen["images"] + "/berthd:0.1.0\n"},
			want: []string{"deploy/base/daemonset.yaml:1: the image " + chosen["images"] +
				"/berthd has the tag 0.1.0, and the version is 0.2.0"}},
		"newTag": {files: map[string]string{"deploy/base/kustomization.yaml": "- {name: " + chosen["images"] + "/berthd, newTag: 0.1.0}\n"},
			want: []string{"deploy/base/kustomization.yaml:1: newTag is 0.1.0, and the version is 0.2.0"}},
		"other program": {files: map[string]string{"deploy/base/daemonset.yaml": "image: " + chosen["images"] + "/berthctl\n"},
			want: []string{"/berthctl is none of " + chosen["images"] + "/{berthd,berth-nri}"}},
		"changes": {change: func(t *testing.T, r *repository) { write(t, r.dir, map[string]string{"new": ""}) },
			want: []string{"the tree has changes; commit them, because a tag names a commit:\n?? new"}},
		"tests": {change: func(_ *testing.T, r *repository) {
			r.call = func(string, ...string) error { return errors.New("go test: exit status 1") }
		}, want: []string{"go test: exit status 1: mend what the test names"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := project(t, releasable())
			write(t, r.dir, row.files)
			git(t, r.dir, "add", "-A")
			git(t, r.dir, "commit", "-q", "--allow-empty", "-m", "more")
			if row.change != nil {
				row.change(t, &r)
			}
			var out strings.Builder
			r.out = &out
			n, err := r.names()
			if err != nil {
				t.Fatal(err)
			}
			err = r.checkRelease(n)
			if (err != nil) != (row.want != nil) {
				t.Errorf("%v, want %q", err, row.want)
			}
			found := strings.Split(out.String(), "\n- ")
			if row.want == nil && !strings.Contains(out.String(), "0.2.0 can be released") {
				t.Error(out.String())
			}
			for _, want := range row.want {
				at := slices.IndexFunc(found, func(f string) bool { return strings.Contains(f, want) })
				if at < 0 {
					t.Errorf("no finding %q in\n%s", want, out.String())
					continue
				}
				found = slices.Delete(found, at, at+1)
			}
			if row.want != nil && len(found) > 0 {
				t.Errorf("more findings: %q", found)
			}
		})
	}
}
