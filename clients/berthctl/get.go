package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthctl/table"
	"github.com/berthd/berth/managers/cpuset"
)

func (c *ctl) get() *cobra.Command {
	cmd := group(about{
		use:   "get",
		short: "List pods, CPUs, memory, devices and other objects",
		example: `  berthctl get pods
  berthctl get cpus -o wide
  berthctl get devices example.com/gpu`,
	}, c.getPods(), c.getSpec(), c.getTraces(), c.getContainers(), c.getCPUs(), c.getMemory(), c.getNUMA(), c.getDevices(), c.getResources(), c.getProviders(),
		c.getNode(), c.getCgroups())
	// Who has kubectl in the fingers writes "get pod".
	for _, verb := range cmd.Commands() {
		if one, plural := strings.CutSuffix(verb.Name(), "s"); plural {
			verb.Aliases = []string{one}
		}
	}
	return cmd
}

// filter is the flags of verbs that list pods.
type filter struct{ namespace, resource, owner string }

func (f *filter) flags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "only pods of this namespace")
	cmd.Flags().StringVar(&f.resource, "resource", "", "only pods that hold this resource")
	cmd.Flags().StringVar(&f.owner, "owner", "", "only pods of this agent, such as berthlet or kubernetes")
}

func (f *filter) request() *allocationv1.ListRequest {
	return &allocationv1.ListRequest{Namespace: f.namespace, Resource: f.resource, Owner: f.owner}
}

// sayNone says that no pod matches.
func (f *filter) sayNone(w io.Writer) {
	pod, what := "no pod", "is admitted"
	if f.namespace != "" {
		pod += " in namespace " + f.namespace
	}
	if f.owner != "" {
		pod += " of " + f.owner
	}
	if f.resource != "" {
		what = "holds " + f.resource
	}
	fmt.Fprintln(w, pod, what)
}

func (c *ctl) getPods() *cobra.Command {
	var f filter
	cmd := c.verb(about{
		use:   "pods [POD]",
		short: "Admitted pods",
		long:  "List all admitted pods, or one of them. CPUS has the exclusive CPUs of the pod.",
		example: `  berthctl get pods
  berthctl get pods default/web -o json
  berthctl get pods -n shop --resource example.com/gpu -o wide`,
		args: []string{"[POD]"},
	}, func(ctx context.Context, s *session, args []string) error {
		list, err := s.pods(ctx, "get pods", args, &f)
		if err != nil {
			return err
		}
		return s.show(list, func(w io.Writer) {
			if len(list.GetPods()) == 0 {
				f.sayNone(s.err)
				return
			}
			t := table.New("NAMESPACE", "NAME", "QOS", "CONTAINERS", "CPUS", "DEVICES", "AGE").
				Wide(s.wide(), "MEMORY", "UID", "CGROUP", "ADMISSION", "OWNER")
			for _, p := range list.GetPods() {
				claims := allClaims(p)
				t.Row(p.GetNamespace(), p.GetName(), qos(p.GetQosClass()), strconv.Itoa(len(p.GetContainers())),
					orShared(ownCPUs(p)), deviceCounts(claims), s.age(p),
					memory(claims), p.GetUid(), p.GetCgroupParent(), p.GetAdmissionId(), p.GetOwner())
			}
			fmt.Fprint(w, t)
		})
	})
	f.flags(cmd)
	return cmd
}

// age spells how long ago a pod was admitted.
func (c *ctl) age(p *typesv1.PodAllocation) string {
	if p.GetAdmitTime() == nil {
		return ""
	}
	return table.Age(c.now().Sub(p.GetAdmitTime().AsTime()))
}

// cpus spells the CPUs of a container: its own, or the shared ones of the last answer that told them.
func (c *ctl) cpus(a *typesv1.ContainerAllocation) string {
	return cmp.Or(a.GetCpus().GetList(), c.shared.GetList())
}

// allClaims returns the claims of a pod and of its containers.
func allClaims(p *typesv1.PodAllocation) []*typesv1.Claim {
	claims := p.GetClaims()[:len(p.GetClaims()):len(p.GetClaims())]
	for _, c := range p.GetContainers() {
		claims = append(claims, c.GetClaims()...)
	}
	return claims
}

// ownCPUs returns the CPUs that a pod or its containers have for themselves.
func ownCPUs(p *typesv1.PodAllocation) cpuset.Set {
	var own cpuset.Set
	for _, c := range p.GetContainers() {
		if c.GetExclusiveCpus() {
			own = own.Union(set(c.GetCpus()))
		}
	}
	for _, c := range p.GetClaims() {
		own = own.Union(set(c.GetCpu().GetCpus()))
	}
	return own
}

// orShared spells the CPUs of a pod; those of one without any of its own are shared.
func orShared(own cpuset.Set) string {
	if own.IsEmpty() {
		return "shared"
	}
	return own.String()
}

func (c *ctl) getContainers() *cobra.Command {
	var f filter
	cmd := c.verb(about{
		use:   "containers [POD]",
		short: "Containers of admitted pods",
		long: `List the containers of all admitted pods, or of one, in the order of admission. OWN says whether the CPUs are the
container's own.`,
		example: `  berthctl get containers
  berthctl get containers default/web -o wide`,
		args: []string{"[POD]"},
	}, func(ctx context.Context, s *session, args []string) error {
		list, err := s.pods(ctx, "get containers", args, &f)
		if err != nil {
			return err
		}
		return s.show(list, func(w io.Writer) {
			t := table.New("POD", "CONTAINER", "ROLE", "CPUS", "OWN", "NUMA", "DEVICES").Wide(s.wide(), "MEMORY", "IDS", "UID")
			for _, p := range list.GetPods() {
				for _, a := range p.GetContainers() {
					t.Row(podName(p), a.GetContainerName(), convert.Word(a.GetRole()), s.cpus(a), yesNo(a.GetExclusiveCpus()),
						hintText(a.GetAffinity()), deviceCounts(a.GetClaims()), memory(a.GetClaims()),
						joined(a.GetContainerIds()), p.GetUid())
				}
			}
			if t.Len() == 0 {
				f.sayNone(s.err)
				return
			}
			fmt.Fprint(w, t)
		})
	})
	f.flags(cmd)
	return cmd
}

// pods lists pods that match, or the one that is named.
func (s *session) pods(ctx context.Context, verb string, args []string, f *filter) (*allocationv1.ListResponse, error) {
	if len(args) == 0 {
		list, err := s.List(ctx, f.request())
		s.shared = list.GetSharedCpus()
		return list, err
	}
	if *f != (filter{}) {
		return nil, usagef(verb, "POD names one pod, so there is nothing to filter")
	}
	pod, err := s.find(ctx, args[0])
	if err != nil {
		return nil, err
	}
	return &allocationv1.ListResponse{Pods: []*typesv1.PodAllocation{pod}, SharedCpus: s.shared}, nil
}
