package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/loglevel"
	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthlet/agent"
	"github.com/berthd/berth/clients/berthlet/beneath"
	"github.com/berthd/berth/clients/berthlet/builtin"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/cri"
	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/berthlet/manifest"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/timestamp"
)

// options are the flags.
type options struct {
	manifests, state, logs, images, endpoint, runtimeEndpoint string
	level                                                     *loglevel.Level
	logBytes                                                  int64
	firstPause, longestPause                                  time.Duration
}

// The exit codes.
const (
	exitDone = iota
	exitError
	exitUsage
)

// execute runs the program and returns its exit code.
func execute(ctx context.Context, out, errs io.Writer, args []string) int {
	root := command(out, errs)
	root.SetArgs(args)
	began := false // what fails before a command begins is a matter of usage
	root.PersistentPreRun = func(*cobra.Command, []string) { began = true }
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if ended := endedError(0); errors.As(err, &ended) {
		return int(ended)
	}
	fmt.Fprintln(errs, "berthlet:", table.Lines(err.Error()))
	if !began {
		fmt.Fprintf(errs, "hint: see '%s --help'\n", cmd.CommandPath())
		return exitUsage
	}
	return exitError
}

const long = `berthlet runs the pods of a folder of Kubernetes manifests on this machine.

berthd decides which CPUs, memory and devices each container gets. berthlet starts
the containers with these, restarts them by their restart policy, and stops them when
their manifest is removed. An image is a directory or an OCI image layout on disk.
With --runtime-endpoint, images are those of the container runtime.

Containers continue to run when berthlet stops, and the next berthlet manages them. To
stop a pod, remove its manifest.`

const example = `  # With a berthd on its usual socket.
  berthlet --manifests /etc/berth/manifests --images /var/lib/images

  # With berthd --try, and every path in this directory.
  berthlet --endpoint /run/berth-try/berth.sock --manifests pods --images images --state-dir state --pod-logs-dir logs
  berthlet status --state-dir state`

// command is the program's command line.
func command(out, errs io.Writer) *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use: "berthlet", Short: "Run pods from manifests", Long: long, Example: example,
		SilenceErrors: true, SilenceUsage: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			return o.run(cmd.Context(), errs)
		},
	}
	root.SetOut(out)
	root.SetErr(errs)
	root.PersistentFlags().StringVar(&o.state, "state-dir", "/var/lib/berthlet",
		"directory of the state that berthlet needs after a restart")
	f := root.Flags()
	f.StringVar(&o.manifests, "manifests", "/etc/berth/manifests", "directory of pod manifests")
	f.StringVar(&o.logs, "pod-logs-dir", "/var/log/pods", "where the output of containers goes")
	f.StringVar(&o.images, "images", "", "directory of images that are not named by an absolute path")
	f.StringVar(&o.endpoint, "endpoint", "", "berthd's socket (default $"+berth.EndpointVariable+", else "+berth.DefaultEndpoint+")")
	f.StringVar(&o.runtimeEndpoint, "runtime-endpoint", "", "socket of a container runtime (CRI v1), in place of the built-in one")
	trust.Mark(root.PersistentFlags(), trust.Directory, "state-dir")
	trust.Mark(f, trust.Directory, "manifests", "pod-logs-dir", "images")
	trust.Mark(f, trust.Socket, "endpoint", "runtime-endpoint")
	o.level = loglevel.Add(f)
	f.Int64Var(&o.logBytes, "container-log-max-bytes", 10<<20, "size of a container's log at which it is rotated; 0 for no limit")
	f.DurationVar(&o.firstPause, "restart-pause", lifecycle.Crash.First,
		"pause before the second restart of a container; it doubles from then on")
	f.DurationVar(&o.longestPause, "restart-pause-max", lifecycle.Crash.Max, "longest pause before a restart")
	root.AddCommand(statusCommand(&o.state), logsCommand(&o.state), execCommand(&o.state), version.Command("berthlet"))
	version.AddFlag(root)
	manual.Add(root, "8", manualNotes)
	return root
}

