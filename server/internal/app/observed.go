package app

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/server/internal/store/epoch"
)

// Observed is a node whose decisions another program makes. An App on it keeps nothing and writes nothing: its ledger and its cgroups are
// in memory. Run is not for it. Its configuration has a machine and no kernel cgroups.
type Observed struct {
	Machine *machine.Topology
	Facts   node.Facts
	// Devices by resource, all of them healthy unless they say otherwise.
	Devices map[string][]device.Device
	// Gate refuses calls of its socket (Serve); nil if there is none. Problem is why it is not up to date; nil if it is.
	Gate    func(method string, req any) error
	Problem func() error
	// Meter reads what its containers use. Errors are of class Precondition if nothing runs there.
	Meter func() (Meter, error)
	// containers are those that have been started, by the runtime's id.
	containers atomic.Pointer[map[string]ledger.Owner]
}

// Meter reads what runs on a node.
type Meter interface {
	cgroup.Meter
	// CPUs returns how long each CPU was busy since the boot.
	CPUs() (map[int]time.Duration, error)
	// Find returns the cgroup of a container by its runtime's id, below the cgroup of its pod.
	Find(pod, id string) (cgroup.Name, bool)
	// CloseUnused closes what was not used since the last call.
	CloseUnused()
}

// bindings are the containers of the node, for one reading of what they use.
func (o *Observed) bindings(*ledger.View) iter.Seq[ledger.Binding] {
	return func(yield func(ledger.Binding) bool) {
		if m, err := o.Meter(); err == nil {
			m.CloseUnused() // the other program removes cgroups
		}
		all := o.containers.Load()
		if all == nil {
			return
		}
		for id, owner := range *all {
			if !yield(ledger.Binding{ID: id, Owner: owner}) {
				return
			}
		}
	}
}

// started adds containers.
func (o *Observed) started(pods []Adopted) {
	all := map[string]ledger.Owner{}
	if before := o.containers.Load(); before != nil {
		maps.Copy(all, *before)
	}
	for _, p := range pods {
		for id, name := range p.Containers {
			all[id] = ledger.Owner{Pod: p.Pod.GetMetadata().GetUid(), Container: name}
		}
	}
	o.containers.Store(&all)
}

// find returns a function that finds the cgroup of a container.
func (o *Observed) find(view func() *ledger.View) func(ledger.Binding) (cgroup.Name, bool) {
	return func(b ledger.Binding) (cgroup.Name, bool) {
		m, err := o.Meter()
		pod, ok := view().Pod(b.Owner.Pod)
		if err != nil || !ok {
			return nil, false
		}
		return m.Find(pod.CgroupParent, b.ID)
	}
}

func (o *Observed) cpus() (map[int]time.Duration, error) {
	m, err := o.Meter()
	if err != nil {
		return nil, err
	}
	return m.CPUs()
}

func (o *Observed) usage(ctx context.Context, name cgroup.Name) (cgroup.Usage, error) {
	m, err := o.Meter()
	if err != nil {
		return cgroup.Usage{}, err
	}
	return m.Usage(ctx, name)
}

func (o *Observed) details(ctx context.Context, name cgroup.Name) (cgroup.Details, error) {
	m, err := o.Meter()
	if err != nil {
		return cgroup.Details{}, err
	}
	return m.Details(ctx, name)
}

// measure returns the machine of a configuration, and what else is known about it.
func (e *Environment) measure(c config.Config) (*machine.Topology, node.Facts, error) {
	if e.Observed != nil {
		return e.Observed.Machine, e.Observed.Facts, nil
	}
	return measure(c)
}

// list adds the devices to an inventory.
func (o *Observed) list(to *device.Inventory, now time.Time) {
	if o == nil {
		return
	}
	for resource, devices := range o.Devices {
		to.Listed(to.Registered(resource, device.Options{}, now), devices, now)
	}
}

// take replaces the devices of an inventory that have changed. A resource that is gone has none.
func (o *Observed) take(next map[string][]device.Device, to *device.Inventory, now time.Time) {
	changed := Observed{Devices: map[string][]device.Device{}}
	for resource := range o.Devices {
		if _, ok := next[resource]; !ok {
			changed.Devices[resource] = nil
		}
	}
	for resource, devices := range next {
		if have, ok := o.Devices[resource]; !ok || !reflect.DeepEqual(have, devices) {
			changed.Devices[resource] = devices
		}
	}
	o.Devices = next
	changed.list(to, now)
}

// unkept is a journal that keeps nothing.
type unkept struct{}

// Load implements journal.Journal.
func (unkept) Load(context.Context) ([]journal.Entry, error) { return nil, nil }

// Commit implements journal.Journal.
func (unkept) Commit(context.Context, uint64, []journal.Entry) error { return nil }

