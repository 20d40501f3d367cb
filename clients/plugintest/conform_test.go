package plugintest_test

import (
	"cmp"
	"context"
	"encoding/xml"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protowire"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registrationapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berthd/berth/clients/plugintest"
	"github.com/berthd/berth/hack/testing/script"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		programs.Remove()
		os.Exit(code)
	}))
}

// serve runs a scripted plugin until the test ends.
func serve(t *testing.T, cfg script.Config, devices string, on map[script.Method]script.Manner) *script.Plugin {
	t.Helper()
	dir, err := os.MkdirTemp("", "cp")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Dir, cfg.Resource = dir, "example.com/gpu"
	if cfg.Devices, err = script.ParseDevices(devices); err != nil {
		t.Fatal(err)
	}
	p := script.New(cfg)
	for method, manner := range on {
		p.Behave(method, manner)
	}
	if err := p.Serve(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Stop(); p.Wait(); _ = os.RemoveAll(dir) })
	return p
}

// awaitNoList waits until the plugin's list stream has ended.
// It does so in its own time, so that two readers, one after the other, may look to it
// like two at a time.
func awaitNoList(t *testing.T, p *script.Plugin) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := p.AwaitStreams(ctx, 0); err != nil {
		t.Errorf("lists that are still read: %v", err)
	}
}

// outcomes lists the checks of a report that had an outcome.
func outcomes(r plugintest.Report, o plugintest.Outcome) (names []string) {
	for _, c := range r.Checks {
		if c.Outcome == o {
			names = append(names, c.Name)
		}
	}
	return names
}

func TestGoodPlugin(t *testing.T) {
	t.Parallel()
	p := serve(t, script.Config{Preferred: true, PreStart: true, CDI: true, Watched: true}, "a@0 b@1 c@0+1!", nil)
	r := plugintest.Run(t.Context(), p.Socket(), quick(plugintest.Options{Flood: 20}))
	if r.Count(plugintest.Passed) != len(r.Checks) || r.Resource != "example.com/gpu" {
		for _, c := range r.Checks {
			t.Logf("%s %s: %s", c.Name, c.Outcome, c.Text)
		}
		t.Errorf("%d of %d passed, resource %q", r.Count(plugintest.Passed), len(r.Checks), r.Resource)
	}
	awaitNoList(t, p)
	if lists := p.Calls(script.ListAndWatch); len(lists) != 2 {
		t.Errorf("%d lists were read, want one, and one after the connection was closed", len(lists))
	}
}

func TestOnlyWhatIsAnnounced(t *testing.T) {
	t.Parallel()
	p := serve(t, script.Config{}, "a b", nil)
	r := plugintest.Run(t.Context(), p.Socket(), quick(plugintest.Options{NoAllocate: true}))
	want := []string{"registration", "preferred allocation", "allocate one", "allocate answer", "allocate again",
		"allocate two", "allocate all",
		"allocate unknown", "allocate unhealthy", "prestart", "flood"}
	if got := outcomes(r, plugintest.Skipped); !slices.Equal(got, want) || r.Count(plugintest.Failed)+r.Count(plugintest.Warned) > 0 {
		t.Errorf("skipped %q, want %q; %+v", got, want, r.Checks)
	}
	if calls := p.Calls(script.Preferred, script.Allocate, script.PreStart); len(calls) > 0 {
		t.Errorf("the plugin was asked %+v", calls)
	}
}

// timeout is for what has to come, however busy the machine is.
const timeout = 60 * time.Second

// quick gives a plugin all the time that a busy machine may take, and watches its list for a moment only.
func quick(o plugintest.Options) plugintest.Options {
	o.Timeout = cmp.Or(o.Timeout, timeout)
	o.Slow, o.Watch = cmp.Or(o.Slow, timeout), cmp.Or(o.Watch, 10*time.Millisecond)
	return o
}

// eventually expects an outcome of a check. Where that is that something does not
// come, the timeout is short at first, and longer where a busy machine was too slow
// for what comes before.
func eventually(t *testing.T, short bool, check string, outcome plugintest.Outcome, text string,
	report func(timeout time.Duration) plugintest.Report) {
	t.Helper()
	if short {
		for _, p := range []time.Duration{time.Second, 8 * time.Second} {
			if is(report(p), check, outcome, text) {
				return
			}
		}
	}
	expect(t, report(timeout), check, outcome, text)
}

// is reports whether a check had an outcome, and a text.
func is(r plugintest.Report, check string, outcome plugintest.Outcome, text string) bool {
	i := slices.IndexFunc(r.Checks, func(c plugintest.Check) bool { return c.Name == check })
	return i >= 0 && r.Checks[i].Outcome == outcome && strings.Contains(r.Checks[i].Text, text)
}

