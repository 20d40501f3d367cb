package workload

import "testing"

func TestQoSClass(t *testing.T) {
	t.Parallel()
	full := q("cpu", 100, "memory", 100*mi)
	more := q("cpu", 200, "memory", 200*mi)
	for _, row := range []struct {
		name    string
		pod     *Pod
		off, on QoSClass
	}{
		{"no containers", podOf(), BestEffort, BestEffort},
		{"nothing", podOf(nothing, nothing), BestEffort, BestEffort},
		{"zeros count as nothing", podOf(both(App, q("cpu", 0, "memory", 0))), BestEffort, BestEffort},
		{"only devices", podOf(both(App, q("example.com/gpu", 1))), BestEffort, BestEffort},
		{"only huge pages", podOf(both(App, q("hugepages-2Mi", 2*mi))), BestEffort, BestEffort},
		{"equal", podOf(both(App, full)), Guaranteed, Guaranteed},
		{"equal with devices", podOf(both(App, q("cpu", 100, "memory", 100*mi, "example.com/gpu", 1))), Guaranteed, Guaranteed},
		{"limits only, not defaulted", podOf(reqLim(App, nil, full)), Burstable, Burstable},
		{"cpu only", podOf(both(App, q("cpu", 100))), Burstable, Burstable},
		{"memory only", podOf(both(App, q("memory", mi))), Burstable, Burstable},
		{"limits above", podOf(reqLim(App, full, more)), Burstable, Burstable},
		{"one without", podOf(both(App, full), nothing), Burstable, Burstable},
		{"init without", podOf(Container{Role: Init}, both(App, full)), Burstable, Burstable},
		{"init equal", podOf(both(Init, more), both(App, full)), Guaranteed, Guaranteed},
		{"sidecar without", podOf(Container{Role: Sidecar}, both(App, full)), Burstable, Burstable},
		{"init only burstable", podOf(reqLim(Init, full, more), nothing), Burstable, Burstable},
		{"containers are compared, not sums", podOf(reqLim(App, full, more), reqLim(App, more, full)), Burstable, Burstable},
		{"one with nothing", podOf(nothing, nothing, both(Sidecar, full)), Burstable, Burstable},
		{"given class wins", &Pod{QoS: Guaranteed}, Guaranteed, Guaranteed},
		{"pod level equal", podOf(nothing).withResources(full, full), BestEffort, Guaranteed},
		{"pod level hides containers", podOf(both(App, full)).withResources(full, more), Guaranteed, Burstable},
		{"pod level without cpu limit", podOf(both(App, full)).withResources(q("memory", mi), q("memory", mi)), Guaranteed, Burstable},
		{"pod level requests only", podOf(both(App, full)).withResources(full, nil), Guaranteed, Burstable},
		{"pod level huge pages only", podOf(both(App, full)).withResources(q("hugepages-2Mi", mi), q("hugepages-2Mi", mi)), Guaranteed,
			BestEffort},
		{"pod level present but empty", podOf(both(App, full)).withResources(nil, nil), Guaranteed, Guaranteed},
		{"pod level only with devices", podOf(both(App, full)).withResources(q("example.com/gpu", 1), nil), Guaranteed, Guaranteed},
		{"pod level zero", podOf(both(App, full)).withResources(q("cpu", 0), nil), Guaranteed, BestEffort},
	} {
		if got := row.pod.QoSClass(off); got != row.off {
			t.Errorf("%s: feature off: %s, want %s", row.name, got, row.off)
		}
		if got := row.pod.QoSClass(on); got != row.on {
			t.Errorf("%s: feature on: %s, want %s", row.name, got, row.on)
		}
	}
}

// A request of 1.5 milli-CPU is not a limit of 2, although both are stored as 2.
func TestQoSClassIsExact(t *testing.T) {
	t.Parallel()
	p := podOf(both(App, q("cpu", 2, "memory", mi)))
	p.Containers[0].Excess = &Excess{Requests: q("cpu", billion/2)}
	if got := p.QoSClass(on); got != Burstable {
		t.Errorf("class %s, want Burstable", got)
	}
	if p.Containers[0].Guaranteed() {
		t.Error("the container counts as guaranteed")
	}
}

func TestContainerGuaranteed(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		requests, limits Quantities
		want             bool
	}{
		{q("cpu", 1, "memory", 1), q("cpu", 1, "memory", 1), true},
		{q("cpu", 1, "memory", 1), q("cpu", 2, "memory", 1), false},
		{q("cpu", 1, "memory", 1), q("cpu", 1, "memory", 2), false},
		{q("cpu", 1), q("cpu", 1), false},
		{q("memory", 1), q("memory", 1), false},
		{q("cpu", 0, "memory", 1), q("cpu", 0, "memory", 1), false},
		{nil, nil, false},
	} {
		c := reqLim(App, row.requests, row.limits)
		if got := c.Guaranteed(); got != row.want {
			t.Errorf("requests %v, limits %v: %v", row.requests, row.limits, got)
		}
	}
}
