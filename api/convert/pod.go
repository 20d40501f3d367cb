package convert

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/workload"
)

// restartAlways makes an init container a sidecar (KEP-753).
const restartAlways = "Always"

// Pod reads a pod. Every amount that cannot be read and everything that
// workload.Check finds comes back in one error of class Invalid with the fields'
// paths. A missing namespace is "default", as the API server has it.
func Pod(m *typesv1.Pod, features workload.Features, bounds workload.Bounds) (workload.Pod, error) {
	var vs fault.Violations
	if m == nil {
		vs.Addf("pod", "is required")
		return workload.Pod{}, vs.Err("request")
	}
	p := readPod(m, &vs)
	// The checks are meant for a pod with defaults; what is missing by default
	// is no violation.
	defaulted, _ := workload.Defaulted(p, features)
	vs = append(vs, workload.Check(&defaulted, bounds)...)
	if m.GetMetadata().GetName() == "" {
		vs.Addf("pod.metadata.name", "is required")
	}
	return p, vs.Err("pod " + p.String())
}

// readPod copies the fields; amounts that cannot be read are noted.
func readPod(m *typesv1.Pod, vs *fault.Violations) workload.Pod {
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
	for _, c := range spec.GetInitContainers() {
		role := workload.Init
		switch c.GetRestartPolicy() {
		case restartAlways:
			role = workload.Sidecar
		case "":
		default:
			path := pathOfNext(&p, role)
			vs.Addf(path+".restartPolicy", "%.80q: expected %q or nothing", c.GetRestartPolicy(), restartAlways)
		}
		addContainer(&p, c, role, vs)
	}
	for _, c := range spec.GetContainers() {
		addContainer(&p, c, workload.App, vs)
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

// pathOfNext gives the path that a container would have if it came next.
func pathOfNext(p *workload.Pod, role workload.Role) string {
	with := workload.Pod{Containers: append(slices.Clip(p.Containers), workload.Container{Role: role})}
	return with.ContainerPaths()[len(p.Containers)]
}

func addContainer(p *workload.Pod, m *typesv1.Container, role workload.Role, vs *fault.Violations) {
	path := pathOfNext(p, role)
	c := workload.Container{Name: m.GetName(), Role: role}
	var excess workload.Excess
	c.Requests, excess.Requests = quantities(m.GetResources().GetRequests(), workload.QuantityPath(path, workload.Requests), vs)
	c.Limits, excess.Limits = quantities(m.GetResources().GetLimits(), workload.QuantityPath(path, workload.Limits), vs)
	c.Excess = orNil(excess)
	for _, rp := range m.GetResizePolicy() {
		if c.ResizePolicy == nil {
			c.ResizePolicy = make(map[workload.Resource]string)
		}
		c.ResizePolicy[workload.Resource(rp.GetResourceName())] = rp.GetRestartPolicy()
	}
	p.Containers = append(p.Containers, c)
}

// orNil keeps an excess only if anything was rounded.
func orNil(e workload.Excess) *workload.Excess {
	if e.Requests == nil && e.Limits == nil && e.Overhead == nil {
		return nil
	}
	return &e
}

// maxQuantity bounds the text of an amount: longer ones are no honest input.
const maxQuantity = 64

// quantities reads amounts in Kubernetes' grammar. What cannot be read is noted
// under its path and left out.
func quantities(texts map[string]string, path func(workload.Resource) string, vs *fault.Violations) (amounts, excess workload.Quantities) {
	if len(texts) == 0 {
		return nil, nil
	}
	amounts = make(workload.Quantities, len(texts))
	names := make([]string, 0, len(texts))
	for name := range texts {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, n := range names {
		text, name := texts[n], workload.Resource(n)
		if len(text) > maxQuantity {
			vs.Addf(path(name), "%d characters: expected a quantity of at most %d", len(text), maxQuantity)
			continue
		}
		q, err := resource.ParseQuantity(text)
		if err != nil {
			vs.Addf(path(name), "%q: expected a Kubernetes quantity such as 2, 500m or 1Gi", text)
			continue
		}
		d := q.AsDec()
		amount, over, ok := workload.RoundUp(name, d.UnscaledBig(), int(d.Scale()))
		if !ok {
			vs.Addf(path(name), "%q: does not fit into 64 bits", text)
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