// expect fails the test unless a check had an outcome, and a text.
func expect(t *testing.T, r plugintest.Report, check string, outcome plugintest.Outcome, text string) {
	t.Helper()
	if is(r, check, outcome, text) {
		return
	}
	t.Errorf("%s: want %s with %q", check, outcome, text)
	for _, c := range r.Checks {
		t.Logf("%s %s: %s", c.Name, c.Outcome, c.Text)
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		cfg     script.Config
		devices string
		on      map[script.Method]script.Manner
		hangs   bool
		options plugintest.Options
		watches bool // what its list does without a cause takes a moment
		outcome plugintest.Outcome
		check   string
		text    string
	}{
		"host path that is missing": {cfg: script.Config{Answer: withDevice("/dev/no-such-device")}, devices: "a",
			outcome: plugintest.Failed, check: "allocate answer", text: `this machine has no "/dev/no-such-device"`},
		"host path that is elsewhere": {cfg: script.Config{Answer: withDevice("/dev/no-such-device")}, devices: "a",
			options: plugintest.Options{Elsewhere: true}, outcome: plugintest.Warned, check: "allocate answer",
			text: `no "/dev/no-such-device"`},
		"device that is a file": {cfg: script.Config{Answer: withDevice("/proc/self/status")}, devices: "a",
			outcome: plugintest.Failed, check: "allocate answer", text: "is a file, and no device"},
		"one device node for two": {cfg: script.Config{Answer: firstNode}, devices: "a b", outcome: plugintest.Failed,
			check: "allocate two", text: `lacks the device node "/dev/zero", which "b" has alone`},
		"a CDI name for each call": {cfg: script.Config{Answer: newName()}, devices: "a b", outcome: plugintest.Warned,
			check: "allocate two", text: "lacks the CDI name"},
		"mount that is missing": {cfg: script.Config{Answer: func(r *pluginapi.ContainerAllocateResponse) { r.Mounts[0].HostPath = "/no/such/dir" }},
			devices: "a", outcome: plugintest.Failed, check: "allocate answer", text: "mounts an empty directory in its place"},
		"a failure after a warning": {cfg: script.Config{Answer: func(r *pluginapi.ContainerAllocateResponse) {
			r.Mounts[0].HostPath = "/no/such/dir"
			withDevice("/proc/self/status")(r)
		}}, devices: "a", options: plugintest.Options{Elsewhere: true}, outcome: plugintest.Failed, check: "allocate answer",
			text: "is a file, and no device"},
		"name with a newline": {cfg: script.Config{Answer: withEnv("A\nB", "x")}, devices: "a", outcome: plugintest.Failed,
			check: "allocate answer", text: `"A\nB" is no name`},
		"value with a newline": {cfg: script.Config{Answer: withEnv("LIST", "x\ny")}, devices: "a", outcome: plugintest.Warned,
			check: "allocate answer", text: `LIST has control characters, "x\ny"`},
		"variable twice": {cfg: script.Config{Answer: twiceInTheAnswer}, devices: "a", outcome: plugintest.Failed,
			check: "allocate answer", text: `the environment variable "EXAMPLE_COM_GPU" twice`},
		"one place for two devices": {cfg: script.Config{Answer: func(r *pluginapi.ContainerAllocateResponse) {
			again := &pluginapi.DeviceSpec{HostPath: "/dev/zero", ContainerPath: r.Devices[0].ContainerPath, Permissions: "r"}
			r.Devices = append(r.Devices, again)
		}}, devices: "a", outcome: plugintest.Failed, check: "allocate answer", text: "are both the device node"},
		"slow": {devices: "a", on: map[script.Method]script.Manner{script.Allocate: script.Late(200 * time.Millisecond)},
			options: plugintest.Options{Slow: 100 * time.Millisecond}, outcome: plugintest.Warned, check: "answer time",
			text: "each of them waits for it"},
		"other order": {devices: "a b", on: map[script.Method]script.Manner{script.ListAndWatch: script.Reorder},
			outcome: plugintest.Warned, check: "reconnect", text: `in another order: "b", "a", and before "a", "b"`},
		"list ends": {devices: "a", on: map[script.Method]script.Manner{script.ListAndWatch: script.EndAfter(300 * time.Millisecond)},
			options: plugintest.Options{Watch: timeout}, outcome: plugintest.Failed, check: "list stays open",
			text: "and was sent once: the plugin returned from ListAndWatch"},
		"list ends at once": {devices: "a", on: map[script.Method]script.Manner{script.ListAndWatch: script.End},
			outcome: plugintest.Failed, check: "list", text: "and was sent never: the plugin returned from ListAndWatch"},
		"health flaps": {devices: "a b", on: map[script.Method]script.Manner{script.ListAndWatch: script.Flap}, watches: true,
			outcome: plugintest.Warned, check: "list stays open", text: `device "a" changed its health`},
		"same list again": {devices: "a b", on: map[script.Method]script.Manner{script.ListAndWatch: script.Resend}, watches: true,
			outcome: plugintest.Warned, check: "list stays open", text: "without a change"},
		"no options": {devices: "a", on: map[script.Method]script.Manner{script.Options: script.Refuse},
			outcome: plugintest.Failed, check: "options", text: "a plugin without options is not registered"},
		"options hang": {devices: "a", on: map[script.Method]script.Manner{script.Options: script.Hang}, hangs: true,
			outcome: plugintest.Failed, check: "options", text: "DeadlineExceeded"},
		"no list": {devices: "a", on: map[script.Method]script.Manner{script.ListAndWatch: script.Refuse},
			outcome: plugintest.Failed, check: "list", text: "the first list"},
		"empty list": {devices: "", outcome: plugintest.Warned, check: "list", text: "capacity 0"},
		"unprintable": {devices: "a b\x1b[2J", outcome: plugintest.Warned, check: "device ids",
			text: `"b\x1b[2J" has characters that cannot be printed`},
		"twice": {devices: "a b a", outcome: plugintest.Failed, check: "device ids", text: `"a" is in the list twice`},
		"half a topology": {devices: "a@0 b", outcome: plugintest.Warned, check: "device topology",
			text: "1 of 2 devices have no topology"},
		"topology of nothing": {devices: "a@", outcome: plugintest.Warned, check: "device topology", text: "without nodes"},
		"no such node":        {devices: "a@64", outcome: plugintest.Failed, check: "device topology", text: "NUMA node 64"},
		"prefers nothing": {cfg: script.Config{Preferred: true}, devices: "a b",
			on: map[script.Method]script.Manner{script.Preferred: script.Empty}, outcome: plugintest.Failed,
			check: "preferred allocation", text: "answer has 0"},
		"prefers what is not": {cfg: script.Config{Preferred: true}, devices: "a b",
			on: map[script.Method]script.Manner{script.Preferred: script.Garbage}, outcome: plugintest.Warned,
			check: "preferred allocation", text: "no-such-device"},
		"allocates nothing": {devices: "a", on: map[script.Method]script.Manner{script.Allocate: script.Empty},
			outcome: plugintest.Failed, check: "allocate one", text: "answer has 0"},
		"hangs at allocate": {devices: "a", on: map[script.Method]script.Manner{script.Allocate: script.Hang}, hangs: true,
			outcome: plugintest.Failed, check: "allocate one", text: "DeadlineExceeded"},
		"refuses starts": {cfg: script.Config{PreStart: true}, devices: "a",
			on: map[script.Method]script.Manner{script.PreStart: script.Refuse}, outcome: plugintest.Failed, check: "prestart",
			text: "every start"},
		"drops its devices": {devices: "a b", on: map[script.Method]script.Manner{script.Allocate: script.Shrink},
			outcome: plugintest.Failed, check: "allocate again", text: "allocated before"},
		"type that is foreign": {cfg: script.Config{Watched: true, Info: func(i *registrationapi.PluginInfo) { i.Type = "CSIPlugin" }},
			devices: "a", outcome: plugintest.Failed, check: "registration", text: `its type is "CSIPlugin"`},
		"name that is none": {cfg: script.Config{Watched: true, Info: func(i *registrationapi.PluginInfo) { i.Name = "gpu" }},
			devices: "a", outcome: plugintest.Failed, check: "registration", text: `its name "gpu"`},
		"versions": {cfg: script.Config{Watched: true,
			Info: func(i *registrationapi.PluginInfo) { i.SupportedVersions = []string{"v2"} }}, devices: "a", outcome: plugintest.Failed,
			check: "registration", text: `do not have "v1beta1"`},
		"endpoint": {cfg: script.Config{Watched: true, Info: func(i *registrationapi.PluginInfo) { i.Endpoint = "x.sock" }},
			devices: "a", outcome: plugintest.Failed, check: "registration", text: "absolute"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := serve(t, row.cfg, row.devices, row.on)
			eventually(t, row.hangs || row.watches, row.check, row.outcome, row.text, func(short time.Duration) plugintest.Report {
				o := row.options
				if row.hangs {
					o.Timeout = short
				}
				if row.watches {
					o.Watch = short
				}
				return plugintest.Run(t.Context(), p.Socket(), quick(o))
			})
		})
	}
}

