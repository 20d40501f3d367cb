package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/hint"
)

// chaosFor makes TestPluginChaos continue for a time such as 10m, with another seed at
// each run; chaosSeed has it repeat one.
const (
	chaosFor  = "BERTH_CHAOS"
	chaosSeed = "BERTH_CHAOS_SEED"
)

// chaosSteps is how many things happen where no time is given.
const chaosSteps = 200

// TestPluginChaos lets plugins register, die, flap, shrink, grow, answer falsely and hang while
// pods come and go and berthd is killed now and then. All the time what the ledger
// and readers show is what the plugins' last calls requested: no device is doubled,
// leaked or lost.
func TestPluginChaos(t *testing.T) {
	t.Parallel()
	seed, until := uint64(20261120), time.Time{}
	if text := os.Getenv(chaosFor); text != "" {
		d, err := time.ParseDuration(text)
		if err != nil {
			t.Fatalf("%s: %v", chaosFor, err)
		}
		seed, until = rand.Uint64(), time.Now().Add(d)
	}
	if text := os.Getenv(chaosSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", chaosSeed, err)
		}
	}
	t.Logf("%s=%d repeats this run", chaosSeed, seed)
	c := newChaos(t, seed)
	step := 0
	for ; until.IsZero() && step < chaosSteps || time.Now().Before(until); step++ {
		c.step()
		c.compare()
		if step%25 == 24 {
			c.probe()
		}
	}
	c.end()
	t.Logf("%d steps, %d pods admitted of %d, %d starts of berthd", step, c.admittedPods, c.next, c.starts)
	if c.admittedPods == 0 || c.admittedPods == c.next {
		t.Errorf("%d of %d pods were admitted: that was no test", c.admittedPods, c.next)
	}
}

// held is what a container holds, by resource: ids in order, joined.
type held map[string]string

// chaos is a daemon with plugins and pods in disorder.
type chaos struct {
	*daemon
	rnd    *rand.Rand
	fleets []*fleet
	// pods are those that berthd has admitted, with their containers'
	// devices of the first answer, init containers included.
	pods map[string]map[string]held
	// specs are the same pods as requested.
	specs   map[string]*typesv1.Pod
	readers podresourcesv1.PodResourcesListerClient
	log     []string // what has happened

	next, admittedPods, starts int
}

func newChaos(t *testing.T, seed uint64) *chaos {
	n := newNode(t, "--machine", "1s2n4c2t,mem=4Gi", "--log-level", "info")
	n.kernel = false
	// Allocate is where plugins hang; nothing else is late on a busy machine.
	n.configure("providers: {allocateTimeout: 1s, preStartTimeout: 1m, callTimeout: 1m, pluginInfoTimeout: 1m}\n" +
		"verdicts: {deferred: true}\n" +
		"limits: {podResourcesPerSecond: 10000, podResourcesBurst: 10000, podResourcesWait: 1ms}\n")
	c := &chaos{
		rnd: rand.New(rand.NewPCG(seed, seed)), pods: map[string]map[string]held{}, specs: map[string]*typesv1.Pod{},
		daemon: n.start(), starts: 1,
	}
	conn, err := grpc.NewClient("unix://"+n.root+"/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		if t.Failed() {
			t.Logf("what happened:\n%s", strings.Join(c.log, "\n"))
		}
	})
	c.readers = podresourcesv1.NewPodResourcesListerClient(conn)
	for _, f := range []*fleet{
		{resource: "example.com/gpu", preferred: true, signal: script.OwnSocket},
		{resource: "example.com/nic", prestart: true, signal: script.ServerSocket},
		{resource: "example.com/fpga", preferred: true, prestart: true, watched: true},
	} {
		f.n, f.last, f.warned = n, map[string]script.Call{}, map[string]int{}
		f.start(anyDevices(c.rnd, false))
		c.fleets = append(c.fleets, f)
	}
	for _, f := range c.fleets {
		c.awaitDevices(f)
	}
	return c
}

func (c *chaos) note(format string, args ...any) {
	c.log = append(c.log, fmt.Sprintf(format, args...))
}

