package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/berth"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/server/internal/host/claimfiles"
)

// recordDirs lists the directories of a pod's cgroup in all hierarchies.
func (n *node) recordDirs(uid string) []string {
	return slices.DeleteFunc(n.cgroupDirs(), func(dir string) bool {
		return n.driver.Parse(filepath.Base(dir)).Base() != "pod"+uid
	})
}

// record returns the claim record of a pod and where it is; nil if there is none.
func (n *node) record(uid string) (dir string, record []byte) {
	n.t.Helper()
	buf := make([]byte, 64<<10)
	for _, dir := range n.recordDirs(uid) {
		size, err := unix.Getxattr(dir, cgroup.RecordAttribute, buf)
		switch {
		case errors.Is(err, unix.EOPNOTSUPP):
			n.t.Skipf("the kernel keeps no attributes of cgroups: %v", err)
		case err == nil:
			return dir, bytes.Clone(buf[:size])
		}
	}
	return "", nil
}

// recorded waits until the claim record of a pod has a container's id.
func (n *node) recorded(uid, id string) {
	n.t.Helper()
	n.eventually("the claim record of pod "+uid+" has the container's id", func() bool {
		_, record := n.record(uid)
		return bytes.Contains(record, []byte(strconv.Quote(id)))
	})
}

// Ways in which claim records fail.
var recordFaults = map[string]func(n *node, uid string){
	"whole": func(*node, string) {},
	"missing": func(n *node, uid string) {
		dir, _ := n.record(uid)
		if err := unix.Removexattr(dir, cgroup.RecordAttribute); err != nil {
			n.t.Fatal(err)
		}
	},
	"damaged": func(n *node, uid string) {
		dir, record := n.record(uid)
		record[len(record)/2] ^= 1
		if err := unix.Setxattr(dir, cgroup.RecordAttribute, record, 0); err != nil {
			n.t.Fatal(err)
		}
	},
	"forged": func(n *node, uid string) {
		dir, record := n.record(uid)
		record = bytes.ReplaceAll(record, []byte(`"dev0"`), []byte(`"devX"`))
		record = bytes.ReplaceAll(record, []byte(`"dev1"`), []byte(`"dev0"`))
		record = bytes.ReplaceAll(record, []byte(`"devX"`), []byte(`"dev1"`))
		if err := unix.Setxattr(dir, cgroup.RecordAttribute, record, 0); err != nil {
			n.t.Fatal(err)
		}
	},
}

// Ways in which a ledger is lost.
var ledgerFaults = map[string]func(n *node){
	"removed": func(n *node) {
		if err := os.RemoveAll(filepath.Join(n.root, "state")); err != nil {
			n.t.Fatal(err)
		}
	},
	"overwritten": func(n *node) {
		path := filepath.Join(n.root, "state", "ledger.db")
		if err := os.WriteFile(path, bytes.Repeat([]byte("damaged "), 8<<10), 0o600); err != nil {
			n.t.Fatal(err)
		}
	},
}

// alive sends the pods as the only living ones.
func (d *daemon) alive(uids ...string) {
	d.t.Helper()
	if _, err := d.admission.SyncPods(d.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: uids, KnownRevision: d.revision()}); err != nil {
		d.t.Fatal(err)
	}
}

// rests waits until a pass has seen what was bound again, and then checks everything.
func (d *daemon) rests() {
	d.t.Helper()
	d.eventually("a pass has nothing to tell", func() bool {
		check, err := d.inspect.Check(d.ctx(), &inspectv1.CheckRequest{})
		return err == nil && len(check.GetFindings()) == 0
	})
	d.check()
}

// cases are those of the start report by uid.
func (d *daemon) cases() map[string]*inspectv1.PodCase {
	d.t.Helper()
	report, err := d.inspect.GetStartReport(d.ctx(), &inspectv1.GetStartReportRequest{})
	if err != nil {
		d.t.Fatal(err)
	}
	out := map[string]*inspectv1.PodCase{}
	for _, p := range report.GetPods() {
		out[p.GetUid()] = p
	}
	return out
}

