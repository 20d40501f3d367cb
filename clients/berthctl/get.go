package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthctl/table"
	"github.com/berthd/berth/clients/podspec"
	"github.com/berthd/berth/managers/cpuset"
)

func (c *ctl) get() *cobra.Command {
	cmd := group(about{
		use:   "get",
		short: "List pods, CPUs, memory, devices and other objects",
		example: `  berthctl get pods
  berthctl get cpus -o wide
  berthctl get devices example.com/gpu
  berthctl get pods --at 2026-11-20T03:00:00Z`,
	}, c.ofPast(c.getPods()), c.ofPast(c.getClaims()), c.getSpec(), c.getRejections(), c.getTraces(), c.ofPast(c.getContainers()), c.ofPast(c.getCPUs()), c.ofPast(c.getMemory()), c.ofPast(c.getNUMA()), c.ofPast(c.getDevices()), c.getResources(), c.getProviders(),
		c.getNode(), c.getCgroups())
	shortNames(cmd)
	return cmd
}

// short are the names that kubectl has for kinds, or would have.
var short = map[string][]string{
	"pods": {"po"}, "pod": {"po"}, "containers": {"co"}, "container": {"co"}, "node": {"nodes", "no"}, "devices": {"dev"}, "device": {"dev"},
	"resources": {"res"}, "memory": {"mem"}, "claims": {"resourceclaims", "resourceclaim"}, "providers": {"prov"}, "cgroups": {"cg"}, "cgroup": {"cg"}, "rejections": {"rej"},
}

// shortNames gives the verbs of a group their singular, their plural and their short names.
func shortNames(group *cobra.Command) {
	group.Annotations = map[string]string{kinds: "yes"}
	for _, verb := range group.Commands() {
		verb.Aliases = slices.Clone(short[verb.Name()])
		if one, plural := strings.CutSuffix(verb.Name(), "s"); plural {
			verb.Aliases = append(verb.Aliases, one)
		} else if _, known := short[verb.Name()+"s"]; known {
			verb.Aliases = append(verb.Aliases, verb.Name()+"s")
		}
	}
}

// namespaces is the flags that select the namespaces of pods.
type namespaces struct {
	namespace string
	all       bool
}

func (n *namespaces) flags(f *pflag.FlagSet, what string) {
	f.StringVarP(&n.namespace, "namespace", "n", "", what)
	f.BoolVarP(&n.all, "all-namespaces", "A", false, "pods of all namespaces, which is the default")
}

// check refuses flags that contradict each other.
func (n *namespaces) check(verb string) error {
	if n.all && n.namespace != "" {
		return usagef(verb, "--all-namespaces contradicts --namespace %s", n.namespace)
	}
	return nil
}

// pod gives the name of a pod that was named in a namespace.
func (n *namespaces) pod(name string) string {
	name = withoutPod(name)
	if n.namespace == "" || strings.Contains(name, "/") {
		return name
	}
	return n.namespace + "/" + name
}

// inNamespace is the namespace of verbs about one pod.
const inNamespace = "namespace of the pod, if POD is only its name"

// filter is the flags of verbs that list pods.
type filter struct {
	namespaces
	resource, owner string
	claims          bool // in place of pods
}

func (f *filter) flags(cmd *cobra.Command) {
	what := f.what() + "s"
	f.namespaces.flags(cmd.Flags(), "only "+what+" of this namespace")
	cmd.Flags().StringVar(&f.resource, "resource", "", "only "+what+" that hold this resource")
	cmd.Flags().StringVar(&f.owner, "owner", "", "only "+what+" of this agent, such as berthlet or kubernetes")
}

// what is the word for what is listed.
func (f *filter) what() string {
	if f.claims {
		return "claim"
	}
	return "pod"
}

func (f *filter) request() *allocationv1.ListRequest {
	return &allocationv1.ListRequest{Namespace: f.namespace, Resource: f.resource, Owner: f.owner}
}

// none is the message that no pod matches.
func (f *filter) none() string {
	pod, what := "no "+f.what(), "is admitted"
	if f.claims {
		what = "is prepared"
	}
	if f.namespace != "" {
		pod += " in namespace " + f.namespace
	}
	if f.owner != "" {
		pod += " of " + f.owner
	}
	if f.resource != "" {
		what = "holds " + f.resource
	}
	return pod + " " + what
}

