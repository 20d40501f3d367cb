package workload

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
)

// DefaultMaxContainers limits the containers of a pod where Bounds has no number.
const DefaultMaxContainers = 1000

// Bounds are the limits that the operator sets on what a pod may look like.
type Bounds struct {
	// Containers is how many containers a pod may have, of all roles together; 0 means DefaultMaxContainers.
	Containers int
}

// Validate checks the part of a pod that does not depend on the node: the rules of the API server for the fields that Pod
// has, and those that keep a uid safe as a path. The result is nil or a *errdefs.Error of class Invalid with all findings of
// Check. It is meant for a pod that went through Defaulted; before that, pod-level limits are compared with less.
func Validate(p *Pod, b Bounds) error {
	if vs := Check(p, b); len(vs) > 0 {
		return vs.Err(fmt.Sprintf("pod %.200s", p))
	}
	return nil
}

// Check gives the violations that Validate reports, so that a caller who found others while reading the pod can report them
// together. Code that reads quantities must itself refuse what RoundUp cannot hold, at the same paths (QuantityPath).
func Check(p *Pod, b Bounds) errdefs.Violations {
	if b.Containers == 0 {
		b.Containers = DefaultMaxContainers
	}
	if n := len(p.Containers); n > b.Containers {
		// Nothing else is checked: the bound keeps work and answer small.
		var vs errdefs.Violations
		vs.Addf(specPath+".containers", "%d containers are more than the %d that are allowed", n, b.Containers)
		return vs
	}
	if vs := CheckMetadata(p.Labels, p.Annotations); len(vs) > 0 {
		return vs
	}
	v := &validation{pod: p, paths: p.ContainerPaths()}
	v.identity()
	v.containers()
	requests, limits, overhead := p.podLevel()
	v.list(overhead, OverheadPath, Resource.inContainer)
	v.pair(requests, limits, specPath, Resource.inPod)
	v.consistency(requests, limits)
	return v.Violations
}

// MaxMetadata limits the bytes of the keys and values of a pod's annotations together, as for the API server, and
// those of its labels. They stay in the ledger as long as the pod.
const MaxMetadata = 256 << 10

// CheckMetadata gives the violations of labels and annotations, so that a caller can check them before they are read.
func CheckMetadata(labels, annotations map[string]string) (vs errdefs.Violations) {
	for _, m := range []struct {
		path    string
		entries map[string]string
	}{{"pod.metadata.labels", labels}, {"pod.metadata.annotations", annotations}} {
		n := 0
		for k, v := range m.entries {
			n += len(k) + len(v)
		}
		if n > MaxMetadata {
			vs.Addf(m.path, "%d bytes are more than the %d that are allowed", n, MaxMetadata)
		}
	}
	return vs
}

// validation is one run of Check.
type validation struct {
	errdefs.Violations
	pod   *Pod
	paths []string // of the containers
}

func (v *validation) identity() {
	p := v.pod
	if text := p.Annotations[MovableAnnotation]; !isMovable(text) {
		v.Addf("pod.metadata.annotations["+strconv.Quote(MovableAnnotation)+"]", "%.40q: expected never, within-node or anywhere", text)
	}
	switch {
	case p.UID == "":
		v.Addf("pod.metadata.uid", "is required")
	case !safeUID(p.UID):
		v.Addf("pod.metadata.uid", "%.140q: expected at most %d letters, digits, '-' and '.', a letter or digit first and last",
			p.UID, maxUID)
	}
	if p.Name != "" && !dnsSubdomain(p.Name) {
		v.Addf("pod.metadata.name",
			"%.260q: expected a DNS-1123 subdomain (labels of lower case letters, digits and '-', joined by '.', at most %d characters)",
			p.Name, maxSubdomain)
	}
	if p.Namespace != "" && !dnsLabel(p.Namespace) {
		v.label("pod.metadata.namespace", p.Namespace)
	}
	switch p.QoS {
	case "", BestEffort, Burstable, Guaranteed:
	default:
		v.Addf("pod.status.qosClass", "%.80q: expected %s, %s or %s", p.QoS, BestEffort, Burstable, Guaranteed)
	}
	if p.PriorityClassName != "" && !dnsSubdomain(p.PriorityClassName) {
		v.Addf(specPath+".priorityClassName", "%.80q: expected a DNS-1123 subdomain of at most %d characters", p.PriorityClassName,
			maxSubdomain)
	}
	switch p.RestartPolicy {
	case "", "Always", "OnFailure", "Never":
	default:
		v.Addf(specPath+".restartPolicy", "%.80q: expected Always, OnFailure or Never", p.RestartPolicy)
	}
}

func (v *validation) label(path, got string) {
	v.Addf(path, "%.80q: expected a DNS-1123 label (lower case letters, digits and '-', a letter or digit first and last, at most %d characters)",
		got, maxLabel)
}

