// Command vm runs the tests of packages inside a virtual machine: with cgroup v1,
// hybrid or v2, and with any number of NUMA nodes, whatever the machine is that
// it runs on. README.md beside this file shows how to use it.
//
//	go run ./hack/vm -cgroup v2 -shape n4 ./server/internal/host/cgroupfs
//
// It exits with 1 if a test failed or the machine did, and with 2 if it was
// called wrongly. A kernel or an emulator that cannot be had is a failure, unless
// -optional is given.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berthd/berth/hack/vm/arch"
	"github.com/berthd/berth/hack/vm/debian"
	"github.com/berthd/berth/hack/vm/emulator"
	"github.com/berthd/berth/hack/vm/job"
	"github.com/berthd/berth/hack/vm/shape"
	"github.com/berthd/berth/hack/vm/userland"
)

// options are the command line.
type options struct {
	arch        arch.Arch
	cgroup      string
	shape       string
	nodes       int
	cpus        int
	memoryMiB   int
	hugePages   string
	run, skip   string
	parallel    int
	count       int
	systemd     bool
	short       bool
	verbose     bool
	noSkip      bool
	cgo         bool
	optional    bool
	timeout     time.Duration
	bootLimit   time.Duration
	qemu        string
	kernel      string
	accelerator string
	diskMiB     int
	cuts        int
	reboots     int
	debs        []string
	modules     []string
	files       []addition
	diskFiles   []addition
	env         []string
	packages    []string
}

