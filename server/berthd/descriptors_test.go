package main

import (
	"context"
	"github.com/berthd/berth/clients/berth"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// withoutDescriptors runs f while the daemon can open no file, and gives it back what it had.
func (d *daemon) withoutDescriptors(f func()) {
	d.t.Helper()
	var before unix.Rlimit
	if err := unix.Prlimit(d.Cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &before); err != nil {
		d.t.Fatal(err)
	}
	none := before
	none.Cur = 0
	if err := unix.Prlimit(d.Cmd.Process.Pid, unix.RLIMIT_NOFILE, &none, nil); err != nil {
		d.t.Fatal(err)
	}
	defer func() {
		if err := unix.Prlimit(d.Cmd.Process.Pid, unix.RLIMIT_NOFILE, &before, nil); err != nil {
			d.t.Fatal(err)
		}
	}()
	f()
}

// TestNoDescriptors takes the daemon all file descriptors: every call that needs the kernel is unavailable with a hint
// when to try again, never a verdict; nothing is half-done, and the same calls succeed when descriptors are back.
func TestNoDescriptors(t *testing.T) {
	t.Parallel()
	needCPUs(t, 2)
	n := newNode(t)
	n.needKernel()
	d := n.start()
	d.admitted(burstable("there"))
	d.admitted(burstable("small"))
	d.admitted(burstable("leaving"))
	larger := burstable("small")
	larger.Spec.Containers[0].Resources.Requests["cpu"] = "200m"
	process := exec.Command("sleep", "1h")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Process.Kill(); _ = process.Wait() })
	calls := []struct {
		name string
		call func(context.Context) error
	}{
		{"Admit", func(ctx context.Context) error {
			resp, err := d.admission.Admit(ctx,
				&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed("new", 1, 0)}})
			if err == nil && resp.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
				t.Errorf("Admit: %v %s: %s", resp.GetVerdict(), resp.GetReason(), resp.GetMessage())
			}
			return err
		}},
		{"PreStartContainer", func(ctx context.Context) error {
			_, err := d.lifecycle.PreStartContainer(ctx, &lifecyclev1.PreStartContainerRequest{
				PodUid: "there", ContainerName: "main", ContainerId: "id", Pid: int32(process.Process.Pid),
			})
			return err
		}},
		{"Resize", func(ctx context.Context) error {
			_, err := d.admission.Resize(ctx, berth.ResizeTo(larger))
			return err
		}},
		{"Remove", func(ctx context.Context) error {
			_, err := d.admission.RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: "leaving"})
			return err
		}},
		{"Sync", func(ctx context.Context) error {
			_, err := d.admission.SyncPods(ctx, &admissionv1.SyncPodsRequest{ActivePodUids: []string{"there", "small", "new"},
				KnownRevision: d.revision()})
			return err
		}},
	}
	for _, c := range calls {
		d.withoutDescriptors(func() {
			err := c.call(n.ctx())
			s := status.Convert(err)
			hinted := slices.ContainsFunc(s.Details(), func(detail any) bool { _, is := detail.(*errdetails.RetryInfo); return is })
			if s.Code() != codes.Unavailable || !hinted {
				t.Errorf("%s without descriptors: %v with details %v", c.name, err, s.Details())
			}
		})
		if c.name == "Admit" && n.podCgroups()["new"] {
			t.Error("the cgroup of a pod that was not admitted is there")
		}
		if err := c.call(n.ctx()); err != nil {
			t.Errorf("%s with descriptors: %v", c.name, err)
		}
	}
	if got := len(d.pods()); got != 3 {
		t.Errorf("%d pods, want 3", got)
	}
	d.check()
	nodetest.KillIn(n.path(""))
}
