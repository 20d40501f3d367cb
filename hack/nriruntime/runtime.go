package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	nri "github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

// runtime has the pods and the containers.
type runtime struct {
	nri          *nri.Adaptation
	synchronized chan struct{}
	once         sync.Once

	events  sync.Mutex // held over each event and each request, before mu and before NRI's own lock
	listens bool       // guarded by events

	mu                           sync.Mutex // guards the fields below
	sandboxes                    map[string]*api.PodSandbox
	stored                       map[string]*container
	started, repeated, requested int
	answered                     int
	overlaps                     []string
}

// container is a container of the store.
type container struct {
	*api.Container
	pod  *api.PodSandbox
	own  bool   // it has CPUs of its own
	cpus string // of its cgroup
	cmd  *exec.Cmd
}

func newRuntime() *runtime {
	return &runtime{synchronized: make(chan struct{}), sandboxes: map[string]*api.PodSandbox{}, stored: map[string]*container{}}
}

func (r *runtime) pods() (out []*api.PodSandbox) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.sandboxes {
		out = append(out, p)
	}
	return out
}

func (r *runtime) containers() (out []*api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.stored {
		out = append(out, c.Container)
	}
	return out
}

// apply carries out updates, of containers that are stored.
func (r *runtime) apply(updates []*nri.ContainerUpdate, count *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range updates {
		cpus, c := u.GetLinux().GetResources().GetCpu().GetCpus(), r.stored[u.GetContainerId()]
		if c == nil || cpus == "" {
			continue
		}
		if count != nil {
			*count++
		}
		c.cpus = cpus
		if c.cmd != nil {
			pin(c.cmd.Process.Pid, cpus)
		}
	}
	r.check()
}

// shown limits the overlaps in the report.
const shown = 10

// check notes the processes that may run on the CPUs of a container with CPUs of its own. The caller holds mu.
func (r *runtime) check() {
	for _, owner := range r.stored {
		if !owner.own || owner.cmd == nil {
			continue
		}
		own := affinity(owner.cmd.Process.Pid)
		for _, c := range r.stored {
			if c == owner || c.cmd == nil {
				continue
			}
			theirs := affinity(c.cmd.Process.Pid)
			for cpu := range goruntime.NumCPU() * 2 {
				if own.IsSet(cpu) && theirs.IsSet(cpu) && len(r.overlaps) < shown {
					r.overlaps = append(r.overlaps, fmt.Sprintf("%s runs on CPU %d of %s", c.Id, cpu, owner.Id))
				}
			}
		}
	}
}

func affinity(pid int) (set unix.CPUSet) {
	_ = unix.SchedGetaffinity(pid, &set) // one that has ended is on none
	return set
}

// pin sets the CPUs of a process.
func pin(pid int, list string) {
	var set unix.CPUSet
	for part := range strings.SplitSeq(list, ",") {
		first, last, ok := strings.Cut(part, "-")
		low, _ := strconv.Atoi(first)
		high := low
		if ok {
			high, _ = strconv.Atoi(last)
		}
		for cpu := low; cpu <= high; cpu++ {
			set.Set(cpu)
		}
	}
	_ = unix.SchedSetaffinity(pid, &set) // it may have ended
}

