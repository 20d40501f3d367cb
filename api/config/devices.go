package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// Devices configures extended resources, with and without a device plugin.
type Devices struct {
	// Unknown is the decision on a pod that requests an extended resource which no plugin, no
	// provider and no configuration has. defer waits for RegistrationGrace after the start of
	// berthd, and then rejects. reject rejects. ignore admits the pod without the resource, as
	// the kubelet does; a kubelet's file sets it.
	Unknown string `json:"unknown"`
	// RegistrationGrace is how long plugins may take to register after the start of berthd, and
	// how long pods wait for a plugin after its end.
	RegistrationGrace metav1.Duration `json:"registrationGrace"`
	// Elsewhere names resources that another program serves, by their names or domains; "*" means
	// all that berthd does not know.
	Elsewhere []string `json:"elsewhere,omitempty"`
	// ForgetAfter is how long a resource without a plugin is kept if no pod holds its devices; 0
	// is for ever.
	ForgetAfter metav1.Duration `json:"forgetAfter"`
}

// Values of Devices.Unknown.
const (
	UnknownDefer  = string(admission.DeferUnknown)
	UnknownReject = string(admission.RejectUnknown)
	UnknownIgnore = string(admission.IgnoreUnknown)
)

// validateDevices checks what needs no machine.
func (c Config) validateDevices(vs *errdefs.Violations, oneOf func(field, got string, allowed ...string)) {
	oneOf("devices.unknown", c.Devices.Unknown, UnknownDefer, UnknownReject, UnknownIgnore)
	if c.Devices.RegistrationGrace.Duration < 0 {
		vs.Addf("devices.registrationGrace", "%s: expected a duration such as 60s, or 0 for none", c.Devices.RegistrationGrace.Duration)
	}
	if c.Devices.ForgetAfter.Duration < 0 {
		vs.Addf("devices.forgetAfter", "%s: expected a duration such as 5m, or 0 to forget no resource", c.Devices.ForgetAfter.Duration)
	}
	for i, name := range c.Devices.Elsewhere {
		field := fmt.Sprintf("devices.elsewhere[%d]", i)
		resource := workload.Resource(name)
		if !strings.Contains(name, "/") {
			resource += "/any" // a domain is right if a name in it is
		}
		switch {
		case slices.Contains(c.Devices.Elsewhere[:i], name):
			vs.Addf(field, "%q is listed twice", name)
		case name != admission.Everywhere && !resource.IsExtended():
			vs.Addf(field, "%.80q: expected an extended resource such as example.com/gpu, a domain such as example.com, or %q for all",
				name, admission.Everywhere)
		}
	}
}

// Resources is the admission engine's part, for a berthd that was started at a time.
func (c Config) Resources(started time.Time) admission.Resources {
	return admission.Resources{
		Unknown: admission.UnknownResource(c.Devices.Unknown),
		Started: started, Grace: c.Devices.RegistrationGrace.Duration,
		Elsewhere: slices.Clone(c.Devices.Elsewhere),
	}
}
