package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berthd/berth/api/config"
	kubeletapi "github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/api/loglevel"
	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/affinity"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/health"
	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/clients/nri/cdi"
	"github.com/berthd/berth/clients/nri/policy"
	"github.com/berthd/berth/clients/nri/publish"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// options are the flags.
type options struct {
	runtimeOptions
	podOptions
	nodeOptions

	endpoint, berthdState string
	dev, cgroups          string
	cdiDirectories        []string
	failure, unsolicited  string
	passNamespaces        []string
	checkReports          []string
	level                 *loglevel.Level
	health                *health.Addresses
	metrics               metrics
}

// runtimeOptions are the runtime's socket, and the plugin's name and place there.
type runtimeOptions struct{ socket, name, index string }

// podOptions are where the specifications of pods and their devices come from.
type podOptions struct {
	podsAPI, podResources string
	kubelet, kubeletCA    string
	manifests, annotation string
}

// nodeOptions are the node at the API server, and what is written there.
type nodeOptions struct {
	nodeName, serviceAccount string
	release, daemonSet       string
	publish                  bool
	publishSpread            time.Duration
}

const long = `berth-nri connects a container runtime with NRI (containerd, CRI-O) to berthd.

berthd assigns CPUs and memory nodes to every container of the runtime, and berth-nri
moves running containers when their CPUs change. The kubelet's own CPU, memory and
topology managers must be off. berthd must run beside the kubelet:

  berthd --beside=kubelet --cpu-manager-policy static --reserved-cpus 0
  berth-nri`

// What happens to a container without an allocation.
const (
	refuse = "refuse"
	pass   = "pass"
)

