package driver

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/errdefs"
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
	// CPUOptions are options of the CPU manager's static policy, beside those of berthd's configuration.
	CPUOptions []string `json:"cpuOptions,omitempty"`
}

// readParameters reads the parameters of a request. The claim's parameters override those of its class.
// Errors are of class Invalid.
func readParameters(configs []resourceapi.DeviceAllocationConfiguration, request string) (Parameters, error) {
	out := Parameters{Environment: "BERTH"}
	var from resourceapi.AllocationConfigSource
	for i, c := range configs {
		if c.Opaque == nil || c.Opaque.Driver != Name || len(c.Requests) > 0 && !slices.Contains(c.Requests, request) && !slices.Contains(c.Requests, parent(request)) {
			continue
		}
		at := fmt.Sprintf("config[%d].opaque.parameters", i)
		if from == c.Source {
			return out, errdefs.Invalidf("%s: there are two for request %q (%s); expected one", at, request, c.Source)
		}
		p, err := parseParameters(c.Opaque.Parameters)
		if err != nil {
			return out, errdefs.Invalidf("%s: %w", at, err)
		}
		if from == resourceapi.AllocationConfigSourceClaim {
			continue // the class's cannot replace it
		}
		out, from = p, c.Source
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