// step lets one thing happen.
func (c *chaos) step() {
	f := c.fleets[c.rnd.IntN(len(c.fleets))]
	switch op := c.rnd.IntN(40); {
	case op < 10:
		c.burst(1)
	case op < 12:
		c.burst(2 + c.rnd.IntN(4))
	case op < 17:
		c.removeOne()
	case op < 20:
		c.startContainer()
	case op < 21:
		c.note("berthd is killed")
		c.kill()
		c.again()
	case op < 22:
		c.crash()
	case op < 23:
		c.note("%s: plugin dies", f.resource)
		f.stop(true)
	case op < 24:
		c.note("%s: plugin ends", f.resource)
		f.stop(false)
	case op < 28:
		c.note("%s: plugin starts", f.resource)
		f.stop(c.rnd.IntN(2) == 0)
		f.start(anyDevices(c.rnd, false))
		c.awaitDevices(f)
	case op < 31:
		c.replace(f)
	case op < 35: // flaps, shrinks, grows, and now and then lies
		wrong, devices := op == 34, anyDevices(c.rnd, op == 34)
		c.note("%s: other devices %v, a wrong answer: %t", f.resource, devices, wrong)
		if f.live != nil {
			f.live.SetDevices(devices...)
			c.awaitDevices(f)
		}
	case op < 38:
		c.note("%s: misbehaves at %s", f.resource, f.disturb(c.rnd))
	case op < 39:
		c.note("%s: its list breaks: %s", f.resource, f.breakList(c.rnd))
	default:
		c.note("%s: registers once more", f.resource)
		if f.live != nil && !f.watched {
			_ = f.live.Register(c.ctx())
		}
	}
}

// awaitDevices waits until berthd knows what the live plugin lists, device by device: the
// list before may have been as long.
func (c *chaos) awaitDevices(f *fleet) {
	c.t.Helper()
	if f.live == nil || f.crooked {
		return
	}
	healthy := f.healthy()
	want := fmt.Sprintf("%s connected, %d devices, healthy %s", f.resource, f.capacity(), idText(healthy))
	c.note("listed: %s", want)
	c.eventually(want, func() bool {
		resp, err := devicev1.NewDeviceServiceClient(c.conn).GetState(c.ctx(), &devicev1.GetStateRequest{})
		return err == nil && slices.ContainsFunc(resp.GetResources(), func(r *devicev1.Resource) bool {
			var ids []string
			for _, d := range r.GetDevices() {
				if d.GetDevice().GetHealth() == typesv1.Health_HEALTH_HEALTHY {
					ids = append(ids, d.GetDevice().GetId())
				}
			}
			return !r.GetAwaited() && fmt.Sprintf("%s %s, %d devices, healthy %s", r.GetName(), convert.Word(r.GetPluginState()),
				r.GetCapacity(), idText(ids)) == want
		})
	})
}

// replace has a newer plugin beside the live one, of which one ends then: the devices
// of the other stay, whichever berthd takes for the newest. (The older one may register
// again meanwhile, when it notices a restart of berthd late.)
func (c *chaos) replace(f *fleet) {
	c.t.Helper()
	old, bad, back := f.live, f.crooked, c.rnd.IntN(3) == 0
	newer := f.start(anyDevices(c.rnd, false))
	switch {
	case old == nil:
		c.note("%s: plugin starts", f.resource)
	case f.watched:
		c.note("%s: plugin is replaced", f.resource)
		// The one that is found later wins; which that is depends on the visits.
		old.end()
	default:
		c.eventually(newer.Endpoint+" has registered", func() bool {
			return slices.ContainsFunc(newer.Calls(script.Register), func(r script.Call) bool { return r.Error == "" })
		})
		if back && !bad {
			c.note("%s: plugin is replaced, and the newer one ends", f.resource)
			f.live, old = old, newer
		} else {
			c.note("%s: plugin is replaced", f.resource)
		}
		if c.rnd.IntN(2) == 0 {
			old.Die()
		}
		old.end()
	}
	c.awaitDevices(f)
}

// again starts berthd after its end, and looks whether anything is lost.
func (c *chaos) again() {
	c.t.Helper()
	c.starts++
	c.daemon = c.node.start()
	c.compare()
	for _, f := range c.fleets {
		c.awaitDevices(f)
	}
}

