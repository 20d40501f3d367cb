package systemd

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	units "github.com/coreos/go-systemd/v22/dbus"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/cgrouptest"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/server/internal/host/cgroupfs"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
)

// pretender replaces systemd where another program is process 1: it knows units,
// and leaves their directories to the driver.
type pretender struct {
	mu sync.Mutex
	// loaded are the units that it knows, and whether they run; guarded by mu.
	loaded map[string]bool
	// hangs makes it answer no call.
	hangs bool
	calls []string // guarded by mu
}

func (p *pretender) answer(ctx context.Context, call string) error {
	p.mu.Lock()
	p.calls = append(p.calls, call)
	p.mu.Unlock()
	if p.hangs {
		<-ctx.Done()
	}
	if ctx.Err() != nil {
		return failed(ctx, call, ctx.Err())
	}
	return nil
}

func (p *pretender) Create(ctx context.Context, unit string, _ []units.Property) (created bool, err error) {
	if err := p.answer(ctx, "create "+unit); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.loaded[unit]; known {
		return false, nil
	}
	p.loaded[unit] = true
	return true, nil
}

func (p *pretender) Start(ctx context.Context, unit string) error {
	if err := p.answer(ctx, "start "+unit); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.loaded[unit]; !known {
		return errdefs.NotFoundf("start %s: %w", unit, errNoUnit)
	}
	p.loaded[unit] = true
	return nil
}

func (p *pretender) Stop(ctx context.Context, unit string) error {
	if err := p.answer(ctx, "stop "+unit); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.loaded[unit]; !known {
		return errdefs.NotFoundf("stop %s: %w", unit, errNoUnit)
	}
	delete(p.loaded, unit)
	return nil
}

func (p *pretender) Set(ctx context.Context, unit string, _ []units.Property) error {
	if err := p.answer(ctx, "set "+unit); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.loaded[unit]; !known {
		return errdefs.NotFoundf("set %s: %w", unit, errNoUnit)
	}
	return nil
}

func (p *pretender) Active(ctx context.Context, patterns ...string) (map[string]bool, error) {
	if err := p.answer(ctx, "list"); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]bool{}
	for unit, runs := range p.loaded {
		out[unit] = runs && slices.ContainsFunc(patterns, func(pattern string) bool {
			ok, err := path.Match(pattern, unit)
			return ok && err == nil
		})
	}
	return out, nil
}

func (p *pretender) Version(ctx context.Context) (int, error) { return 252, p.answer(ctx, "version") }

func (p *pretender) Close() error { return nil }

// stop has another program stop a unit; one that something wants stays loaded.
func (p *pretender) stop(unit string, wanted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if delete(p.loaded, unit); wanted {
		p.loaded[unit] = false
	}
}

func (p *pretender) runs(unit string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loaded[unit]
}

// pretend opens the real tree with a pretender.
func pretend(t *testing.T) (*Driver, *pretender) {
	t.Helper()
	files, err := cgroupfs.Open(cgroupfs.Options{Setter: ocicgroups.Setter{}, OnDemand: []string{"cpuset"}})
	if err != nil {
		t.Skipf("no usable tree: %v", err)
	}
	p := &pretender{loaded: map[string]bool{}}
	facts := files.Facts()
	facts.Driver = cgroup.Systemd
	d := &Driver{files: files, facts: facts, manager: p}
	t.Cleanup(func() { _ = d.Close() })
	return d, p
}