// Close implements journal.Journal.
func (unkept) Close() error { return nil }

// openUnkept makes a ledger that nobody keeps, and is empty.
func openUnkept(ctx context.Context, g *given, found *machine.Topology, sets setMaker, set *managerset.Set) (*state, error) {
	limits := history.Limits{}
	if g.Observed.Gate != nil {
		limits = history.Limits{Entries: g.Config.History.Entries, Bytes: g.Config.History.Bytes}
	}
	s := &state{found: found, past: history.New(limits, g.Now), first: set}
	var err error
	s.ledger, s.start.Ledger, err = journal.Open(ctx, journal.Options{
		Journal: unkept{}, EpochID: epoch.NewID(), NewEpochID: epoch.NewID, BootID: g.boot, Rules: set.Rules, History: s.past,
	})
	if err != nil {
		return nil, err
	}
	s.sets = setMaker{facts: sets.facts, view: s.ledger.View}
	_, err = s.ledger.SetRules(ctx, set.Rules)
	return s, err
}

// Adopted is a pod that another program has admitted.
type Adopted struct {
	Pod *typesv1.Pod
	// At is when; zero if that is not known.
	At time.Time
	// Devices are those that its containers have by claims on dynamic resources.
	Devices []*admissionv1.ExternalDevices
	// Containers are the names of those that have been started, by the runtime's id.
	Containers map[string]string
}

// Adopt stores pods that another program has admitted, with what a kubelet's state files have of them. unread are pods that berthd would
// refuse. problems are files that cannot be taken, and what of them was left out.
func (a *App) Adopt(ctx context.Context, pods []Adopted, kinds []kubelet.Kind, states map[kubelet.Kind][]byte) (unread, problems []string,
	err error) {
	engine := a.deciding.engine.Engine
	a.given.Observed.started(pods)
	records, unread := a.records(pods)
	if _, err := a.state.ledger.Update(ctx, func(d *ledger.Draft) error {
		for _, r := range records {
			d.PutPod(r)
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	for _, kind := range kinds {
		data, ok := states[kind]
		if !ok {
			continue
		}
		done, err := importer.Importer{Engine: engine}.Import(ctx, importer.Request{
			Kind: kind, Data: data, Settings: settingsOf(a.deciding.managers.inForce(), a.devices.manager.Inventory(), kind),
			SkipUnknown: true, Force: true,
		})
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		for _, text := range done.Facts.Skipped {
			problems = append(problems, done.Facts.File+" has an entry of a pod that is not among the pods: "+text)
		}
		for _, f := range done.Facts.Flaws {
			problems = append(problems, done.Facts.File+": "+f.Entry+": "+f.Text)
		}
	}
	return unread, problems, nil
}

// records are the pods as the ledger has them, in the order of their admission. unread are those that berthd would refuse.
func (a *App) records(pods []Adopted) (out []*ledger.Pod, unread []string) {
	for _, p := range pods {
		record, err := a.record(p)
		if err == nil && slices.ContainsFunc(out, func(o *ledger.Pod) bool { return o.UID() == record.UID() }) {
			err = fmt.Errorf("pod %s/%s: its uid %s is that of another pod, too", record.Pod.Namespace, record.Pod.Name, record.UID())
		}
		if err != nil {
			unread = append(unread, err.Error())
			continue
		}
		out = append(out, record)
	}
	slices.SortStableFunc(out, func(a, b *ledger.Pod) int { return a.AdmittedAt.Compare(b.AdmittedAt) })
	return out, unread
}

func (a *App) record(p Adopted) (*ledger.Pod, error) {
	pod, err := NodePod(a.given.Config, p.Pod)
	if err == nil {
		err = convert.ReadExternalDevices(&pod, p.Devices)
	}
	if err != nil {
		return nil, err
	}
	engine := a.deciding.engine.Engine
	record, _, err := engine.Record(pod, "adopt")
	if err != nil {
		return nil, err
	}
	record.AdmissionID = engine.NewID()
	record.Trace = &ledger.Trace{
		AdmissionID: record.AdmissionID, Pod: record.UID(), Namespace: record.Pod.Namespace, Name: record.Pod.Name, Admitted: true,
	}
	if !p.At.IsZero() {
		record.AdmittedAt = p.At
	}
	record.CgroupParent, err = a.cgroupOf(record)
	return record, err
}

// cgroupOf is the path of a pod's cgroup, which the kubelet has made; empty where pods have none of their own.
func (a *App) cgroupOf(p *ledger.Pod) (string, error) {
	k := a.kernel
	if !k.perQOS {
		return "", nil
	}
	name, err := k.layout.Pod(p.QoS, p.UID())
	if err != nil {
		return "", err
	}
	return k.layout.Literal(name)
}

func (a *App) read() convert.Reader { return podReader(a.given.Config) }
