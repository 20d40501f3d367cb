package bench

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
	"github.com/berthd/berth/server/internal/reconcile"
	"github.com/berthd/berth/server/internal/runtime"
)

// scripted is a runtime whose containers' cgroups are the kernel's. It keeps the time in which
// at least one of its updates was in progress.
type scripted struct {
	tree cgroup.Tree
	all  map[string]runtime.Container // by id
	uids map[string]bool              // of the pods, which have sandboxes

	mu    sync.Mutex // guards what is below
	busy  int
	since time.Time
	took  time.Duration
}

// working notes that an update begins, or ends.
func (s *scripted) working(more int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.busy > 0 {
		s.took += now.Sub(s.since)
	}
	s.busy += more
	s.since = now
}

func (s *scripted) List(_ context.Context, ids ...string) (out []runtime.Container, err error) {
	if len(ids) == 0 {
		return slices.Collect(maps.Values(s.all)), nil
	}
	for _, id := range ids {
		if c, ok := s.all[id]; ok {
			out = append(out, c)
		}
	}
	return out, nil
}

func (s *scripted) Sandboxes(_ context.Context, pods ...string) (out []runtime.Sandbox, err error) {
	if len(pods) == 0 {
		pods = slices.Collect(maps.Keys(s.uids))
	}
	for _, uid := range pods {
		out = append(out, runtime.Sandbox{ID: uid + "-sandbox", Pod: uid, Ready: s.uids[uid]})
	}
	return out, nil
}

func (s *scripted) Update(ctx context.Context, id string, v cgroup.Values) error {
	s.working(1)
	defer s.working(-1)
	if c, ok := s.all[id]; ok {
		_, err := s.tree.Ensure(ctx, cgroup.Node{Name: c.Cgroup, Values: v})
		return err
	}
	return nil
}

// shared is a node with containers that share its CPUs.
type shared struct {
	b       *testing.B
	ledger  *ledger.Ledger
	loop    *reconcile.Loop
	tree    *cgroupfs.Driver
	layout  cgroup.Layout
	runtime *scripted // nil where the cgroups are berthd's
}

func newShared(b *testing.B, containers int, beside bool) *shared {
	b.Helper()
	tree, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		b.Skipf("no usable tree: %v", err)
	}
	b.Cleanup(func() { tree.Close() })
	root := cgroup.Name{fmt.Sprintf("berthbench-leave-%d", os.Getpid())}
	layout, err := cgroup.NewLayout(root.String(), tree.Facts().Driver)
	if err != nil {
		b.Fatal(err)
	}
	s := &shared{b: b, tree: tree, layout: layout, ledger: ledgertest.New(b, ledger.Rules{Machine: machinetest.Build("2c")})}
	config := reconcile.Config{
		Tree: tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(tree.Facts())}},
		View: s.ledger.View, Log: slog.New(slog.DiscardHandler),
	}
	if beside {
		s.runtime = &scripted{tree: tree, all: map[string]runtime.Container{}, uids: map[string]bool{}}
		config.Runtime = s.runtime
	}
	s.loop = reconcile.New(config)
	s.update(func(d *ledger.Draft) {
		for i := range containers {
			p := ledgertest.Pod(fmt.Sprint("p", i), "c")
			p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
			p.Pod.Containers[0].Requests = workload.Quantities{workload.CPU: 1, workload.Memory: 1 << 20}
			d.PutPod(p)
		}
	})
	b.Cleanup(func() {
		if err := tree.Remove(context.WithoutCancel(b.Context()), root); err != nil {
			b.Error(err)
		}
	})
	if err := s.loop.Pass(b.Context()); err != nil {
		b.Skipf("the tree cannot be written to: %v", err)
	}
	for i := range containers {
		uid := fmt.Sprint("p", i)
		s.start(uid, "id-"+uid)
	}
	if err := s.loop.Pass(b.Context()); err != nil {
		b.Fatal(err)
	}
	return s
}

func (s *shared) update(change func(*ledger.Draft)) {
	s.b.Helper()
	if _, err := s.ledger.Update(s.b.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
		s.b.Fatal(err)
	}
}

// start starts the container of a pod, as the engine does.
func (s *shared) start(uid, id string) {
	s.b.Helper()
	owner := ledger.Owner{Pod: uid, Container: "c"}
	if s.runtime != nil {
		pod, err := s.layout.Pod(workload.Burstable, uid)
		if err != nil {
			s.b.Fatal(err)
		}
		if uid == "own" {
			pod, _ = s.layout.Pod(workload.Guaranteed, uid)
		}
		s.runtime.all[id] = runtime.Container{ID: id, Owner: owner, Phase: runtime.Running, Cgroup: append(pod, id)}
		s.runtime.uids[uid] = true
		if _, err := s.tree.Ensure(s.b.Context(), cgroup.Node{Name: append(pod, id)}); err != nil {
			s.b.Fatal(err)
		}
	}
	path, err := s.loop.EnsureContainer(s.b.Context(), s.ledger.View(), admission.Start{Binding: ledger.Binding{ID: id, Owner: owner}})
	if err != nil {
		s.b.Fatal(err)
	}
	s.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: id, Owner: owner, CgroupPath: path, Own: path != ""}) })
}

