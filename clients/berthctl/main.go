// Command berthctl shows and changes the state of berthd from a shell.
//
// The packages below it have its commands by group: check, get, pods, ledger, simulate and machine. What they share is in
// clients/internal/command.
//
// Invariants: answers go to standard output, everything else to standard error. -o json and yaml
// print only what clients/internal/output and docs/cli-output.md define. The exit code is the result (0
// done, 1 error, 2 usage, 3 rejected, 4 deferred; check has its own). Nothing is stored between two runs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/podspec"
	"github.com/berthd/berth/server/observe"
)

func main() {
	os.Exit(execute())
}

// options are those of a node whose kubelet decides.
func options(root string, pods []podspec.NodePod) observe.Options {
	o := observe.Options{Root: root}
	if pods != nil {
		o.Pods = []observe.Pod{}
	}
	for _, p := range pods {
		if !p.Seen() {
			continue // it holds nothing
		}
		seen := observe.Pod{Pod: p.Pod, Created: p.Created, Ended: !p.Living(), Reason: p.Status.Reason}
		if p.Status.StartTime != nil {
			seen.Started = p.Status.StartTime.Time
		}
		o.Pods = append(o.Pods, seen)
	}
	return o
}

// observed reads a node whose kubelet decides.
func observed(ctx context.Context, root string, pods []podspec.NodePod) (*command.Observed, error) {
	n, err := observe.Open(ctx, options(root, pods))
	if err != nil {
		return nil, err
	}
	return &command.Observed{Conn: n, Missing: n.Missing}, nil
}

// checked finds what is wrong on such a node.
func checked(ctx context.Context, root string, pods []podspec.NodePod) (*command.Checked, error) {
	found, err := observe.Check(ctx, options(root, pods))
	if err != nil {
		return nil, err
	}
	out := &command.Checked{Findings: []command.NodeFinding{}, Missing: found.Missing}
	for _, f := range found.Findings {
		out.Findings = append(out.Findings, command.NodeFinding{
			Check: f.ID, Severity: string(f.Severity), Object: f.Object, Text: f.Text, Evidence: f.Evidence, Reports: f.Report, Do: f.Do,
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
