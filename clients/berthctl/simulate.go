package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/topology"
)

const simulateLong = `Admit pods one after the other on a simulated machine, without a berthd. The output shows what each pod gets, which pods
are rejected and why, and how much of each NUMA node is used.

The machine is a snapshot ('berthctl topology --export') or a shape: 2s4n32c2t has 2 sockets of 4 NUMA nodes of 32 cores
of 2 threads; 32m at the end adds 32 nodes with memory only. The configuration is that of berthd; flags win.

A device is ID@NODES, as gpu0@0 or nic@0+1; 4*gpu@0 makes gpu0 to gpu3. A file of devices has a line "resource: devices"
for each resource. A pod that requests any other extended resource is rejected, unless devices.elsewhere of the
configuration names the resource. --more counts how many copies of a pod would fit after the others.

The exit code is 3 if a pod was rejected.`

const simulateExample = `  berthctl simulate --machine 2s4n32c2t --config berth.yaml --pods pods/
  berthctl simulate --machine machine.json --kubelet-config kubelet.yaml --pods pods.yaml --policy single-numa-node
  berthctl simulate --machine 2s2n16c2t --cpu-policy static --reserved-cpus 0,32 --policy restricted \
    --device example.com/gpu=4*a@0,4*b@2 --pods pods.yaml --more worker.yaml -o json`

// simulate's flags.
type simulateFlags struct {
	machine, config, kubelet string
	pods, more               manifest
	most                     int
	policy, scope, cpuPolicy string
	reserved                 string
	devices                  string
	device                   []string
	explain                  bool
}

func (f *simulateFlags) declare(fs *pflag.FlagSet) {
	fs.StringVar(&f.machine, "machine", "", "snapshot file or shape of the machine; empty: what the configuration says")
	fs.StringVar(&f.config, "config", "", "berth's own configuration file")
	fs.StringVar(&f.kubelet, "kubelet-config", "", "a kubelet's configuration file")
	fs.StringSliceVarP(&f.pods.files, "pods", "f", nil, filesUsage+". The files of a directory are taken in the order of their names")
	f.pods.readingFlags(fs)
	fs.StringSliceVar(&f.more.files, "more", nil, "file with one pod; the output has the number of copies that would fit")
	fs.IntVar(&f.most, "most", 10000, "where --more stops counting")
	fs.StringVar(&f.policy, "policy", "", "topology policy in place of the configured one: none, best-effort, restricted, single-numa-node")
	fs.StringVar(&f.scope, "scope", "", "topology scope in place of the configured one: container, pod")
	fs.StringVar(&f.cpuPolicy, "cpu-policy", "", "CPU policy in place of the configured one: none, static")
	fs.StringVar(&f.reserved, "reserved-cpus", "", "list of reserved CPUs, in place of the configured ones")
	fs.StringArrayVar(&f.device, "device", nil, "devices of a resource, as example.com/gpu=4*a@0,4*b@1; may be repeated")
	fs.StringVar(&f.devices, "devices", "", "file with devices by resource")
	fs.BoolVar(&f.explain, "explain", false, "explain every decision, not only rejections")
}

