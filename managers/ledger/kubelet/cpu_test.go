package kubelet

import (
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

func set(list string) cpuset.Set {
	s, err := cpuset.Parse(list)
	if err != nil {
		panic(err)
	}
	return s
}

// wholeInData is a file of kubelet 1.37: only data has the CPUs of the pod as a whole, and of the container
// before its resize.
const wholeInData = `{"policyName":"static","defaultCpuSet":"0-3","entries":{"pod":{"container1":"4-6"}},"checksum":2081019946,` +
	`"data":"{\"policyName\":\"static\",\"defaultCpuSet\":\"0-3\",\"entries\":{\"pod\":{\"container1\":\"4-6\"}},\"podEntries\":{\"pod\":{\"cpuSet\":\"4-7\"}},` +
	`\"baselines\":{\"pod\":{\"container1\":{\"baseline\":\"4-5\"}}}}","dataChecksum":3850959395}`

// Files that the kubelet wrote or accepts.
var files = []struct {
	format int
	text   string
}{
	{2, `{"policyName":"static","defaultCpuSet":"0-3","checksum":611748604}`},
	{2, `{"policyName":"static","defaultCpuSet":"0-1,6-7","entries":{"uid-a":{"c1":"8"},"uid-b":{"c1":"2-3","c2":"4-5"}},"checksum":2801685752}`},
	{2, `{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"checksum":3610638499}`},
	{1, `{"policyName":"none","defaultCpuSet":"1-3","entries":{"containerID1":"4-6","containerID2":"1-3"},"checksum":3680390589}`},
	{3, `{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"podEntries":{"pod":{"cpuSet":"4-6"}},"checksum":2649431787}`},
	{3, `{"policyName":"static","defaultCpuSet":"0-3","checksum":1408856778}`},
	{1, `{"policyName":"none","defaultCpuSet":"1-3","checksum":1694838852}`},
	{2, `{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`},
	{2, `{"policyName":"static","defaultCpuSet":"","checksum":3083571066}`},
	{2, `{"policyName":"static","defaultCpuSet":"0-3"}`},
	{2, `{"policyName":"static","defaultCpuSet":"0-3","checksum":0}`},
	{2, `{"POLICYNAME":"static","defaultCpuSet":"0-3","new":{"a":[1]},"checksum":611748604}`},
	{2, `{"policyName":"static","defaultCpuSet":"0-3","checksum":611748604,"data":"","dataChecksum":0}`},
	{4, wholeInData},
	// The copy for older kubelets is not read.
	{4, strings.Replace(wholeInData, `"4-6"}},"checksum"`, `"4-7"}},"checksum"`, 1)},
	// A kubelet with the gate keeps pod entries that no checksum covers.
	{3, `{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"podEntries":{"pod":{"cpuSet":"4-6"}}}`},
	{3, `{"policyName":"none","defaultCpuSet":"1-3","entries":{"pod":{"container1":"4-6","container2":"1-3"}},"podEntries":{"pod":{"cpuSet":"4-6"}},"checksum":3610638499}`},
}

func TestParseCPU(t *testing.T) {
	t.Parallel()
	owners := map[string]ledger.Owner{
		"containerID1": {Pod: "pod", Container: "container1"},
		"containerID2": {Pod: "pod", Container: "container2"},
	}
	for _, f := range files {
		s, err := ParseCPU([]byte(f.text), owners)
		if err != nil || s.Format != f.format {
			t.Errorf("%s: format %d, %v; want %d", f.text, s.Format, err, f.format)
			continue
		}
		if want := strings.Contains(f.text, `container2`) || strings.Contains(f.text, "containerID1"); want &&
			(s.Containers["pod"]["container1"] != set("4-6") || s.Containers["pod"]["container2"] != set("1-3")) {
			t.Errorf("%s: got %v", f.text, s.Containers)
		}
		if f.format == 3 && strings.Contains(f.text, "podEntries") && s.Pods["pod"] != set("4-6") {
			t.Errorf("%s: got %v", f.text, s.Pods)
		}
		if f.format == 4 && (s.Pods["pod"] != set("4-7") || s.Containers["pod"]["container1"] != set("4-6") ||
			s.Baselines["pod"]["container1"] != set("4-5")) {
			t.Errorf("%s: got %+v", f.text, s)
		}
	}
}

func TestParseCPURefuses(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, text, wrong string
		class             errdefs.Class
	}{
		{"nothing", "", "no JSON: unexpected end of JSON input at byte 0", errdefs.Invalid},
		{"cut off", "{", "no JSON: unexpected end of JSON input at byte 1", errdefs.Invalid},
		{"no object", "[]", "read cpu_manager_state: expected an object, found a list", errdefs.Invalid},
		{"number for a text", `{"policyName":7}`, ": policyName: expected a text, found a number at byte 15", errdefs.Invalid},
		{"list for a text", `{"podEntries":{"a":{"cpuSet":[]}}}`, ": podEntries.cpuSet: expected a text, found a list", errdefs.Invalid},
		{"list for an object", `{"podEntries":[]}`, ": podEntries: expected an object, found a list", errdefs.Invalid},
		{"text for a number", `{"checksum":"611748604"}`, ": checksum: expected a whole number from 0 to 2^64-1, found a text",
			errdefs.Invalid},
		{"fraction", `{"checksum":1.5}`, ": checksum: expected a whole number from 0 to 2^64-1, found 1.5", errdefs.Invalid},
		{"large number", `{"checksum":99999999999999999999}`,
			": checksum: expected a whole number from 0 to 2^64-1, found 99999999999999999999", errdefs.Invalid},
		{"truth", `{"defaultCpuSet":true}`, ": defaultCpuSet: expected a text, found a truth value", errdefs.Invalid},
		{"changed", `{"policyName":"static","defaultCpuSet":"0-4","checksum":611748604}`, "corrupted", errdefs.Invalid},
		{"pods with a wrong checksum", `{"policyName":"static","defaultCpuSet":"0-3","podEntries":{"a":{"cpuSet":"4"}},"checksum":7}`,
			"corrupted", errdefs.Invalid},
		{"changed data", strings.Replace(wholeInData, `\"0-3\"`, `\"0-2\"`, 1), "dataChecksum is", errdefs.Invalid},
		{"data without its checksum", `{"policyName":"static","defaultCpuSet":"0-3","checksum":611748604,"data":"{}"}`,
			"dataChecksum is 0", errdefs.Invalid},
		{"no data for a checksum", `{"policyName":"static","defaultCpuSet":"0-3","checksum":611748604,"dataChecksum":7}`,
			"dataChecksum is 7", errdefs.Invalid},
		{"data is no text", `{"data":{}}`, ": data: expected a text, found an object", errdefs.Invalid},
		{"bad pool", `{"policyName":"static","defaultCpuSet":"3-0"}`, "defaultCpuSet", errdefs.Invalid},
		{"bad entry", `{"policyName":"static","defaultCpuSet":"0","entries":{"uid":{"c":"x"}}}`, `container "c" of pod "uid"`,
			errdefs.Invalid},
		{"bad pod entry", `{"policyName":"static","defaultCpuSet":"0","podEntries":{"uid":{"cpuSet":"x"}}}`, `pod "uid"`, errdefs.Invalid},
		{"odd entries", `{"policyName":"static","defaultCpuSet":"0","entries":{"uid":7}}`,
			": entries: expected a list of CPUs as text for each container of each pod, or in format 1 for each container id",
			errdefs.Invalid},
		{"changed format 1", `{"policyName":"none","defaultCpuSet":"1-3","entries":{"id":"4"},"checksum":5}`, "corrupted", errdefs.Invalid},
		{"unknown id", `{"policyName":"none","defaultCpuSet":"1-3","entries":{"id":"4"}}`, `container id "id"`, errdefs.Precondition},
	} {
		_, err := ParseCPU([]byte(row.text), nil)
		var e *errdefs.Error
		if !errors.As(err, &e) || e.Class != row.class || !strings.Contains(err.Error(), row.wrong) {
			t.Errorf("%s: got %v", row.name, err)
		}
	}
}

