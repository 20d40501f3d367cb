package hintproxy

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// answering are plugins that allocate every request.
type answering struct{}

func (answering) Preferred(context.Context, string, []string, []string, int) ([]string, error) {
	return nil, errors.New("not announced")
}

func (answering) Allocate(_ context.Context, resource string, ids []string) ([]byte, error) {
	return hintserver.Edits(&typesv1.ContainerEdits{Envs: map[string]string{resource: ids[0]}})
}

const gpu = "example.com/gpu"

// devices is the device manager, as it is inside berthd.
func devices() *device.Manager {
	epoch := time.Unix(0, 0)
	inventory := device.NewInventory(nil, epoch)
	list := func(resource string, ids ...string) {
		var devices []device.Device
		for i, id := range ids {
			devices = append(devices, device.Device{ID: id, Healthy: true, Topology: true, Nodes: numa.Of(i % 4)})
		}
		inventory.Listed(inventory.Registered(resource, device.Options{}, epoch), devices, epoch)
	}
	list(gpu, "g0", "g1", "g2", "g3", "g4")
	list("example.com/nic", "n0", "n1")
	return device.New(inventory, answering{})
}

// wanting is a pod whose containers request gpus and nics, written "init:2,1".
func wanting(uid string, containers ...workload.Container) *workload.Pod {
	return &workload.Pod{UID: uid, Containers: containers, Annotations: map[string]string{"a": "b"}}
}

func wants(name string, role workload.Role, gpus, nics int64) workload.Container {
	q := workload.Quantities{gpu: gpus, "example.com/nic": nics}
	return workload.Container{Name: name, Role: role, Requests: q, Limits: q}
}

// The device manager keeps the contract also as a provider outside, behind proxy
// and server.
func TestContractOfABuiltInBehindTheProxy(t *testing.T) {
	t.Parallel()
	hinttest.Run(t, func() hinttest.Setup {
		s := newStage(t, Config{})
		s.serveProvider(devices())
		s.config.Allowed = []Allowance{{Provider: device.Name, Edits: []string{"env"}}}
		s.restart()
		s.register(device.Name, func(o *ledger.ExternalProvider) { o.Resources = []string{gpu, "example.com/nic"} })
		claim := ledgertest.Devices("c", gpu, "g0")
		draft := ledger.NewDraft(s.ledger.View())
		draft.PutPod(ledgertest.With(ledgertest.Pod("earlier", "c"), claim))
		return hinttest.Setup{
			Provider: s.registry.proxies[device.Name], View: draft.View(),
			Pods: []*workload.Pod{
				wanting("p1", wants("i", workload.Init, 3, 1), wants("s", workload.Sidecar, 1, 0), wants("c", workload.App, 2, 0),
					wants("d", workload.App, 1, 1)),
				wanting("p2", wants("c", workload.App, 4, 0), wants("d", workload.App, 1, 0)),
				wanting("p3", wants("c", workload.App, 9, 0)),
				wanting("p4", wants("c", workload.App, 0, 0)),
			},
		}
	})
}

// byRule answers for slots with a rule, as a provider on a large machine does.
type byRule struct{ hinttest.Slots }

func (b *byRule) Hints(ctx context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	answers, err := b.Slots.Hints(ctx, view, req)
	if err != nil || len(answers) == 0 || answers[0].Kind != hint.Options {
		return answers, err
	}
	rule := &hint.Rule{Universe: view.Machine().NodeMask(),
		Need: uint64(req.Pod.Containers[max(req.Container, 0)].Requests[hinttest.SlotResource]), PreferredSize: 1}
	for _, node := range b.At {
		rule.Weights[node]++
	}
	answers[0].Answer = hint.Answer{Kind: hint.ByRule, Rule: rule}
	return answers, nil
}

// Prepare keeps what Edits would make: nothing.
func (b *byRule) Prepare(_ context.Context, _ string, _ hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	return claims, nil
}

// A small provider that answers by rule keeps the contract behind the proxy, and
// the proxy returns the provider's answers.
func TestContractByRule(t *testing.T) {
	t.Parallel()
	slots := func() *byRule { return &byRule{hinttest.Slots{At: map[string]int{"a": 0, "b": 0, "c": 1, "d": 3}}} }
	setup := func() hinttest.Setup {
		s := newStage(t, Config{})
		s.serveProvider(slots())
		s.register("slots", func(o *ledger.ExternalProvider) { o.Resources = []string{string(hinttest.SlotResource)} })
		return hinttest.Setup{
			Provider: s.registry.proxies["slots"], View: s.ledger.View(),
			Pods: []*workload.Pod{wantingSlots("one", 1, hinttest.SlotResource), wantingSlots("many", 9, hinttest.SlotResource),
				wantingSlots("none", 1, "example.com/other")},
		}
	}
	hinttest.Run(t, setup)
	s := setup()
	for _, pod := range s.Pods {
		req := hint.Request{Pod: pod}
		want, _ := slots().Hints(t.Context(), s.View, req)
		got, err := s.Provider.Hints(t.Context(), s.View, req)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
		for i := range want {
			if got[i].Kind != want[i].Kind || got[i].Reason != want[i].Reason || !reflect.DeepEqual(got[i].Rule, want[i].Rule) {
				t.Errorf("pod %s: %+v, want %+v", pod.UID, got[i], want[i])
			}
		}
	}
}
