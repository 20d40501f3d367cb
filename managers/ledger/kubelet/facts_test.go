package kubelet

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
)

// asking is a container that requests so many CPUs of its own, or for half of one.
func asking(name string, cpus int64) workload.Container {
	q := workload.Quantities{workload.CPU: cpus * 1000, workload.Memory: 1}
	if cpus == 0 {
		q[workload.CPU] = 500
	}
	return workload.Container{Name: name, Requests: q, Limits: q}
}

func TestReadCPU(t *testing.T) {
	t.Parallel()
	view := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("8c"), ReservedCPUs: cpuset.Of(0)}).View()
	pods := map[string]*workload.Pod{
		"one": {UID: "one", Containers: []workload.Container{asking("c", 2)}},
		"all": {UID: "all", Containers: []workload.Container{asking("own", 2), asking("shares", 0), {Name: "lax"}}},
	}
	file := `{"policyName":"static","defaultCpuSet":"0,7","entries":{"all":{"lax":"5-6","own":"3-4","shares":"5-6"},"one":{"c":"1-2"}},"podEntries":{"all":{"cpuSet":"3-6"}},"checksum":`
	sum := wrongSum(t, file+"1}")
	for _, row := range []struct {
		name, text, policy string
		claims, notes      string
	}{
		{"pod as a whole", file + sum + "}", "static",
			"all=3-6 pod, all/lax=5-6 pod-shared, all/own=3-4 pod-exclusive, all/shares=5-6 pod-shared, one/c=1-2 exclusive", ""},
		{"other size", `{"policyName":"static","defaultCpuSet":"0,2-7","entries":{"one":{"c":"1"}}}`, "static",
			"one/c=1 exclusive", `one/c has CPUs "1" and requests 2 exclusive CPUs`},
		{"without CPUs", `{"policyName":"static","defaultCpuSet":"0-7","entries":{"one":{"c":""}}}`, "static",
			"", `one/c has CPUs "" and requests 2 exclusive CPUs|one/c has an entry without CPUs`},
		{"lost CPUs", `{"policyName":"static","defaultCpuSet":"0,4-7","entries":{"one":{"c":"1-2"}}}`, "static",
			"one/c=1-2 exclusive",
			"a kubelet with this machine and reservation would not accept the file: the state names CPUs 0-2,4-7, and the machine has 0-7"},
		{"none", `{"policyName":"none","defaultCpuSet":""}`, "none", "", ""},
		{"other policy", `{"policyName":"none","defaultCpuSet":""}`, "static", "",
			"the file is one of policy none, and berth runs under static"},
	} {
		facts, err := Read(CPU, []byte(row.text), Input{View: view, Pods: pods, Settings: Settings{Policy: row.policy}, PodLevel: true})
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		var claims []string
		for _, c := range facts.Claims {
			claims = append(claims, c.Owner.String()+"="+c.CPUs.Set.String()+" "+string(c.CPUs.Use))
		}
		if got := strings.Join(claims, ", "); got != row.claims {
			t.Errorf("%s: got %s, want %s", row.name, got, row.claims)
		}
		if got := strings.Join(facts.Notes, "|"); got != row.notes {
			t.Errorf("%s: notes %s, want %s", row.name, got, row.notes)
		}
	}
}

// wrongSum is the checksum that a file of format 3 should have had.
func wrongSum(t *testing.T, text string) string {
	t.Helper()
	_, err := ParseCPU([]byte(text), nil)
	if err == nil {
		t.Fatal("a checksum of 1 was taken")
	}
	words := strings.Fields(err.Error())
	return words[len(words)-1]
}

func TestKinds(t *testing.T) {
	t.Parallel()
	view := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}).View()
	for _, kind := range []Kind{CPU, Memory, Device} {
		k, ok := kinds[kind]
		if !ok || k.file == "" {
			t.Errorf("kind %s has no file", kind)
		}
		if _, err := Write(kind, view, Settings{Policy: "static"}, 0); err != nil {
			t.Errorf("export %s: %v", kind, err)
		}
		if _, err := Write(kind, view, Settings{Policy: "static"}, 99); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("export %s in format 99: %v", kind, err)
		}
		if _, err := Read(kind, []byte("{"), Input{View: view}); err == nil || errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("import %s: %v, want class %v", kind, err, errdefs.Invalid)
		}
	}
	if _, err := Write("disk", view, Settings{Policy: "static"}, 0); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("export disk: %v", err)
	}
	if _, err := Read("disk", nil, Input{View: view}); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("import disk: %v", err)
	}
}

