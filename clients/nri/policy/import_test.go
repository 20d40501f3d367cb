package policy

import (
	"testing"

	"github.com/containerd/nri/pkg/api"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

// TestKubeletStateIsTakenOver: a node changes from the kubelet's static policy to berth. The state file is
// imported for the owner of berth-nri; a container that runs keeps its CPUs, and they are free when it ends.
func TestKubeletStateIsTakenOver(t *testing.T) {
	t.Parallel()
	d := startBerthd(t)
	spec := specOf("trainer", "2")
	client, err := berth.Dial(t.Context(), d.config.Listen, berth.Options{Owner: "kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	e := newEngine(t, Config{Client: client, Kubelet: &knows{pods: map[string]*typesv1.Pod{"trainer-uid": spec}}})
	// The engine's first list of pods is empty, so the import comes after it.
	if _, err := d.Inspect().Import(t.Context(), &inspectv1.ImportRequest{
		Kind: inspectv1.StateFileKind_STATE_FILE_KIND_CPU, Owner: "kubernetes", Pods: []*typesv1.Pod{spec},
		State: []byte(`{"policyName":"static","defaultCpuSet":"0-5","entries":{"trainer-uid":{"main":"6-7"}}}`),
	}); err != nil {
		t.Fatal(err)
	}
	p := pod("trainer", "guaranteed")
	c := container(p, "main", "trainer-1", 2000, gib)
	c.Pid, c.State = 77, api.ContainerState_CONTAINER_RUNNING
	e.mu.Lock()
	e.cpus["trainer-1"], e.pids[77], e.pods["trainer-1"] = "6-7", "trainer-1", p.GetId()
	e.mu.Unlock()
	updates, err := e.policy.Synchronize(t.Context(), []*api.PodSandbox{p}, []*api.Container{c})
	if err != nil {
		t.Fatal(err)
	}
	e.apply(updates)
	if got := e.on("trainer-1"); got != "6-7" {
		t.Errorf("the container runs on %s", got)
	}
	if got := d.uids(); len(got) != 1 || got[0] != "trainer-uid" {
		t.Errorf("berthd has the pods %v", got)
	}
	e.stop(p, c)
	e.end(p)
	e.follow()
	eventually(t, "the CPUs are free after the end", func() bool { return len(d.uids()) == 0 })
}
