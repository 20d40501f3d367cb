package script

import (
	"bytes"
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestParseDevices(t *testing.T) {
	t.Parallel()
	got, err := ParseDevices("gpu0@0, nic2@0+1 x3,odd@,gpu4@1!")
	want := []Device{
		{ID: "gpu0", Nodes: []int64{0}}, {ID: "nic2", Nodes: []int64{0, 1}}, {ID: "x3"},
		{ID: "odd", Nodes: []int64{}}, {ID: "gpu4", Nodes: []int64{1}, Unhealthy: true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, bad := range []string{"@0", "!", "a@x", "a@0+", "a@0-1"} {
		if d, err := ParseDevices(bad); err == nil {
			t.Errorf("%q gives %+v", bad, d)
		}
	}
}

func TestParseManner(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Manner{
		"allocate=hang": Hang, "Allocate=shrink": Shrink, "listandwatch=end": End,
		"prestart=after 2s": Late(2 * time.Second), "options=well": Well,
		"listandwatch=end after 2s": EndAfter(2 * time.Second), "listandwatch=flap": Flap, "listandwatch=renumber": Renumber,
	} {
		m, got, err := ParseManner(text)
		if err != nil || got != want || !strings.EqualFold(string(m), text[:strings.Index(text, "=")]) {
			t.Errorf("%q: %s, %s, %v", text, m, got, err)
		}
	}
	for _, bad := range []string{"allocate", "nothing=hang", "allocate=end", "allocate=end after 2s", "allocate=flap",
		"options=shrink", "allocate=after tea", "register=hang"} {
		if _, how, err := ParseManner(bad); err == nil {
			t.Errorf("%q gives %s", bad, how)
		}
	}
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	p := New(Config{Resource: "example.com/gpu-x", Devices: []Device{{ID: "a"}, {ID: "b"}, {ID: "c", Unhealthy: true}}, CDI: true,
		Log: &log})
	ctx := context.Background()
	allocate := func(ids ...string) (*pluginapi.AllocateResponse, error) {
		return p.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	}
	answer, err := allocate("a", "b")
	if err != nil {
		t.Fatal(err)
	}
	r := answer.ContainerResponses[0]
	if r.Envs["EXAMPLE_COM_GPU_X"] != "a,b" || r.Annotations["example.com/gpu-x"] != "a,b" || len(r.Mounts) != 1 ||
		len(r.Devices) != 2 || r.Devices[1].ContainerPath != "/dev/gpu-x-b" || r.CdiDevices[0].Name != "example.com/gpu-x=a" {
		t.Errorf("answer %v", r)
	}
	for _, id := range []string{"c", "unknown"} {
		if _, err := allocate(id); err == nil {
			t.Errorf("device %s was allocated", id)
		}
	}
	preferred, err := p.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
			AvailableDeviceIDs: []string{"a", "b", "d", "c"}, MustIncludeDeviceIDs: []string{"a"}, AllocationSize: 3,
		}},
	})
	if err != nil || !reflect.DeepEqual(preferred.ContainerResponses[0].DeviceIDs, []string{"a", "d", "c"}) {
		t.Errorf("preferred %v, %v", preferred, err)
	}
	p.Behave(Allocate, Refuse)
	if _, err := allocate("a"); err == nil {
		t.Error("told to refuse and did not")
	}
	if n := strings.Count(log.String(), "\n"); n != 5 || len(p.Calls()) != 5 || len(p.Calls(Preferred)) != 1 {
		t.Errorf("%d lines for %d calls", n, len(p.Calls()))
	}
}