// addition is a file or a folder of the host that the VM has too.
type addition struct{ host, vm string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command does everything and gives the exit status.
func command(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, machine, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(stderr, "vm:", err)
		return 2
	}
	start := time.Now()
	passed, err := o.do(ctx, machine, stdout, stderr)
	var missing *debian.MissingError
	switch {
	case errors.As(err, &missing) && o.optional:
		fmt.Fprintf(stdout, "skipped, no virtual machine can be had here\n%s\n", missing)
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "vm:", err)
		return 1
	}
	fmt.Fprintf(stdout, "%s, %.1fs in all\n", o.title(machine), time.Since(start).Seconds())
	if !passed {
		return 1
	}
	return 0
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (options, shape.Shape, error) {
	var o options
	f := flag.NewFlagSet("vm", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprintln(stderr, "usage: go run ./hack/vm [flags] PACKAGE[:REGEXP]...")
		f.PrintDefaults()
	}
	architecture := f.String("arch", arch.Default, "the machine's architecture: amd64 or arm64")
	f.StringVar(&o.cgroup, "cgroup", string(job.V2), "cgroup version: v1, hybrid or v2")
	f.BoolVar(&o.systemd, "systemd", false, "systemd is process 1 in the VM, and mounts the cgroups")
	f.StringVar(&o.shape, "shape", "", "a named machine, instead of -nodes, -cpus, -memory")
	f.IntVar(&o.nodes, "nodes", 1, "NUMA nodes")
	f.IntVar(&o.cpus, "cpus", 4, "CPUs, the same number on each node")
	f.IntVar(&o.memoryMiB, "memory", 2048, "memory in MiB, the same amount on each node")
	f.StringVar(&o.hugePages, "hugepages", "", "huge pages by node: 2M=64,32;1G=0,1")
	f.StringVar(&o.run, "run", "", "run the tests that fit the regular expression, where a package has none of its own")
	f.StringVar(&o.skip, "skip", "", "leave out the tests that fit the regular expression")
	f.IntVar(&o.count, "count", 1, "how often each test runs")
	f.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "how many tests run at once, and how many threads run Go in each process")
	f.BoolVar(&o.short, "short", false, "run the tests with -short")
	f.BoolVar(&o.verbose, "v", false, "print everything that the tests print")
	f.BoolVar(&o.noSkip, "no-skip", false, "a test that is skipped has failed")
	f.BoolVar(&o.cgo, "cgo", false, "build the tests with cgo, linked statically; for the built-in runtime of berthlet")
	f.BoolVar(&o.optional, "optional", false, "where no kernel or emulator can be had, say so and succeed")
	f.DurationVar(&o.timeout, "timeout", 20*time.Minute, "how long the machine may run")
	f.DurationVar(&o.bootLimit, "boot-limit", 0,
		"how long a boot may take before it is tried again; 0 means 30s and 3s for each CPU, twice that with systemd")
	f.StringVar(&o.qemu, "qemu", "", "emulator; found or installed if empty")
	f.StringVar(&o.kernel, "kernel", "", "kernel; found in the cache or fetched if empty")
	f.StringVar(&o.accelerator, "accel", "tcg,thread=multi", "QEMU's -accel")
	f.IntVar(&o.diskMiB, "disk", 0,
		"give the machine an NVMe disk of so many MiB with an ext4 file system; "+job.DiskEnv+" names it to the tests")
	f.IntVar(&o.cuts, "cuts", 0, "kill the machine so often in the middle of its tests, and boot it again with the same disk")
	f.IntVar(&o.reboots, "reboots", 0, "turn the machine off so often when its tests have passed, and boot it again with the same disk")
	f.Func("deb", "a package of Debian, whose files the VM has with what they depend on; with -systemd; may be repeated",
		func(text string) error {
			o.debs = append(o.debs, text)
			return nil
		})
	f.Func("module", "a module of the kernel that is loaded before the tests; may be repeated", func(text string) error {
		o.modules = append(o.modules, text)
		return nil
	})
	f.Func("add", "HOST:VM, a file or folder of the host and where the VM has it; may be repeated", add(&o.files))
	f.Func("disk-add", "HOST:DISK, a file or folder of the host and where the disk has it; for what is large; may be repeated",
		add(&o.diskFiles))
	f.Func("env", "NAME=VALUE, a variable of the tests; may be repeated", func(text string) error {
		if name, _, ok := strings.Cut(text, "="); !ok || name == "" {
			return errors.New("want NAME=VALUE")
		}
		o.env = append(o.env, text)
		return nil
	})
	if err := f.Parse(args); err != nil {
		return o, shape.Shape{}, err
	}
	o.packages = f.Args()
	var err error
	if o.arch, err = arch.Named(*architecture); err != nil {
		return o, shape.Shape{}, fmt.Errorf("-arch: %w", err)
	}
	if o.shape != "" && o.arch.Name != arch.Default {
		return o, shape.Shape{}, fmt.Errorf("-shape contradicts -arch %s: the shapes are machines of %s", o.arch.Name, arch.Default)
	}
	if o.cgo && o.arch.Name != runtime.GOARCH {
		return o, shape.Shape{}, fmt.Errorf("-cgo contradicts -arch %s: this machine is %s", o.arch.Name, runtime.GOARCH)
	}
	switch job.Cgroup(o.cgroup) {
	case job.V1, job.Hybrid, job.V2:
	default:
		return o, shape.Shape{}, fmt.Errorf("-cgroup %s: want v1, hybrid or v2", o.cgroup)
	}
	if (o.cuts > 0 || o.reboots > 0) && o.diskMiB == 0 {
		return o, shape.Shape{}, errors.New("-cuts or -reboots without -disk: nothing would outlive the machine")
	}
	if len(o.diskFiles) > 0 && o.diskMiB == 0 {
		return o, shape.Shape{}, errors.New("-disk-add without -disk")
	}
	if o.cuts > 0 && o.reboots > 0 {
		return o, shape.Shape{}, errors.New("-cuts contradicts -reboots")
	}
	if len(o.debs) > 0 && !o.systemd {
		return o, shape.Shape{}, errors.New("-deb needs -systemd")
	}
	if len(o.packages) == 0 {
		return o, shape.Shape{}, errors.New("no package is named")
	}
	machine, err := o.machine()
	return o, machine, err
}

// add parses a flag that adds a file.
func add(files *[]addition) func(string) error {
	return func(text string) error {
		host, vm, _ := strings.Cut(text, ":")
		if host == "" || !path.IsAbs(vm) {
			return errors.New("want HOST:PATH, the latter absolute")
		}
		*files = append(*files, addition{host, vm})
		return nil
	}
}

// machine is the shape that the flags request.
func (o options) machine() (machine shape.Shape, err error) {
	if o.shape != "" {
		machine, err = shape.Named(o.shape)
	} else {
		machine, err = shape.Even(o.arch, o.nodes, o.cpus, o.memoryMiB)
	}
	if err == nil && o.hugePages != "" {
		machine.HugePages, err = shape.ParseHugePages(o.hugePages)
	}
	return machine, err
}

