package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/servertest"
)

var (
	// foreignConfig are fields of a kubelet's configuration that are left out.
	foreignConfig = []string{
		"authentication", "authorization", "containerRuntimeEndpoint", "fileCheckFrequency", "healthzPort", "logging",
		"makeIPTablesUtilChains", "readOnlyPort", "runtimeRequestTimeout", "shutdownGracePeriod", "staticPodPath",
		"syncFrequency", "tlsCertFile", "tlsPrivateKeyFile", "volumeStatsAggPeriod",
	}
	// foreignPod are fields of a pod, its spec and its containers that are left out.
	foreignPod = []string{
		"apiVersion", "automountServiceAccountToken", "command", "enableServiceLinks", "image", "imagePullPolicy",
		"kind", "terminationGracePeriodSeconds", "volumeMounts", "volumes",
	}
)

// config reads a configuration.
func (c capture) config(name string) (json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := c.read(&fields, "config", name); err != nil {
		return nil, err
	}
	for _, f := range foreignConfig {
		delete(fields, f)
	}
	return compact(fields)
}

// pod reads a pod's manifest.
func (c capture) pod(name string) (json.RawMessage, error) {
	var manifest map[string]any
	if err := c.read(&manifest, "config", "pods", name+".json"); err != nil {
		return nil, err
	}
	return compact(without(manifest, foreignPod))
}

// without takes fields out of a value, at any depth.
func without(value any, fields []string) any {
	switch v := value.(type) {
	case map[string]any:
		for name, inner := range v {
			if slices.Contains(fields, name) {
				delete(v, name)
				continue
			}
			v[name] = without(inner, fields)
		}
	case []any:
		for i := range v {
			v[i] = without(v[i], fields)
		}
	}
	return value
}

// compact encodes a value with its fields in order of their names.
func compact(value any) (json.RawMessage, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}

// plugin is a device plugin: its devices as hack/plugin spells them.
type plugin struct {
	Resource  string   `json:"resource"`
	Devices   []string `json:"devices"`
	Preferred bool     `json:"preferred"`
	PreStart  bool     `json:"preStart"`
}

// plugins reads the device plugins, by the names of their files.
func (c capture) plugins() ([]plugin, error) {
	files, err := filepath.Glob(c.path("config", "devplugins", "*.env"))
	if err != nil {
		return nil, err
	}
	all := []plugin{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		values := map[string]string{}
		for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
			name, value, _ := strings.Cut(lines.Text(), "=")
			values[name] = strings.Trim(value, `"`)
		}
		p := plugin{Resource: values["RES"]}
		flags := strings.Fields(values["FLAGS"])
		p.Preferred, p.PreStart = slices.Contains(flags, "-pref"), slices.Contains(flags, "-pre")
		for device := range strings.SplitSeq(values["DEVS"], ",") {
			id, nodes, ok := strings.Cut(device, "=")
			if !ok || p.Resource == "" {
				return nil, fmt.Errorf("%s: device %q of resource %q", file, device, p.Resource)
			}
			if nodes != "-" {
				id += "@" + nodes
			}
			p.Devices = append(p.Devices, id)
		}
		all = append(all, p)
	}
	return all, nil
}

// machine discovers the machine of a shape from its recorded files, with the memory
// that the virtual machine had at this boot: the kubelet's memory state says it.
func (c capture) machine(shape, memory string) (json.RawMessage, error) {
	files, err := archive(filepath.Join(c.root, "topologies", shape, "sysfs.tar.gz"))
	if err != nil {
		return nil, err
	}
	sys, err := files.Sub("sys")
	if err != nil {
		return nil, err
	}
	proc, err := files.Sub("proc")
	if err != nil {
		return nil, err
	}
	seen, err := servertest.Discover(sys, proc)
	if err != nil {
		return nil, err
	}
	if err := setMemory(&seen, memory); err != nil {
		return nil, err
	}
	m, err := machine.New(seen)
	if err != nil {
		return nil, err
	}
	return compact(m.Snapshot())
}

// setMemory gives a machine the memory and the huge pages of a memory state.
func setMemory(m *machine.Snapshot, state string) error {
	s, err := kubelet.ParseMemory([]byte(state))
	if err != nil {
		return err
	}
	m.MemoryBytes = 0
	for i := range m.Nodes {
		n := &m.Nodes[i]
		tables := s.Nodes[n.ID].Tables
		n.MemoryBytes = tables["memory"].Total
		m.MemoryBytes += n.MemoryBytes
		for j := range n.HugePages {
			pages := &n.HugePages[j]
			size := pages.SizeKiB << 10
			pages.Count = tables[string(workload.HugePagesOf(int64(size)))].Total / size
		}
	}
	return nil
}

// archive reads the files of an archive; links stand for the text in them.
func archive(name string) (fstest.MapFS, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	files := fstest.MapFS{}
	for entries := tar.NewReader(unzipped); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		content, err := io.ReadAll(entries)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", name, header.Name, err)
		}
		if !header.FileInfo().IsDir() {
			files[path.Clean(header.Name)] = &fstest.MapFile{Data: content}
		}
	}
}