func (p *process) alive() bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid()))
	return err == nil && len(line) > 0 // empty: it is a zombie
}

func runsWith(id string) []*admissionv1.RunningAllocation {
	return []*admissionv1.RunningAllocation{{
		ContainerName: "main", Devices: []*admissionv1.RunningDevices{{Resource: gpu, Ids: []string{id}}},
	}}
}

// TestLivingPodsKeepTheirDevices loses the ledger under two pods that run, in several
// ways: in any order of admission afterwards, each keeps its device.
func TestLivingPodsKeepTheirDevices(t *testing.T) {
	t.Parallel()
	for record, spoil := range recordFaults {
		for lost, lose := range ledgerFaults {
			t.Run(record+"/"+lost, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				n.needKernel()
				n.configure("cgroups: {reconcilePeriod: 20ms}\nverdicts: {deferred: true}\n")
				d := n.start()
				plugin, _ := n.runPlugin(script.Config{Resource: gpu, PreStart: true}, "dev0,dev1")
				d.expectDevices(2)
				d.admitted(withDevice("pb", gpu))
				d.admitted(withDevice("pa", gpu))
				devices := map[string]string{"pa": "dev1", "pb": "dev0"}
				holds := func() {
					t.Helper()
					for uid, id := range devices {
						if got := d.devicesOf(uid, gpu); !slices.Equal(got, []string{id}) {
							t.Errorf("pod %s holds %q, its container uses %s", uid, got, id)
						}
					}
				}
				if got := d.devicesOf("pb", gpu); got[0] != "dev0" {
					devices["pa"], devices["pb"] = "dev0", "dev1"
				}
				holds()
				pa, pb := n.stopped(), n.stopped()
				d.run(pa, "pa", "main", "ca")
				d.run(pb, "pb", "main", "cb")
				n.recorded("pa", "ca")
				n.recorded("pb", "cb")
				d.kill()
				lose(n)
				spoil(n, "pa")
				spoil(n, "pb")
				d = n.start()
				d.expectDevices(2)
				if !pa.alive() || !pb.alive() {
					t.Fatal("a living pod was killed before the agent said who lives")
				}
				if c := d.cases(); !c["pa"].GetWaits() || !c["pb"].GetLiving() {
					t.Errorf("cases %v", c)
				}
				if v := d.admit(withDevice("pc", gpu)); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
					t.Fatalf("another pod got %q", d.devicesOf("pc", gpu))
				}
				d.alive("pa", "pb")
				for _, uid := range []string{"pb", "pa"} {
					if record == "whole" {
						d.admitted(withDevice(uid, gpu))
						continue
					}
					v := d.admit(withDevice(uid, gpu))
					if v.GetVerdict() != admissionv1.Verdict_VERDICT_DEFERRED || v.GetCondition().GetReason() != "UnknownDevices" ||
						!strings.Contains(v.GetMessage(), "running_allocations") {
						t.Fatalf("pod %s, whose devices nobody knows: %s %s", uid, v.GetVerdict(), v.GetMessage())
					}
					resp, err := d.admission.Admit(n.ctx(),
						&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: withDevice(uid, gpu)},
							RunningAllocations: runsWith(devices[uid])})
					if err != nil || resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
						t.Fatalf("pod %s with what it holds: %v %s", uid, err, resp.GetMessage())
					}
				}
				holds()
				if !pa.alive() || !pb.alive() {
					t.Fatal("a living pod was killed")
				}
				if v := d.admit(withDevice("pc", gpu)); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
					t.Fatalf("another pod got %q", d.devicesOf("pc", gpu))
				}
				// Binding a container again that runs does not reset its device.
				before := len(plugin.Calls(script.PreStart))
				d.run(pb, "pb", "main", "cb")
				if calls := plugin.Calls(script.PreStart); before != 2 || len(calls) != before {
					t.Errorf("the plugin was told that a running container starts: %v", calls)
				}
				d.remove("pa")
				if pa.alive() {
					t.Error("the process of a removed pod lives")
				}
				d.admitted(withDevice("pc", gpu))
				if got := d.devicesOf("pc", gpu); !slices.Equal(got, []string{devices["pa"]}) {
					t.Errorf("pod pc got %q, free is %s", got, devices["pa"])
				}
				holds2 := d.devicesOf("pb", gpu)
				if !slices.Equal(holds2, []string{devices["pb"]}) {
					t.Errorf("pod pb holds %q", holds2)
				}
				d.rests()
			})
		}
	}
}

