package main

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
)

// TestNoCgroupsPerQOS: CPUs are decided and kept through a crash, and no cgroup is made.
func TestNoCgroupsPerQOS(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--machine", "4c", "--cgroups-per-qos=false", "--enforce-node-allocatable=none")
	d := n.start()
	d.admitted(guaranteed("a", 2, 0))
	allocate := func() *allocationv1.AllocateResponse {
		t.Helper()
		resp, err := d.allocation.Allocate(d.ctx(),
			&allocationv1.AllocateRequest{Subject: &allocationv1.AllocateRequest_PodUid{PodUid: "a"}, ContainerName: "main"})
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	have := allocate()
	if have.GetResources().GetCpusetCpus().GetList() != "1-2" || have.GetCgroupParent() != "" || have.GetCgroupPath() != "" {
		t.Errorf("allocated: %v", have)
	}
	_, err := d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main",
		ContainerId: "c-a"})
	if err != nil {
		t.Errorf("a start: %v", err)
	}
	p := n.stopped()
	_, err = d.lifecycle.PreStartContainer(d.ctx(), &lifecyclev1.PreStartContainerRequest{PodUid: "a", ContainerName: "main",
		ContainerId: "c-b", Pid: int32(p.pid())})
	if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "cgroups.cgroupsPerQOS") {
		t.Errorf("a start with a process: %v", err)
	}
	tiers, err := qosv1.NewQOSServiceClient(d.conn).GetQOSContainersInfo(d.ctx(), &qosv1.GetQOSContainersInfoRequest{})
	if err != nil || tiers.GetGuaranteed() != "" {
		t.Errorf("tiers: %v, %v", tiers, err)
	}
	exists, err := cgroupv1.NewPodCgroupServiceClient(d.conn).Exists(d.ctx(), &cgroupv1.PodCgroupServiceExistsRequest{PodUid: "a"})
	if err != nil || exists.GetState() != cgroupv1.State_STATE_VALID {
		t.Errorf("exists: %v, %v", exists, err)
	}
	config, err := nodev1.NewNodeServiceClient(d.conn).GetConfig(d.ctx(), &nodev1.GetConfigRequest{})
	if err != nil || config.GetCgroupsPerQos() || config.GetPodCgroupRoot() != config.GetCgroupRoot() {
		t.Errorf("config: %v, %v", config, err)
	}
	d.kill()
	d = n.start()
	if now := allocate().GetResources().GetCpusetCpus().GetList(); now != "1-2" {
		t.Errorf("after a crash the container has CPUs %s", now)
	}
	if _, err := d.admission.SyncPods(d.ctx(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a"},
		KnownRevision: d.revision()}); err != nil {
		t.Errorf("sync: %v", err)
	}
	d.remove("a")
	d.check()
	if dirs := n.cgroupDirs(); len(dirs) > 0 {
		t.Errorf("cgroups were made: %q", dirs)
	}
}