// command is the program's command line.
func command(out, errs io.Writer) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use: "berth-nri", Short: "Place the containers of a runtime (NRI)", Long: long,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.Flags(), errs) },
	}
	cmd.SetOut(out)
	cmd.SetErr(errs)
	f := cmd.Flags()
	f.StringVar(&o.endpoint, "endpoint", "", "berthd's socket (default $"+berth.EndpointVariable+", else "+berth.DefaultEndpoint+")")
	f.StringVar(&o.socket, "nri-socket", api.DefaultSocketPath, "the runtime's socket for plugins")
	f.StringVar(&o.name, "name", "berth", "the plugin's name at the runtime")
	f.StringVar(&o.index, "index", "90", "two digits; the runtime calls its plugins in this order")
	f.StringVar(&o.podsAPI, "pods-api", "/var/lib/kubelet/pods-api/pods-api.sock",
		"the kubelet's Pods API (Kubernetes 1.37), which has the specification of every pod; an empty path switches it off")
	f.StringVar(&o.kubelet, "kubelet", "",
		"in a pod, ADDRESS or ADDRESS:PORT of the kubelet's web server (default port "+kubeletapi.WebPort+"), which has the specifications of pods if there is no Pods API; needs the right nodes/pods and Kubernetes 1.33")
	f.StringVar(&o.kubeletCA, "kubelet-ca", "",
		"file with the certificate authority of that server, in addition to that of the cluster; the kubelet writes the one of its own certificate into pki/kubelet.crt of its directory")
	f.StringVar(&o.podResources, "pod-resources", defaultPodResources,
		"the kubelet's PodResources API, which has the devices of every pod: CPUs and memory are aligned with them; an empty path switches it off")
	f.StringSliceVar(&o.cdiDirectories, "cdi-directories", cdi.DefaultDirectories,
		"the directories of CDI files, as in the runtime's configuration: they have the device nodes of devices of dynamic resource allocation")
	f.StringVar(&o.dev, "dev", "/dev", "the directory with the machine's device nodes, whose numbers are read for CDI files that have none")
	f.StringVar(&o.nodeName, "node-name", "", "the node's name at the API server (default: the machine's host name)")
	f.StringVar(&o.manifests, "manifests", "",
		"directory of manifests of pods that are to be placed as a whole, such as the kubelet's static pods")
	f.StringVar(&o.annotation, "annotation", "", "annotation that holds a pod's spec as JSON; use it only if only a webhook can write it")
	f.StringVar(&o.failure, "on-failure", refuse,
		refuse+": a container that berthd cannot place does not start; "+pass+": it starts on the shared CPUs")
	f.StringSliceVar(&o.passNamespaces, "pass-namespaces", nil,
		"namespaces whose containers always start; include berthd's own namespace if berthd runs in a pod")
	f.StringVar(&o.berthdState, "berthd-state", "",
		"berthd's state directory: until berthd has been ready once with this directory, containers start as with --on-failure "+pass+"; empty: --on-failure holds from the beginning")
	f.StringSliceVar(&o.checkReports, "check-reports", nil,
		"files with what checks before the start have found (berthd config validate --report, berth-nri check): it is in the condition "+conditionType+" of the node while berthd is not ready")
	f.StringVar(&o.unsolicited, "unsolicited-updates", string(abilities.UnsolicitedAuto),
		"whether running containers are updated without an event of the runtime, which runtimes before NRI 0.12.1 may not survive: auto (by the runtime's version), always (a patched runtime) or never (updates wait for an event that can carry them)")
	f.StringVar(&o.serviceAccount, "service-account", "/var/run/secrets/kubernetes.io/serviceaccount",
		"in a pod, the directory of the service account with which the node object is read and events about it are sent, to compare the node's allocatable amounts with berthd's; an empty path switches it off")
	f.BoolVar(&o.publish, "publish", false,
		"in a pod, keep the node's NodeResourceTopology object equal to berthd's answer, so that the scheduler sees the free resources of each NUMA node")
	f.DurationVar(&o.publishSpread, "publish-spread", publish.DefaultSpread,
		"longest delay of a write of that object that other nodes may make at the same time: the first one, or after another configuration; pods' changes are written after at most a second")
	f.StringVar(&o.release, "release-at-end", releaseNever,
		releaseNever+": the containers stay on their CPUs when berth-nri ends; "+releaseAlways+": they go back to all CPUs; "+releaseRemoved+": they do so if --daemon-set was removed, or does not choose this node any more")
	f.StringVar(&o.daemonSet, "daemon-set", "", "NAMESPACE/NAME of the DaemonSet that berth-nri belongs to")
	f.StringVar(&o.cgroups, "cgroups", "/sys/fs/cgroup",
		"the directory where cgroups are mounted: the cgroup of a pod with exclusive CPUs gets no CPU quota, and the memory of containers is seen to move; with an empty path pods keep their quotas, and the memory of running containers does not move")
	o.health = health.AddFlags(cmd, 9469)
	o.metrics.add(f)
	trust.Mark(f, trust.Socket, "endpoint", "nri-socket", "pods-api", "pod-resources")
	trust.Mark(f, trust.Directory, "cdi-directories", "dev", "manifests", "cgroups", "berthd-state")
	// The volume of a token is a tmpfs with the mode 01777.
	trust.Mark(f, trust.Files, "service-account")
	trust.Mark(f, trust.File, "check-reports", "kubelet-ca")
	o.level = loglevel.Add(f)
	cmd.AddCommand(version.Command("berth-nri"), (&options{}).checkCommand())
	version.AddFlag(cmd)
	manual.Add(cmd, "8", manualNotes)
	return cmd
}