func TestUnknownOwnersAreCounted(t *testing.T) {
	t.Parallel()
	view := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("32c")}).View()
	var entries []string
	for _, n := range strings.Fields("0 1 2 3 4 5 6 7 8 9") {
		entries = append(entries, `"id`+n+`":"`+n+`"`)
	}
	_, err := Read(CPU, []byte(`{"policyName":"static","defaultCpuSet":"10-31","entries":{`+strings.Join(entries, ",")+`}}`),
		Input{View: view, Settings: Settings{Policy: "static"}})
	if err == nil || errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(),
		"CPUs 7 of container id id7 and 2 more is unknown;") {
		t.Errorf("got %v", err)
	}
	twice := map[string]ledger.Owner{"a": {Pod: "p", Container: "c"}, "b": {Pod: "p", Container: "c"}}
	_, err = Read(CPU, []byte(`{"policyName":"static","defaultCpuSet":"2-31","entries":{"a":"0","b":"1"}}`),
		Input{View: view, ContainerIDs: twice})
	if err == nil || errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(),
		`another id of p/c has CPUs "0", this one has "1"`) {
		t.Errorf("got %v", err)
	}
}

// TestFactsComeBack: what a view exports it imports again, and finds that it has
// all of it.
func TestFactsComeBack(t *testing.T) {
	t.Parallel()
	machine := machinetest.Build("32c") // four pods of four CPUs and a reserved one
	rapid.Check(t, func(t *rapid.T) {
		l := ledgertest.New(t, ledger.Rules{Machine: machine, ReservedCPUs: cpuset.Of(0)})
		draft := ledger.NewDraft(l.View())
		free := machine.CPUs().Minus(cpuset.Of(0))
		for _, uid := range strings.Fields("a b c d")[:rapid.IntRange(0, 4).Draw(t, "pods")] {
			n := rapid.IntRange(1, 3).Draw(t, "cpus")
			set := free.Lowest(n)
			free = free.Minus(set)
			p := &ledger.Pod{Pod: workload.Pod{UID: uid, Containers: []workload.Container{asking("own", int64(n)), asking("shares", 0)}}}
			claims := []ledger.Claim{ledgertest.Exclusive("own", set.String())}
			if rest := free.Lowest(1); rapid.Bool().Draw(t, "whole") {
				free = free.Minus(rest)
				claims = []ledger.Claim{
					ledgertest.CPUs("", set.Union(rest).String(), ledger.CPUPod),
					ledgertest.CPUs("own", set.String(), ledger.CPUPodExclusive),
					ledgertest.CPUs("shares", rest.String(), ledger.CPUPodShared),
				}
			}
			draft.PutPod(ledgertest.With(p, claims...))
		}
		view := draft.View()
		file, err := Write(CPU, view, Settings{Policy: "static"}, 0)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := Read(CPU, file.Data, Input{View: view, Settings: Settings{Policy: "static"}, PodLevel: true})
		if err != nil || len(facts.Notes) > 0 || facts.Format != file.Format {
			t.Fatalf("%s: format %d, notes %q, %v", file.Data, facts.Format, facts.Notes, err)
		}
		n := 0
		for want := range view.Claims() {
			if got := facts.Claims[n]; got.Owner != want.Owner || *got.CPUs != *want.CPUs || got.Resource != want.Resource ||
				got.Provider != want.Provider {
				t.Fatalf("%s: got %+v, want %+v", file.Data, got, want)
			}
			n++
		}
		if n != len(facts.Claims) {
			t.Fatalf("%d claims became %d", n, len(facts.Claims))
		}
	})
}

