package workload

import (
	"encoding/json"
	"reflect"
	"testing"
)

func digest(t *testing.T, p *Pod) string {
	t.Helper()
	d, err := p.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDigest(t *testing.T) {
	t.Parallel()
	base := func() *Pod {
		p := podOf(reqLim(Sidecar, q("cpu", 1), nil), both(App, q("cpu", 1, "memory", 2))).withOverhead(q("cpu", 3))
		p.Labels = map[string]string{"app": "web"}
		return p
	}
	want := digest(t, base())
	const stored = "65e4ef74b209f4bf89e33dcc9526dd40a438f95655abe6a2f616aa3410732ca6" // ledgers have it
	if want != stored {
		t.Errorf("the digest is %s, and ledgers have %s", want, stored)
	}
	for name, change := range map[string]func(*Pod){
		"labels":       func(p *Pod) { p.Labels = map[string]string{"app": "other"} },
		"annotations":  func(p *Pod) { p.Annotations = map[string]string{"a": "b"} },
		"an empty map": func(p *Pod) { p.Containers[0].Limits = Quantities{} },
	} {
		p := base()
		change(p)
		if digest(t, p) != want {
			t.Errorf("%s change the digest", name)
		}
	}
	priority := int32(0)
	for name, change := range map[string]func(*Pod){
		"uid":             func(p *Pod) { p.UID = "u2" },
		"name":            func(p *Pod) { p.Name = "other" },
		"namespace":       func(p *Pod) { p.Namespace = "other" },
		"role":            func(p *Pod) { p.Containers[0].Role = Init },
		"container name":  func(p *Pod) { p.Containers[0].Name = "other" },
		"request":         func(p *Pod) { p.Containers[0].Requests = q("cpu", 2) },
		"limit of zero":   func(p *Pod) { p.Containers[0].Limits = q("cpu", 0) },
		"order":           func(p *Pod) { p.Containers[0], p.Containers[1] = p.Containers[1], p.Containers[0] },
		"overhead":        func(p *Pod) { p.Overhead = nil },
		"empty pod level": func(p *Pod) { p.Resources = &Resources{} },
		"class":           func(p *Pod) { p.QoS = Burstable },
		"priority":        func(p *Pod) { p.Priority = &priority },
		"excess":          func(p *Pod) { p.Excess = &Excess{Overhead: q("cpu", 1)} },
		"resize policy":   func(p *Pod) { p.Containers[0].ResizePolicy = map[Resource]string{CPU: "NotRequired"} },
	} {
		p := base()
		change(p)
		if digest(t, p) == want {
			t.Errorf("another %s has the same digest", name)
		}
	}
	external := base()
	external.Containers[1].ExternalDevices = []ExternalDevice{{Resource: "example.com/gpu", ID: "a"}}
	if got := digest(t, external); got != want || external.Containers[1].ExternalDevices == nil {
		t.Errorf("with external devices, which are no part of the specification, the digest is %s, want %s; the pod has %v", got, want,
			external.Containers[1].ExternalDevices)
	}
	if _, err := podOf(Container{Role: 7}).Digest(); err == nil {
		t.Error("a pod that cannot be written has a digest")
	}
}

// The ledger keeps pods as JSON: the bytes are part of its format.
func TestPodJSON(t *testing.T) {
	t.Parallel()
	priority := int32(7)
	p := podOf(both(Init, q("cpu", 1)), reqLim(App, q("memory", 2), nil)).withOverhead(q("cpu", 3)).withResources(nil, nil)
	p.Containers[1].Excess = &Excess{Requests: q("memory", 5)}
	p.Containers[1].ResizePolicy = map[Resource]string{CPU: "RestartContainer"}
	p.Labels, p.QoS, p.Priority, p.HostNetwork = map[string]string{"b": "2", "a": "1"}, Burstable, &priority, true
	const want = `{"uid":"u1","namespace":"default","name":"web","labels":{"a":"1","b":"2"},` +
		`"containers":[{"name":"a","role":"init","requests":{"cpu":1},"limits":{"cpu":1}},` +
		`{"name":"b","requests":{"memory":2},"excess":{"requests":{"memory":5}},"resizePolicy":{"cpu":"RestartContainer"}}],` +
		`"overhead":{"cpu":3},"resources":{},"qosClass":"Burstable","priority":7,"hostNetwork":true}`
	got, err := json.Marshal(p)
	if err != nil || string(got) != want {
		t.Errorf("%v\n got %s\nwant %s", err, got, want)
	}
	var back Pod
	if err := json.Unmarshal(got, &back); err != nil || !reflect.DeepEqual(&back, p) {
		t.Errorf("came back as %+v, %v", back, err)
	}
}