// TestSharersKeepOffLivingCPUs loses the ledger under a pod with a CPU of its own and
// one that shares: from the first moment the shared pool lacks that CPU.
func TestSharersKeepOffLivingCPUs(t *testing.T) {
	t.Parallel()
	for _, record := range []string{"whole", "missing"} {
		t.Run(record, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.needKernel()
			n.configure("cgroups: {reconcilePeriod: 20ms}\nverdicts: {deferred: true}\n")
			d := n.start()
			d.admitted(guaranteed("own", 1, 0))
			d.admitted(burstable("shared"))
			own, shared := n.stopped(), n.stopped()
			d.run(own, "own", "main", "co")
			d.run(shared, "shared", "main", "cs")
			mine := own.allowed()
			if mine.Len() != 1 || shared.allowed().Overlaps(mine) {
				t.Fatalf("CPUs %s and %s", mine, shared.allowed())
			}
			n.recorded("own", "co")
			n.recorded("shared", "cs")
			d.kill()
			ledgerFaults["overwritten"](n)
			recordFaults[record](n, "own")
			recordFaults[record](n, "shared")
			d = n.start()
			d.admitted(burstable("shared"))
			d.admitted(burstable("more"))
			for _, uid := range []string{"shared", "more"} {
				set, err := cpuset.Parse(d.pods()[uid].GetContainers()[0].GetCpus().GetList())
				if err != nil || set.IsEmpty() || set.Overlaps(mine) {
					t.Errorf("pod %s shares CPUs %s, of which %s are another's: %v", uid, set, mine, err)
				}
			}
			if v := d.admit(guaranteed("new", 1, 0)); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
				set, _ := cpuset.Parse(d.pods()["new"].GetContainers()[0].GetCpus().GetList())
				if set.Overlaps(mine) {
					t.Errorf("another pod got CPUs %s", set)
				}
				d.remove("new")
			}
			if got := own.allowed(); got != mine || shared.allowed().Overlaps(mine) {
				t.Errorf("it runs on %s and not %s any more; the sharer on %s", got, mine, shared.allowed())
			}
			d.alive("own", "shared", "more")
			d.admitted(guaranteed("own", 1, 0))
			if got := d.pods()["own"].GetContainers()[0].GetCpus().GetList(); got != mine.String() {
				t.Errorf("it got CPUs %s, and runs on %s", got, mine)
			}
			d.run(own, "own", "main", "co") // as an agent does that has lost count
			d.run(shared, "shared", "main", "cs")
			if got := own.allowed(); got != mine || shared.allowed().Overlaps(mine) {
				t.Errorf("bound again it runs on %s and not %s; the sharer on %s", got, mine, shared.allowed())
			}
			d.rests()
		})
	}
}

// olderCopy kills a daemon and puts back a copy of the ledger from before pods between and
// alive came. The second has a process, on CPUs of its own. Pod before is in the copy.
func (n *node) olderCopy(then func(*daemon)) (*process, cpuset.Set) {
	n.t.Helper()
	d := n.start()
	d.admitted(burstable("before"))
	d.stop()
	path := filepath.Join(n.root, "state", "ledger.db")
	copied, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	d = n.start()
	d.admitted(burstable("between"))
	d.admitted(guaranteed("alive", 1, 0))
	then(d)
	p := n.stopped()
	d.run(p, "alive", "main", "c")
	mine := p.allowed()
	d.kill()
	if err := os.WriteFile(path, copied, 0o600); err != nil {
		n.t.Fatal(err)
	}
	return p, mine
}

