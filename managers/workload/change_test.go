package workload

import (
	"reflect"
	"testing"
)

// TestWith: only given amounts change, with what rounding put on them, and the original
// stays as it was.
func TestWith(t *testing.T) {
	t.Parallel()
	pod := Pod{
		UID: "a", QoS: Burstable, Resources: &Resources{Requests: Quantities{CPU: 1000}},
		Containers: []Container{
			{Name: "one", Requests: Quantities{CPU: 2, Memory: 10}, Excess: &Excess{Requests: Quantities{CPU: 5, Memory: 7}}},
			{Name: "two", Limits: Quantities{CPU: 100}},
		},
	}
	before := pod
	before.Containers = []Container{pod.Containers[0], pod.Containers[1]}
	got, unknown := pod.With([]Change{
		{Container: "one", Requests: Quantities{CPU: 3}},
		{Container: "two", Limits: Quantities{Memory: 9}, Excess: &Excess{Limits: Quantities{Memory: 1}}},
		{Requests: Quantities{CPU: 1500}},
	}, Features{PodLevelResources: true})
	want := before
	want.QoS, want.Resources = "", &Resources{Requests: Quantities{CPU: 1500}}
	want.Containers = []Container{
		{Name: "one", Requests: Quantities{CPU: 3, Memory: 10}, Excess: &Excess{Requests: Quantities{Memory: 7}}},
		{Name: "two", Limits: Quantities{CPU: 100, Memory: 9}, Excess: &Excess{Limits: Quantities{Memory: 1}}},
	}
	if unknown != "" || !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v %q\nwant %+v", got, unknown, want)
	}
	if !reflect.DeepEqual(pod, before) || pod.Containers[0].Requests[CPU] != 2 {
		t.Errorf("the original became %+v", pod)
	}
	if _, unknown := pod.With([]Change{{Container: "three"}}, Features{}); unknown != "three" {
		t.Errorf("unknown is %q", unknown)
	}
	pod.QoS = Guaranteed // as its agent sent it
	if got, _ := pod.With(nil, Features{}); got.QoS != Guaranteed {
		t.Errorf("the agent's class became %q", got.QoS)
	}
}