// anyPod requests devices in init containers, sidecars and containers.
func (c *chaos) anyPod() *typesv1.Pod {
	c.next++
	p := pod("p"+strconv.Itoa(c.next), nil, nil)
	p.Spec.Containers = nil
	wants := func() *typesv1.ResourceRequirements {
		r := map[string]string{}
		for _, f := range c.fleets {
			if n := c.rnd.IntN(8) - 4; n >= 0 {
				r[f.resource] = strconv.Itoa(n)
			}
		}
		return &typesv1.ResourceRequirements{Requests: r, Limits: r}
	}
	for i := range c.rnd.IntN(3) {
		init := &typesv1.Container{Name: "i" + strconv.Itoa(i), Resources: wants()}
		if c.rnd.IntN(3) == 0 {
			init.RestartPolicy = "Always"
		}
		p.Spec.InitContainers = append(p.Spec.InitContainers, init)
	}
	for i := range 1 + c.rnd.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, &typesv1.Container{Name: "c" + strconv.Itoa(i), Resources: wants()})
	}
	return p
}

// burst admits pods at once, and sometimes removes one meanwhile.
func (c *chaos) burst(n int) {
	c.t.Helper()
	type answer struct {
		p    *typesv1.Pod
		resp *admissionv1.AdmitResponse
		err  error
	}
	pods := make([]*typesv1.Pod, n)
	for i := range pods {
		pods[i] = c.anyPod()
	}
	victim := ""
	if n > 1 {
		victim = c.anyOf()
	}
	answers := make(chan answer, n)
	d := c.daemon
	var removal sync.WaitGroup
	for _, p := range pods {
		go func() {
			req := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}}
			resp, err := d.admission.Admit(d.ctx(), req)
			for overtaken(err) {
				resp, err = d.admission.Admit(d.ctx(), req)
			}
			answers <- answer{p, resp, err}
		}()
	}
	if victim != "" {
		removal.Go(func() {
			if _, err := d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: victim}); err != nil {
				c.t.Errorf("remove %s: %v", victim, err)
			}
		})
		c.forget(victim)
	}
	for range n {
		a := <-answers
		if a.err != nil {
			c.t.Fatalf("admit %s: %v", a.p.GetMetadata().GetUid(), a.err)
		}
		c.note("pod %s: %s %s", a.p.GetMetadata().GetUid(), a.resp.GetVerdict(), a.resp.GetMessage())
		if a.resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
			c.keep(a.p)
		}
	}
	removal.Wait()
	c.learn()
}

// overtaken reports whether a pod that needs two plugins was overtaken more often than it
// is planned again: four other pods of a burst may come between its calls to them. Then its
// caller repeats the call. The loop ends, because the others of the burst are admitted once.
func overtaken(err error) bool {
	return status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), hint.ErrInputsChanged.Error())
}

// keep remembers a pod that was admitted; learn will know what it holds.
func (c *chaos) keep(p *typesv1.Pod) {
	c.admittedPods++
	c.pods[p.GetMetadata().GetUid()] = nil
	c.specs[p.GetMetadata().GetUid()] = p
}

func (c *chaos) forget(uid string) {
	c.note("pod %s is removed", uid)
	delete(c.pods, uid)
	delete(c.specs, uid)
}

// learn notes what new pods hold.
func (c *chaos) learn() {
	c.t.Helper()
	have := c.allocations()
	for uid, known := range c.pods {
		if known == nil {
			c.pods[uid] = have[uid]
		}
	}
}

// anyOf picks a pod that is admitted, "" if there is none.
func (c *chaos) anyOf() string {
	uids := slices.Sorted(maps.Keys(c.pods))
	if len(uids) == 0 {
		return ""
	}
	return uids[c.rnd.IntN(len(uids))]
}

func (c *chaos) removeOne() {
	if uid := c.anyOf(); uid != "" {
		c.forget(uid)
		c.remove(uid)
	}
}

// startContainer calls PreStartContainer. Where that succeeds,
// every plugin with that option was called with exactly its devices.
func (c *chaos) startContainer() {
	c.t.Helper()
	uid := c.anyOf()
	if uid == "" {
		return
	}
	containers := c.specs[uid].GetSpec().GetContainers()
	name := containers[c.rnd.IntN(len(containers))].GetName()
	before := map[*fleet]int{}
	for _, f := range c.fleets {
		before[f] = f.timesWarned(c.pods[uid][name][f.resource])
	}
	c.next++ // no id is used twice
	_, err := c.lifecycle.PreStartContainer(c.ctx(), &lifecyclev1.PreStartContainerRequest{
		PodUid: uid, ContainerName: name, ContainerId: fmt.Sprintf("%s-%s-%d", uid, name, len(c.log)),
	})
	c.note("pod %s starts %s: %v", uid, name, err)
	if err != nil {
		return
	}
	for _, f := range c.fleets {
		if ids := c.pods[uid][name][f.resource]; ids != "" && f.prestart && f.timesWarned(ids) == before[f] {
			c.t.Errorf("container %s of pod %s started, and the plugin for %s was not told of %q", name, uid, f.resource, ids)
		}
	}
}