// The driver keeps the contract wherever directories can be made.
func TestPretenderKeepsContract(t *testing.T) {
	t.Parallel()
	d, _ := pretend(t)
	top, err := d.Observe(t.Context(), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	set := top.Nodes[0].Effective
	root(t, d)
	cgrouptest.Run(t, func(t *testing.T) cgrouptest.Fixture {
		return cgrouptest.Fixture{
			Tree: d, Facts: d.Facts(), Root: root(t, d), CPUs: set.CPUs, Mems: set.Mems, Start: start,
		}
	})
}

// A slice that was stopped is noticed when a subtree is observed, and runs
// again with what a pass writes; one that systemd forgot is started by the next write
// there, with those above it.
func TestStoppedSliceIsStartedAgain(t *testing.T) {
	t.Parallel()
	for _, wanted := range []bool{false, true} {
		d, p := pretend(t)
		top := root(t, d)
		pod := append(slices.Clone(top), "pod")
		shares := uint64(512)
		node := cgroup.Node{Name: pod, Values: cgroup.Values{CPUShares: &shares}}
		if created, err := d.Ensure(t.Context(), node); err != nil || !created {
			t.Fatalf("created %t, %v", created, err)
		}
		at, err := place(pod)
		if err != nil {
			t.Fatal(err)
		}
		unit, above := at.Base(), at[0]
		p.stop(unit, wanted)
		seen, err := d.Observe(t.Context(), top, -1)
		if err != nil {
			t.Fatal(err)
		}
		if o := seen.Find(pod); o.State != cgroup.Invalid || !strings.Contains(o.Reason, unit) {
			t.Errorf("stopped, and %s: %s", o.State, o.Reason)
		}
		if o := seen.Find(top); o.State != cgroup.Valid {
			t.Errorf("the one above is %s: %s", o.State, o.Reason)
		}
		if err := cgroup.Apply(t.Context(), d, cgroup.Diff([]cgroup.Node{node}, seen)); err != nil {
			t.Fatal(err)
		}
		if seen, err = d.Observe(t.Context(), top, -1); err != nil || seen.Find(pod).State != cgroup.Valid || !p.runs(unit) {
			t.Errorf("after the pass: %s, %v, runs %t", seen.Find(pod).State, err, p.runs(unit))
		}
		// It is stopped between the look at it and the write.
		p.stop(unit, false)
		p.stop(above, false)
		if err := d.set(t.Context(), at, node.Values, cgroup.Valid); err != nil {
			t.Errorf("values for one that was stopped: %v", err)
		}
		if !p.runs(unit) || !p.runs(above) {
			t.Errorf("the slice runs: %t, the one above: %t", p.runs(unit), p.runs(above))
		}
		// Who is gone can be removed all the same.
		p.stop(unit, false)
		if err := d.Remove(t.Context(), pod); err != nil {
			t.Error(err)
		}
	}
}

// A directory that was there is not created by the start of its slice.
func TestSliceOfADirectoryThatWasThere(t *testing.T) {
	t.Parallel()
	d, p := pretend(t)
	top := root(t, d)
	pod := append(slices.Clone(top), "pod")
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: pod}); err != nil {
		t.Fatal(err)
	}
	at, err := place(pod)
	if err != nil {
		t.Fatal(err)
	}
	p.stop(at.Base(), false)
	if p.runs(at.Base()) {
		t.Fatal("it runs")
	}
	if created, err := d.Ensure(t.Context(), cgroup.Node{Name: pod}); err != nil || created {
		t.Errorf("created %t, %v", created, err)
	}
}

// A systemd that does not answer costs one bounded wait and an error; observing continues
// without it.
func TestSilentSystemd(t *testing.T) {
	t.Parallel()
	d, p := pretend(t)
	top := root(t, d)
	pod := append(slices.Clone(top), "pod")
	synctest.Test(t, func(t *testing.T) {
		p.hangs = true
		defer func() { p.hangs = false }()
		begun := time.Now()
		_, err := d.Ensure(t.Context(), cgroup.Node{Name: pod})
		if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), "systemd does not answer") {
			t.Errorf("Ensure: %v", err)
		}
		if took := time.Since(begun); took != answerTimeout {
			t.Errorf("Ensure took %s", took)
		}
		begun = time.Now()
		if seen, err := d.Observe(t.Context(), top, -1); err != nil || seen.Find(top).State != cgroup.Valid ||
			time.Since(begun) > probeTimeout {
			t.Errorf("Observe: %v, %s", err, time.Since(begun))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = d.Ensure(ctx, cgroup.Node{Name: pod})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "systemd does not answer") {
			t.Errorf("Ensure with a deadline of its own: %v", err)
		}
	})
	if seen, err := d.Observe(t.Context(), pod, 0); err != nil || seen.Find(pod).State != cgroup.Absent {
		t.Errorf("what could not be made is %s, %v", seen.Find(pod).State, err)
	}
}

