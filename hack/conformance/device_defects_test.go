package main

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/workload"
)

// What has to be refused: c requests 2 of which one is near to no node of the machine,
// or an init container left such a one.
func TestRefusedHints(t *testing.T) {
	t.Parallel()
	var s deviceState
	c := &workload.Container{Name: "c", Limits: workload.Quantities{"x.io/x": 2}}
	for text, want := range map[string]bool{
		`{"devices":{"x.io/x":[{"id":"a","healthy":true,"numa":[0]},{"id":"b","healthy":true,"numa":[1]}]}}`:    false,
		`{"devices":{"x.io/x":[{"id":"a","healthy":true,"numa":[0]},{"id":"b","healthy":true,"numa":[40]}]}}`:   true,
		`{"devices":{"x.io/x":[{"id":"a","healthy":true,"numa":[0]},{"id":"b","healthy":true,"numa":[0,40]}]}}`: false,
		`{"devices":{"x.io/x":[{"id":"a","healthy":true,"numa":[0]},{"id":"b","healthy":true,"numa":[1]},{"id":"i","numa":[]}]},
			"pod_devices":{"pod":{"i":{"x.io/x":["i"]}}}}`: true,
		`{"devices":{"x.io/x":[{"id":"a","healthy":true,"numa":[0]},{"id":"b","healthy":true,"numa":[1]},{"id":"i","numa":null}]},
			"pod_devices":{"pod":{"i":{"x.io/x":["i"]}}}}`: false,
	} {
		s = deviceState{}
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		if got := s.refused([]int{0, 1}, "pod", c, "x.io/x"); got != want {
			t.Errorf("%s: %t, want %t", text, got, want)
		}
	}
}

// A choice where the reference crashed: init container i had a, b, and a has gone;
// c and d are free, e is ill, f is another pod's.
func TestDeviceAllocateDiffers(t *testing.T) {
	t.Parallel()
	var in deviceAllocateIn
	text := `{"container":"c","pod":{"uid":"pod","init_containers":[{"name":"i"}],"containers":[{"name":"c","limits":{"x.io/x":"2"}}]},
		"before":{"devices":{"x.io/x":[{"id":"b","healthy":true},{"id":"c","healthy":true},{"id":"d","healthy":true},{"id":"e"},{"id":"f","healthy":true}]},
			"allocated":{"x.io/x":["a","b","f"]},"pod_devices":{"pod":{"i":{"x.io/x":["a","b"]}},"other":{"c":{"x.io/x":["f"]}}}}}`
	if err := json.Unmarshal([]byte(text), &in); err != nil {
		t.Fatal(err)
	}
	var crash, sound deviceAllocateWant
	crash.Result.Error = &vector.Error{Class: "panic"}
	refused := func(class string) deviceAllocateGot { return deviceAllocateGot{Error: &vector.Error{Class: class}} }
	chosen := func(ids ...string) deviceAllocateGot {
		return deviceAllocateGot{Devices: map[string][]string{"x.io/x": ids}}
	}
	for _, row := range []struct {
		name string
		want deviceAllocateWant
		got  deviceAllocateGot
		ok   bool
	}{
		{"what is left and one that is free", crash, chosen("b", "c"), true},
		{"two that are free", crash, chosen("c", "d"), true},
		{"one that is gone", crash, chosen("a", "b"), false},
		{"one that is ill", crash, chosen("b", "e"), false},
		{"another pod's", crash, chosen("b", "f"), false},
		{"one twice", crash, chosen("b", "b"), false},
		{"too few", crash, chosen("b"), false},
		{"none", crash, chosen(), false},
		{"refused for want of devices", crash, refused("not_enough_devices"), false},
		{"refused as ill", crash, refused("no_healthy"), false},
		{"no crash", sound, chosen("b", "c"), false},
	} {
		if id, err := deviceAllocateDiffers(nil, in, row.want, row.got); (err == nil) != row.ok || row.ok && id != "D4" {
			t.Errorf("%s: %q, %v", row.name, id, err)
		}
	}
	// The same where the reference refused the pod because of an advice.
	in.Plugins = map[string]devicePlugin{"x.io/x": {Preferred: true, PrefError: "no"}}
	in.NUMANodes = []int{0}
	var advice deviceAllocateWant
	advice.Result.Error = &vector.Error{Class: adviceFailed}
	got, err := decideDeviceAllocate(nil, in)
	if err != nil || got.Error != nil || len(got.PreferredCall) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	for _, row := range []struct {
		name string
		got  deviceAllocateGot
		ok   bool
	}{
		{"as without a preference", got, true},
		{"another choice", chosen("c", "d"), false},
		{"refused", refused(adviceFailed), false},
		{"refused for another reason", refused("not_enough_devices"), false},
	} {
		if id, err := deviceAllocateDiffers(nil, in, advice, row.got); (err == nil) != row.ok || row.ok && id != "D26" {
			t.Errorf("a failed advice, %s: %q, %v", row.name, id, err)
		}
	}
	if deviceAllocateUnsound(nil, in, advice) == "" || deviceAllocateUnsound(nil, in, crash)+deviceAllocateUnsound(nil, in, sound) != "" {
		t.Error("only a refusal for an advice is unsound")
	}
	list := in.Before.Devices["x.io/x"]
	in.Before.Devices["x.io/x"] = list[:1]
	if id, err := deviceAllocateDiffers(nil, in, crash, refused("not_enough_devices")); id != "D4" || err != nil {
		t.Errorf("where one is left: %q, %v", id, err)
	}
	ill := slices.Clone(list[3:4])
	in.Before.Devices["x.io/x"] = ill
	if id, err := deviceAllocateDiffers(nil, in, crash, refused("no_healthy")); id != "D4" || err != nil {
		t.Errorf("where all are ill: %q, %v", id, err)
	}
}