// spawn starts a process that begins on some CPUs.
func spawn(cpus string) *exec.Cmd {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	before := affinity(0)
	if cpus != "" {
		pin(0, cpus)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	cmd := exec.Command("/proc/self/exe")
	if _, err := cmd.StdinPipe(); err != nil {
		panic(err)
	}
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	return cmd
}

// again is the pause before a refused call is repeated, or a look at what has come. A kubelet waits longer.
const again = 5 * time.Millisecond

// start makes a pod and its container, and repeats what is refused.
func (r *runtime) start(worker, round int) *container {
	pod := podOf(worker, round)
	for r.event(func(ctx context.Context) error { return r.nri.RunPodSandbox(ctx, &nri.RunPodSandboxRequest{Pod: pod}) }) != nil {
		time.Sleep(again)
	}
	r.mu.Lock()
	r.sandboxes[pod.Id] = pod
	r.mu.Unlock()
	for attempt := 0; ; attempt++ {
		c := &container{pod: pod, own: worker == 0, Container: &api.Container{
			Id: fmt.Sprintf("%s-%d", pod.Name, attempt), PodSandboxId: pod.Id, Name: "main", State: api.ContainerState_CONTAINER_CREATED,
			Linux: &api.LinuxContainer{Resources: resourcesOf(worker), CgroupsPath: pod.Linux.CgroupParent + "/" + fmt.Sprint(attempt)},
		}}
		if r.create(c) == nil {
			if r.begin(c) == nil {
				return c
			}
			r.end(c)
		}
		r.mu.Lock()
		r.repeated++
		r.mu.Unlock()
		time.Sleep(again)
	}
}

// create makes a container. It is stored after the event.
func (r *runtime) create(c *container) error {
	err := r.event(func(ctx context.Context) error {
		answer, err := r.nri.CreateContainer(ctx, &nri.CreateContainerRequest{Pod: c.pod, Container: c.Container})
		if err == nil {
			c.cpus = answer.GetAdjust().GetLinux().GetResources().GetCpu().GetCpus()
			r.apply(answer.GetUpdate(), &r.answered)
		}
		return err
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.stored[c.Id] = c
	r.mu.Unlock()
	return r.event(func(ctx context.Context) error {
		return r.nri.PostCreateContainer(ctx, &nri.PostCreateContainerRequest{Pod: c.pod, Container: c.Container})
	})
}

// begin starts a container. Its CPUs are read before it has a process.
func (r *runtime) begin(c *container) error {
	err := r.event(func(ctx context.Context) error {
		return r.nri.StartContainer(ctx, &nri.StartContainerRequest{Pod: c.pod, Container: c.Container})
	})
	if err != nil {
		return err
	}
	r.mu.Lock()
	cpus := c.cpus
	r.mu.Unlock()
	cmd := spawn(cpus)
	r.mu.Lock()
	c.cmd = cmd
	c.Container = &api.Container{Id: c.Id, PodSandboxId: c.PodSandboxId, Name: c.Name, Linux: c.Linux, Pid: uint32(cmd.Process.Pid),
		State: api.ContainerState_CONTAINER_RUNNING}
	r.started++
	r.check()
	r.mu.Unlock()
	return r.event(func(ctx context.Context) error {
		return r.nri.PostStartContainer(ctx, &nri.PostStartContainerRequest{Pod: c.pod, Container: c.Container})
	})
}

// end ends a container, which may not have started.
func (r *runtime) end(c *container) {
	if c.cmd != nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
	r.mu.Lock()
	delete(r.stored, c.Id)
	r.mu.Unlock()
	r.must("StopContainer", func(ctx context.Context) error {
		answer, err := r.nri.StopContainer(ctx, &nri.StopContainerRequest{Pod: c.pod, Container: c.Container})
		r.apply(answer.GetUpdate(), &r.answered)
		return err
	})
	r.must("RemoveContainer", func(ctx context.Context) error {
		return r.nri.RemoveContainer(ctx, &nri.RemoveContainerRequest{Pod: c.pod, Container: c.Container})
	})
}

// stop ends a pod.
func (r *runtime) stop(c *container) {
	r.end(c)
	r.must("StopPodSandbox", func(ctx context.Context) error {
		return r.nri.StopPodSandbox(ctx, &nri.StopPodSandboxRequest{Pod: c.pod})
	})
	r.must("RemovePodSandbox", func(ctx context.Context) error {
		return r.nri.RemovePodSandbox(ctx, &nri.RemovePodSandboxRequest{Pod: c.pod})
	})
	r.mu.Lock()
	delete(r.sandboxes, c.pod.Id)
	r.mu.Unlock()
}

// must is an event that no plugin refuses.
func (r *runtime) must(what string, call func(context.Context) error) {
	if err := r.event(call); err != nil {
		fmt.Fprintln(os.Stderr, what, err)
		os.Exit(1)
	}
}

func (r *runtime) report() report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := report{Pods: r.started, Repeated: r.repeated, Unsolicited: r.requested, Answered: r.answered, Overlaps: r.overlaps}
	for _, c := range r.stored {
		if c.cmd != nil {
			out.Left = append(out.Left, c.cmd.Process.Pid)
		}
	}
	return out
}
