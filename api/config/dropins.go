package config

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
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
// there, its defaults included: objects by their fields, null as the default, lists as a whole.
func (c *Config) ApplyKubelets(main, dropIns []File) (notes []string, err error) {
	var k kubelet.KubeletConfiguration
	path := "the drop-ins"
	for _, f := range main {
		var more []string
		if k, more, err = readKubelet(f.Path, f.Data); err != nil {
			return nil, err
		}
		path, notes = f.Path, append(notes, more...)
	}
	if len(dropIns) > 0 {
		more, err := mergeDropIns(&k, len(main) > 0, dropIns)
		if err != nil {
			return nil, err
		}
		notes = append(notes, more...)
	}
	return c.applyKubelet(path, k, notes)
}

// mergeDropIns merges drop-ins with a configuration. hasFile means that the configuration is from a file.
func mergeDropIns(k *kubelet.KubeletConfiguration, hasFile bool, dropIns []File) (notes []string, err error) {
	given := *k
	setDefaults(k, hasFile)
	merged, err := json.Marshal(k)
	if err != nil {
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
			return nil, err
		}
		if merged, err = jsonpatch.MergePatch(merged, patch); err != nil {
			return nil, errdefs.Invalidf("%s: %w", f.Path, err)
		}
		last = f.Path
	}
	if last == "" {
		*k = given
		return notes, nil
	}
	var out kubelet.KubeletConfiguration
	// The kubelet decodes with this package, too: a field in another case counts, and an unknown one does not.
	if err := json.Unmarshal(merged, &out); err != nil {
		return nil, errdefs.Invalidf("%s, merged with what is before it: %w", last, err)
	}
	if out.EvictionHard == nil {
		out.EvictionHard = map[string]string{} // without a file, the kubelet evicts at no threshold
	}
	out.MergeDefaultEvictionSettings = nil // the kubelet has obeyed that of its file, and ignores that of drop-ins
	*k = out
	return notes, nil
}

// readDropIn reads a drop-in as JSON. The kubelet refuses one with a key twice, which it only reports in its file.
func readDropIn(f File) ([]byte, error) {
	if err := yamltext.CheckAliases(f.Data); err != nil {
		return nil, errdefs.Invalidf("%s: %w", f.Path, err)
	}
	text, err := yaml.YAMLToJSONStrict(f.Data)
	if err != nil {
		return nil, errdefs.Invalidf("%s: %w", f.Path, err)
	}
	doc, err := object(f.Path, text, kubeletAPIVersion, kubeletKind)
	if err != nil {
		return nil, err
	}
	return json.Marshal(doc)
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
