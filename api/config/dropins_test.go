package config

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/node"
)

const dropIn = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// TestDropIns: drop-ins change the configuration as they change a kubelet's.
func TestDropIns(t *testing.T) {
	t.Parallel()
	defaults := node.DefaultEviction()
	with := func(more map[string]string) map[string]string {
		all := maps.Clone(defaults)
		maps.Copy(all, more)
		return all
	}
	for name, row := range map[string]struct {
		file    string // none if empty
		dropIns []string
		want    func(c *Config) (got, want any)
	}{
		"the last one counts": {"reservedSystemCPUs: \"0\"\n", []string{"reservedSystemCPUs: \"1\"\n", "reservedSystemCPUs: 2-3\n"},
			func(c *Config) (any, any) { return c.Reserved.CPUs.String(), "2-3" }},
		"what a drop-in lacks stays": {"reservedSystemCPUs: \"0\"\ncgroupDriver: systemd\n", []string{"systemReserved: {memory: 1Gi}\n"},
			func(c *Config) (any, any) {
				return c.Reserved.CPUs.String() + c.Cgroups.Driver + c.Reserved.System["memory"], "0systemd1Gi"
			}},
		"maps are merged by key": {"systemReserved: {cpu: 500m, memory: 1Gi}\n",
			[]string{"systemReserved: {cpu: 200m}\n", "systemReserved: {pid: \"100\"}\n"},
			func(c *Config) (any, any) {
				return c.Reserved.System["cpu"] + c.Reserved.System["memory"] + c.Reserved.System["pid"], "200m1Gi100"
			}},
		"null removes a key": {"systemReserved: {cpu: 500m, memory: 1Gi}\n", []string{"systemReserved: {cpu: null}\n"},
			func(c *Config) (any, any) { return len(c.Reserved.System), 1 }},
		"null is the default": {"cgroupDriver: systemd\n", []string{"cgroupDriver: null\n"},
			func(c *Config) (any, any) { return c.Cgroups.Driver, "cgroupfs" }},
		"lists are replaced": {"enforceNodeAllocatable: [pods, system-reserved]\nsystemReservedCgroup: /s\n",
			[]string{"enforceNodeAllocatable: [none]\n"}, func(c *Config) (any, any) { return strings.Join(c.Node.Enforce, ","), "none" }},
		"gates are merged": {"featureGates: {MemoryQoS: true}\n", []string{"featureGates: {PodLevelResources: true}\n"},
			func(c *Config) (any, any) { return c.Cgroups.MemoryQoS, true }},
		"a policy of the site": {"", []string{"evictionHard: {nodefs.available: 5%}\n",
			"cpuManagerPolicy: static\nreservedSystemCPUs: \"0,32\"\n"},
			func(c *Config) (any, any) { return c.CPU.Policy + c.Reserved.CPUs.String(), "static0,32" }},
		// The kubelet merges with the defaults of its file.
		"thresholds are merged with the defaults of a file": {"cgroupDriver: systemd\n",
			[]string{"evictionHard: {memory.available: 1Gi}\n"}, func(c *Config) (any, any) {
				return text(c.Reserved.Eviction()), text(with(map[string]string{"memory.available": "1Gi"}))
			}},
		"thresholds are merged with those of a file": {"evictionHard: {memory.available: 1Gi}\n",
			[]string{"evictionHard: {nodefs.available: 5%}\n"}, func(c *Config) (any, any) { return len(c.Reserved.Eviction()), 2 }},
		"the file's thresholds with the defaults": {"evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n",
			[]string{"evictionHard: {nodefs.available: 5%}\n"}, func(c *Config) (any, any) {
				return len(c.Reserved.Eviction()),
					len(defaults)
			}},
		"a drop-in does not add the defaults": {"evictionHard: {memory.available: 1Gi}\n",
			[]string{"mergeDefaultEvictionSettings: true\n"}, func(c *Config) (any, any) { return len(c.Reserved.Eviction()), 1 }},
		"without a file there are no defaults of thresholds": {"", []string{"cgroupDriver: systemd\n"},
			func(c *Config) (any, any) { return len(c.Reserved.Eviction()), 0 }},
		"the default of another case stays": {"", []string{"CPUManagerPolicy: static\n"},
			func(c *Config) (any, any) { return c.CPU.Policy, "none" }},
		"an unknown field is ignored": {"reservedSystemCPUs: \"0\"\n", []string{"nothing: 1\n"},
			func(c *Config) (any, any) { return c.Reserved.CPUs.String(), "0" }},
	} {
		c := Default()
		var main, dropIns []File
		if row.file != "" {
			main = append(main, File{"config.yaml", []byte(dropIn + row.file)})
		}
		for i, d := range row.dropIns {
			dropIns = append(dropIns, File{string(rune('a'+i)) + ".conf", []byte(dropIn + d)})
		}
		if _, err := c.ApplyKubelets(main, dropIns); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, want := row.want(&c); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

func text(m map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, key+"<"+m[key])
	}
	return strings.Join(out, ",")
}

// TestDropInsRefused: errors name the drop-in. What the kubelet ignores is a note.
func TestDropInsRefused(t *testing.T) {
	t.Parallel()
	main := []File{{"config.yaml", []byte(dropIn)}}
	for content, want := range map[string]string{
		"":                                  "99.conf: expected apiVersion",
		"kind: KubeletConfiguration\n":      "99.conf: expected apiVersion",
		dropIn + "maxPods: 1\nmaxPods: 2\n": "99.conf:",
		dropIn + "maxPods: many\n":          "99.conf, merged with what is before it",
		"[1":                                "99.conf:",
	} {
		c := Default()
		if _, err := c.ApplyKubelets(main, []File{{"00.conf", []byte(dropIn)},
			{"99.conf", []byte(content)}}); errdefs.ClassOf(err) != errdefs.Invalid || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	c := Default()
	notes, err := c.ApplyKubelets(main, []File{{"README", []byte("no yaml: [")}})
	if err != nil || len(notes) != 1 || !strings.Contains(notes[0], "README: the kubelet ignores files without the extension .conf") {
		t.Errorf("%q, %v", notes, err)
	}
}

// FuzzDropIns: any text is merged or refused.
func FuzzDropIns(f *testing.F) {
	f.Add(dropIn+"evictionHard: {memory.available: 1Gi}\n", dropIn+"evictionHard: null\n")
	f.Add(dropIn, dropIn+"enforceNodeAllocatable: [null, {a: null}]\nfeatureGates: {a: null}\n")
	dir := filepath.Join("..", "..", "..", "shared", "cases", "kubelet", "configs", "conf.d")
	if entries, err := os.ReadDir(dir); err == nil {
		for _, e := range entries {
			if data, err := os.ReadFile(filepath.Join(dir, e.Name())); err == nil {
				f.Add(dropIn, string(data))
			}
		}
	}
	f.Fuzz(func(t *testing.T, main, more string) {
		c := Default()
		if _, err := c.ApplyKubelets([]File{{"m", []byte(main)}}, []File{{"d.conf", []byte(more)}}); err != nil &&
			errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%v", err)
		}
	})
}
