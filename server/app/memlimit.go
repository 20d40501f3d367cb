package app

import (
	"context"
	"log/slog"
	"math"
	"os"
	"runtime"
	"runtime/debug"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/host/memlimit"
	"github.com/berthd/berth/server/host/procfs"
)

// LimitMemory has the collector of garbage keep this process below nine tenths of its cgroup's memory limit, unless
// GOMEMLIMIT says something else.
func LimitMemory(ctx context.Context, c config.Config, log *slog.Logger) {
	if _, set := os.LookupEnv("GOMEMLIMIT"); set {
		return
	}
	limit, ok, err := memlimit.Own(os.DirFS("/proc"), os.DirFS(c.Cgroups.Mount))
	switch {
	case err != nil:
		log.WarnContext(ctx, "berthd does not know its memory limit", "error", err)
	case ok:
		debug.SetMemoryLimit(limit - limit/10)
		log.InfoContext(ctx, "memory", "limit", limit, "collected from", limit-limit/10)
	}
}

// leastProcessors is how many goroutines berthd runs at a time at least. Where there are
// fewer processors the kernel shares them: a call of root's begins at once beside one of
// another user that computes, instead of behind it in a queue of Go's, for up to 10 ms.
const leastProcessors = 4

// ShareProcessors has the kernel share the processors of a small machine, unless
// GOMAXPROCS says something else.
func ShareProcessors() {
	if _, set := os.LookupEnv("GOMAXPROCS"); !set && runtime.GOMAXPROCS(0) < leastProcessors {
		runtime.GOMAXPROCS(leastProcessors)
	}
}

// score is berthd's own score of the out-of-memory killer; false leaves it as it is. One below 0 has the kernel kill
// others first, however much berthd takes, so it takes a limit on what that can be.
func score(c config.Config) (score int, set bool, err error) {
	score = c.Node.OOMScoreAdj
	if score >= 0 {
		return score, true, nil
	}
	_, limited, err := memlimit.Own(os.DirFS("/proc"), os.DirFS(c.Cgroups.Mount))
	if err == nil && !limited {
		err = errdefs.Preconditionf("node.oomScoreAdj (--oom-score-adj) is %d, which has the kernel kill everybody else first, and berthd's cgroup has no memory limit: give it one, as by MemoryMax= of its systemd unit", score)
	}
	return score, err == nil, err
}

// keepScore writes berthd's own score, or says why not.
func (a *App) keepScore(ctx context.Context, proc *os.Root) {
	adj, set, err := score(a.Config)
	if set {
		err = procfs.SetOOMScoreAdj(proc, os.Getpid(), adj)
	}
	if err != nil {
		a.Log.WarnContext(ctx, "berthd keeps its score of the out-of-memory killer", "error", err)
	}
}

// noScore stands for a score that is not written.
const noScore = math.MinInt
