package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/internal/command"
)

// build has the version of berthctl or berthd.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	System  string `json:"system"`
	APIs    string `json:"apis,omitempty"`
}

// builds has both versions.
type builds struct {
	build
	// Server is nil if no berthd answers, and Missing is the reason.
	Server  *build `json:"server,omitempty"`
	Missing string `json:"serverMissing,omitempty"`
}

func thisBuild() build {
	i := version.Of()
	return build{i.Version, i.Commit, i.Go, i.Platform, version.APIs}
}

// withServer adds the berthd that answers.
func withServer(ctx context.Context, c *command.Ctl, b *builds) {
	err := c.Connected(ctx, func(ctx context.Context, s *command.Session) error {
		v, err := s.Node().GetVersion(ctx, &nodev1.GetVersionRequest{})
		if err == nil {
			b.Server = &build{Version: v.GetVersion(), Commit: v.GetCommit(), Go: v.GetGoVersion(), System: v.GetPlatform()}
		}
		return err
	})
	if err != nil {
		b.Missing = command.OneLine(err.Error())
	}
}

func versions(c *command.Ctl) *cobra.Command {
	var alone bool
	cmd := c.Local(command.About{
		Use:     "version",
		Short:   "Print the versions of berthctl and berthd",
		Long:    "Print the version of berthctl, and the version of berthd if berthd answers. If berthd does not answer, the exit code is still 0.",
		Example: `  berthctl version -o json`,
	}, func(ctx context.Context, _ []string) error {
		b := builds{build: thisBuild()}
		if !alone {
			withServer(ctx, c, &b)
		}
		if c.ForPrograms() {
			raw, err := json.Marshal(b)
			if err != nil {
				return err
			}
			return c.Print("Versions", raw)
		}
		return c.Say(func(w io.Writer) {
			sayBuild(c, w, "berthctl", &b.build)
			switch {
			case b.Server != nil:
				sayBuild(c, w, "berthd", b.Server)
			case b.Missing != "":
				fmt.Fprintf(w, "berthd does not say: %s\n", b.Missing)
			}
		})
	})
	cmd.Flags().BoolVar(&alone, "client", false, "print only the version of berthctl")
	return cmd
}

func sayBuild(c *command.Ctl, w io.Writer, name string, b *build) {
	fmt.Fprintf(w, "%s %s, %s, %s\n", name, b.Version, b.Go, b.System)
	if b.Commit != "" && c.Wide() {
		fmt.Fprintf(w, "  commit %s\n", b.Commit)
	}
	if b.APIs != "" && c.Wide() {
		fmt.Fprintf(w, "  APIs %s\n", b.APIs)
	}
}