// run serves until the context ends.
func (o *options) run(ctx context.Context, flags *pflag.FlagSet, errs io.Writer) error {
	if err := o.checkFlags(flags); err != nil {
		return err
	}
	log := o.level.Logger(errs)
	client, err := berth.Dial(ctx, o.endpoint, berth.Options{UserAgent: "berth-nri", Owner: "kubernetes"})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := trust.CheckSocket(client.Endpoint()); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	// A berthd that is not running yet is checked when it starts.
	if err := policy.Alone(ctx, client); errdefs.ClassOf(err) == errdefs.Precondition {
		return err
	}
	server, err := o.apiServer(log)
	if err != nil {
		return err
	}
	source, closeSource, err := o.sources(server)
	if err != nil {
		return err
	}
	defer closeSource()
	names := &cdi.Reader{Directories: o.cdiDirectories, Dev: o.dev, Sys: "/sys"}
	devices, err := o.devices(names, log)
	if err != nil {
		return err
	}
	defer devices.close()
	runtime := &connection{}
	var p *policy.Policy
	ready := func() error { return cmp.Or(runtime.ready(), p.Ready()) }
	count := newCounters(ready)
	c := policy.Config{
		Client: client, Kubelet: source.source(), NodeName: o.nodeName, Manifests: o.manifests, Annotation: o.annotation,
		Pass: o.failure == pass, PassNamespaces: o.passNamespaces,
		Timeout: runtime.timeout, Host: policy.Host{CPUsOf: cpusOf, Online: online, BornAt: bornAt, Move: moveSandbox}, Log: log,
		Refused: count.refused, Prepared: names.PreparedCPUs,
		Unsolicited: abilities.Unsolicited(o.unsolicited), NRIVersion: runtime.nriVersion,
	}
	if err := o.useCgroups(&c); err != nil {
		return err
	}
	told := newPodEvents(server)
	if server != nil {
		c.Allocatable, c.Excess, c.Tell = server.counted, server.take, told.tell
	}
	if o.berthdState != "" {
		c.Established = o.established
	}
	if devices != nil {
		c.Devices = devices
	}
	t := newTopology(client, devices, server, count, o.publishSpread, log)
	c.Started = t.change
	p = policy.New(c)
	t.pending = p.Pending
	stopHTTP, err := o.serveHTTP(health.Handler(count.registry, ready), server, log)
	if err != nil {
		return err
	}
	defer stopHTTP()
	asked := ctx
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	watchKubelet(ctx, &tasks, devices, p)
	tasks.Go(func() { p.Follow(ctx, runtime) })
	if server != nil {
		count.serveNode(o.publish)
		node := &condition{server: server, look: func() nodeState { return o.state(p, runtime, source) },
			wrote: count.condition.SetToCurrentTime}
		for _, task := range []func(context.Context){func(ctx context.Context) { server.watch(ctx, p.Recount) }, told.run, node.run} {
			tasks.Go(func() { task(ctx) })
		}
	}
	if o.publish {
		tasks.Go(func() { t.run(ctx) })
	}
	// The connection to the runtime ends last: the containers may be moved before.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	var watching sync.WaitGroup
	if o.release == releaseRemoved {
		watching.Go(func() { server.watchSet(serving) })
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		tasks.Wait()
		if asked.Err() != nil {
			o.atEnd(serving, p, runtime, server, log)
		}
		stop()
	}()
	err = o.serve(serving, p, runtime, log)
	cancel()
	<-ended
	watching.Wait()
	return err
}

// useCgroups configures what reads and writes cgroups, if the flag names their directory.
func (o *options) useCgroups(c *policy.Config) error {
	if o.cgroups == "" {
		return nil
	}
	quota, err := newPodQuota(o.cgroups)
	if err != nil {
		return err
	}
	memory, err := newMemoryReader(o.cgroups)
	if err != nil {
		return err
	}
	c.PodQuota, c.Memory = quota.set, memory.of
	return nil
}

// apiServer returns a client of the API server; nil without a service account, which some flags need.
func (o *options) apiServer(log *slog.Logger) (*apiServer, error) {
	server, err := newAPIServer(o.serviceAccount, o.nodeName, o.daemonSet, log)
	if err != nil {
		return nil, err
	}
	if server == nil && o.release == releaseRemoved {
		return nil, errdefs.Preconditionf("--release-at-end %s needs a service account, and there is none in %q (--service-account)",
			releaseRemoved, o.serviceAccount)
	}
	if server == nil && o.publish {
		return nil, errdefs.Preconditionf("--publish needs a service account, and there is none in %q (--service-account)",
			o.serviceAccount)
	}
	return server, nil
}

