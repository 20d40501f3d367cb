package simulation_test

import (
	"strings"
	"testing"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/topology"
)

func shape(text string) (*machine.Topology, error) {
	s, err := machine.ParseShape(text)
	if err != nil {
		return nil, err
	}
	return machine.New(s)
}

// TestMachineChangesAfterThePods: pods keep their CPUs, and the room is that of the changed machine.
func TestMachineChangesAfterThePods(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		then    []string
		changes []string // with the findings
		room    uint32
	}{
		{then: nil, room: 5},
		{then: []string{"offline=1"}, changes: []string{"CPUs 1 are gone; CPUs 1 of a/main are offline: it runs on 2"}, room: 4},
		{then: []string{"offline=1,7"}, changes: []string{"CPUs 1,7 are gone; CPUs 1 of a/main are offline: it runs on 2"}, room: 3},
		{
			then: []string{"offline=1-2", "online=1-2"}, room: 5,
			changes: []string{"CPUs 1-2 are gone; CPUs 1-2 of a/main are offline: it runs on 0,3-7", "CPUs 1-2 are new or online again"},
		},
		{then: []string{"machine=1s12c"}, changes: []string{"CPUs 8-11 are new or online again"}, room: 9},
		{then: []string{"online=3"}, changes: []string{""}, room: 5},
		{then: []string{"resize=a/main:cpu=4"}, changes: []string{"resized; disruption move-cpus; CPUs 1-2 to 1-4"}, room: 3},
		{
			then: []string{"offline=1", "resize=default/a/main:cpu=3", "resize=a/main:cpu=3"}, room: 3,
			changes: []string{"CPUs 1 are gone; CPUs 1 of a/main are offline: it runs on 2",
				"resized; disruption move-cpus; CPUs 1-2 to 2-4", ""},
		},
		{then: []string{"resize=a/main:cpu=9"},
			changes: []string{`rejected: container "main" has CPUs on NUMA nodes 0, which have 7 allocatable CPUs, and now requests 9; other NUMA nodes cannot serve it: Allocate failed due to not enough cpus available to satisfy request: requested=9, available=7, which is unexpected`}, room: 5},
	} {
		t.Run(strings.Join(row.then, " "), func(t *testing.T) {
			t.Parallel()
			o := simulation.Options{More: guaranteed("more", 1, 0), Most: 100}
			for _, text := range row.then {
				e, err := simulation.ParseEvent(text, shape)
				if err != nil {
					t.Fatal(err)
				}
				o.Then = append(o.Then, e)
			}
			s := scene(t, "1s8c", topology.None, "")
			out, placed, err := s.Run(t.Context(), []*typesv1.Pod{guaranteed("a", 2, 0)}, o)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, ch := range out.GetChanges() {
				text := ch.GetChange()
				for _, f := range ch.GetFindings() {
					text += "; " + f.GetText()
				}
				got = append(got, text)
			}
			if strings.Join(got, "|") != strings.Join(row.changes, "|") || out.GetRoom().GetPods() != row.room {
				t.Errorf("changes %q, room for %d; want %q, %d", got, out.GetRoom().GetPods(), row.changes, row.room)
			}
			if n := len(row.then); n > 0 && out.GetNodes()[0].GetCpus().GetList() != s.On(placed).Machine.CPUs().String() {
				t.Errorf("nodes %v", out.GetNodes())
			}
		})
	}
}

func TestBadEvents(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "offline", "offline=", "online=x", "machine=9x", "reboot=1",
		"resize=a/main", "resize=a:cpu=1", "resize=/main:cpu=1", "resize=default/a/b/c:cpu=1", "resize=a/main:cpu=",
		"resize=a/main:cpu=-1", "resize=a/main:disk=1", "resize=a/main:cpu=1,", "resize=a/main:cpu=1,cpu=2"} {
		if _, err := simulation.ParseEvent(text, shape); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%q: %v", text, err)
		}
	}
	s := scene(t, "1s4c", topology.None, "")
	for _, e := range []simulation.Event{{Offline: cpuset.Of(9)}, {Online: cpuset.Of(4)}, {Offline: cpuset.Range(0, 3)}} {
		if _, _, err := s.Run(t.Context(), nil, simulation.Options{Then: []simulation.Event{e}}); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%+v: %v", e, err)
		}
	}
}

// A pod that loses a CPU gets another one, if the configuration says so; a resize is of a pod that is there.
func TestReplacementsAndResizes(t *testing.T) {
	t.Parallel()
	s := scene(t, "1s4c", topology.None, "")
	s.Config.Hotplug.OnLost = config.LostReplace
	event := func(text string) simulation.Event {
		e, err := simulation.ParseEvent(text, shape)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	o := simulation.Options{Then: []simulation.Event{event("offline=1"), event("offline=1,3")}}
	out, placed, err := s.Run(t.Context(), []*typesv1.Pod{guaranteed("a", 2, 0)}, o)
	if err != nil {
		t.Fatal(err)
	}
	first, second := out.GetChanges()[0], out.GetChanges()[1]
	if !strings.HasSuffix(first.GetChange(), "CPUs 1 are gone; pod default/a moves") || len(first.GetFindings()) != 0 ||
		len(second.GetFindings()) != 1 {
		t.Errorf("%v", out.GetChanges())
	}
	pod, _ := placed.View.Pod("a")
	if got := pod.Claims[0].CPUs.Set; got != cpuset.Of(2, 3) {
		t.Errorf("it has CPUs %s", got)
	}
	o.Then = []simulation.Event{event("resize=none/main:cpu=1")}
	if _, _, err := s.Run(t.Context(), []*typesv1.Pod{guaranteed("a", 2, 0)}, o); errdefs.ClassOf(err) != errdefs.Invalid ||
		!strings.Contains(err.Error(), "pod default/none is not admitted") {
		t.Error(err)
	}
}
