package simulate

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/clients/berthctl/drawing"
	"github.com/berthd/berth/clients/berthctl/get"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/simulation"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/machine"
)

const simulateLong = `Admit pods one after the other on a simulated machine, without a berthd. The output shows what each pod gets, which pods
are rejected and why, and what each NUMA node has left (FREE/TOTAL).

The machine is a snapshot ('berthctl topology --export') or a shape: 2s4n32c2t has 2 sockets of 4 NUMA nodes of 32 cores
of 2 threads; 32m at the end adds 32 nodes with memory only. The configuration is that of berthd; flags override it.

A device is ID@NODES, as gpu0@0 or nic@0+1; 4*gpu@0 makes gpu0 to gpu3. A file of devices has a line "resource: devices"
for each resource. A pod that requests any other extended resource is rejected, unless devices.elsewhere of the
configuration names the resource. --more counts how many copies of a pod would fit after the others.

--then changes the machine after the pods, as CPUs, memory and nodes that come and go do while berthd runs: pods keep what
they hold, unless hotplug.onLost is "replace", and the output lists what the machine does not have any more. It also
resizes a container: resize=NAMESPACE/POD/CONTAINER:cpu=AMOUNT,memory=AMOUNT. --more counts after all changes.

--bundle FILE takes machine, configuration and devices from a file of 'berthctl bundle', and the pods that were admitted
there are on the machine already. --kubelet takes them from a node whose kubelet decides; --pods FILE has its pods.

The exit code is 3 if a pod was rejected.`

const simulateExample = `  berthctl simulate --machine 2s4n32c2t --config berth.yaml -f pods/
  berthctl simulate --machine machine.json --kubelet-config kubelet.yaml -f pods.yaml --topology-manager-policy single-numa-node
  berthctl simulate --machine 2s2n16c2t --cpu-manager-policy static --reserved-cpus 0,32 --topology-manager-policy restricted \
    --device example.com/gpu=4*a@0,4*b@2 -f pods.yaml --more worker.yaml -o json
  berthctl simulate --machine 2s1n8c --cpu-manager-policy static --reserved-cpus 0 -f pods.yaml --then offline=1-3 --then online=3
  berthctl simulate --machine 2s1n8c --cpu-manager-policy static --reserved-cpus 0 -f pods.yaml --then resize=web/app:cpu=4
  berthctl simulate --bundle incident.tar.gz -f web.yaml --map
  berthctl simulate --kubelet --pods pods.json -f web.yaml`

// simulate's flags.
type simulateFlags struct {
	sceneFlags
	bundle     string
	pods, more command.Manifest
	most       int
	then       []string
	explain    bool
}

func (f *simulateFlags) declare(fs *pflag.FlagSet) {
	f.sceneFlags.declare(fs, "what the configuration says")
	fs.StringVar(&f.bundle, "bundle", "", "bundle with the machine, the configuration, the devices, and the pods that are admitted already")
	f.pods.ReadFlags(fs)
	fs.StringSliceVar(&f.more.Files, "more", nil, "file with one pod; the output has the number of copies that would fit")
	fs.IntVar(&f.most, "most", 10000, "where --more stops counting")
	fs.StringArrayVar(&f.then, "then", nil,
		"change after the pods: offline=CPUS, online=CPUS, machine=FILE|SHAPE or resize=POD/CONTAINER:cpu=AMOUNT; may be repeated")
	fs.BoolVar(&f.explain, "explain", false, "explain every decision, not only rejections")
}