func (c *ctl) simulate() *cobra.Command {
	var (
		f     simulateFlags
		drawn mapFlags
	)
	cmd := c.local(about{
		use:   "simulate --machine FILE|SHAPE --pods FILE|DIR [--config FILE]",
		short: "Admit pods on a simulated machine",
		long:  simulateLong, example: simulateExample,
	}, func(ctx context.Context, _ []string) error {
		if len(f.pods.files) == 0 && len(f.more.files) == 0 {
			return usagef("simulate", "--pods is missing")
		}
		if f.most < 1 {
			return usagef("simulate", "--most %d: expected at least 1", f.most)
		}
		scene, err := f.scene(c)
		if err != nil {
			return err
		}
		pods, o, err := f.read(c, &scene)
		if err != nil {
			return err
		}
		picture, err := drawn.options(c)
		if err != nil {
			return usagef("simulate", "%v", err)
		}
		out, placed, err := scene.Run(ctx, pods, o)
		if err != nil {
			return err
		}
		if out.Machine == "" {
			out.Machine = scene.Config.Machine
		}
		for _, p := range out.GetPods() {
			for _, n := range p.GetVerdict().GetNotes() {
				fmt.Fprintf(c.err, "warning: pod %s/%s: %s\n", p.GetNamespace(), p.GetName(), oneLine(n))
			}
		}
		if err := c.show(out, func(w io.Writer) { c.showSimulation(w, out, f.explain) }); err != nil {
			return err
		}
		if drawn.draw && !c.forPrograms() {
			fmt.Fprintln(c.out)
			if err := c.showMap(simulatedState(scene, placed), picture); err != nil {
				return err
			}
		}
		for _, p := range out.GetPods() {
			if p.GetVerdict().GetVerdict() == admissionv1.Verdict_VERDICT_REJECTED {
				return verdict(exitRejected)
			}
		}
		return nil
	})
	f.declare(cmd.Flags())
	drawn.declare(cmd, "draw the machine with the admitted pods on it")
	choosePolicies(cmd, "policy", "scope", "cpu-policy")
	return cmd
}

// scene reads machine, configuration and devices.
func (f *simulateFlags) scene(c *ctl) (s simulation.Scene, err error) {
	if s.Config, err = f.configuration(c); err != nil {
		return s, err
	}
	if s.Config.Machine == "" {
		return s, usagef("simulate", "--machine is missing")
	}
	if s.Machine, err = findMachine(s.Config.Machine); err != nil {
		return s, err
	}
	s.Devices, err = f.allDevices()
	return s, err
}

// configuration lays the files over the defaults, and the flags over the files.
func (f *simulateFlags) configuration(c *ctl) (config.Config, error) {
	cfg := config.Default()
	if f.kubelet != "" {
		data, err := os.ReadFile(f.kubelet)
		if err != nil {
			return cfg, err
		}
		notes, err := cfg.ApplyKubelet(f.kubelet, data)
		if err != nil {
			return cfg, err
		}
		for _, n := range notes {
			fmt.Fprintf(c.err, "warning: %s\n", oneLine(n))
		}
	}
	if f.config != "" {
		data, err := os.ReadFile(f.config)
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
func findMachine(fileOrShape string) (*machine.Topology, error) {
	data, err := os.ReadFile(fileOrShape)
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
func (f *simulateFlags) allDevices() (map[string][]device.Device, error) {
	texts := map[string]string{}
	if f.devices != "" {
		data, err := os.ReadFile(f.devices)
		if err != nil {
			return nil, err
		}
		if err := yaml.UnmarshalStrict(data, &texts); err != nil {
			return nil, fmt.Errorf("%s: expected a line \"resource: devices\" for each resource: %w", f.devices, err)
		}
	}
	for _, one := range f.device {
		resource, text, ok := strings.Cut(one, "=")
		if !ok || resource == "" {
			return nil, usagef("simulate", "--device %s: expected resource=devices", one)
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

// read reads the pods, and assigns missing uids.
func (f *simulateFlags) read(c *ctl, scene *simulation.Scene) (pods []*typesv1.Pod, o simulation.Options, err error) {
	f.pods.generateUID, f.more.generateUID, f.more.strict = true, true, f.pods.strict
	if pods, err = f.pods.load(c); err != nil || len(f.more.files) == 0 {
		return pods, o, err
	}
	o.Most = f.most
	if o.More, err = f.more.one(c); err != nil {
		return nil, o, err
	}
	for _, name := range extended(o.More) {
		domain, _, _ := strings.Cut(name, "/")
		other := slices.ContainsFunc([]string{name, domain, admission.Everywhere}, func(e string) bool { return slices.Contains(scene.Config.Devices.Elsewhere, e) })
		if _, simulated := scene.Devices[name]; !simulated && other {
			fmt.Fprintf(c.err, "warning: --more: %s is not simulated, so it does not limit the number of pods (devices.elsewhere)\n", name)
		}
	}
	return pods, o, nil
}