// FuzzReadCPU: for any file, claims have owners that are known, and CPUs.
func FuzzReadCPU(f *testing.F) {
	for _, file := range files {
		f.Add([]byte(file.text))
	}
	f.Add([]byte(`{"policyName":"static","defaultCpuSet":"0,3","entries":{"pod":{"container1":"1"},"other":{"c":"2"}}}`))
	l, _, err := journal.Open(f.Context(), journal.Options{Journal: ledgertest.NewJournal(),
		Rules: ledger.Rules{Machine: machinetest.Build("4c")}})
	if err != nil {
		f.Fatal(err)
	}
	pods := map[string]*workload.Pod{"pod": {UID: "pod", Containers: []workload.Container{asking("container1", 1),
		asking("container2", 0)}}}
	f.Fuzz(func(t *testing.T, data []byte) {
		facts, err := Read(CPU, data, Input{View: l.View(), Pods: pods, Settings: Settings{Policy: "static"}, PodLevel: true,
			SkipUnknown: true})
		if err != nil {
			if c := errdefs.ClassOf(err); c != errdefs.Invalid && c != errdefs.Precondition {
				t.Fatalf("class %v: %v", c, err)
			}
			return
		}
		for _, c := range facts.Claims {
			p := pods[c.Owner.Pod]
			if p == nil || c.Owner.Container != "" && p.Container(c.Owner.Container) == nil || c.CPUs == nil || c.CPUs.Set.IsEmpty() {
				t.Fatalf("claim %+v of %s", c, data)
			}
		}
	})
}

// TestFormatsOfTheGate: files with entries of pods as a whole are refused where the
// gate is off that a kubelet writes these entries with.
func TestFormatsOfTheGate(t *testing.T) {
	t.Parallel()
	view := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("8c")}).View()
	cpus := CPUState{Policy: "static", Shared: cpuset.Range(0, 7)}
	podCPUs := CPUState{Policy: "static", Shared: cpuset.Range(0, 5), Pods: map[string]cpuset.Set{"a": cpuset.Range(6, 7)}}
	memory := MemoryState{Policy: "Static"}
	podMemory := MemoryState{Policy: "Static", Pods: map[string][]MemoryBlock{"a": nil}}
	for _, row := range []struct {
		kind    Kind
		format  int
		marshal func(int) ([]byte, error)
		needs   bool
	}{
		{CPU, 2, cpus.Marshal, false},
		{CPU, 3, cpus.Marshal, false}, {CPU, 3, podCPUs.Marshal, true},
		{CPU, 4, cpus.Marshal, false}, {CPU, 4, podCPUs.Marshal, true},
		{Memory, 1, memory.Marshal, false},
		{Memory, 2, memory.Marshal, false}, {Memory, 2, podMemory.Marshal, true},
		{Memory, 3, memory.Marshal, false}, {Memory, 3, podMemory.Marshal, true},
	} {
		data, err := row.marshal(row.format)
		if err != nil {
			t.Fatal(err)
		}
		for _, gate := range []bool{false, true} {
			_, err := Read(row.kind, data, Input{View: view, PodLevel: gate, SkipUnknown: true})
			refused := errdefs.ClassOf(err) == errdefs.Precondition && strings.Contains(err.Error(), "PodLevelResourceManagers")
			if want := row.needs && !gate; refused != want || !want && err != nil {
				t.Errorf("%s in format %d, gate %t: %v", row.kind, row.format, gate, err)
			}
		}
	}
}

// TestPodsOfAFile: every pod that a file names is returned, known or not.
func TestPodsOfAFile(t *testing.T) {
	t.Parallel()
	view := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("8c")}).View()
	entry := func(pod, container, id string) DeviceEntry {
		return DeviceEntry{Pod: pod, Container: container, Resource: "r/x", IDs: map[int64][]string{0: {id}}}
	}
	devices, err := (&DeviceState{Entries: []DeviceEntry{entry("b", "c", "1"), entry("a", "c", "2"), entry("b", "d", "3")}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for kind, text := range map[Kind]string{
		CPU:    `{"policyName":"static","defaultCpuSet":"0,4-7","entries":{"b":{"c":"1"},"a":{"c":"2-3"}}}`,
		Memory: `{"policyName":"Static","machineState":{},"entries":{"b":{"c":[]},"a":{"c":[]}}}`,
		Device: string(devices),
	} {
		facts, err := Read(kind, []byte(text), Input{View: view, SkipUnknown: true})
		if err != nil || strings.Join(facts.Pods, " ") != "a b" {
			t.Errorf("%s: pods %q, %v", kind, facts.Pods, err)
		}
	}
}
