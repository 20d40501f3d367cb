package simulate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/yamltext"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/topology"
)

// sceneFlags name a machine, its configuration and its devices.
type sceneFlags struct {
	machine, config, kubelet string
	policy, scope, planning  string
	cpuPolicy, reserved      string
	devices                  string
	device                   []string
}

// declare adds the flags; without says what holds without --machine.
func (f *sceneFlags) declare(fs *pflag.FlagSet, without string) {
	fs.StringVar(&f.machine, "machine", "", "snapshot file or shape of the machine; empty: "+without)
	fs.StringVar(&f.config, "config", "", "berth's own configuration file")
	fs.StringVar(&f.kubelet, "kubelet-config", "", "a kubelet's configuration file")
	fs.StringVar(&f.policy, "topology-manager-policy", "", "topology policy in place of the configured one: none, best-effort, restricted, single-numa-node")
	fs.StringVar(&f.scope, "topology-manager-scope", "", "topology scope in place of the configured one: container, pod")
	fs.StringVar(&f.planning, "topology-planning", "", "topology planning in place of the configured one: pod, or container as the kubelet does")
	fs.StringVar(&f.cpuPolicy, "cpu-manager-policy", "", "CPU policy in place of the configured one: none, static")
	fs.StringVar(&f.reserved, "reserved-cpus", "", "list of reserved CPUs, in place of the configured ones")
	fs.StringArrayVar(&f.device, "device", nil, "devices of a resource, as example.com/gpu=4*a@0,4*b@1; may be repeated")
	fs.StringVar(&f.devices, "devices", "", "file with devices by resource")
}

// given reports whether any of the flags has a value.
func (f *sceneFlags) given() bool {
	return f.machine+f.config+f.kubelet+f.policy+f.scope+f.planning+f.cpuPolicy+f.reserved+f.devices != "" || len(f.device) > 0
}

// scene reads machine, configuration and devices. What no flag names is the bundle's, which may be
// nil.
func (f *sceneFlags) scene(ctx context.Context, c *command.Ctl, verb string, b *bundle.Bundle) (s simulation.Scene, err error) {
	if s.Config, err = f.configuration(ctx, c, b); err != nil {
		return s, err
	}
	if b == nil {
		b = &bundle.Bundle{}
	}
	switch {
	case f.machine == "" && b.Machine != nil:
		s.Machine = b.Machine
	case s.Config.Machine == "":
		return s, command.Usagef(verb, "--machine is missing")
	default:
		if s.Machine, err = findMachine(ctx, s.Config.Machine); err != nil {
			return s, err
		}
	}
	s.Facts = b.Node
	if s.Devices, err = f.allDevices(ctx, verb); err != nil {
		return s, err
	}
	for resource, list := range b.DevicesByResource() {
		if _, given := s.Devices[resource]; !given {
			s.Devices[resource] = list
		}
	}
	return s, nil
}

// configuration lays the files over the defaults, and the flags over the files. Without files it
// begins with the bundle's.
func (f *sceneFlags) configuration(ctx context.Context, c *command.Ctl, b *bundle.Bundle) (config.Config, error) {
	cfg := config.Default()
	if b != nil && b.Config != nil && f.kubelet == "" && f.config == "" {
		cfg = *b.Config
	}
	if f.kubelet != "" {
		data, err := input.File(ctx, f.kubelet, input.Most)
		if err != nil {
			return cfg, err
		}
		notes, err := cfg.ApplyKubelet(f.kubelet, data)
		for _, n := range notes {
			c.Warn("%s", n)
		}
		if err != nil {
			return cfg, err
		}
	}
	if f.config != "" {
		data, err := input.File(ctx, f.config, input.Most)
		if err != nil {
			return cfg, err
		}
		if err := cfg.ApplyBerth(f.config, data); err != nil {
			return cfg, err
		}
	}
	cfg.Machine = cmp.Or(f.machine, cfg.Machine)
	cfg.Topology.Policy = cmp.Or(topology.Policy(f.policy), cfg.Topology.Policy)
	cfg.Topology.Scope = cmp.Or(f.scope, cfg.Topology.Scope)
	cfg.Topology.Planning = cmp.Or(topology.Planning(f.planning), cfg.Topology.Planning)
	cfg.CPU.Policy = cmp.Or(f.cpuPolicy, cfg.CPU.Policy)
	if f.reserved != "" {
		cpus, err := cpuset.Parse(f.reserved)
		if err != nil {
			return cfg, fmt.Errorf("--reserved-cpus: %w", err)
		}
		cfg.Reserved.CPUs = cpus
	}
	return cfg, nil
}

// findMachine reads a snapshot file, or makes a machine of a shape.
func findMachine(ctx context.Context, fileOrShape string) (*machine.Topology, error) {
	data, err := input.File(ctx, fileOrShape, input.Most)
	if err == nil {
		return machine.Load(data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	shape, err := machine.ParseShape(fileOrShape)
	if err != nil {
		return nil, fmt.Errorf("machine %q is neither a file nor a shape: %w", fileOrShape, err)
	}
	return machine.New(shape)
}

// allDevices reads the file and the flags.
func (f *sceneFlags) allDevices(ctx context.Context, verb string) (map[string][]device.Device, error) {
	texts := map[string]string{}
	if f.devices != "" {
		data, err := input.File(ctx, f.devices, input.Most)
		if err != nil {
			return nil, err
		}
		if err := yamltext.Unmarshal(data, &texts); err != nil {
			return nil, fmt.Errorf("%s: expected a line \"resource: devices\" for each resource: %w", f.devices, err)
		}
	}
	for _, one := range f.device {
		resource, text, ok := strings.Cut(one, "=")
		if !ok || resource == "" {
			return nil, command.Usagef(verb, "--device %s: expected resource=devices", one)
		}
		texts[resource] = strings.TrimPrefix(texts[resource]+","+text, ",")
	}
	out := map[string][]device.Device{}
	for _, resource := range slices.Sorted(maps.Keys(texts)) {
		list, err := simulation.ParseDevices(texts[resource])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", resource, err)
		}
		out[resource] = list
	}
	return out, nil
}
