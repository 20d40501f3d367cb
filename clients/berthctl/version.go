package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/version"
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
func (c *ctl) withServer(ctx context.Context, b *builds) {
	err := c.connected(ctx, func(ctx context.Context, s *session) error {
		v, err := s.Node().GetVersion(ctx, &nodev1.GetVersionRequest{})
		if err == nil {
			b.Server = &build{Version: v.GetVersion(), Commit: v.GetCommit(), Go: v.GetGoVersion(), System: v.GetPlatform()}
		}
		return err
	})
	if err != nil {
		b.Missing = oneLine(err.Error())
	}
}

func (c *ctl) version() *cobra.Command {
	var alone bool
	cmd := c.local(about{
		use:     "version",
		short:   "Print the versions of berthctl and berthd",
		long:    "Print the version of berthctl, and the version of berthd if berthd answers. If berthd does not answer, the exit code is still 0.",
		example: `  berthctl version -o json`,
	}, func(ctx context.Context, _ []string) error {
		b := builds{build: thisBuild()}
		if !alone {
			c.withServer(ctx, &b)
		}
		if c.forPrograms() {
			raw, err := json.Marshal(b)
			if err != nil {
				return err
			}
			return c.print(raw)
		}
		return c.say(func(w io.Writer) {
			c.sayBuild(w, "berthctl", &b.build)
			switch {
			case b.Server != nil:
				c.sayBuild(w, "berthd", b.Server)
			case b.Missing != "":
				fmt.Fprintf(w, "berthd does not say: %s\n", b.Missing)
			}
		})
	})
	cmd.Flags().BoolVar(&alone, "client", false, "print only the version of berthctl")
	return cmd
}

func (c *ctl) sayBuild(w io.Writer, name string, b *build) {
	fmt.Fprintf(w, "%s %s, %s, %s\n", name, b.Version, b.Go, b.System)
	if b.Commit != "" && c.wide() {
		fmt.Fprintf(w, "  commit %s\n", b.Commit)
	}
	if b.APIs != "" && c.wide() {
		fmt.Fprintf(w, "  APIs %s\n", b.APIs)
	}
}