// crash kills berthd while it admits a pod and removes another. What it holds then
// is what the next one shows, as long as that is no more and no less than requested.
func (c *chaos) crash() {
	c.t.Helper()
	p := c.anyPod()
	uid := p.GetMetadata().GetUid()
	victim := c.anyOf()
	c.note("berthd is killed while it admits %s and removes %q", uid, victim)
	d := c.daemon
	admitted := make(chan bool, 1)
	var removal sync.WaitGroup
	go func() {
		resp, err := d.admission.Admit(d.ctx(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}})
		admitted <- err == nil && resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
	}()
	removed := false
	if victim != "" {
		removal.Go(func() {
			_, err := d.admission.RemovePod(d.ctx(), &admissionv1.RemovePodRequest{PodUid: victim})
			removed = err == nil
		})
	}
	d.kill()
	acknowledged := <-admitted
	removal.Wait()
	c.starts++
	c.daemon = c.node.start()
	now := c.daemon.pods()
	if acknowledged && now[uid] == nil {
		c.t.Errorf("pod %s was admitted and is gone", uid)
	}
	if removed && now[victim] != nil {
		c.t.Errorf("pod %s was removed and is back", victim)
	}
	if now[uid] != nil {
		c.keep(p)
		c.learn()
	}
	if victim != "" && now[victim] == nil {
		c.forget(victim)
	}
	c.compare()
	for _, f := range c.fleets {
		c.awaitDevices(f)
	}
}

// allocations reads from the ledger what containers hold, by pod.
func (c *chaos) allocations() map[string]map[string]held {
	c.t.Helper()
	out := map[string]map[string]held{}
	for uid, p := range c.daemon.pods() {
		out[uid] = map[string]held{}
		for _, container := range p.GetContainers() {
			h := held{}
			for _, claim := range container.GetClaims() {
				var ids []string
				for _, d := range claim.GetDevice().GetDevices() {
					ids = append(ids, d.GetId())
				}
				if len(ids) > 0 {
					h[claim.GetResource()] = idText(ids)
				}
			}
			out[uid][container.GetContainerName()] = h
		}
	}
	return out
}

// compare compares the ledger and the readers' view with the pods' answers and
// the plugins' calls.
func (c *chaos) compare() {
	c.t.Helper()
	have := c.allocations()
	for uid := range have {
		if _, ok := c.pods[uid]; !ok {
			c.t.Errorf("pod %s is in the ledger and was not admitted, or was removed", uid)
		}
	}
	owner := map[string]string{} // of a device, by resource and id
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		if have[uid] == nil {
			c.t.Errorf("pod %s was admitted and is gone", uid)
			continue
		}
		c.comparePod(uid, have[uid], owner)
	}
	c.compareReaders(have)
	if c.t.Failed() {
		c.t.FailNow()
	}
}

// comparePod checks one pod's devices.
func (c *chaos) comparePod(uid string, have map[string]held, owner map[string]string) {
	c.t.Helper()
	spec := c.specs[uid].GetSpec()
	type use struct {
		ids  string
		last bool // the holder keeps the device
	}
	uses := map[string]use{} // of a device by this pod's containers so far
	walk := slices.Concat(spec.GetInitContainers(), spec.GetContainers())
	for i, container := range walk {
		name := container.GetName()
		if !maps.Equal(have[name], c.pods[uid][name]) {
			c.t.Errorf("container %s of pod %s holds %v and was given %v", name, uid, have[name], c.pods[uid][name])
		}
		keeps := i >= len(spec.GetInitContainers()) || container.GetRestartPolicy() == "Always"
		for _, f := range c.fleets {
			ids := have[name][f.resource]
			want, _ := strconv.Atoi(container.GetResources().GetLimits()[f.resource])
			if len(strings.Fields(ids)) != want {
				c.t.Errorf("container %s of pod %s wants %d of %s and holds %q", name, uid, want, f.resource, ids)
			}
			for id := range strings.FieldsSeq(ids) {
				device := f.resource + "=" + id
				if who := owner[device]; who != "" && who != uid {
					c.t.Errorf("%s is doubled: pods %s and %s hold it", device, who, uid)
				}
				if uses[device].last {
					c.t.Errorf("%s is doubled: container %s of pod %s holds it beside one before it", device, name, uid)
				}
				owner[device] = uid
				uses[device] = use{ids, keeps}
			}
		}
	}
	for device, u := range uses {
		resource, id, _ := strings.Cut(device, "=")
		for _, f := range c.fleets {
			if asked := f.lastAsked(id); f.resource == resource && asked != u.ids {
				c.t.Errorf("pod %s holds %s with %q; the plugin was last asked for it with %q", uid, device, u.ids, asked)
			}
		}
	}
}

