package kubelet

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
)

// sealClaims writes dra_manager_state as a kubelet since 1.32 does.
func sealClaims(content string) string {
	text, err := json.Marshal(map[string]any{"Data": content, "Checksum": crc32.ChecksumIEEE([]byte(content))})
	if err != nil {
		panic(err)
	}
	return string(text)
}

const (
	claimHead  = `{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":`
	gpuClaim   = `{"ClaimUID":"c1","ClaimName":"gpu","Namespace":"shop","PodUIDs":{"u2":{},"u1":{}},"DriverState":{`
	nicDevices = `"nic.example.com":{"Devices":[{"PoolName":"n1","DeviceName":"nic0","ShareID":"s1",` +
		`"RequestNames":["nic/fast"],"CDIDeviceIDs":null}],` +
		`"skipNodeOperations":["*"]}`
	gpuDevices = `"gpu.example.com":{"Devices":[{"PoolName":"n1","DeviceName":"gpu0","ShareID":null,"RequestNames":["gpu"],` +
		`"CDIDeviceIDs":["gpu.example.com/claim=c1"]}]}`
)

func TestParseClaims(t *testing.T) {
	t.Parallel()
	gpu := ClaimEntry{UID: "c1", Namespace: "shop", Name: "gpu", Pods: []string{"u1", "u2"}, Devices: []ClaimDevice{
		{Driver: "gpu.example.com", Pool: "n1", Device: "gpu0", Requests: []string{"gpu"}, CDI: []string{"gpu.example.com/claim=c1"}},
		{Driver: "nic.example.com", Pool: "n1", Device: "nic0", Share: "s1", Requests: []string{"nic/fast"}},
	}}
	for name, row := range map[string]struct {
		text string
		want []ClaimEntry
	}{
		"devices": {sealClaims(claimHead + "[" + gpuClaim + nicDevices + "," + gpuDevices + "}}]}"), []ClaimEntry{gpu}},
		"no device": {sealClaims(claimHead + "[" + gpuClaim + `"gpu.example.com":{"Devices":null}}}]}`),
			[]ClaimEntry{{UID: "c1", Namespace: "shop", Name: "gpu", Pods: gpu.Pods}}},
		// Two files of recorded kubelets (v1.36.3), before and after the first pod.
		"recorded, null": {fmt.Sprintf(`{"Data": %q, "Checksum": 4010664294}`, claimHead+"null}"), nil},
		"recorded, none": {fmt.Sprintf(`{"Data": %q, "Checksum": 2361995144}`, claimHead+"[]}"), nil},
		// The checksum is that of a kubelet 1.31.
		"without an envelope": {`{"version":"v1","entries":[{"ClaimUID":"067798be-454e-4be4-9047-1aa06aea63f7",` +
			`"ClaimName":"example-1","Namespace":"default",` +
			`"PodUIDs":{"139cdb46-f989-4f17-9561-ca10cfb509a6":{}},` +
			`"DriverState":{"test-driver.cdi.k8s.io":{"Devices":[{"PoolName":"worker-1","DeviceName":"dev-1",` +
			`"RequestNames":["test request"],"CDIDeviceIDs":["example.com/example=cdi-example"]}]}}},` +
			`{"ClaimUID":"4cf8db2d-06c0-7d70-1a51-e59b25b2c16c",` +
			`"ClaimName":"example-2","Namespace":"default","PodUIDs":{"139cdb46-f989-4f17-9561-ca10cfb509a6":{}},` +
			`"DriverState":{"test-driver.cdi.k8s.io":` +
			`{"Devices":[{"PoolName":"worker-1","DeviceName":"dev-2","RequestNames":null,"CDIDeviceIDs":null}]}}}],` +
			`"checksum":1191151426}`,
			[]ClaimEntry{
				{UID: "067798be-454e-4be4-9047-1aa06aea63f7", Namespace: "default", Name: "example-1",
					Pods: []string{"139cdb46-f989-4f17-9561-ca10cfb509a6"},
					Devices: []ClaimDevice{{Driver: "test-driver.cdi.k8s.io", Pool: "worker-1", Device: "dev-1",
						Requests: []string{"test request"},
						CDI:      []string{"example.com/example=cdi-example"}}}},
				{UID: "4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", Namespace: "default", Name: "example-2",
					Pods:    []string{"139cdb46-f989-4f17-9561-ca10cfb509a6"},
					Devices: []ClaimDevice{{Driver: "test-driver.cdi.k8s.io", Pool: "worker-1", Device: "dev-2"}}},
			}},
	} {
		if s, err := ParseClaims([]byte(row.text)); err != nil || !reflect.DeepEqual(s.Claims, row.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, s.Claims, err, row.want)
		}
	}
	for name, row := range map[string]struct {
		text  string
		class errdefs.Class
		want  string
	}{
		"empty":      {"", errdefs.Invalid, "unexpected end of JSON input"},
		"no object":  {"[]", errdefs.Invalid, "read dra_manager_state: expected an object, found a list"},
		"no content": {"{}", errdefs.Invalid, "expected Data, or version v1"},
		"checksum":   {`{"Data":"{}","Checksum":7}`, errdefs.Invalid, "the checksum is 7, the content's"},
		"cut off":    {sealClaims(claimHead + "[{"), errdefs.Invalid, "Data: no JSON: unexpected end of JSON input"},
		"no text":    {`{"Data":7}`, errdefs.Invalid, "Data: expected a text, found a number"},
		"no list":    {sealClaims(claimHead + "{}}"), errdefs.Invalid, "Data: ClaimInfoStateList: expected a list, found an object"},
		"no pods": {sealClaims(claimHead + `[{"PodUIDs":["u1"]}]}`), errdefs.Invalid,
			"Data: ClaimInfoStateList.PodUIDs: expected an object, found a list"},
		"later": {sealClaims(`{"apiVersion":"checkpoint.dra.kubelet.k8s.io/v9"}`), errdefs.Unsupported,
			"Data.apiVersion is checkpoint.dra.kubelet.k8s.io/v9, expected checkpoint.dra.kubelet.k8s.io/v1"},
		"before 1.31": {`{"version":"v1","entries":[{"DriverName":"d","ClassName":"c","ClaimUID":"c1","ClaimName":"gpu",` +
			`"Namespace":"shop",` +
			`"PodUIDs":{"u1":{}},"CDIDevices":{"d":["a"]}}],"checksum":1}`, errdefs.Unsupported, "as before Kubernetes 1.31"},
		"1.31, checksum": {`{"version":"v1","entries":[],"checksum":7}`, errdefs.Invalid, "the checksum is 7, the content's"},
	} {
		_, err := ParseClaims([]byte(row.text))
		if err == nil || errdefs.ClassOf(err) != row.class || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v (%v), want %q", name, err, errdefs.ClassOf(err), row.want)
		}
	}
}

