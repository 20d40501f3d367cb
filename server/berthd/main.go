// Command berthd is berth's daemon: it gives containers their place on one
// machine and serves gRPC on a unix socket.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/server/app"
	"github.com/berthd/berth/server/config"
	"github.com/berthd/berth/server/failpoint"
	"github.com/berthd/berth/server/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "berthd:", err)
		os.Exit(1)
	}
}

// command builds the command line.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "berthd",
		Short:         "Give containers their CPUs, memory, devices and cgroups",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	sources := config.AddFlags(root.PersistentFlags())
	point := root.Flags().String("failpoint", "", "for tests: kill the process at a named point")
	if err := root.Flags().MarkHidden("failpoint"); err != nil {
		panic(err) // the flag was declared a line above
	}
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		hook, err := failpoint.Parse(*point, store.Failpoints()...)
		if err != nil {
			return err
		}
		return run(cmd.Context(), *sources, hook)
	}
	cfg := &cobra.Command{Use: "config", Short: "Look at the configuration", Args: cobra.NoArgs}
	cfg.AddCommand(
		&cobra.Command{
			Use: "dump", Short: "Print the configuration that berthd would run with", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return dump(cmd.OutOrStdout(), *sources) },
		},
		&cobra.Command{
			Use: "validate", Short: "Check the configuration against this machine", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return validate(cmd.OutOrStdout(), *sources) },
		},
	)
	root.AddCommand(cfg, &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			_, _ = fmt.Fprintln(cmd.OutOrStdout(), "berthd", app.Version().GetVersion())
		},
	})
	return root
}

// run is the daemon.
func run(ctx context.Context, sources config.Sources, hook failpoint.Hook) error {
	c, notes, err := config.Load(sources)
	if err != nil {
		return err
	}
	log := logger(c.Log.Level, c.Log.Format)
	for _, n := range notes {
		log.Warn(n)
	}
	if text, err := c.Dump(); err == nil {
		log.Debug("configuration", "text", string(text))
	}
	a, err := app.Build(ctx, c, app.Environment{Log: log, Now: time.Now, Failpoint: hook})
	if err != nil {
		return err
	}
	return a.Run(ctx, nil)
}

func dump(out io.Writer, sources config.Sources) error {
	c, _, err := config.Load(sources)
	if err != nil {
		return err
	}
	text, err := c.Dump()
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

func validate(out io.Writer, sources config.Sources) error {
	c, notes, err := config.Load(sources)
	if err != nil {
		return err
	}
	if err := app.Validate(c); err != nil {
		return err
	}
	for _, n := range notes {
		if _, err := fmt.Fprintln(out, "note:", n); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, "the configuration is valid")
	return err
}

func logger(name, format string) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(name)) // validated by config
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}