// TestOlderCopyOfTheLedger puts an older copy of the ledger back: what has come since
// lives on, and the ledger begins another epoch.
func TestOlderCopyOfTheLedger(t *testing.T) {
	t.Parallel()
	for _, record := range []string{"whole", "missing", "damaged"} {
		t.Run(record, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.needKernel()
			n.configure("cgroups: {reconcilePeriod: 20ms}\nverdicts: {deferred: true}\n")
			p, mine := n.olderCopy(func(d *daemon) { d.remove("between") })
			recordFaults[record](n, "alive")
			d := n.start()
			if !p.alive() {
				t.Fatal("a living pod was killed before the agent said who lives")
			}
			report, err := d.inspect.GetStartReport(n.ctx(), &inspectv1.GetStartReportRequest{})
			if err != nil || !report.GetOlderCopy() {
				t.Errorf("older copy: %t, %v", report.GetOlderCopy(), err)
			}
			if c := d.cases()["alive"]; !c.GetWaits() || !c.GetLiving() {
				t.Errorf("case %v", c)
			}
			// Two rounds of the sweep pass: what is empty goes, what lives stays.
			n.foreignPod(t, "orphan")
			n.eventually("an empty cgroup is swept", func() bool { return !n.podCgroups()["orphan"] })
			if !p.alive() {
				t.Fatal("a living pod was swept before the agent said who lives")
			}
			d.alive("before", "alive")
			d.admitted(guaranteed("alive", 1, 0))
			if got := d.pods()["alive"].GetContainers()[0].GetCpus().GetList(); got != mine.String() || p.allowed() != mine {
				t.Errorf("it got CPUs %s, and runs on %s of %s", got, p.allowed(), mine)
			}
			d.run(p, "alive", "main", "c")
			d.rests()
			// The next start finds ledger and claim records in one epoch.
			d.kill()
			d = n.start()
			if c := d.cases()["alive"]; c.GetFound() != string(recovery.Agrees) {
				t.Errorf("case %v", c)
			}
		})
	}
}

// TestCopyOlderByOneCommit puts back a copy of the ledger that lacks the last commit
// alone: an admission that the agent has heard of. The pod, which has no process yet, is
// not taken for an unacknowledged one.
func TestCopyOlderByOneCommit(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	n.configure("verdicts: {deferred: true}\n")
	d := n.start()
	d.admitted(burstable("before"))
	d.stop()
	path := filepath.Join(n.root, "state", "ledger.db")
	copied, err := os.ReadFile(path)
	if err != nil {
		n.t.Fatal(err)
	}
	d = n.start()
	before := d.pods()["before"]
	d.admitted(guaranteed("alive", 1, 0))
	mine := d.pods()["alive"].GetContainers()[0].GetCpus().GetList()
	d.kill()
	if err := os.WriteFile(path, copied, 0o600); err != nil {
		n.t.Fatal(err)
	}
	d = n.start()
	report, err := d.inspect.GetStartReport(n.ctx(), &inspectv1.GetStartReportRequest{})
	if err != nil || !report.GetOlderCopy() {
		t.Errorf("older copy: %t, %v", report.GetOlderCopy(), err)
	}
	if c := d.cases()["alive"]; !c.GetWaits() || !n.podCgroups()["alive"] {
		t.Errorf("case %v, cgroup %t", c, n.podCgroups()["alive"])
	}
	d.admitted(guaranteed("alive", 1, 0))
	if got := d.pods()["alive"].GetContainers()[0].GetCpus().GetList(); got != mine || before == nil {
		t.Errorf("it got CPUs %s, and had %s", got, mine)
	}
	// The next start finds one epoch.
	d.kill()
	d = n.start()
	report, err = d.inspect.GetStartReport(n.ctx(), &inspectv1.GetStartReportRequest{})
	if c := d.cases()["alive"]; err != nil || report.GetOlderCopy() || c.GetFound() != string(recovery.Agrees) {
		t.Errorf("case %v, older copy %t, %v", c, report.GetOlderCopy(), err)
	}
}