func TestMarshalCPU(t *testing.T) {
	t.Parallel()
	for _, f := range files[:9] {
		if f.format == 1 {
			continue
		}
		s, err := ParseCPU([]byte(f.text), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := s.Marshal(f.format); err != nil || string(got) != f.text {
			t.Errorf("got %s, %v; want %s", got, err, f.text)
		}
	}
	whole := CPUState{Policy: "static", Pods: map[string]cpuset.Set{"uid": set("1")}}
	resized, err := ParseCPU([]byte(wholeInData), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := resized.Marshal(4); err != nil || string(got) != wholeInData {
		t.Errorf("got %s, %v; want %s", got, err, wholeInData)
	}
	resized.Pods = nil
	for _, format := range []int{2, 3} {
		if _, err := resized.Marshal(format); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("format %d of a resized container: %v", format, err)
		}
	}
	for _, format := range []int{0, 1, 2, 5} {
		if _, err := whole.Marshal(format); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("format %d: got %v", format, err)
		}
	}
}

func TestCheckCPU(t *testing.T) {
	t.Parallel()
	one := map[string]map[string]cpuset.Set{"uid": {"c": set("2-3")}}
	for _, row := range []struct {
		name   string
		state  CPUState
		strict bool
		wrong  string
	}{
		{"right", CPUState{Shared: set("0-1,4-7"), Containers: one}, false, ""},
		{"right, strict", CPUState{Shared: set("1,4-7"), Containers: one}, true, ""},
		{"fresh", CPUState{}, false, ""},
		{"pods as a whole", CPUState{Shared: set("0-1,4-7"), Pods: map[string]cpuset.Set{"uid": set("2-3")}}, false, ""},
		{"empty pool", CPUState{Containers: one}, false, "empty"},
		{"reserved CPU given away", CPUState{Shared: set("1,4-7"), Containers: one}, false, "not in the shared pool"},
		{"reserved CPU in the pool", CPUState{Shared: set("0-1,4-7"), Containers: one}, true, "are in the shared pool"},
		{"held twice", CPUState{Shared: set("0-2,4-7"), Containers: one}, false, "too"},
		{"CPU lost", CPUState{Shared: set("0-1,4-6"), Containers: one}, false, "the machine has 0-7"},
		{"CPU too many", CPUState{Shared: set("0-1,4-8"), Containers: one}, false, "the machine has 0-7"},
	} {
		err := row.state.Check(set("0-7"), set("0"), row.strict)
		switch {
		case row.wrong == "" && err != nil:
			t.Errorf("%s: %v", row.name, err)
		case row.wrong != "" && (errdefs.ClassOf(err) != errdefs.Precondition || err == nil || !strings.Contains(err.Error(), row.wrong)):
			t.Errorf("%s: got %v, want %q", row.name, err, row.wrong)
		}
	}
}

