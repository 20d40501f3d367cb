// Command berthctl shows and changes the state of berthd from a shell.
//
// The packages below it have its commands by group: check, get, pods, ledger, simulate and machine. What they share is in
// clients/internal/command.
//
// Invariants: answers go to standard output, everything else to standard error. -o json and yaml
// print only what clients/internal/output and docs/cli-output.md define. The exit code is the result (0
// done, 1 error, 2 usage, 3 rejected, 4 deferred, 130 interrupted; check has its own). Nothing is stored between two runs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthd/berth/api/kubelet"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/server/observe"
)

func main() {
	os.Exit(execute())
}

// observed reads a node whose kubelet decides.
func observed(ctx context.Context, from command.KubeletNode) (*command.Observed, error) {
	n, err := observe.Open(ctx, observe.Options{Root: from.Root, Told: from.Config, List: listOf(from)})
	if err != nil {
		return nil, err
	}
	out := &command.Observed{Conn: n, Missing: n.Missing}
	out.Follow = func(ctx context.Context, changed func(error)) error {
		sources := observe.Sources{Pods: from.Pods, Watch: kubelet.Watch}
		if from.Given {
			sources.Watch = func(ctx context.Context, _ string, _ func()) { <-ctx.Done() }
		}
		if from.Config != nil {
			sources.Told = func(context.Context) ([]byte, error) { return from.Config, nil }
		}
		return n.Follow(ctx, sources, changed)
	}
	for _, p := range n.Decided {
		one := command.DecidedPod{Pod: p.Pod, Controller: p.Controller, Undated: p.Started.IsZero() && p.Created.IsZero()}
		if p.Rejected() {
			one.Rejection = p.Reason
		}
		out.Decided = append(out.Decided, one)
	}
	return out, nil
}

// listOf returns a function that lists the pods of a node that its kubelet has seen.
func listOf(n command.KubeletNode) func(context.Context, string) ([]observe.Pod, error) {
	return func(ctx context.Context, dir string) ([]observe.Pod, error) {
		pods, err := n.Pods(ctx, dir)
		return observe.PodsOf(pods), err
	}
}

// pause is the time between two readings of a check: longer than the kubelet takes to apply a change (cpuManagerReconcilePeriod, 10 s).
const pause = 15 * time.Second

// checked finds what is wrong on such a node.
func checked(ctx context.Context, n command.KubeletNode, now bool) (*command.Checked, error) {
	o := observe.CheckOptions{Root: n.Root, Told: n.Config, Pause: pause, List: listOf(n)}
	if now {
		o.Pause = 0
	}
	found, err := observe.Check(ctx, o)
	if err != nil {
		return nil, err
	}
	out := &command.Checked{Findings: []command.NodeFinding{}, Missing: found.Missing}
	for _, f := range found.Findings {
		out.Findings = append(out.Findings, command.NodeFinding{
			Check: f.ID, Severity: string(f.Severity), Object: f.Object, Text: f.Text, Evidence: f.Evidence, Reports: f.Report, Do: f.Do,
			Unconfirmed: f.Unconfirmed,
		})
	}
	for _, s := range found.Skipped {
		out.Skipped = append(out.Skipped, command.SkippedChecks{Reason: s.Why, Checks: s.IDs})
	}
	return out, nil
}

// execute runs berthctl on the process's own streams.
func execute() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return run(ctx, command.Env{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		Dial: func(ctx context.Context, endpoint string) (*berth.Client, error) {
			return berth.Dial(ctx, endpoint, berth.Options{UserAgent: "berthctl"})
		},
		Observe: observed, Check: checked,
		Now: time.Now, Getenv: os.Getenv,
	}, os.Args[1:])
}