// TestClaimRecordsFollow: a claim record comes with the admission, follows what happens
// to the pod, and is written again where it was lost or changed.
func TestClaimRecordsFollow(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.needKernel()
	n.configure("cgroups: {reconcilePeriod: 20ms}\n")
	d := n.start()
	d.admitted(limited("a", "100m", "32Mi"))
	dir, first := n.record("a")
	if first == nil || !json.Valid(first) || !bytes.Contains(first, []byte(`"name":"a"`)) {
		t.Fatalf("record %q", first)
	}
	if _, err := d.admission.Resize(n.ctx(), berth.ResizeTo(limited("a", "200m", "48Mi"))); err != nil {
		t.Fatal(err)
	}
	_, resized := n.record("a")
	if bytes.Equal(first, resized) {
		t.Errorf("the record did not follow a resize: %q", resized)
	}
	p := n.stopped()
	d.run(p, "a", "main", "the-id")
	n.recorded("a", "the-id")
	_, whole := n.record("a")
	for _, spoil := range []string{"missing", "damaged"} {
		recordFaults[spoil](n, "a")
		n.eventually("a record that is "+spoil+" is written again", func() bool {
			_, record := n.record("a")
			return bytes.Equal(record, whole)
		})
	}
	// An admission that fails leaves none behind.
	if v := d.admit(guaranteed("large", 64, 0)); v.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatal("admitted")
	}
	if dir, record := n.record("large"); record != nil {
		t.Errorf("a rejected pod has a record in %s", dir)
	}
	d.remove("a")
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", dir, err)
	}
}

// TestCrashAroundTheRecord kills berthd before and after a pod's claim record is
// written, and in the middle of a recovery: the admission was not acknowledged, so nothing
// of it stays, and what lives stays.
func TestCrashAroundTheRecord(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"reconcile/before-record", "reconcile/after-record", "store/before-commit"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.needKernel()
			d := n.start()
			d.admitted(burstable("first")) // of the new ledger the commits are counted alike
			d.stop()
			d = n.start("--failpoint", point+":kill")
			_, err := d.admission.Admit(n.ctx(),
				&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed("a", 1, 0)}})
			if err == nil {
				t.Fatal("it was not killed")
			}
			<-d.Ended
			d = n.start()
			if _, here := d.pods()["a"]; here || n.podCgroups()["a"] {
				t.Errorf("pod a is there (%t), or its cgroup", here)
			}
			d.admitted(guaranteed("a", 1, 0))
			d.check()
		})
	}
	for _, point := range []string{"store/before-commit", "app/after-recovery"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.needKernel()
			n.configure("cgroups: {reconcilePeriod: 20ms}\n")
			p, mine := n.olderCopy(func(*daemon) {})
			d := n.launch("--failpoint", point+":kill")
			<-d.Ended
			d = n.start()
			if c := d.cases()["alive"]; !c.GetWaits() || !p.alive() {
				t.Errorf("case %v, alive %t", c, p.alive())
			}
			d.alive("before", "alive")
			d.admitted(guaranteed("alive", 1, 0))
			if got := d.pods()["alive"].GetContainers()[0].GetCpus().GetList(); got != mine.String() {
				t.Errorf("it got CPUs %s, and runs on %s", got, mine)
			}
			d.run(p, "alive", "main", "c")
			d.rests()
		})
	}
}