func (c *ctl) getPods() *cobra.Command {
	var f filter
	cmd := c.lister(about{
		use:   "pods [POD]",
		short: "Admitted pods",
		long:  "List all admitted pods, or one of them. CPUS has the exclusive CPUs of the pod.",
		example: `  berthctl get pods
  berthctl get pods default/web -o json
  berthctl get pods -n shop --resource example.com/gpu -o wide`,
		args: []string{"[POD]"},
	}, true, func(ctx context.Context, s *session, args []string) (*listing, error) {
		list, err := s.pods(ctx, "get pods", args, &f)
		if err != nil {
			return nil, err
		}
		t := table.New("NAMESPACE", "NAME", "QOS", "CONTAINERS", "CPUS", "DEVICES", "AGE").
			Wide(s.wide(), "MEMORY", "UID", "CGROUP", "ADMISSION", "OWNER").Key("NAMESPACE", "NAME")
		list.Pods = slices.DeleteFunc(list.GetPods(), isClaim)
		for _, p := range list.GetPods() {
			claims := allClaims(p)
			t.Row(p.GetNamespace(), p.GetName(), string(podspec.QoSClass(p.GetQosClass())), strconv.Itoa(len(p.GetContainers())),
				orShared(ownCPUs(p)), deviceCounts(claims), s.age(p),
				memory(claims), p.GetUid(), p.GetCgroupParent(), p.GetAdmissionId(), p.GetOwner())
		}
		return &listing{answer: list, tables: []section{{table: t}}, none: f.none()}, nil
	})
	f.flags(cmd)
	return cmd
}

// isClaim reports whether an allocation is that of a claim on dynamic resources.
func isClaim(p *typesv1.PodAllocation) bool { return p.GetResourceClaimNodes() != nil }

// claimDevice is the resource of the devices with which berth-nri says that a container uses a claim; the id is
// UID:PART.
const claimDevice = "dra.berthd.github.io/claim"

// claimPods returns the names of the pods that a claim is reserved for.
func claimPods(claim *typesv1.PodAllocation) (names []string) {
	for _, p := range claim.GetResourceClaimPods() {
		names = append(names, p.GetName())
	}
	return names
}

// usersOf returns the containers that use claims, as namespace/pod/container, by the claim's uid.
func usersOf(pods []*typesv1.PodAllocation) map[string][]string {
	users := map[string][]string{}
	for _, p := range pods {
		for _, c := range p.GetContainers() {
			for _, d := range c.GetExternalDevices() {
				uid, _, _ := strings.Cut(d.GetId(), ":")
				user := podName(p) + "/" + c.GetContainerName()
				if d.GetResource() == claimDevice && !slices.Contains(users[uid], user) {
					users[uid] = append(users[uid], user)
				}
			}
		}
	}
	return users
}

// warnOfScheduler says what the scheduler counts that pods cannot have: it may be what claims can have.
func (s *session) warnOfScheduler(ctx context.Context) error {
	if s.past != nil || s.lines || s.forPrograms() {
		return nil
	}
	status, err := s.Node().GetStatus(ctx, &nodev1.GetStatusRequest{})
	for _, text := range status.GetSchedulerExcess() {
		fmt.Fprintln(s.err, "warning:", oneLine(text))
	}
	return err
}

