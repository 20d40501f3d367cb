package convert

import (
	"cmp"
	"fmt"
	"slices"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

// restartAlways makes an init container a sidecar (KEP-753).
const restartAlways = "Always"

// Reader reads pods under one configuration.
type Reader struct {
	Features workload.Features
	Bounds   workload.Bounds
}

// Pod reads a pod. Every amount that cannot be read and everything that
// workload.Check finds comes back in one error of class Invalid with the fields'
// paths. A missing namespace is "default", as the API server has it.
func (r Reader) Pod(m *typesv1.Pod) (workload.Pod, error) {
	p, err := r.Unchecked(m)
	if err != nil {
		return workload.Pod{}, err
	}
	defaulted, _ := workload.Defaulted(p, r.Features)
	if err := workload.Validate(&defaulted, r.Bounds); err != nil {
		return workload.Pod{}, err
	}
	return p, nil
}

// Unchecked reads a pod for callers that check it by workload.Validate: its errors
// are those of Pod, but a pod that can be read and has no unsupported field gives none.
func (r Reader) Unchecked(m *typesv1.Pod) (workload.Pod, error) {
	var vs errdefs.Violations
	if m == nil {
		vs.Addf("pod", "is required")
		return workload.Pod{}, vs.Err("request")
	}
	r.count(m.GetSpec(), &vs)
	vs = append(vs, workload.CheckMetadata(m.GetMetadata().GetLabels(), m.GetMetadata().GetAnnotations())...)
	if err := vs.Err("pod"); err != nil {
		return workload.Pod{}, err
	}
	p := readPod(m, &vs)
	if p.Name == "" {
		vs.Addf("pod.metadata.name", "is required")
	}
	unsupported := unsupported(m)
	if len(vs)+len(unsupported) == 0 {
		return p, nil
	}
	// The checks are meant for a pod with defaults; what is missing by default
	// is no violation. What could not be read is not there to be checked.
	defaulted, _ := workload.Defaulted(p, r.Features)
	unread := make(map[string]bool, len(vs))
	for _, v := range vs {
		unread[v.Field] = true
	}
	for _, v := range workload.Check(&defaulted, r.Bounds) {
		if !unread[v.Field] {
			vs = append(vs, v)
		}
	}
	if len(vs) == 0 {
		return workload.Pod{}, refused(unsupported.Err(fmt.Sprintf("pod %.200s", &p)))
	}
	return workload.Pod{}, append(vs, unsupported...).Err(fmt.Sprintf("pod %.200s", &p))
}

// count refuses a pod with too many containers before anything is made of them.
func (r Reader) count(spec *typesv1.PodSpec, vs *errdefs.Violations) {
	most := cmp.Or(r.Bounds.Containers, workload.DefaultMaxContainers)
	if n := len(spec.GetInitContainers()) + len(spec.GetContainers()); n > most {
		vs.Addf("pod.spec.containers", "%d containers are more than the %d that are allowed", n, most)
	}
}

// readPod copies the fields; amounts that cannot be read are noted.
func readPod(m *typesv1.Pod, vs *errdefs.Violations) workload.Pod {
	meta, spec := m.GetMetadata(), m.GetSpec()
	p := workload.Pod{
		UID: meta.GetUid(), Namespace: meta.GetNamespace(), Name: meta.GetName(),
		Labels: meta.GetLabels(), Annotations: meta.GetAnnotations(),
		QoS:               workload.QoSClass(m.GetStatus().GetQosClass()),
		PriorityClassName: spec.GetPriorityClassName(),
		RestartPolicy:     spec.GetRestartPolicy(),
		HostNetwork:       spec.GetHostNetwork(),
	}
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if spec != nil && spec.Priority != nil {
		priority := spec.GetPriority()
		p.Priority = &priority
	}
	for i, c := range spec.GetInitContainers() {
		path := fmt.Sprintf("pod.spec.initContainers[%d]", i)
		role := workload.Init
		switch c.GetRestartPolicy() {
		case restartAlways:
			role = workload.Sidecar
		case "":
		default:
			vs.Addf(path+".restartPolicy", "%.80q: expected %q or nothing", c.GetRestartPolicy(), restartAlways)
		}
		p.Containers = append(p.Containers, readContainer(c, role, path, vs))
	}
	for i, c := range spec.GetContainers() {
		path := fmt.Sprintf("pod.spec.containers[%d]", i)
		p.Containers = append(p.Containers, readContainer(c, workload.App, path, vs))
	}
	var excess workload.Excess
	p.Overhead, excess.Overhead = quantities(spec.GetOverhead(), workload.OverheadPath, vs)
	if r := spec.GetResources(); r != nil {
		p.Resources = &workload.Resources{}
		p.Resources.Requests, excess.Requests = quantities(r.GetRequests(), workload.QuantityPath("pod.spec", workload.Requests), vs)
		p.Resources.Limits, excess.Limits = quantities(r.GetLimits(), workload.QuantityPath("pod.spec", workload.Limits), vs)
	}
	p.Excess = orNil(excess)
	return p
}

func readContainer(m *typesv1.Container, role workload.Role, path string, vs *errdefs.Violations) workload.Container {
	c := workload.Container{Name: m.GetName(), Role: role}
	var excess workload.Excess
	c.Requests, excess.Requests = quantities(m.GetResources().GetRequests(), workload.QuantityPath(path, workload.Requests), vs)
	c.Limits, excess.Limits = quantities(m.GetResources().GetLimits(), workload.QuantityPath(path, workload.Limits), vs)
	c.Excess = orNil(excess)
	for i, rp := range m.GetResizePolicy() {
		name := rp.GetResourceName()
		if tooLong(name, fmt.Sprintf("%s.resizePolicy[%d].resourceName", path, i), vs) {
			continue
		}
		if c.ResizePolicy == nil {
			c.ResizePolicy = make(map[workload.Resource]string)
		}
		c.ResizePolicy[workload.Resource(name)] = rp.GetRestartPolicy()
	}
	return c
}

// orNil keeps an excess only if anything was rounded.
func orNil(e workload.Excess) *workload.Excess {
	if e.Requests == nil && e.Limits == nil && e.Overhead == nil {
		return nil
	}
	return &e
}

// quantities reads amounts in Kubernetes' grammar. What cannot be read is noted
// under its path and left out.
func quantities(texts map[string]string, path func(workload.Resource) string, vs *errdefs.Violations) (amounts,
	excess workload.Quantities) {
	if len(texts) == 0 {
		return nil, nil
	}
	amounts = make(workload.Quantities, len(texts))
	names := make([]string, 0, len(texts))
	for n := range texts {
		names = append(names, n)
	}
	slices.Sort(names) // so that violations come in one order
	for _, n := range names {
		if len(n) > maxResource {
			tooLong(n, path(workload.Resource(short(n))), vs)
			continue
		}
		name := workload.Resource(n)
		amount, over, err := quantity(name, texts[n])
		if err != nil {
			vs.Addf(path(name), "%v", err)
			continue
		}
		amounts[name] = amount
		if over != 0 {
			if excess == nil {
				excess = make(workload.Quantities)
			}
			excess[name] = over
		}
	}
	return amounts, excess
}

// QoS returns the message form of a class.
func QoS(c workload.QoSClass) typesv1.QOSClass {
	switch c {
	case workload.Guaranteed:
		return typesv1.QOSClass_QOS_CLASS_GUARANTEED
	case workload.Burstable:
		return typesv1.QOSClass_QOS_CLASS_BURSTABLE
	case workload.BestEffort:
		return typesv1.QOSClass_QOS_CLASS_BEST_EFFORT
	}
	return typesv1.QOSClass_QOS_CLASS_UNSPECIFIED
}

// ReadQoS reads a class; none for the unspecified one.
func ReadQoS(field string, c typesv1.QOSClass, vs *errdefs.Violations) workload.QoSClass {
	if c == typesv1.QOSClass_QOS_CLASS_UNSPECIFIED {
		return ""
	}
	for _, class := range workload.QoSClasses {
		if QoS(class) == c {
			return class
		}
	}
	vs.Addf(field, "%d is no class", c)
	return ""
}
