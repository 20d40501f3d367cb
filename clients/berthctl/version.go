package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// build says which berthctl this is.
type build struct {
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	Go      string `json:"go"`
	System  string `json:"system"`
}

func thisBuild() build {
	b := build{Version: "unknown", Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.Version = cmp.Or(info.Main.Version, b.Version)
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Commit = s.Value
		}
	}
	return b
}

func (c *ctl) version() *cobra.Command {
	return c.local(about{
		use:     "version",
		short:   "Say which berthctl this is",
		example: `  berthctl version -o json`,
	}, func(context.Context, []string) error {
		b := thisBuild()
		if c.forPrograms() {
			raw, err := json.Marshal(b)
			if err != nil {
				return err
			}
			return c.print(raw)
		}
		return c.say(func(w io.Writer) {
			fmt.Fprintf(w, "berthctl %s, %s, %s\n", b.Version, b.Go, b.System)
			if b.Commit != "" && c.wide() {
				fmt.Fprintf(w, "commit %s\n", b.Commit)
			}
		})
	})
}