func (c *ctl) getClaims() *cobra.Command {
	f := filter{claims: true}
	cmd := c.lister(about{
		use:   "claims [CLAIM]",
		short: "Claims on dynamic resources",
		long: `List the claims on dynamic resources (DRA) that hold CPUs and memory here, or one of them. PODS has the pods
that a claim was reserved for when it was prepared. USED-BY has the containers that use it, as berth-nri has reported with their pods. Of
more than three, the number of the others is shown; -o json and 'describe' have all pods.`,
		example: `  berthctl get claims
  berthctl get claims default/train -o json`,
		args: []string{"[CLAIM]"},
	}, true, func(ctx context.Context, s *session, args []string) (*listing, error) {
		list, err := s.pods(ctx, "get claims", args, &f)
		if err != nil {
			return nil, err
		}
		list.Pods = slices.DeleteFunc(list.GetPods(), func(p *typesv1.PodAllocation) bool { return !isClaim(p) })
		if err := s.warnOfScheduler(ctx); err != nil {
			return nil, err
		}
		var users map[string][]string
		if len(list.GetPods()) > 0 { // the pods that use a claim have another owner, and may hold nothing themselves
			all, err := s.List(ctx, &allocationv1.ListRequest{At: s.past})
			if err != nil {
				return nil, err
			}
			users = usersOf(all.GetPods())
		}
		t := table.New("NAMESPACE", "NAME", "NUMA", "CPUS", "MEMORY", "PODS", "USED-BY", "AGE").Wide(s.wide(), "UID", "ADMISSION", "OWNER").Key("NAMESPACE", "NAME")
		for _, p := range list.GetPods() {
			t.Row(p.GetNamespace(), p.GetName(), convert.Nodes(p.GetResourceClaimNodes()).String(), ownCPUs(p).String(), memory(allClaims(p)),
				some(claimPods(p)), some(users[p.GetUid()]), s.age(p), p.GetUid(), p.GetAdmissionId(), p.GetOwner())
		}
		return &listing{answer: list, tables: []section{{table: t}}, none: f.none()}, nil
	})
	f.flags(cmd)
	return cmd
}

// age spells how long ago a pod was admitted, as of the time that is shown.
func (c *ctl) age(p *typesv1.PodAllocation) string {
	if p.GetAdmitTime() == nil {
		return ""
	}
	now := c.now()
	if t := c.past.GetTime(); t != nil {
		now = t.AsTime()
	}
	return table.Age(now.Sub(p.GetAdmitTime().AsTime()))
}

// cpus prints the CPUs of a container: its exclusive ones, or the shared CPUs of the last answer
// with that field.
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

// orShared prints the exclusive CPUs of a pod, or "shared".
func orShared(own cpuset.Set) string {
	if own.IsEmpty() {
		return "shared"
	}
	return own.String()
}

func (c *ctl) getContainers() *cobra.Command {
	var f filter
	cmd := c.lister(about{
		use:   "containers [POD]",
		short: "Containers of admitted pods",
		long: `List the containers of all admitted pods, or of one, in the order of admission. OWN says whether the CPUs are the
container's own.`,
		example: `  berthctl get containers
  berthctl get containers default/web -o wide`,
		args: []string{"[POD]"},
	}, true, func(ctx context.Context, s *session, args []string) (*listing, error) {
		list, err := s.pods(ctx, "get containers", args, &f)
		if err != nil {
			return nil, err
		}
		t := table.New("POD", "CONTAINER", "ROLE", "CPUS", "OWN", "NUMA", "DEVICES").Wide(s.wide(), "MEMORY", "IDS", "UID").Key("POD", "CONTAINER")
		for _, p := range list.GetPods() {
			for _, a := range p.GetContainers() {
				t.Row(podName(p), a.GetContainerName(), convert.Word(a.GetRole()), s.cpus(a), yesNo(a.GetExclusiveCpus()),
					hintText(a.GetAffinity()), deviceCounts(a.GetClaims()), memory(a.GetClaims()),
					joined(a.GetContainerIds()), p.GetUid())
			}
		}
		return &listing{answer: list, tables: []section{{table: t}}, none: f.none()}, nil
	})
	f.flags(cmd)
	return cmd
}

// pods lists pods that match, or the one that is named.
func (s *session) pods(ctx context.Context, verb string, args []string, f *filter) (*allocationv1.ListResponse, error) {
	if err := f.check(verb); err != nil {
		return nil, err
	}
	if len(args) == 0 {
		request := f.request()
		request.At = s.past
		list, err := s.List(ctx, request)
		s.shared = list.GetSharedCpus()
		return list, err
	}
	if f.owner != "" || f.resource != "" {
		return nil, usagef(verb, "%s names one %s, so there is nothing to filter", strings.ToUpper(f.what()), f.what())
	}
	find := s.find
	if f.claims {
		find = s.findClaim
	}
	pod, err := find(ctx, f.pod(args[0]))
	if err != nil {
		return nil, err
	}
	return &allocationv1.ListResponse{Pods: []*typesv1.PodAllocation{pod}, SharedCpus: s.shared}, nil
}