// compareReaders holds podresources against the ledger.
func (c *chaos) compareReaders(have map[string]map[string]held) {
	c.t.Helper()
	list, err := c.readers.List(c.ctx(), &podresourcesv1.ListPodResourcesRequest{}, grpc.WaitForReady(true))
	if err != nil {
		c.t.Fatal(err)
	}
	if len(list.GetPodResources()) != len(have) {
		c.t.Errorf("readers see %d pods of %d", len(list.GetPodResources()), len(have))
	}
	for _, p := range list.GetPodResources() {
		for _, container := range p.GetContainers() {
			ids := map[string][]string{}
			for _, d := range container.GetDevices() {
				for _, id := range d.GetDeviceIds() { // once for each of its nodes
					if !slices.Contains(ids[d.GetResourceName()], id) {
						ids[d.GetResourceName()] = append(ids[d.GetResourceName()], id)
					}
				}
			}
			got := held{}
			for resource, list := range ids {
				got[resource] = idText(list)
			}
			if want := have[p.GetName()][container.GetName()]; !maps.Equal(got, want) {
				c.t.Errorf("readers see %v at container %s of pod %s, which holds %v", got, container.GetName(), p.GetName(), want)
			}
		}
	}
}

// restore puts plugins in order that are away or misbehave.
func (c *chaos) restore() {
	c.t.Helper()
	for _, f := range c.fleets {
		if f.live == nil || f.crooked {
			f.stop(true)
			f.start(anyDevices(c.rnd, false))
		}
		c.awaitDevices(f)
	}
}

// probe restores all plugins and requests every free device, in one pod:
// it gets exactly those. One more is refused.
func (c *chaos) probe() {
	c.t.Helper()
	c.restore()
	busy := map[string]bool{}
	for _, containers := range c.allocations() {
		for _, h := range containers {
			for resource, ids := range h {
				for id := range strings.FieldsSeq(ids) {
					busy[resource+"="+id] = true
				}
			}
		}
	}
	limits, want := map[string]string{}, held{}
	for _, f := range c.fleets {
		free := slices.DeleteFunc(f.healthy(), func(id string) bool { return busy[f.resource+"="+id] })
		if len(free) > 0 {
			want[f.resource] = idText(free)
		}
		limits[f.resource] = strconv.Itoa(len(free))
		more := map[string]string{f.resource: strconv.Itoa(len(free) + 1)}
		if v := c.admit(pod("more", more, more)); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
			c.t.Errorf("%s: %d are free, and %d were given: %v", f.resource, len(free), len(free)+1, c.allocations()["more"])
			c.remove("more")
		}
		if len(f.healthy()) == 0 {
			delete(limits, f.resource) // none is a refusal, also of no device
		}
	}
	all := pod("all", limits, limits)
	// A busy machine may make the plugin miss its deadline.
	c.eventually(fmt.Sprintf("all free devices are given: %v", want), func() bool {
		answer := c.admit(all)
		c.note("all free devices, %v: %s %s", want, answer.GetVerdict(), answer.GetMessage())
		return answer.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
	})
	if got := c.allocations()["all"]["main"]; !maps.Equal(got, want) {
		c.t.Errorf("of the free devices %v the pod got %v", want, got)
	}
	c.remove("all")
	c.daemon.check()
	c.compare()
}

// end removes everything and looks whether anything stayed.
func (c *chaos) end() {
	c.t.Helper()
	c.probe()
	for _, uid := range slices.Sorted(maps.Keys(c.pods)) {
		c.forget(uid)
		c.remove(uid)
	}
	c.probe()
	resp, err := devicev1.NewDeviceServiceClient(c.conn).GetState(context.Background(), &devicev1.GetStateRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range resp.GetResources() {
		for _, d := range r.GetDevices() {
			if len(d.GetHolders()) > 0 {
				c.t.Errorf("%s=%s is held by %v after all pods are gone", r.GetName(), d.GetDevice().GetId(), d.GetHolders())
			}
		}
	}
}
