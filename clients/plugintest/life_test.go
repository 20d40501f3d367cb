package plugintest_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/clients/plugintest"
	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/hack/testing/script"
)

// programs are berthd and the scripted plugin.
var programs = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd", "plugin": "hack/plugin"})

// atLength has the tests run that take long.
const atLength = "BERTH_LONG"

// live lets a plugin live beside berthd.
func live(t *testing.T, p plugintest.Plugin, o plugintest.Options) plugintest.Report {
	t.Helper()
	dir := programsDir(t)
	for i, word := range p.Command {
		if word == "plugin" {
			p.Command[i] = filepath.Join(dir, "plugin")
		}
	}
	p.Root = root(t)
	p.Berthd, p.Resource, p.Say = filepath.Join(dir, "berthd"), "example.com/gpu", func(text string) { t.Log(text) }
	r, err := plugintest.Live(t.Context(), p, quick(o))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func programsDir(t *testing.T) string {
	t.Helper()
	dir, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// root makes a directory with a short path, since sockets are in it.
func root(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "life")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// stages are the checks of a life in order.
var stages = []string{
	"berthd starts", "plugin registers", "devices arrive", "admission", "readers", "all devices", "one too many", "container starts",
	"many pods", "berthd restarts", "its socket goes", "kubelet.sock is new", "plugin is killed", "plugin comes back", "soak",
	"stays connected",
}

func TestGoodLife(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		command []string
		skipped []string
		soak    time.Duration
	}{
		"registers": {
			command: []string{"plugin", "-plugin-directory", "{plugins}", "-devices", "a@0 b@1 c@1!", "-preferred", "-prestart", "-cdi"},
			soak:    time.Second,
		},
		"is found": {
			command: []string{"plugin", "-watched", "-plugin-directory", "{registry}", "-devices", "a b"},
			skipped: []string{"its socket goes", "kubelet.sock is new"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := live(t, plugintest.Plugin{Command: row.command, Wait: timeout, Soak: row.soak}, plugintest.Options{Flood: 16})
			for _, stage := range stages {
				switch {
				case stage == "soak" && row.soak == 0:
					expect(t, r, stage, plugintest.Skipped, "not requested: --soak")
				case stage == "soak":
					expect(t, r, stage, plugintest.Passed, "restarts of berthd, ")
				case slices.Contains(row.skipped, stage):
					expect(t, r, stage, plugintest.Skipped, "the server finds this plugin")
				default:
					expect(t, r, stage, plugintest.Passed, "")
				}
			}
			expect(t, r, "plugin ends", plugintest.Passed, "SIGTERM")
			expect(t, r, "allocate one", plugintest.Passed, "") // the probe has come too
			if r.Count(plugintest.Failed)+r.Count(plugintest.Warned) > 0 || r.Resource != "example.com/gpu" ||
				len(r.Checks) != len(stages)+22 {
				t.Errorf("%d checks, resource %q: %+v", len(r.Checks), r.Resource, r.Checks)
			}
		})
	}
}

// TestFalseAnswers runs plugins that misbehave in one way each.
func TestFalseAnswers(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		args    string
		never   bool // a registration is waited for without success
		short   bool // something else is
		long    bool
		watches bool // its list is watched until something happens
		soak    bool
		outcome plugintest.Outcome
		check   string
		text    string
	}{
		"refuses its options": {args: "-on options=refuse", never: true, outcome: plugintest.Failed, check: "plugin registers",
			text: "no plugin has registered"},
		"ends its list": {long: true, args: "-on listandwatch=end", never: true, outcome: plugintest.Failed,
			check: "plugin registers", text: "the list ended"},
		"ends its list after a moment": {args: "-on listandwatch=end_after_100ms", never: true, outcome: plugintest.Failed,
			check: "plugin registers", text: "example.com/gpu: the list ended once by itself, at first "},
		"ends its list later": {args: "-on listandwatch=end_after_3s", watches: true, outcome: plugintest.Failed,
			check: "stays connected", text: "by itself, at first "},
		"two resources at one socket": {args: "-also example.com/nic", outcome: plugintest.Failed, check: "devices arrive",
			text: "example.com/gpu and example.com/nic have one socket"},
		"takes its devices back in the end": {long: true, args: "-on allocate=shrink", short: true, soak: true, outcome: plugintest.Failed,
			check: "soak", text: "of its device ids are gone"},
		"lists garbage": {long: true, args: "-on listandwatch=garbage", never: true, outcome: plugintest.Failed,
			check: "plugin registers", text: "the list ended"},
		"has no devices": {long: true, args: "-devices=", outcome: plugintest.Warned, check: "devices arrive",
			text: "nothing can be allocated"},
		"refuses to allocate": {long: true, args: "-on allocate=refuse", outcome: plugintest.Failed, check: "admission",
			text: "told to refuse"},
		"allocates nothing": {args: "-on allocate=empty", outcome: plugintest.Failed, check: "admission",
			text: "no containers return"},
		"allocates garbage": {long: true, args: "-on allocate=garbage", outcome: plugintest.Failed, check: "admission",
			text: "failed at Allocate"},
		"hangs at allocate": {long: true, args: "-on allocate=hang", short: true, outcome: plugintest.Failed, check: "admission",
			text: "did not answer Allocate within"},
		"dies at allocate": {args: "-on allocate=die", outcome: plugintest.Failed, check: "admission",
			text: "failed at Allocate"},
		"takes its devices back": {args: "-on allocate=shrink", short: true, outcome: plugintest.Failed, check: "allocate again",
			text: "allocated before"},
		"refuses its preference": {long: true, args: "-preferred -on preferred=refuse", outcome: plugintest.Failed,
			check: "preferred allocation", text: "GetPreferredAllocation"},
		"prefers garbage": {long: true, args: "-preferred -on preferred=garbage", outcome: plugintest.Warned,
			check: "preferred allocation", text: "no-such-device"},
		"refuses starts": {args: "-prestart -on prestart=refuse", outcome: plugintest.Failed, check: "container starts",
			text: "start 1: "},
		"looks at its socket only": {args: "-signal own", short: true, outcome: plugintest.Warned, check: "kubelet.sock is new",
			text: "relies on the other sign"},
		"looks at kubelet.sock only": {long: true, args: "-signal kubelet", short: true, outcome: plugintest.Warned,
			check: "its socket goes", text: "relies on the other sign"},
		"crashes at a new server": {args: "-signal crash", short: true, outcome: plugintest.Failed, check: "berthd restarts",
			text: "the plugin's command has ended; it wrote: panic: send on closed channel"},
		"has other devices": {long: true, args: "-on allocate=shrink", short: true, outcome: plugintest.Failed,
			check: "its socket goes", text: `example.com/gpu: 3 of its device ids are gone (such as "a")`},
		"has new ids after berthd's restart": {args: "-on listandwatch=renumber", short: true, outcome: plugintest.Failed,
			check: "berthd restarts", text: `-1"), 3 are new (such as "a-`},
		"has new ids after a new kubelet.sock": {long: true, args: "-on listandwatch=renumber", short: true,
			outcome: plugintest.Failed, check: "kubelet.sock is new", text: "a running pod would keep a device that does not exist"},
		"has new ids after its restart": {args: "-on listandwatch=renumber", short: true, outcome: plugintest.Failed,
			check: "plugin comes back", text: `example.com/gpu: 3 of its device ids are gone (such as "a-`},
		"has no pod": {args: "-on allocate=refuse", outcome: plugintest.Skipped, check: "readers",
			text: "no pod has a device, because admission failed"},
		"has no container": {long: true, args: "-prestart -on allocate=refuse", outcome: plugintest.Skipped, check: "container starts",
			text: "no pod has a device, because admission failed"},
		"has them again": {args: "-on allocate=shrink", short: true, outcome: plugintest.Passed, check: "plugin comes back",
			text: "registers again"},
		"registers once": {args: "-signal none", long: true, never: true, outcome: plugintest.Failed,
			check: "berthd restarts", text: "does not register again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if row.long && os.Getenv(atLength) == "" {
				t.Skipf("one of many, each with a berthd of its own; %s=1 has all of them run", atLength)
			}
			eventually(t, row.never || row.short, row.check, row.outcome, row.text, func(short time.Duration) plugintest.Report {
				p, o := plugintest.Plugin{Wait: timeout}, plugintest.Options{Timeout: timeout}
				if row.watches {
					o.Watch = timeout
				}
				if row.soak {
					p.Soak = time.Second
				}
				if row.never {
					p.Wait = short
				}
				if row.short {
					o.Timeout = short
				}
				p.Command = []string{"plugin", "-plugin-directory", "{plugins}", "-devices", "a b c"}
				for arg := range strings.FieldsSeq(row.args) {
					p.Command = append(p.Command, strings.ReplaceAll(arg, "_", " "))
				}
				return live(t, p, o)
			})
		})
	}
}

