package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/yamltext"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/node"
)

// File is a file that was read.
type File struct {
	Path string
	Data []byte
}

// DropInExtension is that of the files that a kubelet reads in its directory of drop-ins (--config-dir). It ignores others.
const DropInExtension = ".conf"

// ApplyKubelets is ApplyKubelet for a kubelet's file (--config), if it has one, and its drop-ins in the order in which the kubelet
// walks through their directory, subdirectories included. The kubelet merges each drop-in as a JSON merge patch (RFC 7386) with what is
// there, its defaults included: objects by their fields, null as the default, lists as a whole. An error comes with the notes until then.
func (c *Config) ApplyKubelets(main, dropIns []File) (notes []string, err error) {
	var k kubelet.KubeletConfiguration
	path := "the drop-ins"
	for _, f := range main {
		var more []string
		k, more, err = readKubelet(f.Path, f.Data)
		path, notes = f.Path, append(notes, more...)
		if err != nil {
			return notes, err
		}
	}
	if len(dropIns) > 0 {
		more, err := mergeDropIns(&k, len(main) > 0, dropIns)
		notes = append(notes, more...)
		if err != nil {
			return notes, err
		}
	}
	for _, n := range idleNotes(&k) {
		notes = append(notes, path+": "+n)
	}
	return notes, c.applyKubelet(path, k)
}

// mergeDropIns merges drop-ins with a configuration. hasFile means that the configuration is from a file.
func mergeDropIns(k *kubelet.KubeletConfiguration, hasFile bool, dropIns []File) (notes []string, err error) {
	given := *k
	setDefaults(k, hasFile)
	text, err := json.Marshal(k)
	if err != nil {
		return nil, err
	}
	var merged any
	if err := decode(text, &merged); err != nil {
		return nil, err
	}
	last := ""
	for _, f := range dropIns {
		if filepath.Ext(f.Path) != DropInExtension {
			notes = append(notes, fmt.Sprintf("%s: the kubelet ignores files without the extension %s", f.Path, DropInExtension))
			continue
		}
		patch, err := readDropIn(f)
		if err != nil {
			return notes, err
		}
		merged, last = mergePatch(merged, patch), f.Path
	}
	if last == "" {
		*k = given
		return notes, nil
	}
	var out kubelet.KubeletConfiguration
	if text, err = json.Marshal(merged); err != nil {
		return nil, err
	}
	// The kubelet decodes with this package, too: a field in another case counts, and an unknown one does not.
	if err := json.Unmarshal(text, &out); err != nil {
		return notes, errdefs.Invalidf("%s, merged with what is before it: %w", last, err)
	}
	if out.EvictionHard == nil {
		out.EvictionHard = map[string]string{} // without a file, the kubelet evicts at no threshold
	}
	out.MergeDefaultEvictionSettings = nil // the kubelet has obeyed that of its file, and ignores that of drop-ins
	*k = out
	return notes, nil
}

// mergePatch applies a JSON merge patch (RFC 7386, section 2): objects are merged by their fields, null removes one, and everything else
// replaces.
func mergePatch(to, patch any) any {
	fields, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	merged, ok := to.(map[string]any)
	if !ok {
		merged = map[string]any{}
	}
	for name, value := range fields {
		if value == nil {
			delete(merged, name)
		} else {
			merged[name] = mergePatch(merged[name], value)
		}
	}
	return merged
}

// decode decodes JSON, with numbers as they are written.
func decode(text []byte, into *any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return d.Decode(into)
}

// readDropIn reads a drop-in. The kubelet refuses one with a key twice, which it only reports in its file.
func readDropIn(f File) (map[string]any, error) {
	if err := yamltext.CheckAliases(f.Data); err != nil {
		return nil, errdefs.Invalidf("%s: %w", f.Path, err)
	}
	text, err := yaml.YAMLToJSONStrict(f.Data)
	if err != nil {
		return nil, errdefs.Invalidf("%s: %w", f.Path, err)
	}
	return object(f.Path, text, kubeletAPIVersion, kubeletKind)
}

// setDefaults sets the defaults of a kubelet for the fields that berthd reads. They are there when drop-ins are merged: a field of a
// drop-in in another case is another one than the default's. The thresholds of eviction have defaults only if the kubelet has a file.
func setDefaults(k *kubelet.KubeletConfiguration, hasFile bool) {
	either := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	either(&k.CPUManagerPolicy, "none")
	either(&k.MemoryManagerPolicy, kubelet.NoneMemoryManagerPolicy)
	either(&k.TopologyManagerPolicy, kubelet.NoneTopologyManagerPolicy)
	either(&k.TopologyManagerScope, kubelet.ContainerTopologyManagerScope)
	either(&k.CgroupDriver, "cgroupfs")
	if k.CgroupsPerQOS == nil {
		k.CgroupsPerQOS = new(true)
	}
	if k.CPUManagerReconcilePeriod.Duration == 0 {
		k.CPUManagerReconcilePeriod = metav1.Duration{Duration: 10 * time.Second}
	}
	if k.CPUCFSQuota == nil {
		k.CPUCFSQuota = new(true)
	}
	if k.CPUCFSQuotaPeriod == nil {
		k.CPUCFSQuotaPeriod = &metav1.Duration{Duration: 100 * time.Millisecond}
	}
	if k.PodPidsLimit == nil || *k.PodPidsLimit < 0 {
		k.PodPidsLimit = new(int64(-1))
	}
	if k.MaxPods == 0 {
		k.MaxPods = 110
	}
	if k.EnforceNodeAllocatable == nil {
		k.EnforceNodeAllocatable = []string{node.EnforcePods}
	}
	if k.FailSwapOn == nil {
		k.FailSwapOn = new(true)
	}
	if !hasFile {
		return
	}
	if k.EvictionHard == nil {
		k.EvictionHard = node.DefaultEviction()
	} else if k.MergeDefaultEvictionSettings != nil && *k.MergeDefaultEvictionSettings {
		all := maps.Clone(node.DefaultEviction())
		maps.Copy(all, k.EvictionHard)
		k.EvictionHard = all
	}
}

// maxDropIns bounds the files of a directory of drop-ins, and maxDropIn their size.
const maxDropIns, maxDropIn = 1000, 1 << 20

// ReadDropIns reads the files of a directory of drop-ins in the order of the kubelet, which walks through subdirectories, too. The flag
// --kubelet-config-dir names the directory.
func ReadDropIns(dir string) (files []File, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return nil
		case len(files) == maxDropIns:
			return errdefs.Exhaustedf("there are more than %d files", maxDropIns)
		case filepath.Ext(path) != DropInExtension:
			files = append(files, File{Path: path}) // its content does not matter
			return nil
		}
		data, err := trust.ReadFile(path, maxDropIn)
		files = append(files, File{Path: path, Data: data})
		return err
	})
	if errdefs.ClassOf(err) == errdefs.Precondition {
		return nil, fmt.Errorf("read the kubelet's drop-ins in --kubelet-config-dir %s: %w", dir, err)
	}
	if err != nil {
		return nil, errdefs.Invalidf("read the kubelet's drop-ins in --kubelet-config-dir %s: %w", dir, err)
	}
	return files, nil
}