// watchKubelet follows the kubelet's managers. It looks once before the runtime lists its containers: those of a kubelet that assigns CPUs
// itself stay where they are.
func watchKubelet(ctx context.Context, tasks *sync.WaitGroup, devices *podResources, p *policy.Policy) {
	if devices == nil {
		return
	}
	if reason, known := devices.managers(ctx); known {
		p.SetStandby(reason)
	}
	tasks.Go(func() { devices.watchManagers(ctx, p.SetStandby) })
}

// established reports whether berthd has been ready on this node once.
func (o *options) established() bool {
	_, err := os.Stat(filepath.Join(o.berthdState, config.ReadyMark))
	return !errors.Is(err, fs.ErrNotExist)
}

// check checks the flags.
func (o *options) check() error {
	for _, dir := range o.cdiDirectories {
		if !filepath.IsAbs(dir) {
			return errdefs.Invalidf("--cdi-directories %q: expected absolute paths of directories", dir)
		}
	}
	if o.failure != refuse && o.failure != pass {
		return errdefs.Invalidf("--on-failure %q: expected %s or %s", o.failure, refuse, pass)
	}
	if u := abilities.Unsolicited(o.unsolicited); u != abilities.UnsolicitedAuto && u != abilities.UnsolicitedAlways &&
		u != abilities.UnsolicitedNever {
		return errdefs.Invalidf("--unsolicited-updates %q: expected %s, %s or %s", o.unsolicited, abilities.UnsolicitedAuto,
			abilities.UnsolicitedAlways, abilities.UnsolicitedNever)
	}
	if err := api.CheckPluginIndex(o.index); err != nil {
		return errdefs.Invalidf("--index %q: expected two digits: %w", o.index, err)
	}
	if o.publishSpread < publish.Interval {
		return errdefs.Invalidf("--publish-spread %s: expected %s or more", o.publishSpread, publish.Interval)
	}
	return o.checkEnd()
}

// checkFlags checks the flags, and the files that they name.
func (o *options) checkFlags(flags *pflag.FlagSet) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := trust.CheckFlags(flags); err != nil {
		return err
	}
	if err := o.metrics.check(); err != nil {
		return err
	}
	return o.nameNode()
}

// serveHTTP serves health and metrics until stop is called.
func (o *options) serveHTTP(handler http.Handler, server *apiServer, log *slog.Logger) (stop func(), err error) {
	stopHealth, err := o.health.Serve(handler, log)
	if err != nil {
		return nil, err
	}
	stopMetrics, err := o.metrics.serve(server, handler)
	if err != nil {
		stopHealth()
		return nil, err
	}
	return func() { stopMetrics(); stopHealth() }, nil
}

// devices is the kubelet's PodResources API; nil if it is switched off.
func (o *options) devices(names *cdi.Reader, log *slog.Logger) (*podResources, error) {
	if o.podResources == "" {
		return nil, nil
	}
	if !filepath.IsAbs(o.podResources) {
		return nil, errdefs.Invalidf("--pod-resources %q: expected the absolute path of a socket", o.podResources)
	}
	return newPodResources(o.podResources, names, log)
}

// serve connects to the runtime, and again after each lost connection.
func (o *options) serve(ctx context.Context, p *policy.Policy, runtime *connection, log *slog.Logger) error {
	started := os.Getenv(api.PluginSocketEnvVar) != "" // by the runtime
	away := &outage{Policy: p, log: log, runtime: runtime}
	for {
		refuses := o.refuses(away)
		plugin, err := stub.New(away, o.stubOptions(log, away, refuses)...)
		if err != nil {
			return err
		}
		runtime.stub.Store(&plugin)
		again, err := o.connected(ctx, plugin.Run, away, refuses, started)
		if ctx.Err() != nil {
			return nil
		}
		if again {
			runtime.up.Store(false)
			log.Info("berthd is ready for the first time: berth-nri registers again, so that the runtime refuses containers that berth-nri does not answer in time")
			continue
		}
		if started || errdefs.ClassOf(err) == errdefs.Unsupported {
			return err
		}
		if subscribed := away.subscribed.Swap(0); subscribed != 0 && !runtime.up.Load() {
			err = fmt.Errorf("the runtime has closed it before it listed its pods; berth-nri had subscribed to the events 0x%x, and the runtime's log may have the reason: %w", subscribed, err)
		}
		if away.begin() {
			log.Warn("no connection to the runtime", "socket", o.socket, "error", err)
		}
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
	}
}

