package deviceplugin

import (
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

func TestInexpressibleSettings(t *testing.T) {
	t.Parallel()
	type response = pluginapi.ContainerAllocateResponse
	device := func(host, container, permissions string) *response {
		return &response{Devices: []*pluginapi.DeviceSpec{{HostPath: host, ContainerPath: container, Permissions: permissions}}}
	}
	mount := func(host, container string) *response {
		return &response{Mounts: []*pluginapi.Mount{{HostPath: host, ContainerPath: container}}}
	}
	cdi := func(name string) *response { return &response{CdiDevices: []*pluginapi.CDIDevice{{Name: name}}} }
	for name, row := range map[string]struct {
		r  *response
		ok bool
	}{
		"nothing":              {&response{}, true},
		"a variable":           {&response{Envs: map[string]string{"A": "b=c"}}, true},
		"no name":              {&response{Envs: map[string]string{"": "x"}}, false},
		"a name with =":        {&response{Envs: map[string]string{"A=B": "x"}}, false},
		"a zero byte":          {&response{Envs: map[string]string{"A": "x\x00y"}}, false},
		"a mount":              {mount("/a", "/b"), true},
		"a relative mount":     {mount("a", "/b"), false},
		"a mount on nothing":   {mount("/a", ""), false},
		"a mount with zero":    {mount("/a\x00", "/b"), false},
		"a device":             {device("/dev/a", "/dev/b", "rwm"), true},
		"a device to read":     {device("/dev/a", "/dev/b", "r"), true},
		"no permissions":       {device("/dev/a", "/dev/b", ""), false},
		"other permissions":    {device("/dev/a", "/dev/b", "rx"), false},
		"a relative device":    {device("dev/a", "/dev/b", "r"), false},
		"a device on nothing":  {device("/dev/a", "", "r"), false},
		"a CDI name":           {cdi("vendor.com/gpu=0:1"), true},
		"a CDI name of a UUID": {cdi("nvidia.com/gpu=GPU-7a1c"), true},
		"no CDI class":         {cdi("vendor.com=0"), false},
		"no CDI device":        {cdi("vendor.com/gpu="), false},
		"CDI with escapes":     {cdi("vendor.com/gpu=\x1b[31m"), false},
		"CDI with a path":      {cdi("../vendor/gpu=0"), false},
		"no annotation":        {&response{Annotations: map[string]string{"": "x"}}, false},
	} {
		if text := inexpressible(row.r); (text == "") != row.ok {
			t.Errorf("%s: %q", name, text)
		}
	}
}