// TestClaimDeviceIsFor: a device is for the requests that its driver names.
func TestClaimDeviceIsFor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		requests []string
		request  string
		want     bool
	}{
		{nil, "a", true}, {[]string{"a"}, "", true}, {[]string{"a", "b"}, "b", true}, {[]string{"a/fast"}, "a", true},
		{[]string{"a"}, "b", false}, {[]string{"ab"}, "a", false}, {[]string{"b/a"}, "a", false},
	} {
		if got := (ClaimDevice{Requests: row.requests}).IsFor(row.request); got != row.want {
			t.Errorf("%q for %q: %t", row.requests, row.request, got)
		}
	}
}

// TestClaimText: texts of the file come to a terminal without what could be taken for more, and only a few of many.
func TestClaimText(t *testing.T) {
	t.Parallel()
	c := ClaimEntry{Namespace: "shop", Name: "a\x1b[2J"}
	if got, want := c.String(), `shop/"a\x1b[2J" (no device yet)`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i := range 9 {
		c.Devices = append(c.Devices, ClaimDevice{Driver: "d", Pool: "p", Device: fmt.Sprint(i), Share: "s"})
	}
	if got := c.String(); !strings.HasSuffix(got, "d/p/7/s and 1 more)") || strings.Contains(got, "\x1b") {
		t.Error(got)
	}
}

// TestClaimsBothWays: the same claims read the same from both forms, and one other byte of what the checksum is taken over is refused.
func TestClaimsBothWays(t *testing.T) {
	t.Parallel()
	text := rapid.StringMatching(`[a-z0-9./-]{0,8}`)
	texts := rapid.SliceOfN(text, 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		records := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) claimRecord {
			device := rapid.Custom(func(t *rapid.T) claimDevice {
				return claimDevice{PoolName: text.Draw(t, "pool"), DeviceName: text.Draw(t, "device"),
					RequestNames: texts.Draw(t, "requests"),
					CDIDeviceIDs: texts.Draw(t, "CDI")}
			})
			return claimRecord{
				ClaimUID: text.Draw(t, "uid"), ClaimName: text.Draw(t, "name"), Namespace: text.Draw(t, "namespace"),
				PodUIDs: rapid.MapOfN(text, rapid.Just(struct{}{}), 0, 3).Draw(t, "pods"),
				DriverState: rapid.MapOfN(text, rapid.Map(rapid.SliceOfN(device, 0, 3), func(d []claimDevice) claimDriver {
					return claimDriver{Devices: d}
				}), 0, 3).Draw(t, "drivers"),
			}
		}), 0, 4).Draw(t, "claims")
		list, err := json.Marshal(records)
		if err != nil {
			t.Fatal(err)
		}
		sealed := sealClaims(claimHead + string(list) + "}")
		bare := fmt.Sprintf(`{"version":"v1","entries":%s,"checksum":%d}`, list, checksum(dumpClaims(records)))
		a, err := ParseClaims([]byte(sealed))
		if err != nil {
			t.Fatal(err)
		}
		if b, err := ParseClaims([]byte(bare)); err != nil || !reflect.DeepEqual(a, b) {
			t.Fatalf("%+v, %v, want %+v", b, err, a)
		}
		if len(a.Claims) != len(records) {
			t.Fatalf("%d of %d claims", len(a.Claims), len(records))
		}
		damaged := strings.Replace(sealed, "ClaimInfoStateList", "ClaimInfoStateLisd", 1)
		if _, err := ParseClaims([]byte(damaged)); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Fatalf("damaged: %v", err)
		}
	})
}

// FuzzParseClaims: any text is claims or an error of a known class.
func FuzzParseClaims(f *testing.F) {
	f.Add([]byte(sealClaims(claimHead + "[" + gpuClaim + nicDevices + "," + gpuDevices + "}}]}")))
	f.Add([]byte(sealClaims(claimHead + "null}")))
	f.Add([]byte(`{"version":"v1","checksum":1}`))
	f.Add([]byte(`{"version":"v1","entries":[{"DriverName":"d"}],"checksum":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, text := range [][]byte{data, []byte(sealClaims(string(data)))} {
			s, err := ParseClaims(text)
			if class := errdefs.ClassOf(err); err != nil && class != errdefs.Invalid && class != errdefs.Unsupported {
				t.Fatalf("class %v: %v", class, err)
			}
			for _, c := range s.Claims {
				if !slices.IsSorted(c.Pods) || len(c.String()) > 16<<10 {
					t.Fatalf("%+v: %s", c, c)
				}
			}
		}
	})
}
