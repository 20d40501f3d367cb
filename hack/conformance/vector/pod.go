package vector

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthd/berth/managers/workload"
)

// Pod is a recorded pod in the managers' form. The recording has Kubernetes quantities in text;
// nothing is defaulted. A key that recorded pods do not have is an error.
type Pod struct{ *workload.Pod }

type (
	recordedPod struct {
		UID            string              `json:"uid"`
		InitContainers []recordedContainer `json:"init_containers"`
		Containers     []recordedContainer `json:"containers"`
		Overhead       amounts             `json:"overhead"`
		Resources      *recordedResources  `json:"resources"`
		StatusQoSClass workload.QoSClass   `json:"status_qos_class"`
	}
	recordedContainer struct {
		Name string `json:"name"`
		// RestartPolicy is Always for a sidecar, else empty.
		RestartPolicy string `json:"restart_policy"`
		recordedResources
	}
	recordedResources struct {
		Requests amounts `json:"requests"`
		Limits   amounts `json:"limits"`
	}
)

func (p *Pod) UnmarshalJSON(text []byte) error {
	var r recordedPod
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return err
	}
	p.Pod = &workload.Pod{UID: r.UID, QoS: r.StatusQoSClass, Overhead: r.Overhead.Quantities}
	for _, c := range r.InitContainers {
		role := workload.Init
		if c.RestartPolicy == "Always" {
			role = workload.Sidecar
		}
		p.Containers = append(p.Containers, c.as(role))
	}
	for _, c := range r.Containers {
		p.Containers = append(p.Containers, c.as(workload.App))
	}
	x := workload.Excess{Overhead: r.Overhead.excess}
	if r.Resources != nil {
		p.Resources = &workload.Resources{Requests: r.Resources.Requests.Quantities, Limits: r.Resources.Limits.Quantities}
		x.Requests, x.Limits = r.Resources.Requests.excess, r.Resources.Limits.excess
	}
	p.Excess = orNil(x)
	return nil
}

func (c recordedContainer) as(role workload.Role) workload.Container {
	return workload.Container{
		Name: c.Name, Role: role, Requests: c.Requests.Quantities, Limits: c.Limits.Quantities,
		Excess: orNil(workload.Excess{Requests: c.Requests.excess, Limits: c.Limits.excess}),
	}
}

// orNil is the form in which nothing was rounded.
func orNil(x workload.Excess) *workload.Excess {
	if len(x.Requests)+len(x.Limits)+len(x.Overhead) == 0 {
		return nil
	}
	return &x
}

// amounts are recorded quantities as the managers count them: thousandths of a CPU, whole units of
// all else, rounded up. The reference adds before it rounds; excess is what rounding up has put on
// the amounts. An amount that does not fit is the largest one. An absent object stays nil.
type amounts struct {
	workload.Quantities
	excess workload.Quantities
}

func (a *amounts) UnmarshalJSON(text []byte) error {
	var recorded map[workload.Resource]string
	if err := json.Unmarshal(text, &recorded); err != nil || recorded == nil {
		return err
	}
	a.Quantities = make(workload.Quantities, len(recorded))
	for name, written := range recorded {
		q, err := resource.ParseQuantity(written)
		if err != nil {
			return fmt.Errorf("%s %q: %w", name, written, err)
		}
		d := q.AsDec()
		amount, over, ok := workload.RoundUp(name, d.UnscaledBig(), int(d.Scale()))
		if !ok {
			amount, over = math.MaxInt64, 0
		}
		a.Quantities[name] = amount
		if over != 0 {
			if a.excess == nil {
				a.excess = workload.Quantities{}
			}
			a.excess[name] = over
		}
	}
	return nil
}
