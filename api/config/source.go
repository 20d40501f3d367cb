package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	utiljson "k8s.io/apimachinery/pkg/util/json"
	kubelet "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"github.com/berthd/berth/api/yamltext"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/topology"
)

// kubeletAPIVersion and kubeletKind of the file that a kubelet reads.
const (
	kubeletAPIVersion = "kubelet.config.k8s.io/v1beta1"
	kubeletKind       = "KubeletConfiguration"
)

// parse reads a text with one document of the expected type, and returns it as encoding/json would.
func parse(path string, data []byte, apiVersion, kind string) (map[string]any, error) {
	if err := yamltext.CheckAliases(data); err != nil {
		return nil, errdefs.Invalidf("%s: %w", path, err)
	}
	if found := documents(data); found > 1 {
		return nil, errdefs.Invalidf("%s: expected one document, found %d", path, found)
	}
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, errdefs.Invalidf("%s: %w", path, err)
	}
	return object(path, text, apiVersion, kind)
}

// documents counts the non-empty documents of a text. In YAML, --- begins a document, which may
// follow on the same line, ... ends one, and % begins a directive. No line of a document begins
// with these marks.
func documents(data []byte) (found int) {
	var piece []byte
	count := func() {
		var value any
		if yaml.Unmarshal(piece, &value) != nil || value != nil {
			found++
		}
		piece = piece[:0]
	}
	for line := range bytes.Lines(data) {
		begins, ends := bytes.HasPrefix(line, []byte("---")), bytes.HasPrefix(line, []byte("..."))
		switch {
		case (begins || ends) && (len(line) == 3 || bytes.IndexByte([]byte(" \t\r\n"), line[3]) >= 0):
			count()
			if begins {
				piece = append(piece, line[3:]...)
			}
		case line[0] != '%':
			piece = append(piece, line...)
		}
	}
	count()
	return found
}

// object parses a JSON text of the expected type. Numbers keep their text.
func object(path string, text []byte, apiVersion, kind string) (map[string]any, error) {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&value); err != nil {
		return nil, errdefs.Invalidf("%s: %w", path, err)
	}
	doc, ok := value.(map[string]any)
	if !ok && value != nil {
		return nil, errdefs.Invalidf("%s: expected an object with apiVersion %s and kind %s", path, apiVersion, kind)
	}
	haveVersion, _ := doc["apiVersion"].(string)
	haveKind, _ := doc["kind"].(string)
	if haveVersion != apiVersion || haveKind != kind {
		return nil, errdefs.Invalidf("%s: expected apiVersion %s and kind %s, got %q and %q", path, apiVersion, kind, haveVersion, haveKind)
	}
	return doc, nil
}

// readKubelet reads a kubelet's file as the kubelet does. The kubelet first decodes strictly. If
// only that fails, it continues with a warning (v1beta1). Unknown fields, including those in
// another case, are ignored. The later one of two equal keys counts, but two objects of a JSON
// text are merged. Only the first document is read. Berth accepts a number where a text is
// expected, which the kubelet refuses.
func readKubelet(path string, data []byte) (k kubelet.KubeletConfiguration, notes []string, err error) {
	note := func(format string, args ...any) { notes = append(notes, path+": "+fmt.Sprintf(format, args...)) }
	if err := yamltext.CheckAliases(data); err != nil {
		return k, nil, errdefs.Invalidf("%s: %w", path, err)
	}
	if found := documents(data); found > 1 {
		note("only the first of %d documents is read", found)
	}
	text, strict := yaml.YAMLToJSONStrict(data)
	if strict != nil {
		if text, err = yaml.YAMLToJSON(data); err != nil {
			return k, notes, errdefs.Invalidf("%s: %w", path, err)
		}
		_, twice, _ := strings.Cut(strict.Error(), "\n")
		for line := range strings.Lines(twice) {
			note("%s: the later one takes effect", strings.TrimSpace(line))
		}
	}
	doc, err := object(path, text, kubeletAPIVersion, kubeletKind)
	if err != nil {
		return k, notes, err
	}
	var s shape
	s.walk("", reflect.TypeFor[kubelet.KubeletConfiguration](), doc)
	for _, v := range s.unknown {
		note("%v", v)
	}
	if err := s.misfits.Err(path); err != nil {
		return k, notes, err
	}
	if strict != nil && json.Valid(data) {
		err = utiljson.Unmarshal(data, &k)
	} else if text, err = json.Marshal(doc); err == nil {
		err = yaml.Unmarshal(text, &k)
	}
	if err != nil {
		return k, notes, errdefs.Invalidf("%s: %w", path, err)
	}
	return k, notes, nil
}

// ApplyBerth applies berth's own file to a configuration; path names it in errors. Unknown fields
// and unreadable files are errors of class Invalid.
func (c *Config) ApplyBerth(path string, data []byte) error {
	doc, err := parse(path, data, APIVersion, Kind)
	if err != nil {
		return err
	}
	var s shape
	s.walk("", reflect.TypeFor[Config](), doc)
	if err := slices.Concat(s.unknown, s.misfits).Err(path); err != nil {
		return err
	}
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return errdefs.Invalidf("%s: %w", path, err)
	}
	return nil
}

// ApplyKubelet lays the fields of berth's job from a KubeletConfiguration over a
// configuration; path names it in notes and errors. The file is the kubelet's:
// what that one only warns of is only noted, also with an error. Errors are of class Invalid.
func (c *Config) ApplyKubelet(path string, data []byte) (notes []string, err error) {
	return c.ApplyKubelets([]File{{path, data}}, nil)
}

