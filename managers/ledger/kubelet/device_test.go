package kubelet_test

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
)

// deviceCapture is kubelet_internal_checkpoint as a kubelet (v1.36.3) had it.
type deviceCapture struct{ Capture, State string }

func deviceCaptures(t testing.TB) (all []deviceCapture) {
	t.Helper()
	f, err := os.Open("testdata/device_checkpoints.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c deviceCapture
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if err := lines.Err(); err != nil || len(all) < 10 {
		t.Fatalf("%d captures, %v", len(all), err)
	}
	return all
}

// TestDeviceCapturesComeBack reads what kubelets have written and writes it again,
// byte for byte.
func TestDeviceCapturesComeBack(t *testing.T) {
	t.Parallel()
	held := 0
	for _, c := range deviceCaptures(t) {
		s, err := kubelet.ParseDevice([]byte(c.State))
		if err != nil {
			t.Errorf("%s: %v", c.Capture, err)
			continue
		}
		held += len(s.Entries)
		again, err := s.Marshal()
		if err != nil || string(again) != c.State {
			t.Errorf("%s: %v\n\t%s\nwant\n\t%s", c.Capture, err, again, c.State)
		}
	}
	if held == 0 {
		t.Error("no capture has an entry")
	}
}

func TestParseDevice(t *testing.T) {
	t.Parallel()
	s, err := kubelet.ParseDevice([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"c","ResourceName":"s.io/a",` +
		`"DeviceIDs":{"1":["a"],"0":["a","b"],"-1":[]},"AllocResp":"Cgg="}],"RegisteredDevices":{"s.io/a":["b","a"],"s.io/n":null}},"Checksum":1211554493}`))
	want := kubelet.DeviceState{
		Entries: []kubelet.DeviceEntry{{
			Pod: "u1", Container: "c", Resource: "s.io/a",
			IDs: map[int64][]string{0: {"a", "b"}, 1: {"a"}, -1: {}}, Response: []byte{10, 8},
		}},
		Registered: map[string][]string{"s.io/a": {"b", "a"}, "s.io/n": nil},
	}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("%+v, %v", s, err)
	}
	for name, row := range map[string]struct {
		text  string
		class errdefs.Class
		want  string
	}{
		"empty":     {"", errdefs.Invalid, "unexpected end of JSON input"},
		"no object": {"[]", errdefs.Invalid, "read kubelet_internal_checkpoint: expected an object, found a list"},
		"cut off":   {`{"Data":{"PodDeviceEntries":[{"PodUID"`, errdefs.Invalid, "unexpected end of JSON input"},
		"no node": {`{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"x":["a"]}}]},"Checksum":1}`, errdefs.Invalid,
			`: Data.PodDeviceEntries.DeviceIDs: expected whole numbers as keys, found "x"`},
		"no base64": {`{"Data":{"PodDeviceEntries":[{"AllocResp":"Cgg="},{"PodUID":"u","ContainerName":"c","ResourceName":"s.io/a","AllocResp":"Cgg=!"}]},"Checksum":1}`, errdefs.Invalid,
			`read kubelet_internal_checkpoint: Data.PodDeviceEntries.AllocResp of resource "s.io/a" of container "c" of pod "u": expected a text in base64: illegal base64 data at input byte 4`},
		"text as bytes": {`{"Data":{"PodDeviceEntries":[{"AllocResp":7}]},"Checksum":1}`, errdefs.Invalid,
			": Data.PodDeviceEntries.AllocResp: expected a text in base64, found a number"},
		"checksum": {`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":7}`, errdefs.Invalid,
			"the checksum is 7, the content's"},
		"no checksum": {`{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}}}`, errdefs.Invalid, "the checksum is 0, the content's"},
		"plain lists": {`{"Data":{"PodDeviceEntries":[{"PodUID":"u","DeviceIDs":["a"]}]},"Checksum":1}`, errdefs.Unsupported,
			"before Kubernetes 1.20"},
		"other kind":   {`{"policyName":"static","defaultCpuSet":"0-15","checksum":4220024897}`, errdefs.Invalid, "the checksum is"},
		"more after":   {`{} {}`, errdefs.Invalid, "after top-level value"},
		"wrong number": {`{"Data":{},"Checksum":-1}`, errdefs.Invalid, ": Checksum: expected a whole number from 0 to 2^64-1, found -1"},
	} {
		_, err := kubelet.ParseDevice([]byte(row.text))
		if err == nil || errdefs.ClassOf(err) != row.class || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v (%v), want %q", name, err, errdefs.ClassOf(err), row.want)
		}
	}
}

// TestDeviceNulls checks that null and empty differ where the checksum
// differs.
func TestDeviceNulls(t *testing.T) {
	t.Parallel()
	sums := map[string]string{}
	for _, s := range []kubelet.DeviceState{
		{},
		{Entries: []kubelet.DeviceEntry{}},
		{Registered: map[string][]string{}},
		{Registered: map[string][]string{"a.io/a": nil}},
		{Registered: map[string][]string{"a.io/a": {}}},
		{Entries: []kubelet.DeviceEntry{{}}},
		{Entries: []kubelet.DeviceEntry{{IDs: map[int64][]string{}}}},
		{Entries: []kubelet.DeviceEntry{{IDs: map[int64][]string{0: nil}}}},
		{Entries: []kubelet.DeviceEntry{{IDs: map[int64][]string{0: {}}}}},
		{Entries: []kubelet.DeviceEntry{{Response: []byte{}}}},
	} {
		text, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := kubelet.ParseDevice(text)
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%s: %+v, %v", text, again, err)
		}
		sum := string(text[strings.LastIndex(string(text), ":"):])
		if other, twice := sums[sum]; twice {
			t.Errorf("%s and %s have the same checksum", text, other)
		}
		sums[sum] = string(text)
	}
}

func FuzzParseDevice(f *testing.F) {
	for _, c := range deviceCaptures(f) {
		f.Add([]byte(c.State))
	}
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"DeviceIDs":{"-1":null},"AllocResp":null}]},"Checksum":1}`))
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"DeviceIDs":["a"]}]}}`))
	f.Add([]byte(`{"Data":{"RegisteredDevices":{"a":["` + base64.StdEncoding.EncodeToString([]byte("x")) + `"]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := kubelet.ParseDevice(data)
		if err != nil {
			if class := errdefs.ClassOf(err); class != errdefs.Invalid && class != errdefs.Unsupported {
				t.Errorf("class %v: %v", class, err)
			}
			return
		}
		text, err := s.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		again, err := kubelet.ParseDevice(text)
		if err != nil || !reflect.DeepEqual(again, s) {
			t.Errorf("%+v comes back as %+v, %v", s, again, err)
		}
	})
}