// run follows the folder until the context ends.
func (o *options) run(ctx context.Context, errs io.Writer) error {
	log := o.level.Logger(errs)
	if err := o.absolute(); err != nil {
		return err
	}
	unlock, err := lock(o.state)
	if err != nil {
		return err
	}
	defer unlock()
	client, err := berth.Dial(ctx, o.endpoint, berth.Options{UserAgent: "berthlet", Owner: "berthlet"})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := trust.CheckSocket(client.Endpoint()); err != nil {
		return fmt.Errorf("--endpoint: %w", err)
	}

	crash := lifecycle.Crash
	crash.First, crash.Max = o.firstPause, o.longestPause
	pods := agent.New(agent.Config{
		Node: agent.Berthd{Client: client},
		Dir:  o.state, LogDir: o.logs, StatusFile: statusFile(o.state), SeccompDir: filepath.Join(o.state, "seccomp"),
		Features: o.features(),
		Crash:    crash, Retry: lifecycle.Retry, Now: timestamp.Clock(time.Now), Log: log,
	})
	runtime, err := o.runtime(pods.Changed, log)
	if err != nil {
		return err
	}
	defer runtime.Stop()
	pods.Runtime = runtime
	log.Info("berthlet starts, and waits for berthd", "manifests", o.manifests, "state", o.state, "berthd", client.Endpoint())
	return both(ctx,
		func(ctx context.Context) error {
			return manifest.Open(o.manifests, log).Watch(ctx, pods.Want, pods.Unreadable)
		},
		pods.Run)
}

// absolute makes the paths of the flags hold for processes in other directories:
// keepers, and the kernel's mounts.
func (o *options) absolute() error {
	for _, path := range []*string{&o.state, &o.logs, &o.manifests, &o.images} {
		if *path == "" {
			continue // no folder of images
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	return nil
}

// runtime opens the requested runtime. changed is called with the uids of pods.
func (o *options) runtime(changed func(uid string), log *slog.Logger) (interface {
	container.Runtime
	Stop()
}, error) {
	if o.runtimeEndpoint == "" {
		return builtin.New(builtin.Options{
			Dir: filepath.Join(o.state, "runtime"), Images: o.images, LogBytes: o.logBytes,
			Changed: changed, Now: timestamp.Clock(time.Now), Log: log,
		})
	}
	// Others may use the same runtime, also another berthlet.
	sum := sha256.Sum256([]byte(o.state))
	return cri.New(cri.Options{
		Endpoint: o.runtimeEndpoint, Owner: hex.EncodeToString(sum[:8]), LogDir: o.logs, LogBytes: o.logBytes,
		Changed: changed, Now: timestamp.Clock(time.Now), Log: log,
	})
}

// features reports what confines containers here. The built-in runtime has neither
// AppArmor nor SELinux; a container runtime leaves out silently what the machine does
// not have.
func (o *options) features() container.Features {
	if o.runtimeEndpoint == "" {
		return container.Features{}
	}
	appArmor, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return container.Features{AppArmor: strings.HasPrefix(string(appArmor), "Y"), SELinux: err == nil}
}

// both runs two tasks until both have ended; the end of one ends the other.
func both(ctx context.Context, one, other func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		defer cancel()
		done <- one(ctx)
	}()
	err := other(ctx)
	cancel()
	return errors.Join(err, <-done)
}

// lock prevents a second berthlet from using the state directory. The lock is one of fcntl(2),
// which belongs to the process. A child that a killed berthlet has just forked would keep a lock
// of flock(2).
func lock(dir string) (unlock func(), err error) {
	if err := trust.CheckExisting(dir); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	if err := beneath.Private(dir); err != nil {
		return nil, err
	}
	// Another user may have created a part of the path meanwhile.
	if err := trust.Check(dir); err != nil {
		return nil, fmt.Errorf("--state-dir: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.FcntlFlock(f.Fd(), syscall.F_SETLK, &syscall.Flock_t{Type: syscall.F_WRLCK}); err != nil {
		_ = f.Close()
		return nil, errdefs.Preconditionf("lock %s: another berthlet has it: %w", f.Name(), err)
	}
	return func() { _ = f.Close() }, nil
}
