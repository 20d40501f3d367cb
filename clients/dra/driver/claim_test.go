package driver

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthd/berth/api/convert"
)

// FuzzClaim: whatever the allocation of a claim has, a claim that berthd may admit has a CDI file that can be read again.
func FuzzClaim(f *testing.F) {
	whole := allocated("a", 1, 2, "1Gi")
	whole.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{opaque(resourceapi.AllocationConfigSourceClaim,
		mountsOf(`"2Mi"`, "/pages"))}
	for _, c := range []*resourceapi.ResourceClaim{
		allocated("a", 0, 1, "1Gi"), paged(whole, "64Mi"), with(under("left", allocated("a", 0, 4, "2Gi")),
			under("right/large", allocated("a", 1, 3, "1Gi")), allocated("a", 1, 3, "1Gi")),
	} {
		text, err := json.Marshal(c.Status.Allocation)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		in := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{UID: "a", Namespace: "default", Name: "claim-a"}}
		if json.Unmarshal(text, &in.Status.Allocation) != nil {
			return
		}
		c, err := read(in, node)
		if err != nil {
			return
		}
		if _, err := convert.ReadResourceClaim(c.admission(Owner).GetResourceClaim()); err != nil {
			return
		}
		for i, p := range c.Parts {
			p.CPUs = fmt.Sprint(2*i, ",", 2*i+1)
		}
		d, err := New(Config{CDIDirectory: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = d.Close() }()
		if err := d.files.write(c); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		again, err := d.files.read("a")
		if err != nil || !reflect.DeepEqual(again.admission(Owner), c.admission(Owner)) {
			t.Errorf("%s: %+v, %v", text, again, err)
		}
	})
}

// TestNamesOfParts: what the API server takes as the name of a request is a name in berthd, also with the number of a device.
func TestNamesOfParts(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("r", 63)
	for name, c := range map[string]*resourceapi.ResourceClaim{
		"one device": under(long, allocated("a", 0, 1, "1Gi")),
		"chosen":     under(long+"/"+long, allocated("a", 0, 1, "1Gi")),
		"two":        with(under(long, allocated("a", 0, 1, "1Gi")), under(long, allocated("a", 1, 1, "1Gi"))),
	} {
		read, err := read(c, node)
		if err != nil {
			if name != "two" || !strings.Contains(err.Error(), "at most 63") {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if _, err := convert.ReadResourceClaim(read.admission(Owner).GetResourceClaim()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestCapacityTwice: an amount that is given with and without the driver's name is not one of the two by chance.
func TestCapacityTwice(t *testing.T) {
	t.Parallel()
	c := allocated("a", 0, 1, "1Gi")
	c.Status.Allocation.Devices.Results[1].ConsumedCapacity[Name+"/cpu"] = resource.MustParse("2")
	if got, err := read(c, node); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("%+v, %v", got, err)
	}
}
