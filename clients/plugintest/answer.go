package plugintest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"strings"
	"unicode"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

var (
	permissions = regexp.MustCompile(`^[rwm]+$`)
	cdiName     = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?=[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?$`)
)

// answer checks the settings of the plugin's answer, before a runtime would find the mistakes.
func (p *probe) answer(context.Context) (string, error) {
	if p.first == nil {
		return "", skipped("there is no answer to check")
	}
	// A failure counts, wherever it is; of warnings the first one.
	var odd error
	for _, check := range []func() error{p.forms, p.places, p.oddities} {
		err := check()
		if err != nil && !errors.As(err, new(warning)) {
			return "", err
		}
		odd = cmp.Or(odd, err)
	}
	return "a runtime can use it", odd
}

// forms checks names and paths by themselves.
func (p *probe) forms() error {
	for name, value := range p.first.GetEnvs() {
		if name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("%q is no name of an environment variable", name)
		}
		if strings.Contains(value, "\x00") {
			return fmt.Errorf("the value of the environment variable %s has a zero byte, where it ends", name)
		}
	}
	at := map[string]string{}
	for _, m := range p.first.GetMounts() {
		if !path.IsAbs(m.GetHostPath()) || !path.IsAbs(m.GetContainerPath()) {
			return fmt.Errorf("mount of %q at %q: expected absolute paths", m.GetHostPath(), m.GetContainerPath())
		}
		if other, taken := at[m.GetContainerPath()]; taken {
			return fmt.Errorf("%q and %q are both mounted at %q", other, m.GetHostPath(), m.GetContainerPath())
		}
		at[m.GetContainerPath()] = m.GetHostPath()
	}
	clear(at)
	for _, d := range p.first.GetDevices() {
		if !path.IsAbs(d.GetHostPath()) || !path.IsAbs(d.GetContainerPath()) {
			return fmt.Errorf("device node %q at %q: expected absolute paths", d.GetHostPath(), d.GetContainerPath())
		}
		if !permissions.MatchString(d.GetPermissions()) {
			return fmt.Errorf("device node %q: permissions %q: expected letters of r, w and m", d.GetContainerPath(), d.GetPermissions())
		}
		if other, taken := at[d.GetContainerPath()]; taken {
			return fmt.Errorf("%q and %q are both the device node %q", other, d.GetHostPath(), d.GetContainerPath())
		}
		at[d.GetContainerPath()] = d.GetHostPath()
	}
	for _, c := range p.first.GetCdiDevices() {
		if !cdiName.MatchString(c.GetName()) {
			return fmt.Errorf("%q is no CDI name of the form vendor/class=device", c.GetName())
		}
	}
	if name := twice(p.wire); name != "" {
		return fmt.Errorf("the answer has the environment variable %q twice, and its reader takes the last one", name)
	}
	return nil
}

// places looks whether the paths of the host are there.
func (p *probe) places() error {
	var odd error
	for _, m := range p.first.GetMounts() {
		err := p.place(m.GetHostPath(), "a runtime mounts an empty directory in its place, or starts no container")
		if err != nil && !errors.As(err, new(warning)) {
			return err
		}
		odd = cmp.Or(odd, err)
	}
	for _, d := range p.first.GetDevices() {
		info, err := os.Stat(p.here(d.GetHostPath()))
		if err == nil && info.Mode().IsRegular() {
			return fmt.Errorf("device node %q is a file, and no device", d.GetHostPath())
		}
		err = p.place(d.GetHostPath(), "no container with the device starts")
		if err != nil && !errors.As(err, new(warning)) {
			return err
		}
		odd = cmp.Or(odd, err)
	}
	return odd
}

// here is where a path of the host is found.
func (p *probe) here(name string) string {
	if p.host == nil {
		return name
	}
	return p.host(name)
}

func (p *probe) place(name, effect string) error {
	switch _, err := os.Stat(p.here(name)); {
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return warnf("it is not known whether this machine has %q: %v", name, err)
	case p.Elsewhere:
		return warnf("this machine has no %q", name)
	}
	return fmt.Errorf("this machine has no %q: %s; --elsewhere is for a machine without the devices", name, effect)
}

// oddities works, though not everywhere.
func (p *probe) oddities() error {
	if proto.Size(p.first) == 0 {
		return warnf("the answer is empty: the container sees nothing of its device")
	}
	for name, value := range p.first.GetEnvs() {
		if strings.ContainsFunc(value, unicode.IsControl) {
			return warnf("the value of the environment variable %s has control characters, %q; programs that read variables by line see others", name, value)
		}
	}
	return nil
}

// Fields of the answer to Allocate (deviceplugin v1beta1).
const (
	fieldResponses protowire.Number = 1 // of AllocateResponse
	fieldEnvs      protowire.Number = 1 // of ContainerAllocateResponse
	fieldKey       protowire.Number = 1 // of an entry of a map
)

// twice returns an environment variable that an encoded answer has more than once; a decoded one has it once.
func twice(answer []byte) (name string) {
	seen := map[string]bool{}
	each(answer, fieldResponses, func(response []byte) {
		each(response, fieldEnvs, func(entry []byte) {
			each(entry, fieldKey, func(key []byte) {
				if seen[string(key)] {
					name = string(key)
				}
				seen[string(key)] = true
			})
		})
	})
	return name
}

// each calls f for every value of a field with a length.
func each(message []byte, field protowire.Number, f func([]byte)) {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return
		}
		message = message[n:]
		size := protowire.ConsumeFieldValue(number, kind, message)
		if size < 0 {
			return
		}
		if number == field && kind == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(message)
			f(value)
		}
		message = message[size:]
	}
}

// shared finds an environment variable that the answers of two resources set to different values.
func shared(answers map[string]*pluginapi.ContainerAllocateResponse, resources []string) error {
	type setting struct{ resource, value string }
	set := map[string]setting{}
	for _, resource := range resources {
		for name, value := range answers[resource].GetEnvs() {
			before, taken := set[name]
			if taken && before.value != value {
				return warnf("%s and %s both set the environment variable %s; a container with both gets only one of the values",
					before.resource, resource, name)
			}
			set[name] = setting{resource, value}
		}
	}
	return nil
}
