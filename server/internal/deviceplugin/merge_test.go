package deviceplugin_test

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

func answered(t *testing.T, resource string, r *pluginapi.ContainerAllocateResponse) ledger.Claim {
	t.Helper()
	wire, err := proto.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Claim{Resource: resource, Devices: &ledger.Devices{Response: wire}}
}

func TestMerge(t *testing.T) {
	t.Parallel()
	claims := []ledger.Claim{
		answered(t, "z.io/z", &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"BOTH": "z", "SAME": "s", "Z": "z"},
			Annotations: map[string]string{"both": "z"},
			Mounts:      []*pluginapi.Mount{{ContainerPath: "/m", HostPath: "/z"}, {ContainerPath: "/z", HostPath: "/z", ReadOnly: true}},
			Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/d", HostPath: "/dev/z", Permissions: "rwm"}},
			CdiDevices:  []*pluginapi.CDIDevice{{Name: "v/c=1"}, {Name: "v/c=0"}},
		}),
		{Resource: "cpu", CPUs: &ledger.CPUs{}},
		answered(t, "a.io/a", &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"BOTH": "a", "SAME": "s"},
			Annotations: map[string]string{"both": "a"},
			Mounts:      []*pluginapi.Mount{{ContainerPath: "/m", HostPath: "/a"}, {ContainerPath: "/m", HostPath: "/a"}},
			Devices: []*pluginapi.DeviceSpec{{ContainerPath: "/dev/e", HostPath: "/dev/a", Permissions: "r"},
				{ContainerPath: "/dev/d", HostPath: "/dev/a", Permissions: "r"}},
			CdiDevices: []*pluginapi.CDIDevice{{Name: "v/c=1"}},
		}),
	}
	want := deviceplugin.Answer{
		Env:         map[string]string{"BOTH": "a", "SAME": "s", "Z": "z"},
		Annotations: map[string]string{"both": "a"},
		Mounts:      []deviceplugin.Mount{{"/m", "/a", false}, {"/z", "/z", true}},
		Devices:     []deviceplugin.Node{{"/dev/e", "/dev/a", "r"}, {"/dev/d", "/dev/a", "r"}},
		CDI:         []string{"v/c=1", "v/c=0"},
	}
	notes := []string{
		`environment variable BOTH: "a" of a.io/a is used, not "z" of z.io/z`,
		`annotation both: "a" of a.io/a is used, not "z" of z.io/z`,
		`mount at /m: "/a" of a.io/a is used, not "/z" of z.io/z`,
		`device node at /dev/d: "/dev/a" of a.io/a is used, not "/dev/z" of z.io/z`,
	}
	for range 10 {
		got, said, err := deviceplugin.Merge(claims)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
		if !reflect.DeepEqual(said, notes) {
			t.Fatalf("notes %q, want %q", said, notes)
		}
	}
	if claims[0].Resource != "z.io/z" {
		t.Error("the claims were put in another order")
	}
}

func TestMergeNothing(t *testing.T) {
	t.Parallel()
	got, notes, err := deviceplugin.Merge(nil)
	if err != nil || notes != nil || !reflect.DeepEqual(got, deviceplugin.Answer{}) {
		t.Errorf("got %+v, %q, %v", got, notes, err)
	}
}

func TestMergeDamagedAnswer(t *testing.T) {
	t.Parallel()
	claims := []ledger.Claim{{Resource: "a.io/a", Devices: &ledger.Devices{Response: []byte{0x0a, 0x7f}}}}
	if _, _, err := deviceplugin.Merge(claims); errdefs.ClassOf(err) != errdefs.Corrupt {
		t.Errorf("got %v", err)
	}
}

func FuzzMerge(f *testing.F) {
	f.Add([]byte(nil), []byte{0x0a, 0x7f})
	f.Add([]byte("\n\x06\n\x01a\x12\x01b"), []byte("\x12\x04\n\x02/m"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		claims := []ledger.Claim{
			{Resource: "a.io/a", Devices: &ledger.Devices{Response: a}},
			{Resource: "b.io/b", Devices: &ledger.Devices{Response: b}},
		}
		got, _, err := deviceplugin.Merge(claims)
		if (err != nil) != (errdefs.ClassOf(err) == errdefs.Corrupt) {
			t.Errorf("error %v", err)
		}
		claims[0], claims[1] = claims[1], claims[0]
		if again, _, _ := deviceplugin.Merge(claims); !reflect.DeepEqual(got, again) {
			t.Errorf("%+v, in the other order %+v", got, again)
		}
	})
}
