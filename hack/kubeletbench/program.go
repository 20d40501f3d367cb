package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/berthd/berth/hack/kubeletbench/cases"
)

// program is one that runs cases. It is started when it is needed.
type program struct {
	name, path string
	cpu        int

	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer
}

type answer struct {
	sample cases.Sample
	err    error
}

// errLate is of a program that did not answer in time.
var errLate = errors.New("no answer in time")

// start runs the program on its processor. What it writes below /var/lib is in memory and its own: a device manager has its files there.
func (p *program) start() error {
	cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
		`mount -t tmpfs none /var/lib && exec taskset -c "$0" "$1"`, fmt.Sprint(p.cpu), p.path)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.in, p.answers = cmd, in, make(chan answer, 1)
	go func(answers chan<- answer) {
		for samples := json.NewDecoder(out); ; {
			var a answer
			if a.err = samples.Decode(&a.sample); a.err != nil {
				answers <- a
				return
			}
			answers <- a
		}
	}(p.answers)
	return nil
}

// ask runs a case once more. Afterwards a program that is late has ended.
func (p *program) ask(ctx context.Context, r cases.Request, limit time.Duration) (cases.Sample, error) {
	if p.cmd == nil {
		if err := p.start(); err != nil {
			return cases.Sample{}, err
		}
	}
	if err := json.NewEncoder(p.in).Encode(r); err != nil {
		return cases.Sample{}, err
	}
	select {
	case a := <-p.answers:
		if a.err == nil && a.sample.Error != "" {
			a.err = errors.New(a.sample.Error)
		}
		return a.sample, a.err
	case <-time.After(limit):
		p.stop()
		return cases.Sample{}, errLate
	case <-ctx.Done():
		return cases.Sample{}, ctx.Err()
	}
}

// stop ends the program, if it runs.
func (p *program) stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // the error says that it was killed
	p.cmd = nil
}
