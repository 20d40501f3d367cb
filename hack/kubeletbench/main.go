// Command kubeletbench measures berth's merge and whole decision against those of kubelets, in one run, in turns, on one processor:
//
//	go run ./hack/kubeletbench [-kubelets VERSION,...] [-run REGEXP] [-rounds N] [-benchtime D] [-limit D] [-cpu N]
//
// It builds three programs with one toolchain: hack/kubeletbench/berth, and hack/kubeletbench/kubelet with the modules of each version of
// Kubernetes. All of them run the cases of hack/kubeletbench/cases. In a round each program runs a case for a time, and the table
// has the medians of the rounds, as Markdown for docs/performance.md. The programs must decide the same, or the run ends with an error.
//
// Times are processor time, since other programs may use the machine. A program that does not answer within the limit is ended, and
// does not get that case again.
//
// It needs Linux, the programs taskset and unshare, and about 4 GB on the disk for Go's caches. The first run compiles a kubelet's
// packages twice, which takes about 15 minutes on two processors.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/berthd/berth/hack/kubeletbench/cases"
)

// options are the flags.
type options struct {
	kubelets, toolchain, run string
	rounds, cpu              int
	benchtime, limit         time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.kubelets, "kubelets", "v1.37.2,v1.38.0-beta.0", "versions of Kubernetes")
	flag.StringVar(&o.toolchain, "toolchain", "go1.27.0", "toolchain that builds all programs")
	flag.StringVar(&o.run, "run", ".", "cases to run, a regular expression of OPERATION/NODES")
	flag.IntVar(&o.rounds, "rounds", 5, "turns of each program in each case; medians are printed")
	flag.DurationVar(&o.benchtime, "benchtime", 200*time.Millisecond, "length of a turn")
	flag.DurationVar(&o.limit, "limit", 20*time.Second, "how long a program may take for a turn, on the clock")
	flag.IntVar(&o.cpu, "cpu", 1, "processor that the programs run on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := o.main(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kubeletbench:", err)
		os.Exit(1)
	}
}

func (o options) main(ctx context.Context) error {
	selected, err := regexp.Compile(o.run)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	dir, err := os.MkdirTemp("", "kubeletbench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	programs, err := build(ctx, dir, o.toolchain, strings.Split(o.kubelets, ","))
	if err != nil {
		return err
	}
	for _, p := range programs {
		p.cpu = o.cpu
		defer p.stop()
	}
	before := load()
	var rows []row
	for _, c := range cases.All() {
		if !selected.MatchString(c.Name()) {
			continue
		}
		r := row{Case: c, samples: make([][]cases.Sample, len(programs)), late: make([]bool, len(programs))}
		if err := o.measure(ctx, programs, &r); err != nil {
			return fmt.Errorf("%s: %w", c.Name(), err)
		}
		rows = append(rows, r)
		fmt.Fprintf(os.Stderr, "%s: done\n", c.Name())
	}
	fmt.Printf("%s, %d processors of which one is used, %s; programs built with %s; load %s before and %s after; %s\n\n",
		cpuModel(), runtime.NumCPU(), kernel(), toolchain(rows), before, load(), time.Now().Format(time.DateOnly))
	table(os.Stdout, programs, rows, o.limit)
	return nil
}

// measure runs a case in rounds.
func (o options) measure(ctx context.Context, programs []*program, r *row) error {
	for range o.rounds {
		for i, p := range programs {
			if r.late[i] {
				continue
			}
			s, err := p.ask(ctx, cases.Request{Case: r.Name(), For: o.benchtime}, o.limit)
			switch {
			case errors.Is(err, errLate):
				r.late[i] = true
				continue
			case err != nil:
				return fmt.Errorf("%s: %w", p.name, err)
			}
			r.samples[i] = append(r.samples[i], s)
			if first, other := r.samples[0][0].Result, s.Result; first != other {
				return fmt.Errorf("%s decides %+v, %s decides %+v", programs[0].name, first, p.name, other)
			}
		}
	}
	return nil
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	field := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + `\s*: (.*)$`).FindSubmatch(text)
		if m == nil {
			return "unknown"
		}
		return string(m[1])
	}
	return fmt.Sprintf("%s (family %s, model %s)", field("model name"), field("cpu family"), field("model"))
}

func kernel() string {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return "Linux " + strings.TrimSpace(string(text))
}

// load is the average of the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(text), " ")
	return first
}

func toolchain(rows []row) string {
	for _, r := range rows {
		return r.samples[0][0].Toolchain
	}
	return "nothing"
}

// command makes one whose output goes to standard error.
func command(ctx context.Context, dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	return cmd
}
