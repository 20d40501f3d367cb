package policy

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

// valve is a connection to berthd whose answers can be held back.
type valve struct {
	mu     sync.Mutex
	opened sync.Cond
	closed bool
}

func (v *valve) set(closed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = closed
	v.opened.Broadcast()
}

// pass waits until the valve is open.
func (v *valve) pass() {
	v.mu.Lock()
	defer v.mu.Unlock()
	for v.closed {
		v.opened.Wait()
	}
}

// valve connects to berthd through a valve.
func (d *daemon) valve() (*berth.Client, *valve) {
	d.t.Helper()
	v := &valve{}
	v.opened.L = &v.mu
	dir, err := os.MkdirTemp("", "nri") // a test's own may be too long for a socket
	if err != nil {
		d.t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		d.t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", d.config.Listen)
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
			running.Go(func() {
				defer client.Close()
				buffer := make([]byte, 32<<10)
				for {
					n, err := server.Read(buffer)
					if err != nil {
						return
					}
					v.pass()
					if _, err := client.Write(buffer[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	c, err := berth.Dial(d.t.Context(), dir+"/s", berth.Options{})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		v.set(false)
		_ = c.Close()
		_ = l.Close()
		running.Wait()
		_ = os.RemoveAll(dir)
	})
	return c, v
}

// lose makes a call whose answer is lost after berthd has done it.
func lose(t *testing.T, v *valve, call func(context.Context) error, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	v.set(true)
	result := make(chan error, 1)
	go func() { result <- call(ctx) }()
	eventually(t, "berthd has done it", done)
	cancel()
	if err := <-result; err == nil {
		t.Fatal("no error without an answer")
	}
	v.set(false)
}

// TestLostAdmissionIsReleased: berthd has admitted a pod, and the answer was lost. The pod is deleted
// before the kubelet tries again, so no event tells of it.
func TestLostAdmissionIsReleased(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{true, false} {
		d := startBerthd(t)
		c, v := d.valve()
		kubelet := &knows{}
		if whole {
			kubelet.pods = map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}
		}
		e := newEngine(t, Config{Client: c, Kubelet: kubelet})
		job := pod("job", "guaranteed")
		admitted := func() bool { return len(d.uids()) == 1 }
		if whole {
			lose(t, v, func(ctx context.Context) error { return e.policy.RunPodSandbox(ctx, job) }, admitted)
		} else {
			if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			lose(t, v, func(ctx context.Context) error {
				_, _, err := e.policy.CreateContainer(ctx, job, container(job, "main", "job-1", 4000, gib))
				return err
			}, admitted)
			e.end(job)
		}
		e.pushes(2) // the second has asked the kubelet
		if got := d.uids(); len(got) != 0 {
			t.Errorf("whole %v: no pod lives, and berthd has %v", whole, got)
		}
		other := pod("other", "guaranteed")
		if _, err := e.create(other, container(other, "main", "other-1", 4000, gib)); err != nil {
			t.Errorf("whole %v: the next pod: %v", whole, err)
		}
	}
}

// TestLateAdmissionIsReleased: an admission is committed after the list of living pods was sent.
func TestLateAdmissionIsReleased(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	e := newEngine(t, Config{Client: d.Client})
	late := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: specOf("late", "4")}}
	if _, err := d.Admit(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first finds it
		if err := e.policy.push(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if got := d.uids(); len(got) != 0 {
		t.Errorf("no pod lives, and berthd has %v", got)
	}
}

// TestLostResizeIsUndone: berthd has resized a container, and the answer was lost. The runtime was told
// that it failed, and keeps the old size.
func TestLostResizeIsUndone(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	c, v := d.valve()
	e := newEngine(t, Config{Client: c})
	web := pod("web", "burstable")
	w := container(web, "main", "web-1", 500, 0)
	e.run(web, w)
	before := d.revision()
	lose(t, v, func(ctx context.Context) error {
		_, err := e.policy.UpdateContainer(ctx, web, w, size(900, 0, 0))
		return err
	}, func() bool { return d.revision() != before })
	d.expect("the answer was lost", "web-uid.main", "main", 900, 0)
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	d.expect("the runtime has the old size", "web-uid.main", "main", 500, 0)
}

// crowd is a node with many running pods of two containers each.
func crowd(e *engine, n int) (pods []*api.PodSandbox, containers []*api.Container, specs map[string]*typesv1.Pod) {
	specs = map[string]*typesv1.Pod{}
	for i := range n {
		p := pod("p"+string(rune('a'+i/26))+string(rune('a'+i%26)), "burstable")
		spec := specOf(p.Name, "0")
		spec.Spec.Containers = nil
		for _, name := range []string{"main", "second"} {
			spec.Spec.Containers = append(spec.Spec.Containers, &typesv1.Container{Name: name,
				Resources: &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "10m"}}})
			c := container(p, name, p.Name+name, 10, 0)
			e.next++
			c.Pid, c.State = uint32(e.next), api.ContainerState_CONTAINER_RUNNING
			e.pids[e.next], e.cpus[c.Id] = c.Id, "0-7"
			containers = append(containers, c)
		}
		specs[p.Uid], pods = spec, append(pods, p)
	}
	return pods, containers, specs
}

// TestRemovalIsRepeated: berthd is away, or its answer is lost, when a pod ends. The pod is released when berthd is back.
func TestRemovalIsRepeated(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		d := startBerthd(t)
		kubelet := &knows{}
		if whole {
			kubelet.pods = map[string]*typesv1.Pod{"job-uid": specOf("job", "4")}
		}
		e := newEngine(t, Config{Client: d.Client, Kubelet: kubelet})
		job := pod("job", "guaranteed")
		if err := e.policy.RunPodSandbox(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		c := container(job, "main", "job-1", 4000, gib)
		e.run(job, c)
		d.stop()
		e.stop(job, c)
		e.end(job)
		d.again()
		if got := d.uids(); len(got) != 1 {
			t.Fatalf("berthd was away, and has %v", got)
		}
		e.pushes(2)
		if got := d.uids(); len(got) > 0 {
			t.Errorf("whole %v: the pod has ended, and berthd has %v", whole, got)
		}
	}
}