func (v *validation) containers() {
	first := make(map[string]string, len(v.pod.Containers)) // path of the first container of a name
	apps := 0
	for i, c := range v.pod.Walk() {
		path := v.paths[i]
		switch {
		case c.Name == "":
			v.Addf(path+".name", "is required")
		case !dnsLabel(c.Name):
			v.label(path+".name", c.Name)
		case first[c.Name] != "":
			v.Addf(path+".name", "%q is the name of %s already", c.Name, first[c.Name])
		default:
			first[c.Name] = path
		}
		switch {
		case c.Role == App:
			apps++
		case c.Role != Init && c.Role != Sidecar:
			v.Addf(path, "%s is unknown: expected app, init or sidecar", c.Role)
		case apps > 0:
			v.Addf(path, "stands after an app container: init containers and sidecars come first in the walk")
		}
		v.pair(c.requests(), c.limits(), path, Resource.inContainer)
		v.resizePolicy(c, path)
	}
	if apps == 0 {
		v.Addf(specPath+".containers", "is required: a pod has at least one app container")
	}
}

func (v *validation) resizePolicy(c *Container, path string) {
	if len(c.ResizePolicy) == 0 {
		return
	}
	for _, r := range slices.Sorted(maps.Keys(c.ResizePolicy)) {
		at := path + ".resizePolicy[" + strconv.Quote(string(r)) + "]"
		if r != CPU && r != Memory {
			v.Addf(at, "only cpu and memory can be resized in place")
		}
		switch policy := c.ResizePolicy[r]; {
		case policy != "NotRequired" && policy != RestartContainer:
			v.Addf(at, "%.80q: expected NotRequired or RestartContainer", policy)
		case policy == RestartContainer && v.pod.RestartPolicy == "Never":
			v.Addf(at, "RestartContainer contradicts the pod's restart policy Never")
		}
	}
}

// inContainer reports whether a container may request r: one of Kubernetes' own resources or an extended one.
func (r Resource) inContainer() bool {
	switch {
	case r.IsHugePages():
		_, err := HugePageSize(r)
		return err == nil
	case !strings.Contains(string(r), "/"):
		return r == CPU || r == Memory || r == EphemeralStorage
	case r.native():
		return qualifiedName(string(r))
	default:
		return r.IsExtended()
	}
}

// inPod reports whether Pod.Resources may name r.
func (r Resource) inPod() bool { return r.PodLevel() && r.inContainer() }

// pair checks requests and limits by themselves and against each other.
func (v *validation) pair(requests, limits list, parent string, known func(Resource) bool) {
	limitPath, requestPath := QuantityPath(parent, Limits), QuantityPath(parent, Requests)
	v.list(limits, limitPath, known)
	v.list(requests, requestPath, known)
	for r, request := range requests.amounts.Sorted() {
		limit, limited := limits.amounts[r]
		switch above := requests.at(r).above(limits.at(r)); {
		case !limited && !r.overcommits():
			v.Addf(limitPath(r), "is required: %.80q cannot be requested without a limit", r)
		case limited && requests.at(r) != limits.at(r) && !r.overcommits():
			v.Addf(requestPath(r), "%s must be equal to the limit, %s", r.Text(request), r.Text(limit))
		case limited && above:
			v.Addf(requestPath(r), "%s must not be above the limit, %s", r.Text(request), r.Text(limit))
		}
	}
}

// list checks names and amounts of one list.
func (v *validation) list(l list, path func(Resource) string, known func(Resource) bool) {
	for r, amount := range l.amounts.Sorted() {
		if !known(r) {
			v.Addf(path(r), "%.80q is not a resource name that is allowed here", r)
			continue
		}
		if amount < 0 {
			v.Addf(path(r), "%s must not be negative", r.Text(amount))
		}
		if r.IsHugePages() {
			if size, err := HugePageSize(r); err == nil && amount%size != 0 {
				v.Addf(path(r), "%d bytes are not a whole number of pages of %d bytes", amount, size)
			}
		}
		if r.IsExtended() && l.excess[r] != 0 {
			v.Addf(path(r), "must be a whole number")
		}
	}
}

// consistency checks the pod-level amounts against the containers (KEP-2837).
func (v *validation) consistency(requests, limits list) {
	if len(requests.amounts)+len(limits.amounts) == 0 {
		return
	}
	requested, limited := totals(v.pod, (*Container).requests, nil).list(), totals(v.pod, (*Container).limits, nil).list()
	for r, amount := range requests.amounts.Sorted() {
		if requested.at(r).above(requests.at(r)) {
			v.Addf(QuantityPath(specPath, Requests)(r), "%d is below the containers' total of %d", amount, requested.amounts[r])
		}
	}
	for r, amount := range limits.amounts.Sorted() {
		if r.IsHugePages() && limited.at(r).above(limits.at(r)) {
			v.Addf(QuantityPath(specPath, Limits)(r), "%d is below the containers' total of %d", amount, limited.amounts[r])
			continue
		}
		for i, c := range v.pod.Walk() {
			if c.Role == App && c.limits().at(r).above(limits.at(r)) {
				v.Addf(QuantityPath(v.paths[i], Limits)(r), "%d is above the pod-level limit, %d", c.Limits[r], amount)
			}
		}
	}
}
