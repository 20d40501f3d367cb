package observe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/kubeletnode"
	"github.com/berthd/berth/server/internal/nodecheck"
)

// CheckOptions of a check.
type CheckOptions struct {
	// Root and Told are those of Options.
	Root string
	Told []byte
	// List lists the node's pods, as that of Options. It is called for each reading.
	List func(ctx context.Context, dir string) ([]Pod, error)
	// Pause is the time between two readings of a node that runs; zero for one reading. What compares sources that change is wrong only
	// if both readings say so.
	Pause time.Duration
}

// Checked reports what is wrong on a node.
type Checked struct {
	Findings []Finding
	// Skipped are the checks that were not made, by the reason.
	Skipped []Skipped
	// Missing are the parts that could not be read.
	Missing []string
	// slow means that the kubelet takes longer to apply a change than is waited for.
	slow bool
}

// Finding is something that is wrong on a node.
type Finding struct {
	nodecheck.Finding
	// Unconfirmed means that it compares sources that change, and only one reading was made.
	Unconfirmed bool
}

// Skipped tells why checks were not made.
type Skipped = nodecheck.Skipped

// Check finds what is wrong on a node. Unlike Open it also reads a node whose kubelet does not start with its configuration. Errors are of
// class NotFound if there is no kubelet's configuration, and Invalid for a machine or a pod that cannot be read.
func Check(ctx context.Context, o CheckOptions) (*Checked, error) {
	root, closeRoot, err := open(ctx, o.Root)
	if err != nil {
		return nil, err
	}
	defer closeRoot()
	began := kubeletnode.Uptime(root)
	out, err := check(ctx, root, o)
	if err != nil || o.Pause == 0 || !slices.ContainsFunc(out.Findings, func(f Finding) bool { return f.Unconfirmed }) {
		return out, err
	}
	if began == kubeletnode.Uptime(root) {
		return out, nil // a copy of a node's files, in which nothing changes
	}
	if end, ok := ctx.Deadline(); ok && time.Until(end) < o.Pause {
		return out, nil // one reading is better than none
	}
	select {
	case <-time.After(o.Pause):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	again, err := check(ctx, root, o)
	if err != nil {
		return nil, err
	}
	again.confirm(out.Findings)
	return again, nil
}

// confirm leaves out what compares sources that change and was not found before.
func (c *Checked) confirm(before []Finding) {
	c.Findings = slices.DeleteFunc(c.Findings, func(f Finding) bool {
		return f.Compared && !slices.ContainsFunc(before, func(b Finding) bool {
			return b.ID == f.ID && b.Object == f.Object && b.Seen == f.Seen
		})
	})
	for i, f := range c.Findings {
		c.Findings[i].Unconfirmed = c.slow && f.Seen != ""
	}
}

// check makes all checks on one reading.
func check(ctx context.Context, root fs.FS, o CheckOptions) (*Checked, error) {
	read, err := kubeletnode.Inspect(ctx, root, o.Told)
	if err != nil {
		return nil, err
	}
	pods, unlisted := listed(ctx, o.List, o.Root, read.Dir)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	in := nodecheck.Input{
		Machine: read.Machine, Config: read.Given, Refused: read.Refused, Dir: read.Dir,
		Damaged: read.Damaged, Unread: read.Unread, PodsKnown: pods != nil, Names: map[string]string{},
	}
	c := config.Default()
	if read.Given != nil {
		c = *read.Given
	}
	if in.Kernel, err = kubeletnode.Running(root, c); err != nil {
		in.Unseen = err.Error()
	}
	out := &Checked{slow: c.Cgroups.ReconcilePeriod.Duration > config.Default().Cgroups.ReconcilePeriod.Duration}
	if unlisted != nil {
		out.Missing = append(out.Missing, unlisted.Error())
	}
	living := slices.DeleteFunc(slices.Clone(pods), func(p Pod) bool { return p.Ended })
	for _, p := range living {
		for id, name := range p.Containers {
			in.Names[id] = name
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
		switch err := parse(&in, kind, data); {
		case kind == kubelet.Claims && errdefs.ClassOf(err) == errdefs.Unsupported: // the kubelet may be able to
			out.Missing = append(out.Missing, err.Error())
		case err != nil:
			in.Damaged[kind] = err
		}
	}
	if in.Devices != nil {
		in.PCI = kubeletnode.PCINodes(root, *in.Devices)
	}
	if read.Refused == nil && pods != nil && in.CPU != nil && aligned(c) {
		n, err := Open(ctx, Options{Root: o.Root, Told: o.Told, Pods: living}) // why others were rejected is not asked
		if err == nil {
			in.Scattered, err = scattered(ctx, n, c)
		}
		if err != nil {
			out.Missing = append(out.Missing, "how scattered free CPUs are: "+err.Error())
		}
	}
	found := nodecheck.Run(in)
	out.Skipped = found.Skipped
	for _, f := range found.Findings {
		out.Findings = append(out.Findings, Finding{f, f.Compared})
	}
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
	case kubelet.Claims:
		s, err := kubelet.ParseClaims(data)
		if err != nil {
			return err
		}
		in.Claims = &s
	}
	return nil
}
