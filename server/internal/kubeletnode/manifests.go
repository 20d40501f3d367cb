package kubeletnode

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/api/yamltext"
	"github.com/berthd/berth/managers/errdefs"
)

// mostManifests is how many manifests of static pods are read.
const mostManifests = 1000

// staticPodPath is the path of static pods that a flag or the last file of a configuration names, below the root; empty if there is none.
// A path that is not absolute is below the directory of the first file.
func staticPodPath(files []config.File, flag string) (at string) {
	for _, f := range files {
		var c struct {
			Path *string `json:"staticPodPath"`
		}
		text, err := yamltext.ToJSON(f.Data)
		if err != nil || json.Unmarshal(text, &c) != nil || c.Path == nil {
			continue // whoever reads the configuration says what is wrong
		}
		if at = *c.Path; at != "" && !path.IsAbs(at) {
			at = path.Join(path.Dir(files[0].Path), at)
		}
	}
	return strings.TrimPrefix(path.Clean("/"+cmp.Or(flag, at)), "/")
}

// nodeName is the name that the kubelet adds to those of static pods; empty if it is not known.
func (r *reader) nodeName(flag string) string {
	name := flag
	for _, file := range []string{"proc/sys/kernel/hostname", "etc/hostname"} {
		if data, err := r.file(file); err == nil && name == "" {
			name = string(data)
		}
	}
	return strings.ToLower(strings.TrimSpace(name))
}

// readManifests reads the manifests of static pods, as the kubelet finds them: those of a directory, without the ones below it and those
// whose names begin with a dot, or one file.
func (r *reader) readManifests(at, node string) {
	if at == "" {
		return
	}
	problem := func(name string, err error) {
		r.unmanifest = append(r.unmanifest, fmt.Sprintf("static pods: /%s: %v", name, reason(err)))
	}
	files := []string{at}
	if entries, err := fs.ReadDir(r.root, at); err == nil {
		files = nil
		for _, e := range entries {
			if !e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
				files = append(files, path.Join(at, e.Name()))
			}
		}
	} else if errors.Is(err, fs.ErrNotExist) {
		return // there are no static pods
	}
	left := Most
	for i, name := range files {
		data, err := r.file(name)
		if left -= len(data); err == nil && (left < 0 || i == mostManifests) {
			problem(at, errdefs.Invalidf("expected at most %d manifests, and %d MiB in all", mostManifests, Most>>20))
			return
		}
		var pods []*typesv1.Pod
		if err == nil {
			pods, err = podspec.Decode(bytes.NewReader(data), podspec.Options{GenerateUID: true})
		}
		if err != nil {
			problem(name, err)
			continue
		}
		for _, p := range pods {
			m := manifest{pod: p, given: !podspec.GeneratedUID(p)}
			if node != "" {
				p.Metadata.Name += "-" + node
			}
			r.manifests = append(r.manifests, m)
		}
	}
}