// firstNode gives every device a node of its own, and answers with the first one only.
func firstNode(r *pluginapi.ContainerAllocateResponse) {
	for _, d := range r.Devices {
		if strings.HasSuffix(d.ContainerPath, "-b") {
			d.HostPath = "/dev/zero"
		}
	}
	r.Devices = r.Devices[:1]
}

// newName answers with another CDI name each time.
func newName() func(*pluginapi.ContainerAllocateResponse) {
	var n atomic.Int64
	return func(r *pluginapi.ContainerAllocateResponse) {
		r.CdiDevices = []*pluginapi.CDIDevice{{Name: fmt.Sprintf("example.com/gpu=%d", n.Add(1))}}
	}
}

// withDevice adds a device node to an answer.
func withDevice(path string) func(*pluginapi.ContainerAllocateResponse) {
	return func(r *pluginapi.ContainerAllocateResponse) {
		r.Devices = append(r.Devices, &pluginapi.DeviceSpec{HostPath: path, ContainerPath: "/dev/added", Permissions: "rw"})
	}
}

// withEnv adds an environment variable to an answer.
func withEnv(name, value string) func(*pluginapi.ContainerAllocateResponse) {
	return func(r *pluginapi.ContainerAllocateResponse) { r.Envs[name] = value }
}

