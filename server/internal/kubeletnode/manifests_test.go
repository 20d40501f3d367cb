package kubeletnode

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/workload"
)

const (
	hash1 = "0123456789abcdef0123456789abcdef"
	hash2 = "fedcba9876543210fedcba9876543210"
)

// static is the manifest of a static pod with one container.
func static(name, container, cpus string) *fstest.MapFile {
	return &fstest.MapFile{Data: fmt.Appendf(nil, "apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: kube-system}\n"+
		"spec:\n  containers:\n  - {name: %s, image: x, resources: {requests: {cpu: %s}}}\n", name, container, cpus)}
}

// TestStaticPods: a pod of the kubelet has the name of a manifest if no other manifest and no other pod fits.
func TestStaticPods(t *testing.T) {
	t.Parallel()
	one := `{"ContainerResources": {"c": {"requests": {"cpu": "500m"}}}}`
	for name, row := range map[string]struct {
		files   fstest.MapFS
		entries string
		want    []string
		notes   []string
	}{
		"one fits": {fstest.MapFS{"m/a.yaml": static("a", "c", "0.5"), "m/b.yaml": static("b", "c", "1"),
			"m/.c.yaml": static("c", "c", "0.5")},
			`"` + hash1 + `": ` + one, []string{"kube-system/a-n1"}, []string{"the name kube-system/a-n1 of pod " + hash1 + " " +
				"is that of the only static pod"}},
		"none fits": {fstest.MapFS{"m/a.yaml": static("a", "d", "0.5")}, `"` + hash1 + `": ` + one, []string{"unknown/" +
			hash1}, nil},
		"no manifests":   {fstest.MapFS{}, `"` + hash1 + `": ` + one, []string{"unknown/" + hash1}, nil},
		"of another way": {fstest.MapFS{"m/a.yaml": static("a", "c", "0.5")}, `"8d5b-4a1c": ` + one, []string{"unknown/8d5b-4a1c"}, nil},
		"two manifests": {fstest.MapFS{"m/a.yaml": static("a", "c", "0.5"), "m/b.yaml": static("b", "c", "500m")}, `"` +
			hash1 + `": ` + one,
			[]string{"unknown/" + hash1}, []string{"name of pod " + hash1 + ": several manifests of static pods fit: " +
				"kube-system/a-n1, kube-system/b-n1"}},
		"two pods": {fstest.MapFS{"m/a.yaml": static("a", "c", "0.5")}, `"` + hash1 + `": ` + one + `, "` + hash2 + `": ` + one,
			[]string{"unknown/" + hash1, "unknown/" + hash2}, []string{"name of pod " + hash1 + ": the static pod " +
				"kube-system/a-n1 fits to 2 pods",
				"name of pod " + hash2 + ": the static pod kube-system/a-n1 fits to 2 pods"}},
		"with a uid": {fstest.MapFS{"m/a.yaml": {Data: []byte(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a",` +
			` "uid": "mine"},
			"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}`)}},
			`"mine": ` + one + `, "` + hash1 + `": ` + one, []string{"unknown/" + hash1, "default/a-n1"}, nil},
		"init containers": {fstest.MapFS{"m/a.yaml": {Data: []byte(`{"apiVersion": "v1", "kind": "Pod",` +
			` "metadata": {"name": "a"}, "spec": {
			"initContainers": [{"name": "i", "resources": {"limits": {"cpu": "1"}}}],
			"containers": [{"name": "c", "resources": {"limits": {"cpu": "2"}}}]}}`)}},
			`"` + hash1 + `": {"ContainerResources": {"c": {"limits": {"cpu": "2"}, "requests": {"cpu": "2"}}}}`,
			[]string{"default/a-n1"},
			[]string{"the name default/a-n1"}},
		"unreadable": {fstest.MapFS{"m/a.yaml": {Data: []byte("kind: Job\n")}, "m/b.yaml": static("b", "c", "0.5")}, `"` +
			hash1 + `": ` + one,
			[]string{"kube-system/b-n1"}, []string{"static pods: /m/a.yaml: ", "the name kube-system/b-n1"}},
	} {
		text, err := json.Marshal(map[string]any{"data": `{"entries": {` + row.entries + "}}"})
		if err != nil {
			t.Fatal(err)
		}
		r := &reader{root: regularIn(row.files)}
		if r.allocated, err = parseAllocated(text); err != nil {
			t.Fatal(err)
		}
		r.readManifests("m", "n1")
		pods, notes, _ := r.Reconstruct()
		var got []string
		for _, node := range pods {
			p := node.Pod
			got = append(got, title(p))
			uid := p.GetMetadata().GetUid()
			if static := p.GetMetadata().GetAnnotations()[workload.SourceAnnotation] == "file"; static != (uid != "8d5b-4a1c") {
				t.Errorf("%s: pod %s is static: %t", name, title(p), static)
			}
			if r.allocated[uid].Containers == nil {
				t.Errorf("%s: pod %s has uid %s", name, title(p), uid)
			}
			if c := p.GetSpec().GetContainers(); len(c) != 1 || c[0].GetName() != "c" || c[0].GetResources().GetRequests()["cpu"] == "1" {
				t.Errorf("%s: pod %s has containers %v", name, title(p), c)
			}
		}
		if !slices.Equal(got, row.want) {
			t.Errorf("%s: pods %q, want %q", name, got, row.want)
		}
		if len(notes) != len(row.notes) || !slices.EqualFunc(notes, row.notes, strings.HasPrefix) {
			t.Errorf("%s: notes %q, want %q", name, notes, row.notes)
		}
	}
}