func TestCPURoundTrip(t *testing.T) {
	t.Parallel()
	name := rapid.StringMatching(`[a-z0-9.-]{1,8}|[ -~]{1,6}`)
	cpus := rapid.Custom(func(t *rapid.T) cpuset.Set {
		return cpuset.Of(rapid.SliceOf(rapid.IntRange(0, 300)).Draw(t, "cpus")...)
	})
	rapid.Check(t, func(t *rapid.T) {
		s := CPUState{
			Format: 3, Policy: "static", Shared: cpus.Draw(t, "shared"),
			Containers: rapid.MapOf(name, rapid.MapOfN(name, cpus, 1, 3)).Draw(t, "containers"),
			Pods:       rapid.MapOf(name, cpus).Draw(t, "pods"),
		}
		data, err := s.Marshal(3)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseCPU(data, nil)
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		again, err := got.Marshal(3)
		if err != nil || string(again) != string(data) || got.Format != 3 {
			t.Fatalf("got %s, %v; want %s", again, err, data)
		}
	})
}

func FuzzParseCPU(f *testing.F) {
	for _, file := range files {
		f.Add([]byte(file.text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseCPU(data, map[string]ledger.Owner{"a": {Pod: "p", Container: "c"}})
		if err != nil {
			if c := errdefs.ClassOf(err); c != errdefs.Invalid && c != errdefs.Precondition {
				t.Fatalf("class %v: %v", c, err)
			}
			return
		}
		if _, err := s.Marshal(4); err != nil {
			t.Fatal(err)
		}
		_ = s.Check(set("0-3"), set("0"), true)
	})
}
