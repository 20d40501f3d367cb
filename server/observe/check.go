package observe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/kubeletnode"
	"github.com/berthd/berth/server/internal/nodecheck"
)

// Checked is what is wrong on a node.
type Checked struct {
	Findings []Finding
	// Skipped are the checks that were not made, by the reason.
	Skipped []Skipped
	// Missing are the parts that could not be read.
	Missing []string
}

// Finding is something that is wrong on a node.
type Finding = nodecheck.Finding

// Skipped is why checks were not made.
type Skipped = nodecheck.Skipped

// Check finds what is wrong on a node. Unlike Open it also reads a node whose kubelet does not start with its configuration. Errors are of
// class NotFound if there is no kubelet's configuration, and Invalid for a machine or a pod that cannot be read.
func Check(ctx context.Context, o Options) (*Checked, error) {
	root, closeRoot, err := open(ctx, o.Root)
	if err != nil {
		return nil, err
	}
	defer closeRoot()
	read, err := kubeletnode.Inspect(ctx, root)
	if err != nil {
		return nil, err
	}
	in := nodecheck.Input{
		Machine: read.Machine, Config: read.Given, Refused: read.Refused, Dir: read.Dir,
		Damaged: map[kubelet.Kind]error{}, Unread: read.Unread, PodsKnown: o.Pods != nil,
	}
	c := config.Default()
	if read.Given != nil {
		c = *read.Given
	}
	out := &Checked{}
	for _, p := range o.Pods {
		if p.Ended {
			continue
		}
		pod, err := app.NodePod(c, p.Pod)
		if err != nil { // its entries in the state files are not left behind
			out.Missing = append(out.Missing, err.Error())
			of := p.GetMetadata()
			pod = workload.Pod{UID: of.GetUid(), Namespace: of.GetNamespace(), Name: of.GetName()}
		}
		in.Pods = append(in.Pods, pod)
	}
	for kind, data := range read.States {
		if err := parse(&in, kind, data); err != nil {
			in.Damaged[kind] = err
		}
	}
	found := nodecheck.Run(in)
	out.Findings, out.Skipped = found.Findings, found.Skipped
	for _, s := range read.Sources {
		// The checks say that a state file is not there.
		if s.Missing != nil && strings.HasPrefix(s.Path, read.Dir) && !errors.Is(s.Missing, fs.ErrNotExist) {
			out.Missing = append(out.Missing, fmt.Sprintf("%s: %v", s.What, s.Missing))
		}
	}
	if read.Changing {
		out.Missing = append(out.Missing, "the state files are changing: their parts may be of different moments")
	}
	return out, nil
}

// parse reads a state file.
func parse(in *nodecheck.Input, kind kubelet.Kind, data []byte) error {
	switch kind {
	case kubelet.CPU:
		s, err := kubelet.ParseCPU(data, nil)
		if err != nil {
			return err
		}
		in.CPU = &s
	case kubelet.Memory:
		s, err := kubelet.ParseMemory(data)
		if err != nil {
			return err
		}
		in.Memory = &s
	case kubelet.Device:
		s, err := kubelet.ParseDevice(data)
		if err != nil {
			return err
		}
		in.Devices = &s
	}
	return nil
}