// The wait for a bus that does not answer is not repeated by everybody who comes
// meanwhile, and ends with the first answer.
func TestSilentBus(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBus()
		b.dial = func(ctx context.Context) (*units.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ask := func() time.Duration {
			t.Helper()
			begun := time.Now()
			ctx, cancel := timeout(t.Context())
			defer cancel()
			if err := b.Stop(ctx, "a.slice"); errdefs.ClassOf(err) != errdefs.Unavailable || !errors.Is(err, errSilent) {
				t.Errorf("got %v", err)
			}
			return time.Since(begun)
		}
		// A short deadline of a caller does not count against systemd.
		short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if err := b.Stop(short, "a.slice"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a caller with a short deadline: %v", err)
		}
		if first := ask(); first != answerTimeout {
			t.Errorf("the first waits for %s", first)
		}
		if next := ask(); next != 0 {
			t.Errorf("the next one waits for %s", next)
		}
		time.Sleep(probeTimeout)
		if probe := ask(); probe != probeTimeout {
			t.Errorf("the next probe takes %s", probe)
		}
		b.dial = func(context.Context) (*units.Conn, error) { return nil, unix.ECONNREFUSED }
		time.Sleep(probeTimeout)
		if err := b.Stop(t.Context(), "a.slice"); !errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, errSilent) {
			t.Errorf("refused: %v", err)
		}
	})
}

func TestProperties(t *testing.T) {
	t.Parallel()
	v1 := cgroup.Facts{Version: cgroup.V1, Driver: cgroup.Systemd, PageBytes: 4096}
	v2 := cgroup.Facts{Version: cgroup.V2, Driver: cgroup.Systemd, PageBytes: 4096, SwapLimits: true}
	shares, quota, period, memory, pids, none := uint64(512), int64(175500), uint64(100000), int64(64<<20), int64(77), cgroup.Unlimited
	set := cgroup.Cpuset{CPUs: cpuset.Of(0, 9), Mems: numa.Of(1)}
	all := cgroup.Values{CPUShares: &shares, CPUQuotaUS: &quota, CPUPeriodUS: &period, MemoryBytes: &memory, PIDs: &pids, Cpuset: set}
	limitless := cgroup.Values{CPUQuotaUS: &none, MemoryBytes: &none, PIDs: &none,
		Unified: map[string]string{"memory.swap.max": "max", "memory.low": "4096", "memory.oom.group": "1"}}
	for _, tt := range []struct {
		name    string
		values  cgroup.Values
		facts   cgroup.Facts
		version int
		want    string
	}{
		{"v1", all, v1, 252, "MemoryLimit=@t 67108864 CPUShares=@t 512 CPUQuotaPeriodUSec=@t 100000 CPUQuotaPerSecUSec=@t 1760000 TasksMax=@t 77 AllowedCPUs=@ay [0x1, 0x2] AllowedMemoryNodes=@ay [0x2]"},
		{"v2", all, v2, 252, "MemoryMax=@t 67108864 CPUWeight=@t 20 CPUQuotaPeriodUSec=@t 100000 CPUQuotaPerSecUSec=@t 1760000 TasksMax=@t 77 AllowedCPUs=@ay [0x1, 0x2] AllowedMemoryNodes=@ay [0x2]"},
		{"an old systemd", all, v1, 239, "MemoryLimit=@t 67108864 CPUShares=@t 512 CPUQuotaPerSecUSec=@t 1760000 TasksMax=@t 77"},
		{"no limits", limitless, v2, 252,
			"MemoryMax=@t 18446744073709551615 CPUQuotaPerSecUSec=@t 18446744073709551615 TasksMax=@t 18446744073709551615 MemoryLow=@t 4096 MemorySwapMax=@t 18446744073709551615"},
		{"nothing", cgroup.Values{}, v2, 252, ""},
	} {
		var got []string
		for _, p := range properties(tt.values, tt.facts, tt.version) {
			got = append(got, p.Name+"="+p.Value.String())
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, strings.Join(got, " "), tt.want)
		}
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{`"252.39-1~deb12u1"`: 252, "v245-1.fc32": 245, `"v244"`: 244, "255": 255, "": 0, "new": 0} {
		if got := parseVersion(text); got != want {
			t.Errorf("%q is version %d, want %d", text, got, want)
		}
	}
}
