package driver

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Name is the driver's name, and Class that of the DeviceClass in deploy/.
const (
	Name  = "dra.berthd.github.io"
	Class = "cpu-memory.berthd.github.io"
)

// The version and kind of the parameters.
const (
	ParametersVersion = Name + "/v1alpha1"
	ParametersKind    = "BerthClaimParameters"
)

// maxParameters bounds the parameters of a claim in bytes, as the API server does.
const maxParameters = 10 << 10

// Parameters is the opaque configuration of a claim.
type Parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Environment is the prefix of the variables that containers get. Empty: BERTH.
	Environment string `json:"environment,omitempty"`
	// CPUOptions are options of the CPU manager's static policy, in addition to those of berthd's configuration.
	CPUOptions []string `json:"cpuOptions,omitempty"`
	// HugePageMounts are hugetlbfs mounts of the huge pages of a request, in each container that uses it.
	HugePageMounts []HugePageMount `json:"hugePageMounts,omitempty"`
}

// HugePageMount is a hugetlbfs mount.
type HugePageMount struct {
	// PageSize is the size of the pages, such as 2Mi: the request must have huge pages of this size.
	PageSize string `json:"pageSize"`
	// Path is where the container has the mount.
	Path string `json:"path"`
}

// maxMounts bounds the mounts of a request, maxMountsOfClaim those of all devices of a claim, and maxPath their paths in
// bytes: the CDI file of a claim must not exceed maxFile.
const (
	maxMounts        = 4
	maxMountsOfClaim = 16
	maxPath          = 256
)

// check returns what is wrong with a mount.
func (m HugePageMount) check() error {
	if _, err := workload.HugePageSize(m.resource()); err != nil {
		return fmt.Errorf("pageSize %.80q: expected a size such as 2Mi or 1Gi", m.PageSize)
	}
	below := func(dir string) bool { return m.Path == dir || strings.HasPrefix(m.Path, dir+"/") }
	special := m.Path == "/" || m.Path == "/dev" || below("/proc") || below("/sys")
	odd := func(c rune) bool { return c == utf8.RuneError || !unicode.IsPrint(c) }
	if len(m.Path) > maxPath || !path.IsAbs(m.Path) || path.Clean(m.Path) != m.Path || special || strings.ContainsFunc(m.Path, odd) {
		return fmt.Errorf("path %.80q: expected an absolute path without . and .., at most %d bytes, and neither /, /dev, /proc nor /sys",
			m.Path, maxPath)
	}
	return nil
}

func (m HugePageMount) resource() workload.Resource {
	return workload.Resource("hugepages-" + m.PageSize)
}

// configured are the parameters of one configuration of a claim: from its class or itself, for some requests or, if empty, for all.
type configured struct {
	Parameters
	at       string // the field
	source   resourceapi.AllocationConfigSource
	requests []string
}

// readParameters reads all parameters of this driver, also those for requests of others: nothing wrong is accepted. Errors are of
// class Invalid.
func readParameters(configs []resourceapi.DeviceAllocationConfiguration) (out []configured, err error) {
	for i, c := range configs {
		if c.Opaque == nil || c.Opaque.Driver != Name {
			continue
		}
		at := fmt.Sprintf("config[%d].opaque.parameters", i)
		p, err := parseParameters(c.Opaque.Parameters)
		if err != nil {
			return nil, errdefs.Invalidf("%s: %w", at, err)
		}
		out = append(out, configured{p, at, c.Source, c.Requests})
	}
	return out, nil
}

// forRequest returns the parameters of a request. The claim's parameters override those of its class. Errors are of class Invalid.
func forRequest(all []configured, request string) (Parameters, error) {
	out := Parameters{Environment: "BERTH"}
	var from resourceapi.AllocationConfigSource
	for _, g := range all {
		switch {
		case len(g.requests) > 0 && !slices.Contains(g.requests, request) && !slices.Contains(g.requests, parent(request)):
		case from == g.source:
			return out, errdefs.Invalidf("%s: there are two for request %q (%s); expected one", g.at, request, g.source)
		case from != resourceapi.AllocationConfigSourceClaim: // the class's cannot replace the claim's
			out, from = g.Parameters, g.source
		}
	}
	return out, nil
}

// parseParameters reads one object strictly: names of fields have the right case and occur once.
func parseParameters(raw runtime.RawExtension) (Parameters, error) {
	var p Parameters
	if len(raw.Raw) > maxParameters {
		return p, fmt.Errorf("%d bytes, expected at most %d", len(raw.Raw), maxParameters)
	}
	strict, err := json.UnmarshalStrict(raw.Raw, &p)
	if err != nil {
		return p, err
	}
	if len(strict) > 0 {
		return p, strict[0]
	}
	if p.APIVersion != ParametersVersion || p.Kind != ParametersKind {
		return p, fmt.Errorf("apiVersion %.80q, kind %.80q: expected %s, %s", p.APIVersion, p.Kind, ParametersVersion, ParametersKind)
	}
	if p.Environment == "" {
		p.Environment = "BERTH"
	}
	if len(p.Environment) > 64 || !isVariable(p.Environment) {
		return p, fmt.Errorf("environment %.80q: expected capital letters, digits and '_', a letter first, at most 64", p.Environment)
	}
	for i, name := range p.CPUOptions {
		if !slices.Contains(cpu.ClaimOptions(), name) || slices.Contains(p.CPUOptions[:i], name) {
			return p, fmt.Errorf("cpuOptions[%d] %.80q: expected one of %s, each once", i, name, strings.Join(cpu.ClaimOptions(), ", "))
		}
	}
	if len(p.HugePageMounts) > maxMounts {
		return p, fmt.Errorf("hugePageMounts: %d, expected at most %d", len(p.HugePageMounts), maxMounts)
	}
	for i, m := range p.HugePageMounts {
		if err := m.check(); err != nil {
			return p, fmt.Errorf("hugePageMounts[%d]: %w", i, err)
		}
	}
	return p, nil
}

func isVariable(text string) bool {
	for i, c := range text {
		if (c < 'A' || c > 'Z') && (i == 0 || c != '_' && (c < '0' || c > '9')) {
			return false
		}
	}
	return text != ""
}

// parent returns the request of a subrequest.
func parent(request string) string {
	name, _, _ := strings.Cut(request, "/")
	return name
}
