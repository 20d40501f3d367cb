package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthctl/table"
	"github.com/berthd/berth/clients/podspec"
)

func (c *ctl) describe() *cobra.Command {
	cmd := group(about{
		use:   "describe",
		short: "Show all about a pod, a container, a cgroup or the node",
		example: `  berthctl describe pod default/web
  berthctl describe container default/web app
  berthctl describe cgroup /kubepods/burstable
  berthctl describe node`,
	}, c.describePod(), c.describeContainer(), c.describeCgroup(), c.describeNode())
	shortNames(cmd)
	return cmd
}

func (c *ctl) describePod() *cobra.Command {
	var in namespaces
	cmd := c.verb(about{
		use:     "pod POD",
		short:   "Show all about a pod",
		example: `  berthctl describe pod default/web`,
		args:    []string{"POD"},
	}, func(ctx context.Context, s *session, args []string) error {
		if err := in.check("describe pod"); err != nil {
			return err
		}
		pod, err := s.find(ctx, in.pod(args[0]))
		if err != nil {
			return err
		}
		got, err := s.whole(ctx, pod)
		if err != nil {
			return err
		}
		return s.show(got.GetPod(), func(w io.Writer) { s.describeAll(w, got) })
	})
	in.flags(cmd.Flags(), inNamespace)
	return cmd
}

// describeAll prints all data of a pod.
func (c *ctl) describeAll(w io.Writer, got *allocationv1.GetResponse) {
	pod := got.GetPod()
	f := table.NewFields("")
	kind := "Pod"
	if isClaim(pod) {
		kind = "Claim"
	}
	f.Add(kind, podName(pod))
	f.Add("UID", pod.GetUid())
	f.Add("Pods", claimPods(pod)...)
	f.Add("QoS", string(podspec.QoSClass(pod.GetQosClass())))
	f.Add("Cgroup", pod.GetCgroupParent())
	f.Add("Admitted", c.admitted(pod))
	f.Add("Admission", pod.GetAdmissionId())
	f.Add("State", movingText(pod))
	f.Add("Annotations", pairs(got.GetSpec().GetMetadata().GetAnnotations())...)
	f.Add("Holds", claimTexts(pod.GetClaims())...)
	fmt.Fprint(w, f)
	for _, a := range pod.GetContainers() {
		f := table.NewFields("  ")
		c.addContainer(f, a)
		fmt.Fprintf(w, "\nContainer %s:\n%v", a.GetContainerName(), f)
	}
}

// admitted spells when a pod was admitted.
func (c *ctl) admitted(p *typesv1.PodAllocation) string {
	if p.GetAdmitTime() == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s ago)", p.GetAdmitTime().AsTime().Format(time.RFC3339), c.age(p))
}

// addContainer adds what a container got.
func (c *ctl) addContainer(f *table.Fields, a *typesv1.ContainerAllocation) {
	f.Add("Role", convert.Word(a.GetRole()))
	f.Add("Requests", amountTexts(a.GetResources().GetRequests())...)
	f.Add("Limits", amountTexts(a.GetResources().GetLimits())...)
	f.Add("CPUs", cpusText(c.cpus(a), a.GetExclusiveCpus()))
	f.Add("NUMA", affinity(a.GetAffinity()))
	f.Add("Holds", claimTexts(a.GetClaims())...)
	f.Add("Health", c.healthTexts(a.GetClaims())...)
	f.Add("External devices", externalTexts(a.GetExternalDevices())...)
	f.Add("Runtime ids", a.GetContainerIds()...)
}

// externalTexts spells devices that another program has allocated.
func externalTexts(list []*typesv1.ExternalDevice) (out []string) {
	for _, d := range list {
		text := d.GetResource() + " " + d.GetId()
		if nodes := convert.Nodes(d.GetNumaNodes()); !nodes.IsEmpty() {
			text += " on NUMA node " + nodes.String()
		}
		out = append(out, text)
	}
	return out
}

// amountTexts spells amounts by resource, ordered.
func amountTexts(amounts map[string]string) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(amounts)) {
		out = append(out, name+" "+amounts[name])
	}
	return out
}

// affinity spells a decided placement and whether it is as good as it could be.
func affinity(h *typesv1.TopologyHint) string {
	switch {
	case h == nil:
		return ""
	case h.GetNumaNodes() == nil:
		return "any node"
	case h.GetPreferred():
		return nodeNoun(nodes(h.GetNumaNodes()))
	}
	return nodeNoun(nodes(h.GetNumaNodes())) + " (fewer could do on an idle machine)"
}

func (c *ctl) describeContainer() *cobra.Command {
	var in namespaces
	cmd := c.verb(about{
		use:     "container POD CONTAINER",
		short:   "Show all about a container",
		example: `  berthctl describe container default/web app`,
		args:    []string{"POD", "CONTAINER"},
	}, func(ctx context.Context, s *session, args []string) error {
		if err := in.check("describe container"); err != nil {
			return err
		}
		pod, err := s.find(ctx, in.pod(args[0]))
		if err != nil {
			return err
		}
		got, err := s.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: pod.GetUid()}})
		if err != nil {
			return err
		}
		pod, s.shared = got.GetPod(), got.GetSharedCpus()
		for _, a := range pod.GetContainers() {
			if a.GetContainerName() != args[1] {
				continue
			}
			return s.show(a, func(w io.Writer) {
				f := table.NewFields("")
				f.Add("Container", podName(pod)+"/"+a.GetContainerName())
				f.Add("Pod UID", pod.GetUid())
				s.addContainer(f, a)
				for _, p := range got.GetPlacements() {
					if p.GetContainerName() == a.GetContainerName() {
						s.addPlacement(ctx, f, p)
					}
				}
				fmt.Fprint(w, f)
			})
		}
		return fmt.Errorf("pod %s has no container %s: it has %s", podName(pod), args[1], containerNames(pod))
	})
	in.flags(cmd.Flags(), inNamespace)
	return cmd
}

// addPlacement adds the CPUs that a container may use, and the containers that delay its start.
func (s *session) addPlacement(ctx context.Context, f *table.Fields, p *allocationv1.ContainerPlacement) {
	possible := p.GetPossibleCpus().GetList()
	if p.GetAnywhere() {
		possible = "all"
	}
	f.Add("Phase", fmt.Sprintf("%s (%s)", convert.Word(p.GetPhase()), p.GetId()))
	f.Add("Assigned CPUs", p.GetAssignedCpus().GetList())
	f.Add("Possible CPUs", possible)
	if len(p.GetBlockedBy()) > 0 {
		f.Add("Blocked by", s.names(ctx).owners(p.GetBlockedBy()))
		f.Add("Blocked since", p.GetBlockTime().AsTime().Format(time.RFC3339))
	}
}

func containerNames(p *typesv1.PodAllocation) string {
	var out []string
	for _, a := range p.GetContainers() {
		out = append(out, a.GetContainerName())
	}
	return joined(out)
}