// title names the machine in the last line.
func (o options) title(machine shape.Shape) string {
	name := machine.Name
	if name == "" {
		name = fmt.Sprintf("%d nodes", len(machine.Nodes))
	}
	first := ""
	if o.systemd {
		first = "systemd, "
	}
	return fmt.Sprintf("%s, %scgroup %s, %s, %d CPUs, %d MiB", o.arch.Name, first, o.cgroup, name, machine.CPUs(), machine.MemoryMiB())
}

// do builds, boots and reports. An error is something else than a failed test.
func (o options) do(ctx context.Context, machine shape.Shape, stdout, stderr io.Writer) (passed bool, err error) {
	cfg := emulator.Config{
		Arch: o.arch, QEMU: o.qemu, Kernel: o.kernel, Accelerator: o.accelerator,
		Machine: machine.Args(), KernelArgs: machine.KernelArgs(),
		BootLimit: o.limit(machine), Log: stderr,
	}
	debs, err := o.tools(ctx, &cfg, stderr)
	if err != nil {
		return false, err
	}
	cfg.Dir, err = os.MkdirTemp("", "berth-vm")
	if err != nil {
		return false, err
	}
	defer func() { _ = os.RemoveAll(cfg.Dir) }()
	i := image{path: filepath.Join(cfg.Dir, "image"), init: filepath.Join(cfg.Dir, "init"), arch: o.arch, debs: debs, files: o.files}
	if i.tests, err = build(ctx, o, cfg.Dir); err != nil {
		return false, err
	}
	if i.parts = machine.Parts(); len(i.parts) > 0 {
		cfg.Monitor = filepath.Join(cfg.Dir, "monitor")
	}
	if o.systemd {
		cfg.KernelArgs = append(cfg.KernelArgs, userland.KernelArgs(job.Cgroup(o.cgroup))...)
	} else {
		cfg.KernelArgs = append(cfg.KernelArgs, "rdinit="+userland.Init)
		i.job.Cgroup = job.Cgroup(o.cgroup)
	}
	if o.diskMiB > 0 {
		if cfg.Disk, err = makeDisk(ctx, cfg.Dir, o.diskMiB, o.diskFiles); err != nil {
			return false, err
		}
	}
	cfg.Image = i.path
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("the machine was still running after %s (-timeout)", o.timeout))
	defer cancel()
	return o.boots(ctx, cfg, i, stdout)
}

// limit is how long a boot may take.
func (o options) limit(machine shape.Shape) time.Duration {
	if o.bootLimit != 0 {
		return o.bootLimit
	}
	limit := 30*time.Second + time.Duration(machine.CPUs())*3*time.Second
	if o.systemd {
		limit *= 2
	}
	return limit
}

// tools finds or fetches the emulator, the kernel and the packages of the VM.
func (o *options) tools(ctx context.Context, cfg *emulator.Config, log io.Writer) (debs []string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir() // no home: as good as any place
	}
	store := debian.Store{Arch: o.arch, Cache: filepath.Join(cache, "berth-vm", o.arch.Name), Log: log}
	if cfg.QEMU == "" {
		if cfg.QEMU, err = store.QEMU(ctx); err != nil {
			return nil, err
		}
	}
	if cfg.Kernel == "" {
		if cfg.Kernel, err = store.Kernel(ctx); err != nil {
			return nil, err
		}
	}
	if o.systemd {
		if debs, err = store.Packages(ctx, "systemd", userland.Packages()...); err != nil {
			return nil, err
		}
	}
	if len(o.debs) > 0 {
		more, err := store.Packages(ctx, strings.Join(o.debs, "+"), o.debs...)
		if err != nil {
			return nil, err
		}
		for _, deb := range more {
			if !slices.ContainsFunc(debs, func(have string) bool { return filepath.Base(have) == filepath.Base(deb) }) {
				debs = append(debs, deb)
			}
		}
	}
	for _, name := range o.modules {
		file, err := store.Module(ctx, cfg.Kernel, name)
		if err != nil {
			return nil, err
		}
		o.files = append(o.files, addition{file, path.Join(job.Modules, name+".ko")})
	}
	return debs, nil
}
