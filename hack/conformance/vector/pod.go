package vector

import (
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthd/berth/managers/workload"
)

// Pod is a recorded pod. Its amounts are Kubernetes quantities in text.
type Pod struct {
	UID            string      `json:"uid"`
	InitContainers []Container `json:"init_containers"`
	Containers     []Container `json:"containers"`
	Overhead       Amounts     `json:"overhead"`
	Resources      *Resources  `json:"resources"`
	// StatusQoSClass is the class in the pod's status, empty if it has none.
	StatusQoSClass string `json:"status_qos_class"`
}

// Container is one container of a recorded pod.
type Container struct {
	Name string `json:"name"`
	// RestartPolicy is Always for a sidecar, else empty.
	RestartPolicy string  `json:"restart_policy"`
	Requests      Amounts `json:"requests"`
	Limits        Amounts `json:"limits"`
}

// Resources are the amounts of a pod as a whole.
type Resources struct {
	Requests Amounts `json:"requests"`
	Limits   Amounts `json:"limits"`
}

// Amounts are quantities in text by resource name; nil where the key is absent.
type Amounts map[string]string

// Pod returns the recorded pod in the managers' form: the amounts as they were
// given, nothing defaulted.
func (p Pod) Pod() (*workload.Pod, error) {
	out := &workload.Pod{UID: p.UID, QoS: workload.QoSClass(p.StatusQoSClass)}
	var err error
	for i, c := range p.InitContainers {
		role := workload.Init
		if c.RestartPolicy == "Always" {
			role = workload.Sidecar
		}
		if err = c.appendTo(out, role); err != nil {
			return nil, fmt.Errorf("init_containers[%d].%w", i, err)
		}
	}
	for i, c := range p.Containers {
		if err = c.appendTo(out, workload.App); err != nil {
			return nil, fmt.Errorf("containers[%d].%w", i, err)
		}
	}
	var x workload.Excess
	if out.Overhead, x.Overhead, err = p.Overhead.exact(); err != nil {
		return nil, fmt.Errorf("overhead: %w", err)
	}
	if p.Resources != nil {
		out.Resources = &workload.Resources{}
		if out.Resources.Requests, x.Requests, err = p.Resources.Requests.exact(); err != nil {
			return nil, fmt.Errorf("resources.requests: %w", err)
		}
		if out.Resources.Limits, x.Limits, err = p.Resources.Limits.exact(); err != nil {
			return nil, fmt.Errorf("resources.limits: %w", err)
		}
	}
	out.Excess = orNil(x)
	return out, nil
}

func (c Container) appendTo(p *workload.Pod, role workload.Role) error {
	out := workload.Container{Name: c.Name, Role: role}
	var x workload.Excess
	var err error
	if out.Requests, x.Requests, err = c.Requests.exact(); err != nil {
		return fmt.Errorf("requests: %w", err)
	}
	if out.Limits, x.Limits, err = c.Limits.exact(); err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	out.Excess = orNil(x)
	p.Containers = append(p.Containers, out)
	return nil
}

// orNil is the form in which nothing was rounded.
func orNil(x workload.Excess) *workload.Excess {
	if len(x.Requests)+len(x.Limits)+len(x.Overhead) == 0 {
		return nil
	}
	return &x
}

// Index returns the place of a container in the managers' form of the pod.
func Index(p *workload.Pod, name string) (int, error) {
	for i := range p.Containers {
		if p.Containers[i].Name == name {
			return i, nil
		}
	}
	return 0, fmt.Errorf("pod %s has no container %q", p.UID, name)
}

// Quantities returns the amounts as the managers count them: thousandths of a
// CPU, whole units of all else, rounded up. An absent object stays nil.
func (a Amounts) Quantities() (workload.Quantities, error) {
	amounts, _, err := a.exact()
	return amounts, err
}

// exact is Quantities with what rounding up put on the amounts: the reference adds
// before it rounds. An amount that does not fit is the largest one.
func (a Amounts) exact() (amounts, excess workload.Quantities, err error) {
	if a == nil {
		return nil, nil, nil
	}
	amounts = make(workload.Quantities, len(a))
	for text, written := range a {
		name := workload.Resource(text)
		q, err := resource.ParseQuantity(written)
		if err != nil {
			return nil, nil, fmt.Errorf("%s %q: %w", name, written, err)
		}
		d := q.AsDec()
		amount, over, ok := workload.RoundUp(name, d.UnscaledBig(), int(d.Scale()))
		if !ok {
			amount, over = math.MaxInt64, 0
		}
		amounts[name] = amount
		if over != 0 {
			if excess == nil {
				excess = workload.Quantities{}
			}
			excess[name] = over
		}
	}
	return amounts, excess, nil
}
