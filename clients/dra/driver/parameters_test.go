package driver

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berthd/berth/managers/cpu"
)

func parametersOf(environment string) string {
	return `{"apiVersion": "dra.berthd.github.io/v1alpha1", "kind": "BerthClaimParameters", "environment": "` + environment + `"}`
}

func opaque(source resourceapi.AllocationConfigSource, parameters string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{Source: source, DeviceConfiguration: resourceapi.DeviceConfiguration{
		Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: Name, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
	}}
}

// TestParameters: those of the claim replace those of the class, and those of other drivers and requests do not count, if they are right.
func TestParameters(t *testing.T) {
	t.Parallel()
	class, claim := resourceapi.AllocationConfigSourceClass, resourceapi.AllocationConfigSourceClaim
	foreign, elsewhere := opaque(claim, "{"), opaque(claim, parametersOf("ELSEWHERE"))
	foreign.Opaque.Driver, elsewhere.Requests = "gpu.example.com", []string{"other"}
	narrow := opaque(claim, parametersOf("NARROW"))
	narrow.Requests = []string{"place"}
	for want, configs := range map[string][]resourceapi.DeviceAllocationConfiguration{
		"BERTH":  {foreign, elsewhere},
		"CLASS":  {opaque(class, parametersOf("CLASS")), foreign},
		"CLAIM":  {opaque(class, parametersOf("CLASS")), opaque(claim, parametersOf("CLAIM"))},
		"FIRST":  {opaque(claim, parametersOf("FIRST")), opaque(class, parametersOf("CLASS"))},
		"NARROW": {narrow},
	} {
		all, err := readParameters(configs)
		if err != nil {
			t.Fatal(err)
		}
		for _, request := range []string{"place", "place/first"} {
			if p, err := forRequest(all, request); err != nil || p.Environment != want {
				t.Errorf("%q of %s: %v, want %s", p.Environment, request, err, want)
			}
		}
	}
}

func FuzzParameters(f *testing.F) {
	f.Add([]byte(parametersOf("BERTH")))
	f.Add([]byte(optionsOf("full-pcpus-only")))
	f.Add([]byte(mountsOf(`"2Mi"`, "/pages")))
	f.Add([]byte(`{"kind": 1}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := parseParameters(runtime.RawExtension{Raw: raw})
		foreign := func(name string) bool { return !slices.Contains(cpu.ClaimOptions(), name) }
		if err == nil && (p.Kind != ParametersKind || !isVariable(p.Environment) || slices.ContainsFunc(p.CPUOptions, foreign)) {
			t.Errorf("%q is read as %+v", raw, p)
		}
		for _, m := range p.HugePageMounts {
			if err == nil && (!filepath.IsAbs(m.Path) || strings.HasPrefix(m.Path, "/proc") && m.Path[5:] == "" ||
				strings.Contains(m.Path, "/../") || strings.ContainsAny(m.Path, "\x00\n")) {
				t.Errorf("%q mounts at %q", raw, m.Path)
			}
		}
	})
}
