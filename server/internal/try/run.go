package try

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
)

// Options are those of a try.
type Options struct {
	// Args are the arguments of berthd, without its name. InFlag names the flag that gives berthd its place.
	Args   []string
	InFlag string
	// Load returns the configuration with the place as root directory.
	Load func(dir string) (config.Config, error)
	// Kernel is true if flags say where cgroups are, so that they are not in memory for another reason.
	Kernel bool
	// Out and Errs are berthd's output.
	Out, Errs io.Writer
}

// removal is how long the removal of one try may take.
const removal = time.Minute

// Run runs berthd until a signal or its end, and removes what it has made. A second signal kills berthd.
func Run(ctx context.Context, o Options) (err error) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the removal goes on where nobody reads the messages
	defer signal.Stop(signals)
	note := func(format string, args ...any) { fmt.Fprintf(o.Errs, "berthd: "+format+"\n", args...) }
	// A signal does not end a removal.
	lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
	p, err := take(lasting, baseOf(os.Geteuid(), os.Getenv), func(err error) { note("%v", err) })
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		lasting, cancel := context.WithTimeout(context.WithoutCancel(ctx), removal)
		defer cancel()
		err = errors.Join(err, p.remove(lasting))
		p.close()
	}()
	if os.Geteuid() == 0 {
		// Plugins and clients of other users get through to their sockets.
		if err := os.Chmod(p.dir, 0o755); err != nil {
			return err
		}
	}
	c, err := o.Load(p.dir)
	if err != nil {
		return err
	}
	if err := p.prepare(ctx, c, o.Kernel, note); err != nil {
		return err
	}
	return p.supervise(o, signals)
}

// prepare records the cgroup of the try, and makes it.
func (p *place) prepare(ctx context.Context, c config.Config, kernel bool, note func(string, ...any)) error {
	r := newRecord(c.Cgroups.Root, c.Cgroups.Driver, c.Cgroups.Mount)
	r.Memory = !c.KernelCgroups() || c.Machine != "" && !kernel
	if err := p.write(r); err != nil || r.Memory {
		return err
	}
	err := makeCgroup(ctx, r)
	if err == nil {
		return nil
	}
	if kernel || errdefs.ClassOf(err) == errdefs.Invalid {
		return fmt.Errorf("--try makes a cgroup: %w", err)
	}
	note("cgroups are only in berthd's memory, so containers are not put on their CPUs: %v", err)
	r.Memory = true
	return p.write(r)
}

// supervise runs berthd. Its standard input ends with this process, and its lock is this process's.
func (p *place) supervise(o Options, signals <-chan os.Signal) error {
	input, end, err := os.Pipe()
	if err != nil {
		return err
	}
	defer end.Close()
	cmd := exec.Command("/proc/self/exe", append([]string{"--" + o.InFlag, p.dir}, o.Args...)...)
	cmd.Args[0] = os.Args[0]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals of a terminal are for this process
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = input, o.Out, o.Errs, []*os.File{p.lock}
	err = cmd.Start()
	_ = input.Close()
	if err != nil {
		return fmt.Errorf("--try starts berthd: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	asked, lost := false, error(nil)
	for {
		select {
		case err := <-ended:
			if err != nil && !asked {
				return fmt.Errorf("--try: berthd ended: %w", err)
			}
			return lost
		case <-look.C:
			// Without it, berthd would go on, and make its directories and sockets again.
			if !asked && !p.recorded() {
				asked, lost = true, errdefs.Preconditionf("--try ends because %s was removed", p.dir)
				_ = end.Close()
			}
		case <-signals:
			if asked {
				_ = cmd.Process.Kill()
			}
			asked = true
			_ = end.Close()
		}
	}
}

// Follow ends a context when the try ends that has started this process.
func Follow(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx, cancel
}
