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
		"deploy/base/daemonset.yaml": "image: " + chosen["images"] + "/berthd\nimage: \"" +
			chosen["images"] + "/berth-nri:0.2.0\"\n",
		"deploy/base/kustomization.yaml":             "images:\n- {name: " + chosen["images"] + "/berthd, newTag: 0.2.0}\n",
		"deploy/helm/berth/Chart.yaml":               "version: 0.2.0 # as VERSION\nappVersion: 0.2.0\n",
		"deploy/helm/berth/values.yaml":              "image:\n  repository: " + chosen["images"] + "\n",
		"deploy/helm/berth/templates/daemonset.yaml": "image: {{ .Values.image.repository }}/berthd:{{ .Chart.AppVersion }}\n",
		"deploy/examples/pod.yaml":                   "image: example.com/app:1\n",
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
	placeholders := names{"module": "git.moored" + ".dev/moor", "domain": "berth.example", "images": "localhost/anchor",
		"homepage": "https://example.org/berth", "apt": "https://anchor.invalid/apt", "contact": "a@berth.test"}
	for name, row := range map[string]struct {
		files  map[string]string
		change func(t *testing.T, r *repository)
		want   []string
	}{
		"all is there": {},
		"placeholders": {files: map[string]string{file: yamlOf(placeholders)}, want: []string{
			"domain is berth.example, a placeholder; choose a DNS name",
			"images is localhost/anchor, a placeholder; choose a registry and a path in lower case, as ghcr.io/OWNER: " +
				"go run ./hack/names -set images=...",
			"homepage is https://example.org/berth", "apt is https://anchor.invalid/apt", "contact is a@berth.test",
			"deploy/base/daemonset.yaml:1: the image " + chosen["images"] + "/berthd is not one of localhost/anchor/{berthd,berth-nri}",
			"deploy/base/daemonset.yaml:2: ", "deploy/base/kustomization.yaml:2: ",
			"deploy/helm/berth/values.yaml:2: the repository " + chosen["images"] + " is not localhost/anchor",
			"no manifest has an image of localhost/anchor"}},
		"no number": {files: map[string]string{"api/version/VERSION": "0.2\n"}, want: []string{
			`"0.2" must be a number of semantic versioning`, "the first section is \"0.2.0\"", "the version is 0.2", "the version is 0.2",
			"version is 0.2.0, and the version is 0.2", "appVersion is 0.2.0, and the version is 0.2"}},
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
		"a version without a number": {files: map[string]string{"api/version/VERSION": "0.2.0-01\n"}, want: []string{
			`"0.2.0-01" must be a number of semantic versioning`, "the first section is \"0.2.0\"", "the version is 0.2.0-01",
			"the version is 0.2.0-01", "version is 0.2.0, and the version is 0.2.0-01", "appVersion is 0.2.0"}},
		"version of the chart": {files: map[string]string{"deploy/helm/berth/Chart.yaml": "version: 0.1.0 # VERSION\nappVersion: 0.2.0\n"},
			want: []string{"deploy/helm/berth/Chart.yaml:1: version is 0.1.0, and the version is 0.2.0"}},
		"images of the chart": {files: map[string]string{
			"deploy/helm/berth/values.yaml": "image:\n  repository: registry.moored" + ".dev/other\n"},
			want: []string{"deploy/helm/berth/values.yaml:2: the repository registry.moored" + ".dev/other is not " + chosen["images"]}},
		"images that end in a program's name": {files: map[string]string{
			file:                             strings.Replace(yamlOf(chosen), chosen["images"], chosen["images"]+"/berth", 1),
			"deploy/base/daemonset.yaml":     "image: " + chosen["images"] + "/berth/berthd\n",
			"deploy/base/kustomization.yaml": "images:\n- {name: " + chosen["images"] + "/berth/berthd, newTag: 0.2.0}\n",
			"deploy/helm/berth/values.yaml":  "image:\n  repository: " + chosen["images"] + "/berth\n",
		}},
		"an image in other quotes": {files: map[string]string{
			"deploy/base/daemonset.yaml": "image: '" + chosen["images"] + "/berthd:0.1.0'\n"},
			want: []string{"/berthd has the tag 0.1.0, and the version is 0.2.0"}},
		"a digest": {files: map[string]string{"deploy/base/daemonset.yaml": "image: " + chosen["images"] + "/berthd:0.2.0@sha256:00\n"},
			want: []string{"/berthd has the tag sha256:00, and the version is 0.2.0"}},
		"a digest in a kustomization": {files: map[string]string{
			"deploy/base/kustomization.yaml": "- {name: " + chosen["images"] + "/berthd, digest: sha256:00}\n"},
			want: []string{"digest is sha256:00, and the version is 0.2.0"}},
		"an image without a registry": {files: map[string]string{"deploy/base/daemonset.yaml": "image: berthd:0.2.0\n"},
			want: []string{"the image berthd is not one of"}},
		"another registry": {files: map[string]string{"deploy/base/kustomization.yaml": "- {name: " + chosen["images"] +
			"/berthd, newName: other.dev/x, newTag: 0.2.0}\n"}, want: []string{"the image other.dev/x is not one of"}},
		"other file": {files: map[string]string{"deploy/base/daemonset.yml": "image: " + chosen["images"] + "/berthd:0.1.0\n"},
			want: []string{"deploy/base/daemonset.yml:1: "}},
		"other program": {files: map[string]string{"deploy/base/daemonset.yaml": "image: " + chosen["images"] + "/berthctl\n"},
			want: []string{"/berthctl is not one of " + chosen["images"] + "/{berthd,berth-nri}"}},
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

// TestReachable: a stranger reaches neither hosts that are reserved for examples nor those of private networks.
func TestReachable(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"localhost/anchor": true, "localhost:5000/berth": true, "registry:5000/berth": true, "registry.internal/berth": true,
		"https://git.home.arpa/berth": true, "a@berth.local": true, "https://docs.example.com:8443/a": true, "berth.example": true,
		"registry.moored" + ".dev:5000/berth": false, "https://example.moored" + ".dev/localhost/a.test": false,
		"https://moored" + ".dev/internal": false, "internal.moored" + ".dev": false, "a@localhost.moored" + ".dev": false,
		"myexample.com": false, "https://moored" + ".dev:8443/a": false,
	} {
		if got := !reachable(name); got != want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
