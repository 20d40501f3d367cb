package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/server/internal/config"
	"github.com/berthd/berth/server/internal/failpoint"
	"github.com/berthd/berth/server/internal/try"
)

// tryIn is the flag of a process that a try has started.
const tryIn = "try-in"

// runTry runs berthd, with the arguments of this process, in a process of its own, and removes what it has made.
func runTry(cmd *cobra.Command, args []string, sources config.Sources) error {
	if err := config.CheckTryFlags(cmd.Flags()); err != nil {
		return usage(err)
	}
	return try.Run(cmd.Context(), try.Options{
		Args: args, InFlag: tryIn,
		Load: func(dir string) (apiconfig.Config, error) {
			sources.Try = &config.Try{Dir: dir}
			c, _, err := config.Load(sources)
			return c, err
		},
		Kernel: cmd.Flags().Changed("cgroup-tree") || cmd.Flags().Changed("cgroup-root"),
		Out:    cmd.OutOrStdout(), Errs: cmd.ErrOrStderr(),
	})
}

// runInTry is the daemon of a try.
func runInTry(cmd *cobra.Command, dir string, sources config.Sources, hook failpoint.Hook) error {
	record, err := try.ReadRecord(dir)
	if err != nil {
		return err
	}
	sources.Try = &config.Try{Dir: dir, Cgroup: record.Cgroup, Memory: record.Memory}
	ctx, cancel := try.Follow(cmd.Context())
	defer cancel()
	return run(ctx, cmd.ErrOrStderr(), sources, hook, func() {
		sayWhatToType(cmd.OutOrStdout(), dir, os.Geteuid() == 0 && os.Getenv("SUDO_USER") != "")
	})
}

// whatToType is what a try prints when it answers.
const whatToType = `berthd answers; Ctrl-C ends it and removes what it has made. In another shell:

export BERTH_ENDPOINT=unix://%[1]s
%[2]sberthctl topology
%[2]sberthctl admit -f - <<'END'
apiVersion: v1
kind: Pod
metadata: {name: web, uid: web}
spec:
  containers:
  - name: main
    image: web
    resources: {limits: {cpu: 1, memory: 64Mi}}
END
`

func sayWhatToType(out io.Writer, dir string, sudo bool) {
	prefix := ""
	if sudo {
		prefix = "sudo -E "
	}
	fmt.Fprintf(out, whatToType, filepath.Join(dir, "berth.sock"), prefix)
}
