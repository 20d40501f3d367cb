package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/errdefs"
)

// runtimeInfo is what the runtime can do: its version of NRI decides. docs/nri.md has the same table for people.
type runtimeInfo struct {
	*common
	unsolicited Unsolicited
	version     func() string        // Config.NRIVersion
	timeout     func() time.Duration // Config.Timeout
	name        string               // with its version
	nri         release              // its version of NRI
	requests    bool                 // updates may be requested from it at any time
	processes   bool                 // it is known to report the process of each sandbox that has not ended
	reportsCDI  bool                 // it is known to report the CDI devices of containers
}

// Unsolicited is whether updates of containers may be sent to the runtime without an event of the runtime.
type Unsolicited string

// The values of Unsolicited. With UnsolicitedAuto the version of NRI decides.
const (
	UnsolicitedAuto   Unsolicited = "auto"
	UnsolicitedAlways Unsolicited = "always"
	UnsolicitedNever  Unsolicited = "never"
)

// release is a version of NRI: major, minor and patch, and 1 for a release, 0 for a commit before it. The zero value is
// an unknown version.
type release [4]int

// Versions of NRI from which on the runtime has a feature.
var (
	// safeRegistration: the runtime locks in one order while a plugin registers. Before, each registration may stop all events
	// for ever (containerd#10085).
	safeRegistration = release{0, 6, 1, 1}
	// podUpdates: the runtime has the events of pod updates. Before, it refuses a plugin that subscribes to them.
	podUpdates = release{0, 10, 0, 1}
	// safeUpdates: the runtime locks in one order when a plugin requests updates. Before, such a request and an event at the same
	// time stop all events for ever (containerd#13733).
	safeUpdates = release{0, 12, 1, 1}
)

// losses are what a runtime lacks whose version of NRI is older, in the words of docs/nri.md.
var losses = []struct {
	before release
	lost   string
}{
	{podUpdates, "the event PostUpdatePodSandbox: the CPU quota that a resize gives to a pod with exclusive CPUs is removed after the containers' events, or within 30 seconds"},
	{safeUpdates, "updates at any time: containers change their CPUs only in answers to events, so growth, moves and hot-plug wait for the next event, and memory does not move"},
}

// subscribed are the events that every version of NRI has.
var subscribed = []api.Event{
	api.Event_RUN_POD_SANDBOX, api.Event_STOP_POD_SANDBOX, api.Event_REMOVE_POD_SANDBOX,
	api.Event_CREATE_CONTAINER, api.Event_POST_CREATE_CONTAINER, api.Event_START_CONTAINER, api.Event_POST_START_CONTAINER,
	api.Event_UPDATE_CONTAINER, api.Event_POST_UPDATE_CONTAINER, api.Event_STOP_CONTAINER, api.Event_REMOVE_CONTAINER,
}

// configure takes the runtime's name and version, and returns the events that it has.
func (r *runtimeInfo) configure(runtime, version string) (api.EventMask, error) {
	reported := ""
	if r.version != nil {
		reported = r.version()
	}
	nri := versionOf(runtime, version, reported)
	name := strings.TrimSpace(runtime + " " + version)
	if nri.known() && nri.before(safeRegistration) {
		return 0, errdefs.Unsupportedf("%s has NRI %s, where the registration of a plugin can stop the whole runtime: NRI %s or later is required", name, nri, safeRegistration)
	}
	said := r.name == name && r.nri == nri
	r.name, r.nri, r.reportsCDI, r.processes = name, nri, reportsCDI(runtime, version), runtime == containerd
	r.requests = r.unsolicited == UnsolicitedAlways || r.unsolicited != UnsolicitedNever && nri.known() && !nri.before(safeUpdates)
	if !said {
		r.sayLosses()
	}
	var events api.EventMask
	events.Set(subscribed...)
	if !nri.before(podUpdates) {
		events.Set(api.Event_POST_UPDATE_POD_SANDBOX)
	}
	return events, nil
}

// sayLosses logs what the runtime lacks. The caller holds mu.
func (r *runtimeInfo) sayLosses() {
	var lost []string
	for _, l := range losses {
		if r.nri.before(l.before) && (l.before != safeUpdates || !r.requests) {
			lost = append(lost, l.lost)
		}
	}
	if !r.requests && !r.nri.before(safeUpdates) {
		lost = append(lost, losses[len(losses)-1].lost) // by choice
	}
	if r.requests && r.nri.before(safeUpdates) {
		r.log.Warn("updates are sent at any time as configured: unless the runtime's NRI is patched, it can stop for ever", "runtime",
			r.name, "nri", r.nri.String())
	}
	if len(lost) == 0 {
		r.log.Info("the runtime has all that berth-nri uses", "runtime", r.name, "nri", r.nri.String())
		return
	}
	r.log.Warn("the runtime lacks what berth-nri can use", "runtime", r.name, "nri", r.nri.String(), "lacks", lost)
}

// versionOf returns the runtime's version of NRI. The runtime reports it since NRI 0.12. Otherwise its name and version decide; NRI's
// own table has them, written like v1.7.27. A version that is not known is before all others.
func versionOf(runtime, version, reported string) release {
	if r := parseRelease(reported); r.known() {
		return r
	}
	of := parseRelease(version)
	inferred, err := api.InferVersionFromRuntime(runtime, fmt.Sprintf("v%d.%d.%d", of[0], of[1], of[2]))
	if err != nil {
		return release{}
	}
	return parseRelease(inferred)
}

// parseRelease parses a version; the zero value if it is none. A commit before a release has a suffix.
func parseRelease(text string) (r release) {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "+")
	if n, _ := fmt.Sscanf(text, "%d.%d.%d", &r[0], &r[1], &r[2]); n < 2 || slices.Min(r[:]) < 0 { // a missing patch is 0
		return release{}
	}
	if r != (release{}) && !strings.Contains(text, "-") {
		r[3] = 1
	}
	return r
}

func (r release) known() bool { return r != release{} }

func (r release) before(other release) bool { return slices.Compare(r[:], other[:]) < 0 }

// String is a version for people.
func (r release) String() string {
	if !r.known() {
		return "of an unknown version"
	}
	before := ""
	if r[3] == 0 {
		before = "before "
	}
	return before + fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2])
}

// containerd is the name that containerd has for itself. It reports the process of each sandbox that runs.
const containerd = "containerd"

// reportsCDI reports whether a runtime is known to send the CDI devices of containers: containerd does since 2.3.
func reportsCDI(runtime, version string) bool {
	v := parseRelease(version)
	return runtime == containerd && cmp.Or(cmp.Compare(v[0], 2), cmp.Compare(v[1], 3)) >= 0
}