// BenchmarkPlacement measures, with 10, 100 and 500 containers that share the CPUs: "leave",
// from the commit of an exclusive pod to the answer of its PreStartContainer, when the last
// of them has left its CPU ("update" are the runtime's own calls in that time, "bare" is
// a write of the same files and nothing else, "beyond" is the rest: processor time, which does
// not grow with other processes on the machine, unless a runtime's calls are in it); "free",
// the same start without other containers; "event", following one container's start;
// "rest", the processor time of a pass where nothing has changed ("times" is how often that of
// bare reads of the same files fits in, "observe" that of reading the tree).
func BenchmarkPlacement(b *testing.B) {
	for _, part := range []struct {
		name string
		do   func(*shared, *testing.B)
	}{{"leave", (*shared).leave}, {"free", (*shared).free}, {"event", (*shared).event}, {"rest", (*shared).rest}} {
		for _, beside := range []bool{false, true} {
			who := map[bool]string{false: "kernel", true: "cri"}[beside]
			for _, containers := range []int{10, 100, 500} {
				b.Run(fmt.Sprintf("%s, %s/%d/berth", part.name, who, containers), func(b *testing.B) {
					part.do(newShared(b, containers, beside), b)
				})
			}
		}
	}
}

// ask calls PreStart for the container of the exclusive pod.
func (s *shared) ask() {
	s.b.Helper()
	start := admission.Start{Binding: ledger.Binding{ID: "own1", Owner: ledger.Owner{Pod: "own", Container: "c"}}}
	if _, err := s.loop.EnsureContainer(s.b.Context(), s.ledger.View(), start); err != nil {
		s.b.Fatal(err)
	}
}

// own admits a pod with CPU 1 for itself, and starts its container.
func (s *shared) own() {
	s.update(func(d *ledger.Draft) {
		d.PutPod(ledgertest.With(ledgertest.Pod("own", "c"), ledgertest.Exclusive("c", "1")))
	})
}