// TestManifestPlaces: manifests are where the last file of the configuration says, also in one file; without a name of the node, pods are
// called as their manifests.
func TestManifestPlaces(t *testing.T) {
	t.Parallel()
	file := func(at, text string) config.File { return config.File{Path: at, Data: []byte(text)} }
	if got := staticPodPath([]config.File{file("x", "staticPodPath: /a")}, "flag"); got != "flag" {
		t.Errorf("with a flag: %q", got)
	}
	for want, files := range map[string][]config.File{
		"":                         {file("/etc/kubelet/config.yaml", "cgroupRoot: /a"), file("x", "staticPodPath: ''")},
		"etc/kubernetes/manifests": {file("/etc/kubelet/config.yaml", "staticPodPath: /etc/kubernetes/manifests")},
		"etc/kubelet/here":         {file("/etc/kubelet/config.yaml", "staticPodPath: /a"), file("flags", `{"staticPodPath": "here"}`)},
		"secret":                   {file("/etc/kubelet/config.yaml", "staticPodPath: ../../../secret"), file("x", "staticPodPath: [")},
	} {
		if got := staticPodPath(files, ""); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for want, row := range map[string]struct {
		flag  string
		files map[string]string
	}{
		"flag": {"Flag", map[string]string{"etc/hostname": "file\n"}},
		"file": {"", map[string]string{"etc/hostname": "FILE\n"}},
		"proc": {"", map[string]string{"etc/hostname": "file\n", "proc/sys/kernel/hostname": "proc\n"}},
		"":     {"", nil},
	} {
		files := fstest.MapFS{}
		for name, text := range row.files {
			files[name] = &fstest.MapFile{Data: []byte(text)}
		}
		if got := (&reader{root: regularIn(files)}).nodeName(row.flag); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	r := &reader{root: regularIn(fstest.MapFS{"one": static("a", "c", "1")})}
	if r.readManifests("one", ""); len(r.manifests) != 1 || title(r.manifests[0].pod) != "kube-system/a" || len(r.unmanifest) > 0 {
		t.Errorf("one file: %v, %q", r.manifests, r.unmanifest)
	}
	many := fstest.MapFS{}
	for i := range mostManifests + 1 {
		many[fmt.Sprintf("m/%d.yaml", i)] = static("a", "c", "1")
	}
	r = &reader{root: regularIn(many)}
	if r.readManifests("m", ""); len(r.manifests) != mostManifests || len(r.unmanifest) !=
		1 || !strings.Contains(r.unmanifest[0], "at most 1000 manifests") {
		t.Errorf("%d manifests, %q", len(r.manifests), r.unmanifest)
	}
}