func Simulate(c *command.Ctl) *cobra.Command {
	var (
		f     simulateFlags
		drawn drawing.Flags
	)
	cmd := c.Local(command.About{
		Use:   "simulate {--machine FILE|SHAPE | --bundle FILE | --kubelet} -f FILE|DIR [--config FILE]",
		Short: "Admit pods on a simulated machine",
		Long:  simulateLong, Example: simulateExample,
	}, func(ctx context.Context, _ []string) error {
		if len(f.pods.Files) == 0 && len(f.more.Files) == 0 && !drawn.Draw {
			return command.Usagef("simulate", "-f is missing; --map draws the machine without pods")
		}
		if c.NodePods != "" && c.Kubelet == "" {
			return command.Usagef("simulate", "--pods FILE has the pods of a kubelet's node: add --kubelet. The pods to admit are those of -f")
		}
		if f.most < 1 {
			return command.Usagef("simulate", "--most %d: expected at least 1", f.most)
		}
		scene, opened, err := f.scene(ctx, c)
		if err != nil {
			return err
		}
		pods, o, err := f.read(ctx, c, &scene)
		if err != nil {
			return err
		}
		known := make(command.Names)
		if opened != nil {
			if o.On, err = simulation.RecordOf(opened, scene.Machine); err != nil {
				return err
			}
			if known, err = recordedNames(o.On); err != nil {
				return err
			}
		}
		picture, err := drawn.Options(c)
		if err != nil {
			return command.Usagef("simulate", "%v", err)
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
				c.Warn("pod %s/%s: %s", p.GetNamespace(), p.GetName(), n)
			}
		}
		if err := c.Show(out, func(w io.Writer) { showSimulation(c, w, out, known, f.explain) }); err != nil {
			return err
		}
		if drawn.Draw && !c.ForPrograms() {
			fmt.Fprintln(c.Out)
			if err := drawing.ShowMap(c, drawing.SimulatedState(scene.On(placed), placed), picture); err != nil {
				return err
			}
		}
		for _, p := range out.GetPods() {
			if p.GetVerdict().GetVerdict() == admissionv1.Verdict_VERDICT_REJECTED {
				return command.Verdict(command.ExitRejected)
			}
		}
		return nil
	})
	f.declare(cmd.Flags())
	drawn.Declare(cmd, "draw the machine with the admitted pods on it")
	command.ChoosePolicies(cmd, "topology-manager-policy", "topology-manager-scope", "topology-planning", "cpu-manager-policy")
	return cmd
}

// scene reads machine, configuration and devices.
func (f *simulateFlags) scene(ctx context.Context, c *command.Ctl) (s simulation.Scene, b *bundle.Bundle, err error) {
	switch {
	case f.bundle != "" && c.Kubelet != "":
		return s, nil, command.Usagef("simulate", "--kubelet contradicts --bundle: give one of both")
	case f.bundle != "":
		b, err = bundle.ReadFile(f.bundle)
	case c.Kubelet != "":
		err = c.OfNode(ctx, "", func(ctx context.Context, _ *command.Observed, of *command.Session) (err error) {
			b, err = collected(ctx, of)
			return err
		})
	}
	if err != nil {
		return s, nil, err
	}
	s, err = f.sceneFlags.scene(ctx, c, "simulate", b)
	s.Kubelet = c.Kubelet != ""
	return s, b, err
}

// read reads the pods, and assigns missing uids.
func (f *simulateFlags) read(ctx context.Context, c *command.Ctl, scene *simulation.Scene) (pods []*typesv1.Pod, o simulation.Options,
	err error) {
	for _, text := range f.then {
		event, err := simulation.ParseEvent(text,
			func(fileOrShape string) (*machine.Topology, error) { return findMachine(ctx, fileOrShape) })
		if err != nil {
			return nil, o, command.Usagef("simulate", "--then %v", err)
		}
		o.Then = append(o.Then, event)
	}
	f.pods.GenerateUID, f.more.GenerateUID, f.more.Strict = true, true, f.pods.Strict
	if pods, err = f.pods.Load(ctx, c); err != nil || len(f.more.Files) == 0 {
		return pods, o, err
	}
	o.Most = f.most
	if o.More, err = f.more.One(ctx, c); err != nil {
		return nil, o, err
	}
	for _, name := range get.Extended(o.More) {
		domain, _, _ := strings.Cut(name, "/")
		other := slices.ContainsFunc([]string{name, domain, admission.Everywhere},
			func(e string) bool { return slices.Contains(scene.Config.Devices.Elsewhere, e) })
		if _, simulated := scene.Devices[name]; !simulated && other {
			c.Warn("--more: %s is not simulated, so it does not limit the number of pods (devices.elsewhere)", name)
		}
	}
	return pods, o, nil
}