// applyKubelet lays the fields of a decoded configuration over c. path names it in errors.
func (c *Config) applyKubelet(path string, k kubelet.KubeletConfiguration) (err error) {
	if err := kubeletPages(path, &k); err != nil {
		return err
	}
	take(&c.CPU.Policy, k.CPUManagerPolicy)
	takeMap(&c.CPU.Options, k.CPUManagerPolicyOptions)
	take(&c.Topology.Policy, topology.Policy(k.TopologyManagerPolicy))
	take(&c.Topology.Scope, k.TopologyManagerScope)
	takeMap(&c.Topology.Options, k.TopologyManagerPolicyOptions)
	c.Topology.MaxNodes = topology.ReferenceMaxNodes
	takeMap(&c.Reserved.System, k.SystemReserved)
	takeMap(&c.Reserved.Kube, k.KubeReserved)
	takePointer(&c.Cgroups.PerQOS, k.CgroupsPerQOS)
	if k.SystemCgroups != "" && k.CgroupRoot == "" {
		return errdefs.Invalidf("%s: systemCgroups needs cgroupRoot", path)
	}
	c.takeNode(&k)
	c.takeMemory(&k)
	c.Features.ExclusiveCPUResize, c.Features.ExclusiveMemoryResize = false, false
	// Agents of such a node expect the kubelet's answers.
	c.Verdicts.Deferred, c.Devices.Unknown = false, UnknownIgnore
	if k.ReservedSystemCPUs != "" {
		if c.Reserved.CPUs, err = cpuset.Parse(k.ReservedSystemCPUs); err != nil {
			return errdefs.Invalidf("%s: reservedSystemCPUs: %w", path, err)
		}
	}
	take(&c.Cgroups.Root, k.CgroupRoot)
	take(&c.Cgroups.Driver, k.CgroupDriver)
	take(&c.Cgroups.ReconcilePeriod, k.CPUManagerReconcilePeriod)
	takePointer(&c.Cgroups.CPUCFSQuota, k.CPUCFSQuota)
	takePointer(&c.Cgroups.CPUCFSPeriod, k.CPUCFSQuotaPeriod)
	takePointer(&c.Cgroups.PodPIDsLimit, k.PodPidsLimit)
	if k.MemoryThrottlingFactor != nil {
		c.Cgroups.MemoryThrottlingFactor = k.MemoryThrottlingFactor
	}
	if k.SingleProcessOOMKill != nil {
		c.Cgroups.SingleProcessOOMKill = k.SingleProcessOOMKill
	}
	take(&c.Cgroups.MemoryReservationPolicy, string(k.MemoryReservationPolicy))
	take(&c.Cgroups.SwapBehavior, k.MemorySwap.SwapBehavior)
	takeMap(&c.Cgroups.QOSReserved, k.QOSReserved)
	for gate, field := range map[string]*bool{
		"PodLevelResources":            &c.Features.PodLevelResources,
		"PodLevelResourceManagers":     &c.Features.PodLevelResourceManagers,
		"CPUManagerPolicyAlphaOptions": &c.Features.CPUAlphaOptions,
		"CPUManagerPolicyBetaOptions":  &c.Features.CPUBetaOptions,
		"MemoryQoS":                    &c.Cgroups.MemoryQoS,

		"InPlacePodVerticalScalingExclusiveCPUs":   &c.Features.ExclusiveCPUResize,
		"InPlacePodVerticalScalingExclusiveMemory": &c.Features.ExclusiveMemoryResize,
	} {
		if on, ok := k.FeatureGates[gate]; ok {
			*field = on
		}
	}
	if on, ok := k.FeatureGates["DisableCPUQuotaWithExclusiveCPUs"]; ok {
		c.Cgroups.QuotaWithExclusiveCPUs = !on
	}
	return nil
}

// takeNode takes the fields of the node as a whole.
func (c *Config) takeNode(k *kubelet.KubeletConfiguration) {
	if k.EvictionHard != nil {
		c.Reserved.EvictionHard = maps.Clone(k.EvictionHard)
		if k.MergeDefaultEvictionSettings != nil && *k.MergeDefaultEvictionSettings {
			for signal, value := range node.DefaultEviction() {
				if _, given := k.EvictionHard[signal]; !given {
					c.Reserved.EvictionHard[signal] = value
				}
			}
		}
	}
	if k.EnforceNodeAllocatable != nil {
		c.Node.Enforce = k.EnforceNodeAllocatable
	}
	take(&c.Node.SystemReservedCgroup, k.SystemReservedCgroup)
	take(&c.Node.KubeReservedCgroup, k.KubeReservedCgroup)
	take(&c.Node.SystemCgroup, k.SystemCgroups)
	take(&c.Node.OwnCgroup, k.KubeletCgroups)
	take(&c.Node.MaxPods, int64(k.MaxPods))
	take(&c.Node.PodsPerCore, int64(k.PodsPerCore))
	takePointer(&c.Node.LocalStorage, k.LocalStorageCapacityIsolation)
	takePointer(&c.Node.FailSwapOn, k.FailSwapOn)
	takePointer(&c.Node.FailCgroupV1, k.FailCgroupV1)
	if k.OOMScoreAdj != nil {
		c.Node.OOMScoreAdj = int(*k.OOMScoreAdj)
	}
	if k.ProtectKernelDefaults {
		c.Node.KernelTunables = TunablesRequire
	}
}

// take sets a field to a value that a source gives.
func take[T comparable](field *T, value T) {
	var zero T
	if value != zero {
		*field = value
	}
}

func takePointer[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

func takeMap(field *map[string]string, value map[string]string) {
	if value != nil {
		*field = value
	}
}