// twiceInTheAnswer encodes the variable of an answer a second time, as only a plugin can that encodes by hand.
func twiceInTheAnswer(r *pluginapi.ContainerAllocateResponse) {
	const envs, key, value = 1, 1, 2
	var entry []byte
	entry = protowire.AppendString(protowire.AppendTag(entry, key, protowire.BytesType), "EXAMPLE_COM_GPU")
	entry = protowire.AppendString(protowire.AppendTag(entry, value, protowire.BytesType), "another")
	r.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, envs, protowire.BytesType), entry))
}

// TestInterrupted: what happens to a call because the test was interrupted says nothing of the plugin.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	p := serve(t, script.Config{}, "a b", map[script.Method]script.Manner{script.Allocate: script.Hang})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var began, done []string
	o := quick(plugintest.Options{
		Started: func(name string) { began = append(began, name) },
		Done:    func(c plugintest.Check) { done = append(done, c.Name) },
	})
	go func() {
		_ = p.AwaitHanging(ctx, 1)
		cancel()
	}()
	r := plugintest.Run(ctx, p.Socket(), o)
	if !r.Interrupted || r.Count(plugintest.Failed)+r.Count(plugintest.Warned) > 0 {
		t.Errorf("%+v", r)
	}
	expect(t, r, "allocate one", plugintest.Skipped, "interrupted")
	expect(t, r, "reconnect", plugintest.Skipped, "interrupted")
	if !slices.Equal(began, done) || began[len(began)-1] != "allocate one" {
		t.Errorf("began %q, done %q", began, done)
	}
}

func TestNobody(t *testing.T) {
	t.Parallel()
	r := plugintest.Run(t.Context(), "/nowhere/plugin.sock", plugintest.Options{Timeout: time.Second})
	if r.Checks[0].Outcome != plugintest.Failed || r.Count(plugintest.Skipped) != len(r.Checks)-1 {
		t.Errorf("%+v", r.Checks)
	}
}

func TestJUnit(t *testing.T) {
	t.Parallel()
	r := plugintest.Report{Socket: "/a.sock", Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Checks: []plugintest.Check{
		{Name: "one", Outcome: plugintest.Passed, Text: "fine", Seconds: 0.5}, {Name: "two", Outcome: plugintest.Failed, Text: `"x" < 3`},
		{Name: "three", Outcome: plugintest.Skipped, Text: "no"}, {Name: "four", Outcome: plugintest.Warned, Text: "odd", Seconds: 0.25},
	}}
	text, err := r.JUnit()
	if err != nil {
		t.Fatal(err)
	}
	var back struct {
		Tests    int     `xml:"tests,attr"`
		Failures int     `xml:"failures,attr"`
		Skipped  int     `xml:"skipped,attr"`
		Seconds  float64 `xml:"time,attr"`
		When     string  `xml:"timestamp,attr"`
		Cases    []struct {
			Name       string `xml:"name,attr"`
			Properties []struct {
				Name  string `xml:"name,attr"`
				Value string `xml:"value,attr"`
			} `xml:"properties>property"`
			Failure *struct {
				Text string `xml:"message,attr"`
			} `xml:"failure"`
			Output string `xml:"system-out"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Tests != 4 || back.Failures != 1 || back.Skipped != 1 || len(back.Cases) != 4 ||
		back.Cases[1].Failure == nil || back.Cases[1].Failure.Text != `"x" < 3` || back.Cases[3].Output != "warned: odd" ||
		back.Seconds != 0.75 || back.When != "2026-01-02T03:04:05" || len(back.Cases[0].Properties) > 0 ||
		len(back.Cases[3].Properties) != 1 || back.Cases[3].Properties[0].Value != "odd" {
		t.Errorf("%s", text)
	}
}
