// Package abilities knows what a runtime can do: its version of NRI decides. docs/nri.md has the same table for people.
package abilities

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/errdefs"
)

// Runtime is the runtime, as it was configured and has described itself. Its user holds a lock over Configure and over each use of what it
// has described.
type Runtime struct {
	Log         *slog.Logger
	Unsolicited Unsolicited
	// Version returns the version of NRI that the runtime reports; nil if it reports none.
	Version func() string
	// Timeout returns how long the runtime waits for a response; nil for no deadline.
	Timeout    func() time.Duration
	Name       string  // with its version
	NRI        Release // its version of NRI
	Requests   bool    // updates may be requested from it at any time
	Processes  bool    // it is known to report the process of each sandbox that has not ended
	ReportsCDI bool    // it is known to report the CDI devices of containers
	// StartsAnyway means that a container starts although its start was refused. So the creation of one that must not start yet is refused.
	StartsAnyway bool
}

// New returns a runtime that has not described itself yet.
func New(log *slog.Logger, unsolicited Unsolicited, version func() string, timeout func() time.Duration) *Runtime {
	return &Runtime{Log: log, Unsolicited: unsolicited, Version: version, Timeout: timeout, Requests: unsolicited == UnsolicitedAlways}
}

// Unsolicited is whether updates of containers may be sent to the runtime without an event of the runtime.
type Unsolicited string

// The values of Unsolicited. With UnsolicitedAuto the version of NRI decides.
const (
	UnsolicitedAuto   Unsolicited = "auto"
	UnsolicitedAlways Unsolicited = "always"
	UnsolicitedNever  Unsolicited = "never"
)

// Release is a version of NRI: major, minor and patch, and 1 for a release, 0 for a commit before it. The zero value is
// an unknown version.
type Release [4]int

// Versions of NRI from which on the runtime has a feature.
var (
	// safeRegistration: the runtime locks in one order while a plugin registers. Before, each registration may stop all events
	// for ever (containerd#10085).
	safeRegistration = Release{0, 6, 1, 1}
	// podUpdates: the runtime has the events of pod updates. Before, it refuses a plugin that subscribes to them.
	podUpdates = Release{0, 10, 0, 1}
	// safeUpdates: the runtime locks in one order when a plugin requests updates. Before, such a request and an event at the same
	// time stop all events for ever (containerd#13733).
	safeUpdates = Release{0, 12, 1, 1}
)

// losses are what a runtime lacks whose version of NRI is older, in the words of docs/nri.md.
var losses = []struct {
	before Release
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

// Configure takes the runtime's name and version, and returns the events that it has.
func (r *Runtime) Configure(runtime, version string) (api.EventMask, error) {
	reported := ""
	if r.Version != nil {
		reported = r.Version()
	}
	nri := versionOf(runtime, version, reported)
	name := strings.TrimSpace(runtime + " " + version)
	if nri.known() && nri.before(safeRegistration) {
		return 0, errdefs.Unsupportedf("%s has NRI %s, where the registration of a plugin can stop the whole runtime: NRI %s or later is required", name, nri, safeRegistration)
	}
	said := r.Name == name && r.NRI == nri
	r.Name, r.NRI, r.ReportsCDI, r.Processes = name, nri, reportsCDI(runtime, version), runtime == containerd
	r.StartsAnyway = runtime == crio
	r.Requests = r.Unsolicited == UnsolicitedAlways || r.Unsolicited != UnsolicitedNever && nri.known() && !nri.before(safeUpdates)
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

// sayLosses logs what the runtime lacks.
func (r *Runtime) sayLosses() {
	var lost []string
	for _, l := range losses {
		if r.NRI.before(l.before) && (l.before != safeUpdates || !r.Requests) {
			lost = append(lost, l.lost)
		}
	}
	if !r.Requests && !r.NRI.before(safeUpdates) {
		lost = append(lost, losses[len(losses)-1].lost) // by choice
	}
	if r.Requests && r.NRI.before(safeUpdates) {
		r.Log.Warn("updates are sent at any time as configured: unless the runtime's NRI is patched, it can stop for ever", "runtime",
			r.Name, "nri", r.NRI.String())
	}
	if len(lost) == 0 {
		r.Log.Info("the runtime has all that berth-nri uses", "runtime", r.Name, "nri", r.NRI.String())
		return
	}
	r.Log.Warn("the runtime lacks what berth-nri can use", "runtime", r.Name, "nri", r.NRI.String(), "lacks", lost)
}

// versionOf returns the runtime's version of NRI. The runtime reports it since NRI 0.12. Otherwise its name and version decide; NRI's
// own table has them, written like v1.7.27. A version that is not known is before all others.
func versionOf(runtime, version, reported string) Release {
	if r := parseRelease(reported); r.known() {
		return r
	}
	of := parseRelease(version)
	inferred, err := api.InferVersionFromRuntime(runtime, fmt.Sprintf("v%d.%d.%d", of[0], of[1], of[2]))
	if err != nil {
		return Release{}
	}
	return parseRelease(inferred)
}

// parseRelease parses a version; the zero value if it is none. A commit before a release has a suffix.
func parseRelease(text string) (r Release) {
	text, _, _ = strings.Cut(strings.TrimPrefix(text, "v"), "+")
	if n, _ := fmt.Sscanf(text, "%d.%d.%d", &r[0], &r[1], &r[2]); n < 2 || slices.Min(r[:]) < 0 { // a missing patch is 0
		return Release{}
	}
	if r != (Release{}) && !strings.Contains(text, "-") {
		r[3] = 1
	}
	return r
}

func (r Release) known() bool { return r != Release{} }

func (r Release) before(other Release) bool { return slices.Compare(r[:], other[:]) < 0 }

// String is a version for people.
func (r Release) String() string {
	if !r.known() {
		return "of an unknown version"
	}
	before := ""
	if r[3] == 0 {
		before = "before "
	}
	return before + fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2])
}

// crio is the name that CRI-O has for itself. It logs the error of a plugin about a start, and starts (1.36.3, server/container_start.go).
const crio = "cri-o"

// containerd is the name that containerd has for itself. It reports the process of each sandbox that runs.
const containerd = "containerd"

// reportsCDI reports whether a runtime is known to send the CDI devices of containers: containerd does since 2.3.
func reportsCDI(runtime, version string) bool {
	v := parseRelease(version)
	return runtime == containerd && cmp.Or(cmp.Compare(v[0], 2), cmp.Compare(v[1], 3)) >= 0
}