// TestLifeOfASocket: the test registers a plugin that runs already with berthd.
func TestLifeOfASocket(t *testing.T) {
	t.Parallel()
	p := serve(t, script.Config{PreStart: true}, "a b", nil)
	r := live(t, plugintest.Plugin{Socket: p.Socket(), Wait: timeout}, plugintest.Options{Timeout: timeout, Flood: 8})
	for _, stage := range stages[:10] {
		expect(t, r, stage, plugintest.Passed, "")
	}
	expect(t, r, "its socket goes", plugintest.Skipped, "another server")
	expect(t, r, "plugin is killed", plugintest.Skipped, "not started here")
	expect(t, r, "allocate one", plugintest.Passed, "")
	if r.Count(plugintest.Failed) > 0 {
		t.Errorf("%+v", r.Checks)
	}
	awaitNoList(t, p)
}

// TestNoPlugin: no plugin registers, or nothing can be started.
func TestNoPlugin(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		command []string
		wait    time.Duration
		text    string
	}{
		"nobody": {nil, time.Second, "no plugin has registered: a plugin registers at "},
		"elsewhere": {[]string{"plugin", "--plugin-directory", t.TempDir()}, time.Second,
			"its arguments have none of {plugins}, {registry} and {root}"},
		"no such thing": {[]string{"/no/such/plugin"}, timeout, "no such file"},
		"ends at once":  {[]string{"sh", "-c", "echo no device here; exit 3"}, timeout, "it wrote: no device here"},
		"no such flag":  {[]string{"plugin", "--no-such"}, timeout, "flag provided but not defined: -no-such; Usage of "},
	} {
		r := live(t, plugintest.Plugin{Command: row.command, Wait: row.wait}, plugintest.Options{Timeout: timeout})
		expect(t, r, "plugin registers", plugintest.Failed, row.text)
		if r.Count(plugintest.Failed) != 1 || len(r.Checks) != len(stages)+1 {
			t.Errorf("%s: %+v", name, r.Checks)
		}
	}
}