// TestClaimRecordsInFiles: where the cgroups are not the kernel's, the records are files,
// and a pod that was admitted outlives the loss of the ledger all the same.
func TestClaimRecordsInFiles(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--cgroup-tree", "memory")
	n.kernel = false
	d := n.start()
	d.plugin("dev0,dev1")
	d.admitted(withDevice("pa", gpu))
	d.admitted(guaranteed("pb", 1, 0))
	want := d.devicesOf("pa", gpu)
	cpus := d.pods()["pb"].GetContainers()[0].GetCpus().GetList()
	dir := filepath.Join(n.root, "claims")
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("%v %v", info, err)
	}
	d.kill()
	ledgerFaults["removed"](n)
	d = n.start()
	d.plugin("dev0,dev1")
	if c := d.cases(); !c["pa"].GetWaits() || c["pa"].GetSource() != inspectv1.PodSource_POD_SOURCE_CLAIM_RECORD {
		t.Errorf("cases %v", c)
	}
	d.alive("pa", "pb")
	d.admitted(guaranteed("pb", 1, 0))
	d.admitted(withDevice("pa", gpu))
	if got := d.devicesOf("pa", gpu); !slices.Equal(got, want) || d.pods()["pb"].GetContainers()[0].GetCpus().GetList() != cpus {
		t.Errorf("devices %q, CPUs %s; want %q and %s", got, d.pods()["pb"].GetContainers()[0].GetCpus(), want, cpus)
	}
	for _, uid := range []string{"pa", "pb"} {
		d.remove(uid)
	}
	d.check()
	d.stop()
	boot, err := os.ReadFile(filepath.Join(dir, ".boot"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := claimfiles.Open(dir, string(boot))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if names, err := files.Names(); err != nil || len(names) > 0 {
		t.Errorf("records are left: %v, %v", names, err)
	}
}

// TestRevisionsAfterAnOlderCopy: a revision that was read before an older copy of the
// ledger was put back is never one of what follows: a Watch from it is refused.
func TestRevisionsAfterAnOlderCopy(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--cgroup-tree", "memory")
	n.kernel = false
	d := n.start()
	d.admitted(burstable("first"))
	d.stop()
	path := filepath.Join(n.root, "state", "ledger.db")
	copied, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d = n.start()
	for _, uid := range []string{"a", "b", "c"} {
		d.admitted(burstable(uid))
	}
	revision := func() uint64 {
		resp, err := d.allocation.GetRevision(n.ctx(), &allocationv1.GetRevisionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return resp.GetRevision()
	}
	before := revision()
	d.kill()
	if err := os.WriteFile(path, copied, 0o600); err != nil {
		t.Fatal(err)
	}
	d = n.start()
	if now := revision(); now <= before {
		t.Errorf("revision %d after %d", now, before)
	}
	stream, err := d.allocation.Watch(n.ctx(), &allocationv1.WatchRequest{FromRevision: before})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.OutOfRange {
		t.Errorf("watch from a revision of before: %v", err)
	}
}

// TestClaimsDirectoryGoes: the claim records and the mark of the last commit survive the removal
// of their directory while berthd runs, and so the loss of the ledger after it.
func TestClaimsDirectoryGoes(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--cgroup-tree", "memory")
	n.env = append(n.env, probesOften+"=1")
	n.kernel = false
	d := n.start()
	d.admitted(guaranteed("before", 1, 0))
	if err := os.RemoveAll(filepath.Join(n.root, "claims")); err != nil {
		t.Fatal(err)
	}
	d.admitted(burstable("after"))
	if _, err := os.Stat(filepath.Join(n.root, "claims", ".last-commit")); err != nil {
		t.Error(err)
	}
	d.says("is made again")
	d.kill()
	boot, err := os.ReadFile(filepath.Join(n.root, "claims", ".boot"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := claimfiles.Open(filepath.Join(n.root, "claims"), string(boot))
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if names, err := files.Names(); err != nil || len(names) != 2 {
		t.Errorf("records of %q, %v; want those of both pods", names, err)
	}
}
