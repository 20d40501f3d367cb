package policy

import (
	"testing"

	"github.com/containerd/nri/pkg/api"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/cpuset"
)

// pinned makes a berthd pin memory on two NUMA nodes of 4 GiB, beside a kubelet.
func pinned(c *config.Config) {
	c.Beside = config.Kubelet
	c.Machine, c.Memory.Policy, c.Memory.AllowUnreserved = "1s2n4c1t,mem=4Gi", "Static", true
	c.Reserved.EvictionHard = map[string]string{}
}

// pinning runs such a berthd, and a container with 2 CPUs and 2 GiB on node 0.
func pinning(t *testing.T) (*daemon, *engine, *api.PodSandbox, *api.Container) {
	t.Helper()
	d := startBerthdWith(t, pinned)
	e := newEngine(t, Config{Client: d.Client})
	trainer := pod("trainer", "guaranteed")
	tr := container(trainer, "main", "trainer-1", 2000, 2*gib)
	adjust, err := e.create(trainer, tr)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.start(trainer, tr); err != nil {
		t.Fatal(err)
	}
	if mems := adjust.GetLinux().GetResources().GetCpu().GetMems(); mems != "0" {
		t.Fatalf("the container is made with memory nodes %q", mems)
	}
	return d, e, trainer, tr
}

// sent returns the memory nodes and CPUs of a container in updates.
func sent(updates []*api.ContainerUpdate, id string) (mems, cpus string) {
	for _, u := range updates {
		if u.GetContainerId() == id {
			mems, cpus = u.GetLinux().GetResources().GetCpu().GetMems(), u.GetLinux().GetResources().GetCpu().GetCpus()
		}
	}
	return mems, cpus
}

// A resize that widens the memory nodes widens them at the runtime, too: by an update of its own, because
// the answer to the kubelet's resize may be applied after later updates.
func TestResizeMovesMemoryNodes(t *testing.T) {
	t.Parallel()
	_, e, trainer, tr := pinning(t)
	u, err := e.resize(trainer, tr, size(2000, 2000, 5*gib))
	if err != nil {
		t.Fatal(err)
	}
	if mems, _ := sent([]*api.ContainerUpdate{u}, "trainer-1"); mems != "" {
		t.Errorf("the answer has memory nodes %q", mems)
	}
	if err := e.policy.push(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if now := e.memsOf("trainer-1"); now != "0,1" {
		t.Errorf("the runtime has memory nodes %q", now)
	}
	if updates, _, err := e.policy.look(t.Context()); err != nil || len(updates) > 0 {
		t.Errorf("after that: %v, %v", updates, err)
	}
}

// Memory nodes that the runtime did not take are sent again, with CPUs that no other container uses.
func TestMemoryNodesAreSentUntilTheyArrive(t *testing.T) {
	t.Parallel()
	d, e, _, _ := pinning(t)
	own := set(t, e.on("trainer-1"))
	web := pod("web", "burstable")
	e.run(web, container(web, "main", "web-1", 500, 0))
	amounts := map[string]string{"cpu": "3", "memory": "5Gi"}
	answer, err := d.Admission().Resize(t.Context(), &admissionv1.ResizeRequest{
		PodUid: "trainer-uid.main", Owner: d.Owner(), Containers: []*admissionv1.ContainerResources{{
			ContainerName: "main", Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts},
		}},
	})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", answer, err)
	}
	e.fails = map[string]bool{"trainer-1": true, "web-1": true}
	e.stuck = true
	for range 3 {
		var mems, cpus string
		e.before = func(updates []*api.ContainerUpdate) {
			if m, c := sent(updates, "trainer-1"); c != "" {
				mems, cpus = m, c
			}
		}
		if err := e.policy.push(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if now, err := cpuset.Parse(cpus); err != nil || mems != "0,1" || !now.IsSubsetOf(own) {
			t.Fatalf("an update has memory nodes %q and CPUs %q, it has had %s: %v", mems, cpus, own, err)
		}
	}
	e.fails, e.stuck, e.before = nil, false, nil
	for range 4 {
		if err := e.policy.push(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	updates, _, err := e.policy.look(t.Context())
	if now := set(t, e.on("trainer-1")); err != nil || len(updates) > 0 || now.Len() != 3 || now.Overlaps(set(t, e.on("web-1"))) {
		t.Errorf("it is on %s, and another container on %s; updates %v, %v", now, e.on("web-1"), updates, err)
	}
}
