package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/testing/script"
)

// few and many are how often the calls are made in the two runs.
const few, many = 20, 100

// printCalls counts the files of this repository that a call of berthd executes, so that a reader knows how much of the code one
// call passes.
//
// It builds berthd with counters of statements, and makes each call few times in one run and many times in another. What ran more
// often in the second run, by at least the number of the further calls, belongs to the call. So the start, the end and what berthd does
// by itself do not count. Generated code does not count either. Cgroups and the machine are simulated.
func printCalls(ctx context.Context, w io.Writer) error {
	dir, err := os.MkdirTemp("", "berth-calls")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "berthd")
	build := command(ctx, "go", "build", "-cover", "-covermode=count", "-coverpkg=./...", "-o", program, "./server/berthd")
	if err := build.Run(); err != nil {
		return fmt.Errorf("build berthd: %w", err)
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nfiles\twith 20 statements or more\tcall")
	for _, row := range []struct {
		name        string
		first, then func(ctx context.Context, b *berthd, i int) error
	}{
		{"Admit, of a pod with exclusive CPUs and memory", nothing, admit},
		{"PreStartContainer", admit, start},
		{"the registration of a device plugin, with its list of devices", nothing, register},
	} {
		var counted [2]map[string]block
		for i, n := range []int{few, many} {
			counted[i], err = count(ctx, dir, program, func(ctx context.Context, b *berthd) error {
				for i := range many {
					if err := row.first(ctx, b, i); err != nil {
						return err
					}
				}
				for i := range n {
					if err := row.then(ctx, b, i); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("%s: %w", row.name, err)
			}
		}
		all, main := files(counted[0], counted[1])
		fmt.Fprintf(table, "%d\t%d\t%s\n", all, main, row.name)
	}
	return table.Flush()
}

func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	return cmd
}

// berthd is one run of berthd.
type berthd struct {
	root   string
	client *berth.Client
}

func nothing(context.Context, *berthd, int) error { return nil }

func admit(ctx context.Context, b *berthd, i int) error {
	uid, amounts := fmt.Sprintf("pod-%d", i), map[string]string{"cpu": "1", "memory": "16Mi"}
	answer, err := b.client.AdmitPod(ctx, &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: uid, Namespace: "default", Uid: uid},
		Spec: &typesv1.PodSpec{Containers: []*typesv1.Container{{
			Name: "main", Resources: &typesv1.ResourceRequirements{Requests: amounts, Limits: amounts},
		}}},
	})
	if err == nil && answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		return fmt.Errorf("pod %s is not admitted: %s", uid, answer.GetMessage())
	}
	return err
}

func start(ctx context.Context, b *berthd, i int) error {
	uid := fmt.Sprintf("pod-%d", i)
	_, err := b.client.PreStartContainer(ctx, uid, "main", "id-"+uid, 0)
	return err
}

// register registers a plugin, waits for its stream, and ends it.
func register(ctx context.Context, b *berthd, _ int) error {
	p := script.New(script.Config{Dir: filepath.Join(b.root, "device-plugins"), Resource: "example.com/gpu",
		Devices: []script.Device{{ID: "g0"}}})
	if err := p.Serve(); err != nil {
		return err
	}
	defer p.Stop()
	if err := p.Register(ctx); err != nil {
		return err
	}
	return p.AwaitStreams(ctx, 1)
}

// block is what was counted of statements that run together.
type block struct{ statements, times int }

// count runs berthd, makes calls, ends it, and returns what it has executed, by the place in the code.
func count(ctx context.Context, dir, program string, calls func(ctx context.Context, b *berthd) error) (_ map[string]block, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	root, counters := filepath.Join(dir, "root"), filepath.Join(dir, "counters")
	defer func() { err = errors.Join(err, os.RemoveAll(root), os.RemoveAll(counters)) }()
	if err := errors.Join(os.Mkdir(root, 0o755), os.Mkdir(counters, 0o755)); err != nil {
		return nil, err
	}
	// Landlock would keep berthd from writing the counters.
	daemon := command(ctx, program, "--root-dir", root, "--cgroup-tree", "memory", "--machine", "2s2n40c2t,mem=64Gi",
		"--cpu-manager-policy", "static", "--memory-manager-policy", "Static", "--reserved-cpus", "0",
		"--reserved-memory", "0:memory=200Mi",
		"--system-reserved", "memory=100Mi", "--eviction-hard", "memory.available<100Mi", "--topology-manager-policy", "best-effort",
		"--landlock=false", "--log-level", "error")
	daemon.Env = append(os.Environ(), "GOCOVERDIR="+counters)
	if err := daemon.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	living, stop := context.WithCancel(ctx)
	go func() { ended <- daemon.Wait(); stop() }()
	served := serve(living, root, calls)
	_ = daemon.Process.Signal(syscall.SIGTERM) // fails if it has ended, which Wait reports
	if err := errors.Join(served, <-ended); err != nil {
		return nil, err
	}
	text := filepath.Join(counters, "text")
	if err := command(ctx, "go", "tool", "covdata", "textfmt", "-i="+counters, "-o="+text).Run(); err != nil {
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	return read(text)
}

func serve(ctx context.Context, root string, calls func(ctx context.Context, b *berthd) error) error {
	client, err := berth.Dial(ctx, filepath.Join(root, "berth.sock"), berth.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if err := client.WaitReady(ctx); err != nil {
		return err
	}
	return calls(ctx, &berthd{root, client})
}

// read reads a profile of `go tool cover`: place, statements and times in a line, after the mode.
func read(path string) (map[string]block, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	out := map[string]block{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		field := strings.Fields(lines.Text())
		if len(field) != 3 {
			continue // the mode
		}
		statements, err := strconv.Atoi(field[1])
		if err != nil {
			return nil, err
		}
		times, err := strconv.Atoi(field[2])
		if err != nil {
			return nil, err
		}
		out[field[0]] = block{statements, out[field[0]].times + times}
	}
	return out, nil
}

// files counts the files with statements of the further calls, and those with 20 statements or more.
func files(less, more map[string]block) (all, main int) {
	statements := map[string]int{}
	for place, b := range more {
		if b.times-less[place].times < many-few {
			continue
		}
		file, _, _ := strings.Cut(place, ":")
		file = strings.TrimPrefix(file, module)
		if strings.HasSuffix(file, ".pb.go") || strings.HasPrefix(file, "hack/") {
			continue
		}
		statements[file] += b.statements
	}
	for _, n := range statements {
		if n >= 20 {
			main++
		}
	}
	return len(statements), main
}