func (s *shared) leave(b *testing.B) {
	write := s.bareWrites()
	var update, bare, bareWork, asked, work time.Duration
	for b.Loop() {
		b.StopTimer()
		if s.runtime == nil {
			start := time.Now()
			bareWork += cpuTime(func() { write("0") })
			bare += time.Since(start)
			write("0-1")
		}
		s.own()
		view := s.ledger.View()
		if _, _, err := s.loop.EnsurePod(b.Context(), view, "own"); err != nil {
			b.Fatal(err)
		}
		if s.runtime != nil {
			s.runtime.took = 0
		}
		b.StartTimer()
		start := time.Now()
		work += cpuTime(s.ask)
		asked += time.Since(start)
		b.StopTimer()
		if s.runtime != nil {
			update += s.runtime.took
		}
		if err := s.loop.RemovePod(b.Context(), view, "own"); err != nil {
			b.Fatal(err)
		}
		s.update(func(d *ledger.Draft) { d.RemovePod("own") })
		if err := s.loop.Follow(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	per := func(d time.Duration) float64 { return float64(d) / float64(b.N) }
	if s.runtime == nil {
		b.ReportMetric(per(bare), "bare-ns")
		b.ReportMetric(per(work-bareWork), "beyond-ns")
	} else {
		b.ReportMetric(per(update), "update-ns")
		b.ReportMetric(per(asked-update), "beyond-ns")
	}
}

func (s *shared) free(b *testing.B) {
	s.own()
	if _, _, err := s.loop.EnsurePod(b.Context(), s.ledger.View(), "own"); err != nil {
		b.Fatal(err)
	}
	s.ask()
	for b.Loop() {
		s.ask()
	}
}

// bareWrites gives what writes CPUs to the cgroups of all containers, and does nothing else:
// each file is opened through its directory, which is open already, written at once and closed.
func (s *shared) bareWrites() func(cpus string) {
	var dirs []int
	mount := "/sys/fs/cgroup/cpuset"
	if s.tree.Facts().Version == cgroup.V2 {
		mount = "/sys/fs/cgroup"
	}
	for binding := range s.ledger.View().Bindings() {
		if !binding.Own {
			continue
		}
		dir, err := unix.Open(mount+s.layout.Driver().Parse(binding.CgroupPath).ToCgroupfs(),
			unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			s.b.Fatal(err)
		}
		s.b.Cleanup(func() { _ = unix.Close(dir) })
		dirs = append(dirs, dir)
	}
	return func(cpus string) {
		for _, dir := range dirs {
			fd, err := unix.Openat(dir, "cpuset.cpus", unix.O_WRONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				_, err = unix.Write(fd, []byte(cpus))
				_ = unix.Close(fd)
			}
			if err != nil {
				s.b.Fatal(err)
			}
		}
	}
}

func (s *shared) event(b *testing.B) {
	n := 0
	for b.Loop() {
		b.StopTimer()
		n++
		s.update(func(d *ledger.Draft) {
			p := ledgertest.Pod(fmt.Sprint("event", n), "c")
			p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
			d.PutPod(p)
			d.RemovePod(fmt.Sprint("event", n-1))
		})
		uid := fmt.Sprint("event", n)
		pod, err := s.layout.Pod(workload.Burstable, uid)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.loop.Follow(b.Context()); err != nil { // as after its admission
			b.Fatal(err)
		}
		s.start(uid, "id-"+uid)
		b.StartTimer()
		if err := s.loop.Follow(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if s.runtime != nil {
			delete(s.runtime.all, "id-"+uid)
			delete(s.runtime.uids, uid)
		}
		if err := s.tree.Remove(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func (s *shared) rest(b *testing.B) {
	if err := s.loop.Pass(b.Context()); err != nil { // of what the parts before have changed
		b.Fatal(err)
	}
	read := s.bareReads()
	var bare, observed, passed time.Duration
	for b.Loop() {
		b.StopTimer()
		bare += cpuTime(read)
		observed += cpuTime(func() {
			if _, err := s.tree.Observe(b.Context(), s.layout.Pods(), -1); err != nil {
				b.Fatal(err)
			}
		})
		b.StartTimer()
		passed += cpuTime(func() {
			if err := s.loop.Pass(b.Context()); err != nil {
				b.Fatal(err)
			}
		})
	}
	b.ReportMetric(float64(observed)/float64(b.N), "observe-ns")
	b.ReportMetric(float64(passed)/float64(bare), "times")
}

// cpuTime returns the time that the processors of this process have spent in a call. Unlike
// the time of day it does not grow with other processes on the machine.
func cpuTime(do func()) time.Duration {
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			panic(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	do()
	return used() - before
}

// readInAPass are the files of a cgroup that a pass has to know, by hierarchy; those that are
// not there are left out.
var readInAPass = map[string][]string{
	"cpuset":  {"cpuset.cpus", "cpuset.mems", "cpuset.effective_cpus", "cpuset.effective_mems", "cgroup.procs"},
	"pids":    {"pids.max"},
	"cpu":     {"cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us"},
	"memory":  {"memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.usage_in_bytes"},
	"freezer": {"freezer.self_freezing"},
	"unified": {
		"cgroup.controllers", "cpuset.cpus", "cpuset.mems", "cpuset.cpus.effective", "cpuset.mems.effective", "pids.max", "cpu.weight",
		"cpu.max",
		"memory.max", "memory.current", "memory.min", "memory.low", "memory.high", "memory.oom.group", "memory.swap.max", "cgroup.freeze",
		"cgroup.procs",
	},
}

// bareReads gives what reads the same files as a pass does, and nothing else: each is opened
// through its directory, which is open already, read at once and closed.
func (s *shared) bareReads() func() {
	const mount = "/sys/fs/cgroup"
	type open struct {
		dir  int
		file string
	}
	var files []open
	for hierarchy, names := range readInAPass {
		top := mount + "/" + hierarchy
		if s.tree.Facts().Version == cgroup.V2 {
			if top = mount; hierarchy != "unified" {
				continue
			}
		} else if hierarchy == "unified" {
			continue
		}
		err := filepath.WalkDir(top+s.layout.Pods().ToCgroupfs(), func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return err
			}
			dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if err != nil {
				return err
			}
			s.b.Cleanup(func() { _ = unix.Close(dir) })
			for _, name := range names {
				if unix.Faccessat(dir, name, unix.R_OK, 0) == nil {
					files = append(files, open{dir, name})
				}
			}
			return nil
		})
		if err != nil {
			s.b.Fatal(err)
		}
	}
	return func() {
		var buf [4096]byte
		for _, f := range files {
			fd, err := unix.Openat(f.dir, f.file, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err == nil {
				_, err = unix.Read(fd, buf[:])
				_ = unix.Close(fd)
			}
			if err != nil {
				s.b.Fatal(f.file, err)
			}
		}
	}
}