// lookInterval is the interval in which berth-nri looks whether berthd was ready once.
const lookInterval = time.Second

// refuses reports whether the runtime is to refuse what berth-nri does not answer in time: no pod before berthd was ready once.
func (o *options) refuses(away *outage) bool { return o.failure == refuse && away.EverReady() }

func (o *options) stubOptions(log *slog.Logger, away *outage, refuses bool) []stub.Option {
	options := []stub.Option{
		stub.WithSocketPath(o.socket), stub.WithLogger(logger{log, away}),
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: refuses, KeepConnected: true}),
	}
	if os.Getenv(api.PluginIdxEnvVar) == "" {
		options = append(options, stub.WithPluginName(o.name), stub.WithPluginIdx(o.index))
	}
	return options
}

// cpusOf reads the CPUs that a process may run on: proc_pid_status(5).
func cpusOf(pid int) (cpuset.Set, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return cpuset.Set{}, err
	}
	_, rest, _ := strings.Cut(string(text), "\nCpus_allowed_list:")
	list, _, _ := strings.Cut(rest, "\n")
	return cpuset.Parse(strings.TrimSpace(list))
}

// bornAt reads when a process began, in ticks since the boot: proc_pid_stat(5).
func bornAt(pid int) (uint64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	const starttime = 22 - 3 // the fields are counted from 1, and two come before the name's end
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= starttime {
		return 0, errdefs.Internalf("/proc/%d/stat has %d fields", pid, len(fields)+2)
	}
	return strconv.ParseUint(fields[starttime], 10, 64)
}

// moveSandbox sets the CPUs of a sandbox's process. The runtime's pid may be stale, and another
// process may have the number. The process must therefore be in the pod's cgroup, or in that of the sandbox.
func moveSandbox(pid int, id, cgroup string, cpus cpuset.Set) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	if !inCgroup(string(text), cgroup) && !isSandbox(string(text), id) {
		return errdefs.PermissionDeniedf("process %d is not in the pod's cgroup %q", pid, cgroup)
	}
	return affinity.Set(pid, cpus)
}

// inCgroup reports whether a process is in a cgroup, or in one below: its /proc/PID/cgroup
// (cgroups(7)) names that in one of the hierarchies. A systemd slice is below others.
func inCgroup(text, cgroup string) bool {
	name := path.Base(cgroup)
	if cgroup == "" || name == "/" || name == "." {
		return false
	}
	for line := range strings.Lines(text) {
		if _, rest, ok := strings.Cut(line, ":"); ok {
			_, at, _ := strings.Cut(strings.TrimSpace(rest), ":")
			if slices.Contains(strings.Split(at, "/"), name) {
				return true
			}
		}
	}
	return false
}

// isSandbox reports whether a process is in the cgroup of a sandbox, which the runtime has named after it. In a cgroup
// namespace (cgroup_namespaces(7)) a process of the same pod reads only this name: /../cri-containerd-ID.scope.
func isSandbox(text, id string) bool {
	for line := range strings.Lines(text) {
		name := strings.TrimSuffix(path.Base(strings.TrimSpace(line)), ".scope")
		if id != "" && (name == id || strings.HasSuffix(name, "-"+id)) {
			return true
		}
	}
	return false
}

// logger sends the stub's messages to our log. Without a connection its errors are dropped,
// because the outage is in the log already.
type logger struct {
	*slog.Logger
	away *outage
}

// Debugf and the others implement nri's Logger.
func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, args...))
}

func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.DebugContext(ctx, fmt.Sprintf(format, args...))
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelWarn, fmt.Sprintf(format, args...))
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	l.log(ctx, slog.LevelError, fmt.Sprintf(format, args...))
}

func (l logger) log(ctx context.Context, level slog.Level, text string) {
	if l.away.away.Load() {
		level = slog.LevelDebug
	}
	l.Log(ctx, level, text)
}
