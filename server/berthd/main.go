// Command berthd is berth's daemon: it gives containers their place on one
// machine and serves gRPC on a unix socket.
package main

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/config"
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/host/journal"
	"github.com/berthd/berth/server/internal/host/service"
	berthmetrics "github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/podrecords"
	"github.com/berthd/berth/server/internal/privileges"
	"github.com/berthd/berth/server/internal/store"
	"github.com/berthd/berth/server/internal/system/real"
	"github.com/berthd/berth/server/internal/tracing"
	"github.com/berthd/berth/server/observe"
)

func main() {
	os.Exit(execute(context.Background(), os.Stdout, os.Stderr, os.Args[1:]))
}

const long = `berthd gives containers their CPUs, memory, devices and cgroups on this machine. Agents call it over gRPC on its
socket; device plugins and readers of podresources find the sockets that a kubelet would have.

The configuration comes from a kubelet's file, from berth's own file and from flags; a later source overrides an earlier
one. Flags have the names of the kubelet's flags, where those exist. 'berthd config dump' prints all fields, also those
without a flag.

With --try berthd leaves nothing behind, and works with whatever else runs here, also a kubelet. It has a directory and a
cgroup of its own, and removes both at its end with all processes of its pods. What a try that was killed has left is removed
by the next one. The CPU policy is static, CPU 0 is reserved, the topology policy is best-effort, swap may be on, and only
warnings are logged; files and flags override this. Settings of files that lead out of the try have no effect, and such
flags are refused. A cgroup that --cgroup-root names is the one in which the try makes its own. With --machine, or
where cgroups cannot be made, they are only in berthd's memory.

The exit code is 1 after an error and 2 after a wrong command line.`

const example = `  berthd --cpu-manager-policy static --reserved-cpus 0 --topology-manager-policy restricted

  # With a kubelet's configuration, and metrics.
  berthd --kubelet-config /var/lib/kubelet/config.yaml --http localhost:10470

  # To try it, with whatever else runs here; Ctrl-C removes everything.
  berthd --try
  berthd --try --machine 2s4n32c2t
  berthd --try --kubelet-config /var/lib/kubelet/config.yaml

  # A node whose kubelet keeps its managers: read it, and change nothing.
  berthd --observe --http localhost:10470`

// command builds the command line. args are those of this process, with which a try starts berthd.
func command(args ...string) *cobra.Command {
	root := &cobra.Command{
		Use:           "berthd",
		Short:         "Give containers their CPUs, memory, devices and cgroups",
		Long:          long,
		Example:       example,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	sources := config.AddFlags(root.PersistentFlags())
	point := root.Flags().String("failpoint", "", "for tests: kill the process at a named point")
	trial := root.Flags().Bool("try", false, "leave nothing behind: use a directory and a cgroup of its own, and remove both at the end")
	in := root.Flags().String(tryIn, "", "for --try: the directory of the try that has started this process")
	trust.Mark(root.Flags(), trust.Directory, tryIn)
	for _, name := range []string{"failpoint", tryIn} {
		if err := root.Flags().MarkHidden(name); err != nil {
			panic(err) // the flag was declared above
		}
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		hook, err := failpoint.Parse(*point, slices.Concat(store.Failpoints(), podrecords.Failpoints(), app.Failpoints())...)
		if err != nil {
			return err
		}
		if err := trust.CheckFlags(cmd.Flags()); err != nil {
			return err
		}
		switch {
		case *in != "":
			return runInTry(cmd, *in, *sources, hook)
		case *trial:
			return runTry(cmd, args, *sources)
		}
		return run(cmd.Context(), cmd.ErrOrStderr(), *sources, hook, nil)
	}
	root.AddCommand(configCommand(sources), probeCommand(), version.Command("berthd"), &cobra.Command{
		Use: privileges.ReaderCommand, Short: "Read where the huge pages of processes are, for berthd", Args: cobra.NoArgs, Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			// It ends with its connection. Service managers send signals to all processes of a service.
			signal.Ignore(append(unsupported, os.Interrupt, syscall.SIGTERM)...)
			return privileges.ReadHugePages(os.Stdin, os.DirFS("/proc"))
		},
	})
	version.AddFlag(root)
	manual.Add(root, "8", manualNotes)
	return root
}