// TestSilentPlugin: while no plugin registers, the test says what one has to do.
func TestSilentPlugin(t *testing.T) {
	t.Parallel()
	p := plugintest.Plugin{Command: []string{"sh", "-c", "echo {plugins}; exec sleep 1000"}, Wait: timeout}
	ctx, cancel := context.WithCancel(t.Context())
	var said string
	p.Berthd, p.Root = filepath.Join(programsDir(t), "berthd"), root(t)
	p.Say = func(text string) { said = text; cancel() }
	if _, err := plugintest.Live(ctx, p, quick(plugintest.Options{Timeout: timeout})); err != nil {
		t.Fatal(err)
	}
	want := "a plugin registers at " + p.Root
	if !strings.Contains(said, want) || !strings.Contains(said, "this goes on until --wait, 1m0s, has passed") {
		t.Errorf("said %q, want %q", said, want)
	}
}

// TestBerthd: the search for the program of berthd, and the error if there
// is none.
func TestBerthd(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if path, err := plugintest.Berthd(""); err == nil || !strings.Contains(err.Error(), "--berthd") {
		t.Errorf("%q, %v", path, err)
	}
	if path, err := plugintest.Berthd(filepath.Join(dir, "mine")); err == nil {
		t.Errorf("found %q, which is not there", path)
	}
	inPath := filepath.Join(dir, "berthd")
	if err := os.WriteFile(inPath, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if path, err := plugintest.Berthd(""); err != nil || path != inPath {
		t.Errorf("%q, %v", path, err)
	}
	// One that is not berthd does not become one.
	root := t.TempDir()
	r, err := plugintest.Live(t.Context(), plugintest.Plugin{Berthd: inPath, Root: root, Wait: timeout},
		plugintest.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, r, "berthd starts", plugintest.Failed, "does not start")
}
