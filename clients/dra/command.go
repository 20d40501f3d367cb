package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/berthd/berth/api/loglevel"
	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/dra/driver"
	"github.com/berthd/berth/clients/internal/health"
	"github.com/berthd/berth/managers/errdefs"
)

// options are the flags.
type options struct {
	endpoint, nodeName, kubeconfig string
	health                         *health.Addresses
	cdi, plugins, registry, cpu    string
	level                          *loglevel.Level
}

const long = `berth-dra publishes the CPUs and the memory of each NUMA node that claims on dynamic
resources may have (dra in berthd's configuration), and prepares the claims that the
scheduler allocates. berthd must run beside the kubelet, and berth-nri moves the
containers that use a claim to its CPUs.`

// command is the program's command line.
func command(out, errs io.Writer) *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use: "berth-dra", Short: "Claims on CPUs and memory of a NUMA node (DRA)", Long: long,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.Flags(), errs) },
	}
	cmd.SetOut(out)
	cmd.SetErr(errs)
	f := cmd.Flags()
	f.StringVar(&o.endpoint, "endpoint", "", "berthd's socket (default $"+berth.EndpointVariable+", else "+berth.DefaultEndpoint+")")
	f.StringVar(&o.nodeName, "node-name", "", "the node's name at the API server (required)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "",
		"file with the address of the API server and a user; not needed in a pod with a service account")
	f.StringVar(&o.cdi, "cdi-directory", "/var/run/cdi", "directory of CDI files, which the container runtime reads")
	f.StringVar(&o.plugins, "plugin-directory", filepath.Join(kubeletplugin.KubeletPluginsDir, driver.Name),
		"directory of the driver's socket")
	f.StringVar(&o.registry, "registry-directory", kubeletplugin.KubeletRegistryDir,
		"the kubelet's directory of plugins, where the driver registers")
	f.StringVar(&o.cpu, "cpuinfo", "/proc/cpuinfo", "file with the model of the CPU, which is published; an empty path switches it off")
	o.health = health.AddFlags(cmd, 9470)
	trust.Mark(f, trust.Socket, "endpoint")
	trust.Mark(f, trust.File, "kubeconfig", "cpuinfo")
	trust.Mark(f, trust.Directory, "cdi-directory", "plugin-directory", "registry-directory")
	o.level = loglevel.Add(f)
	cmd.AddCommand(version.Command("berth-dra"))
	version.AddFlag(cmd)
	manual.Add(cmd, "8", manualNotes)
	return cmd
}

// run serves until the context ends.
func (o *options) run(ctx context.Context, flags *pflag.FlagSet, errs io.Writer) error {
	if o.nodeName == "" {
		return errdefs.Invalidf("--node-name is required: the name of the node's object at the API server")
	}
	if err := trust.CheckFlags(flags); err != nil {
		return err
	}
	asked := ctx
	ctx, fail := context.WithCancelCause(asked)
	defer fail(nil)
	log := o.level.Logger(errs)
	model, err := o.model()
	if err != nil {
		return fmt.Errorf("--cpuinfo: %w", err)
	}
	c, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	// A claim takes up to three calls, and many pods may start at once. client-go's default is 5 calls a second.
	c.QPS, c.Burst = 100, 200
	api, err := kubernetes.NewForConfig(c)
	if err != nil {
		return err
	}
	client, err := berth.Dial(ctx, o.endpoint, berth.Options{UserAgent: "berth-dra", Owner: driver.Owner})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := trust.CheckSocket(client.Endpoint()); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}
	d, err := driver.New(driver.Config{
		Client: client, NodeName: o.nodeName, CDIDirectory: o.cdi, CPUModel: model, Log: log,
		NodeStatus: func(ctx context.Context) (corev1.NodeStatus, error) {
			n, err := api.CoreV1().Nodes().Get(ctx, o.nodeName, metav1.GetOptions{})
			if err != nil {
				return corev1.NodeStatus{}, err
			}
			return n.Status, nil
		},
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return api.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Slices: func(ctx context.Context) ([]resourceapi.ResourceSlice, error) {
			own := fields.Set{resourceapi.ResourceSliceSelectorDriver: driver.Name, resourceapi.ResourceSliceSelectorNodeName: o.nodeName}
			list, err := api.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{FieldSelector: own.String()})
			if err != nil {
				return nil, err
			}
			return list.Items, nil
		},
		ReadClaim: func(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
			return api.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Fail: fail,
		Accepted: func(ctx context.Context, s *resourceapi.ResourceSlice) (*resourceapi.ResourceSlice, error) {
			return api.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		},
	})
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	count := newCounted(d)
	stop, err := o.health.Serve(health.Handler(count.registry, d.Ready), log)
	if err != nil {
		return err
	}
	defer stop()
	if err := trust.MkdirAll(o.plugins, 0o750); err != nil {
		return fmt.Errorf("--plugin-directory: %w", err)
	}
	helper, err := kubeletplugin.Start(ctx, count, kubeletplugin.DriverName(driver.Name), kubeletplugin.NodeName(o.nodeName),
		kubeletplugin.KubeClient(api),
		kubeletplugin.PluginDataDirectoryPath(o.plugins), kubeletplugin.RegistrarDirectoryPath(o.registry),
		kubeletplugin.Serialize(false)) // the driver lets calls wait only as long as their contexts
	if err != nil {
		return fmt.Errorf("register at the kubelet: %w", err)
	}
	defer helper.Stop()
	d.Follow(ctx, helper)
	if asked.Err() == nil { // a server of the helper has ended
		return context.Cause(ctx)
	}
	return nil
}

// maxCPUInfo bounds the file with the models of all CPUs, which has some 1.5 KiB for each.
const maxCPUInfo = 64 << 20

// model reads the model of the first CPU; empty if the file has none, as on some architectures.
func (o *options) model() (string, error) {
	if o.cpu == "" {
		return "", nil
	}
	text, err := trust.ReadFile(o.cpu, maxCPUInfo)
	if err != nil {
		return "", err
	}
	return readModel(bytes.NewReader(text))
}

func readModel(r io.Reader) (string, error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(name) == "model name" {
			ascii := func(c rune) rune {
				if c > unicode.MaxASCII || !unicode.IsPrint(c) {
					return -1
				}
				return c
			}
			return strings.Join(strings.Fields(strings.Map(ascii, value)), " "), nil
		}
	}
	return "", lines.Err()
}
