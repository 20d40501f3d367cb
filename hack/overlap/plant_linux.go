package overlap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// PlantedLength is how long a planted overlap is.
const PlantedLength = 5 * time.Millisecond

const plantedCgroup = "/berth-planted-"

// plantedIn gives the name of a planted container by its cgroup.
func plantedIn(cgroup string) string {
	if name, ok := strings.CutPrefix(cgroup, plantedCgroup); ok {
		return planted + name
	}
	return ""
}

// Plant causes an overlap on a CPU: a holder waits, and an intruder uses the CPU for
// PlantedLength. probe is the program hack/probe.
func (d *Detector) Plant(ctx context.Context, probe string, cpu int) (err error) {
	d.mu.Lock()
	d.plants++
	d.mu.Unlock()
	name := strconv.FormatInt(int64(now()), 36)
	holder, err := plant(ctx, name+holderEnd, probe, "wait")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, holder.end()) }()
	d.Hold(plantedIn(holder.cgroup), cpuset.Of(cpu))
	if _, err := holder.out.Read(make([]byte, 1)); err != nil { // it waits
		return fmt.Errorf("planted holder: %w", err)
	}
	if d.Method == Sample { // until it was seen once
		if err := d.sampled(ctx, plantedIn(holder.cgroup)); err != nil {
			return err
		}
	}
	intruder, err := plant(ctx, name+intruderEnd, probe, "burn", strconv.Itoa(cpu), PlantedLength.String())
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, intruder.out)
	return errors.Join(err, intruder.end())
}

// sampled waits until a sample has seen a container.
func (d *Detector) sampled(ctx context.Context, container string) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		d.mu.Lock()
		began := lifeOf(d.sampler.lives, container).began
		d.mu.Unlock()
		if began {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s was not seen: %w", container, ctx.Err())
		}
	}
}

// planting is a process in a cgroup of its own.
type planting struct {
	cgroup, dir string
	cmd         *exec.Cmd
	out         io.Reader
}

// plant executes a program in a new cgroup: a shell is moved there first.
func plant(ctx context.Context, name, program string, args ...string) (p *planting, err error) {
	p = &planting{cgroup: plantedCgroup + name}
	if p.dir, err = makeCgroup(p.cgroup); err != nil {
		return nil, err
	}
	p.cmd = exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", `read _; exec "$@"`, "sh", program}, args...)...)
	stdin, err := p.cmd.StdinPipe()
	if err == nil {
		p.out, err = p.cmd.StdoutPipe()
	}
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(p.dir))
	}
	err = os.WriteFile(filepath.Join(p.dir, "cgroup.procs"), []byte(strconv.Itoa(p.cmd.Process.Pid)), 0)
	if err == nil {
		_, err = stdin.Write([]byte("\n"))
	}
	if err != nil {
		return nil, errors.Join(err, p.end())
	}
	return p, nil
}

// end kills the process, if it is there, and removes the cgroup.
func (p *planting) end() error {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	return os.Remove(p.dir)
}

// makeCgroup makes one in a hierarchy where that takes no values.
func makeCgroup(path string) (dir string, err error) {
	for _, hierarchy := range []string{"/unified", "/systemd", "/pids", "/freezer", "/cpuacct", ""} {
		root := "/sys/fs/cgroup" + hierarchy
		if _, err = os.Stat(root + "/cgroup.procs"); err == nil {
			return root + path, os.Mkdir(root+path, 0o755)
		}
	}
	return "", err
}
