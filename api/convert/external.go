package convert

import (
	"fmt"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

const (
	// maxExternalDevices bounds the external devices of one container.
	maxExternalDevices = 256
	// maxExternalID bounds the name of a device.
	maxExternalID = 1024
	// maxExternalClaim bounds the texts of the claim of a device together, in bytes.
	maxExternalClaim = 2048
)

// ReadExternalDevices adds the devices that another program has allocated to the containers
// of a pod. Violations name the field's path.
func ReadExternalDevices(pod *workload.Pod, list []*admissionv1.ExternalDevices) error {
	var vs errdefs.Violations
	if len(list) > len(pod.Containers) { // before there is a violation for each
		vs.Addf("external_devices", "has %d entries, expected at most one for each of the %d containers", len(list), len(pod.Containers))
		return vs.Err("request")
	}
	given := map[string]bool{}
	for i, m := range list {
		path := fmt.Sprintf("external_devices[%d]", i)
		c := pod.Container(m.GetContainerName())
		switch name := m.GetContainerName(); {
		case name == "":
			vs.Addf(path+".container_name", "is required")
		case c == nil:
			vs.Addf(path+".container_name", "the pod has no container %.80q", name)
		case given[name]:
			vs.Addf(path+".container_name", "%.80q is given twice", name)
		case len(m.GetDevices()) > maxExternalDevices:
			vs.Addf(path+".devices", "has %d devices, expected at most %d", len(m.GetDevices()), maxExternalDevices)
		default:
			given[name] = true
			c.ExternalDevices = readExternal(path+".devices", m.GetDevices(), &vs)
		}
	}
	return vs.Err("request")
}

func readExternal(path string, list []*typesv1.ExternalDevice, vs *errdefs.Violations) (out []workload.ExternalDevice) {
	type device struct{ resource, id, claim string }
	seen := map[device]bool{}
	for i, m := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		d := workload.ExternalDevice{Resource: m.GetResource(), ID: m.GetId(), Nodes: ReadMask(at+".numa_nodes", m.GetNumaNodes(), vs)}
		if !workload.Resource(d.Resource).IsExtended() || len(d.Resource) > maxResource {
			vs.Addf(at+".resource", "%.80q is not the name of an extended resource, expected for example example.com/gpu", d.Resource)
		}
		if d.ID == "" || len(d.ID) > maxExternalID {
			vs.Addf(at+".id", "has %d bytes, expected 1 to %d", len(d.ID), maxExternalID)
		}
		d.Claim, d.Unlisted = readExternalClaim(at+".claim", m.GetClaim(), vs), m.GetUnlisted()
		if key := (device{d.Resource, d.ID, m.GetClaim().GetName()}); seen[key] {
			vs.Addf(at+".id", "%.80q of %.80q is given twice", d.ID, d.Resource)
		} else {
			seen[key] = true
		}
		out = append(out, d)
	}
	return out
}

// readExternalClaim reads the claim of a device; nil if it has none.
func readExternalClaim(path string, m *typesv1.ExternalClaim, vs *errdefs.Violations) *workload.ExternalClaim {
	if m == nil {
		return nil
	}
	for _, f := range []struct{ field, value string }{
		{"name", m.GetName()}, {"driver", m.GetDriver()}, {"pool", m.GetPool()}, {"device", m.GetDevice()},
	} {
		if f.value == "" {
			vs.Addf(path+"."+f.field, "is required")
		}
	}
	if n := ClaimTexts(m); n > maxExternalClaim {
		vs.Addf(path, "its texts have %d bytes together, expected at most %d", n, maxExternalClaim)
		return nil
	}
	return &workload.ExternalClaim{
		Name: m.GetName(), Driver: m.GetDriver(), Pool: m.GetPool(), Device: m.GetDevice(), Share: m.GetShareId(), CDI: m.GetCdiDevices(),
	}
}

// ClaimTexts returns how many bytes all texts of the claim of a device have together. A CDI device counts one more, so that
// their number is bounded, too.
func ClaimTexts(m *typesv1.ExternalClaim) int {
	n := len(m.GetName()) + len(m.GetDriver()) + len(m.GetPool()) + len(m.GetDevice()) + len(m.GetShareId())
	for _, name := range m.GetCdiDevices() {
		n += len(name) + 1
	}
	return n
}

// ExternalDevices returns the message form of external devices.
func ExternalDevices(list []workload.ExternalDevice) (out []*typesv1.ExternalDevice) {
	for _, d := range list {
		m := &typesv1.ExternalDevice{Resource: d.Resource, Id: d.ID, NumaNodes: SomeNodes(d.Nodes), Unlisted: d.Unlisted}
		if c := d.Claim; c != nil {
			m.Claim = &typesv1.ExternalClaim{Name: c.Name, Driver: c.Driver, Pool: c.Pool, Device: c.Device, ShareId: c.Share,
				CdiDevices: c.CDI}
		}
		out = append(out, m)
	}
	return out
}