// run is the daemon. It writes to warnings what is found before there is a log. ready is called when the sockets answer; it may be nil.
func run(ctx context.Context, warnings io.Writer, sources config.Sources, hook failpoint.Hook, ready func()) error {
	c, notes, err := config.Load(sources)
	if err != nil {
		warn(warnings, notes)
		return err
	}
	level := new(slog.LevelVar)
	_ = level.UnmarshalText([]byte(c.Log.Level)) // validated by config
	log := logger(level, c.Log.Format)
	// Signals are caught in what this leaves, which is a new program. Until then those
	// that never end berthd are ignored: that outlives the change of programs.
	signal.Ignore(append(unsupported, syscall.SIGPIPE)...)
	traces, err := tracing.FromEnvironment(os.Getenv)
	if err != nil {
		return err
	}
	reader, err := privileges.Drop(ctx, c, []string{sources.BerthFile, sources.KubeletFile, sources.KubeletDir},
		privileges.Traces{On: traces.On, Port: traces.Port, Files: traces.Files}, log)
	if err != nil {
		return err
	}
	tracer, err := tracing.Start(ctx, traces, log)
	if err != nil {
		return err
	}
	defer func() {
		if err := tracer.Stop(ctx); err != nil {
			log.Warn("the last spans were not sent", "error", err)
		}
	}()
	ctx, end := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer end()
	reloads, logIgnored := holdSignals()
	for _, n := range notes {
		log.Warn(n)
	}
	go logIgnored(ctx, log)
	if text, err := c.Dump(); err == nil {
		log.Debug("configuration", "text", string(text))
	}
	app.LimitMemory(ctx, c, log)
	app.ShareProcessors()
	manager, err := service.FromEnvironment()
	if err != nil {
		return err
	}
	if c.Observe.Root != "" {
		err = watch(ctx, observe.ServeOptions{
			Config: c, Log: log, Service: manager, Tracer: tracer, Metrics: berthmetrics.New(), Now: time.Now, Reloads: reloads,
		})
	} else {
		err = decide(ctx, c, app.Environment{
			Log: log, Now: time.Now, Notes: notes, Service: manager, Failpoint: hook, Tracer: tracer, Again: probePause,
			System: real.System(), Metrics: berthmetrics.New(),
			Load:     func() (apiconfig.Config, []string, error) { return config.Load(sources) },
			LogLevel: level, Reloads: reloads, Reader: reader,
		}, ready)
	}
	if err != nil {
		return err
	}
	log.Info("ended")
	return nil
}

// watch runs a berthd that observes.
func watch(ctx context.Context, o observe.ServeOptions) error {
	from := kubelet.Source{Now: o.Now}
	if at := o.Config.Observe; at.Kubelet != "" {
		web, err := kubelet.NewWeb(at.Kubelet, at.NodeName, at.Accounts(), at.KubeletCA)
		if err != nil {
			return err
		}
		from.Web, o.Told = web, web.Config
	}
	o.Pods, o.Watch = from.Pods, from.Watch
	return observe.Serve(ctx, o)
}

// probePause is app.Environment.Again; tests set it.
var probePause time.Duration

// decide runs a berthd that decides.
func decide(ctx context.Context, c apiconfig.Config, env app.Environment, ready func()) error {
	a, err := app.Build(ctx, c, env)
	if err != nil {
		return err
	}
	return a.Run(ctx, ready)
}

// logger writes to standard error. If that is systemd's journal, each key is a field there, unless
// the configuration asks for JSON.
func logger(level slog.Leveler, format string) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	text := slog.NewTextHandler(os.Stderr, o)
	switch {
	case format == "json":
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	case journal.Connected(os.Getenv, os.Stderr):
		return slog.New(journal.New(journal.Socket, level, text))
	}
	return slog.New(text)
}
