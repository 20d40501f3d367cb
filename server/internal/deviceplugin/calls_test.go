package deviceplugin_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/breaker"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// hanging is the time that a plugin has for a method at which it hangs.
const hanging = 2 * time.Second

// deadlines are those of a plugin that behaves like that at a method: where it hangs
// it runs out of time soon.
func deadlines(at script.Method, how script.Manner) (d deviceplugin.Deadlines) {
	if how != script.Hang {
		return d
	}
	switch at {
	case script.Allocate:
		d.Allocate = hanging
	case script.Preferred:
		d.Preferred = hanging
	case script.PreStart:
		d.PreStart = hanging
	}
	return d
}

// admission is a pod that requests devices of one plugin, with what admits it.
type admission struct {
	*bench
	plugin  *script.Plugin
	manager *device.Manager
	draft   *ledger.Draft
	req     hint.Request
}

func (b *bench) admission(p *script.Plugin, n int64) *admission {
	b.t.Helper()
	l := ledgertest.New(b.t, ledger.Rules{Machine: machinetest.Build("2n2c")})
	pod := &workload.Pod{UID: "pod", Containers: []workload.Container{{Name: "c", Limits: workload.Quantities{gpu: n}}}}
	a := &admission{
		bench: b, plugin: p, manager: device.New(b.inv, b.Server),
		draft: ledger.NewDraft(l.View()), req: hint.Request{Pod: pod},
	}
	a.draft.PutPod(&ledger.Pod{Pod: *pod})
	return a
}

// run plans and prepares, and adds the claims to the draft if both went well.
func (a *admission) run() error {
	claims, err := a.manager.Plan(a.ctx, a.draft.View(), a.req, hint.Hint{Any: true})
	if err != nil {
		return err
	}
	if claims, err = a.manager.Prepare(a.ctx, "admission", a.req, claims); err != nil {
		return err
	}
	a.draft.AddClaims("pod", claims...)
	return nil
}

func TestAllocate(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "a,b,c,d"), Preferred: true})
	a := b.admission(p, 2)
	if err := a.run(); err != nil {
		t.Fatal(err)
	}
	claim, _ := a.draft.View().Claim(a.req.Owner(), gpu)
	if ids := claim.Devices.IDs(); !slices.Equal(ids, []string{"c", "d"}) {
		t.Errorf("devices %q, but the plugin prefers the last", ids)
	}
	var answer pluginapi.ContainerAllocateResponse
	if err := proto.Unmarshal(claim.Devices.Response, &answer); err != nil || answer.Envs["EXAMPLE_COM_GPU"] != "c,d" {
		t.Errorf("answer %v, %v", answer.Envs, err)
	}
	asked := p.Calls(script.Preferred)
	if len(asked) != 1 || !slices.Equal(asked[0].IDs, []string{"a", "b", "c", "d"}) || asked[0].MustInclude != nil || asked[0].Size != 2 {
		t.Errorf("asked for a preference: %+v", asked)
	}
	if calls := p.Calls(script.Allocate); len(calls) != 1 || !slices.Equal(calls[0].IDs, []string{"c", "d"}) {
		t.Errorf("asked to allocate: %+v", calls)
	}
}

// GetPreferredAllocation is not called without the option.
func TestPreferredOnlyIfAnnounced(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "a,b,c")})
	if err := b.admission(p, 1).run(); err != nil {
		t.Fatal(err)
	}
	if len(p.Calls(script.Preferred)) > 0 {
		t.Error("asked")
	}
}

func TestFailingCalls(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name   string
		method script.Method
		how    script.Manner
		want   string
	}{
		{"refuse", script.Allocate, script.Refuse, "the plugin was told to refuse"},
		{"hang", script.Allocate, script.Hang, "the device plugin for example.com/gpu did not answer Allocate within 2s"},
		{"empty", script.Allocate, script.Empty, "no containers return in allocation response"},
		{"garbage", script.Allocate, script.Garbage, "the device plugin for example.com/gpu failed at Allocate"},
		{"die", script.Allocate, script.Die, "the device plugin for example.com/gpu failed at Allocate"},
		{"die", script.Preferred, script.Die, "the device plugin for example.com/gpu "}, // at Allocate
		{"empty", script.Preferred, script.Empty, ""},
		{"garbage", script.Preferred, script.Garbage, ""},
		{"late", script.Allocate, script.Late(time.Millisecond), ""},
		{"shrink", script.Allocate, script.Shrink, ""},
	} {
		t.Run(string(row.method)+" "+row.name, func(t *testing.T) {
			t.Parallel()
			b := start(t, deviceplugin.Config{Deadlines: deadlines(row.method, row.how)})
			p := b.registered(script.Config{Devices: devices(t, "a,b@0,c"), Preferred: true})
			p.Behave(row.method, row.how)
			a := b.admission(p, 2)
			err := a.run()
			if row.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), row.want) || errdefs.ClassOf(err) != errdefs.Refused {
				t.Fatalf("%v (%v), want a refusal with %q", err, errdefs.ClassOf(err), row.want)
			}
			if fe := new(errdefs.Error); !errors.As(err, &fe) || fe.Provider != device.Name || fe.Resource != gpu {
				t.Errorf("provider and resource are missing in %+v", fe)
			}
			// Only what a plugin that died left unanswered is worth waiting for.
			var w hint.Waiter
			if waits := errors.As(err, &w); waits != (row.how == script.Die) {
				t.Errorf("%v: whether it waits for the plugin is %t", err, waits)
			} else if waits && w.Waits() != (hint.Wait{Condition: string(device.PluginAway), Resource: gpu}) {
				t.Errorf("it waits for %+v", w.Waits())
			}
			if _, held := a.draft.View().Claim(a.req.Owner(), gpu); held {
				t.Error("a claim is left")
			}
			if row.how == script.Die {
				p.Wait()
				b.until(gpu, "stopped", func(r *device.Resource) bool { return r.State == device.Stopped })
				return
			}
			// Nothing leaks: all devices can be had now.
			p.Behave(row.method, script.Well)
			err = b.admission(p, 3).run()
			for row.how == script.Hang && err != nil && strings.Contains(err.Error(), hanging.String()) && b.ctx.Err() == nil {
				err = b.admission(p, 3).run() // it has answered, on a busy machine not soon enough
			}
			if err != nil {
				t.Errorf("all devices afterwards: %v", err)
			}
		})
	}
}

// TestPreferenceFails: a plugin that does not answer GetPreferredAllocation, or with an error, is logged, and the pod gets devices. If the
// plugin never answers, it is not called for its preference for a while, but still for devices.
func TestPreferenceFails(t *testing.T) {
	t.Parallel()
	for _, how := range []script.Manner{script.Refuse, script.Hang} {
		t.Run(string(how), func(t *testing.T) {
			t.Parallel()
			b := start(t, deviceplugin.Config{Deadlines: deadlines(script.Preferred, how),
				Breaker: breaker.Config{Failures: 1, Rest: time.Hour}})
			p := b.registered(script.Config{Devices: devices(t, "a,b,c"), Preferred: true})
			p.Behave(script.Preferred, how)
			for range 3 {
				a := b.admission(p, 1)
				if err := a.run(); err != nil {
					t.Fatal(err)
				}
				if claim, _ := a.draft.View().Claim(a.req.Owner(), gpu); !slices.Equal(claim.Devices.IDs(), []string{"a"}) {
					t.Errorf("devices %q", claim.Devices.IDs())
				}
			}
			want := 3
			if how == script.Hang {
				want = 1
			}
			if n := len(p.Calls(script.Preferred)); n != want {
				t.Errorf("the plugin was called %d times, want %d", n, want)
			}
			if n := strings.Count(b.log.String(), "berth chooses the devices without its preference"); n != 3 {
				t.Errorf("logged %d times:\n%s", n, b.log)
			}
		})
	}
}

// TestNoAdviceOfASilentPlugin: a plugin that is suspended because of other calls is not called for its preference.
func TestNoAdviceOfASilentPlugin(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{Deadlines: deviceplugin.Deadlines{Allocate: hanging},
		Breaker: breaker.Config{Failures: 1, Rest: time.Hour}})
	p := b.registered(script.Config{Devices: devices(t, "a,b,c"), Preferred: true})
	p.Behave(script.Allocate, script.Hang)
	for range 2 {
		if err := b.admission(p, 1).run(); err == nil {
			t.Fatal("it does not hang")
		}
	}
	if n := len(p.Calls(script.Preferred)); n != 1 {
		t.Errorf("the plugin was called for its preference %d times", n)
	}
}

// A list without the device while its Allocate runs: the claim keeps what the
// device was (the kubelet crashes).
func TestDeviceVanishesDuringAllocate(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "a@1,b@1")})
	p.Behave(script.Allocate, script.Shrink)
	a := b.admission(p, 1)
	if err := a.run(); err != nil {
		t.Fatal(err)
	}
	b.untilCounts(gpu, 1, 1)
	claim, _ := a.draft.View().Claim(a.req.Owner(), gpu)
	if d := claim.Devices.Devices[0]; d.ID != "a" || !d.Topology || d.Nodes.String() != "1" {
		t.Errorf("the claim has %+v", d)
	}
}

func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "a")})
	p.Behave(script.Allocate, script.Hang)
	a := b.admission(p, 1)
	ctx, cancel := context.WithCancel(b.ctx)
	a.ctx = ctx
	failed := make(chan error, 1)
	go func() { failed <- a.run() }()
	if _, err := p.Await(b.ctx, script.Allocate, 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-failed; errdefs.ClassOf(err) != errdefs.Canceled {
		t.Errorf("%v (%v), want class canceled", err, errdefs.ClassOf(err))
	}
}

func TestNotConnected(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	if _, err := b.Allocate(b.ctx, gpu, []string{"a"}); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("allocate: %v", err)
	}
	if _, err := b.Preferred(b.ctx, gpu, []string{"a"}, nil, 1); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("preferred: %v", err)
	}
}

func TestPreStart(t *testing.T) {
	t.Parallel()
	owner := ledger.Owner{Pod: "pod", Container: "c"}
	admitted := func(t *testing.T, b *bench, p *script.Plugin) *ledger.View {
		a := b.admission(p, 2)
		if err := a.run(); err != nil {
			t.Fatal(err)
		}
		return a.draft.View()
	}
	t.Run("each start", func(t *testing.T) {
		t.Parallel()
		b := start(t, deviceplugin.Config{})
		p := b.registered(script.Config{Devices: devices(t, "a,b,c"), PreStart: true})
		view := admitted(t, b, p)
		for range 2 {
			if err := b.PreStart(b.ctx, view, owner); err != nil {
				t.Fatal(err)
			}
		}
		calls := p.Calls(script.PreStart)
		if len(calls) != 2 || !slices.Equal(calls[1].IDs, []string{"a", "b"}) {
			t.Errorf("calls %+v", calls)
		}
	})
	t.Run("not announced", func(t *testing.T) {
		t.Parallel()
		b := start(t, deviceplugin.Config{})
		p := b.registered(script.Config{Devices: devices(t, "a,b")})
		view := admitted(t, b, p)
		p.Stop()
		b.untilCounts(gpu, 2, 0)
		if err := b.PreStart(b.ctx, view, owner); err != nil {
			t.Errorf("a plugin that need not be told, and is away: %v", err)
		}
		if len(p.Calls(script.PreStart)) > 0 {
			t.Error("called")
		}
	})
	t.Run("not back after a restart", func(t *testing.T) {
		t.Parallel()
		draft := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1n2c")}).View())
		draft.PutPod(ledgertest.With(ledgertest.Pod("pod", "c"), ledgertest.Devices("c", gpu, "a")))
		for wants, class := range map[bool]errdefs.Class{true: errdefs.Unavailable, false: errdefs.Internal} {
			seen := []ledger.SeenResource{{Name: gpu, PreStart: wants}}
			b := startWith(t, deviceplugin.Config{}, device.NewInventory(seen, time.Now()), time.Now)
			if err := b.PreStart(b.ctx, draft.View(), owner); (err != nil) != wants || errdefs.ClassOf(err) != class {
				t.Errorf("it has to be told %t: %v", wants, err)
			}
			b.registered(script.Config{Devices: devices(t, "a"), PreStart: true})
			if err := b.PreStart(b.ctx, draft.View(), owner); err != nil {
				t.Errorf("back: %v", err)
			}
		}
	})
	t.Run("an outside provider's devices", func(t *testing.T) {
		t.Parallel()
		b := start(t, deviceplugin.Config{})
		claim := ledgertest.Devices("c", "example.com/card", "a")
		claim.Provider = "another"
		draft := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1n2c")}).View())
		draft.PutPod(ledgertest.With(ledgertest.Pod("pod", "c"), claim))
		if err := b.PreStart(b.ctx, draft.View(), owner); err != nil {
			t.Error(err)
		}
	})
	for _, row := range []struct {
		how   script.Manner
		class errdefs.Class
	}{
		{script.Refuse, errdefs.Unavailable}, {script.Hang, errdefs.Deadline},
		{script.Garbage, errdefs.Unavailable}, {script.Die, errdefs.Unavailable},
	} {
		t.Run(string(row.how), func(t *testing.T) {
			t.Parallel()
			b := start(t, deviceplugin.Config{Deadlines: deadlines(script.PreStart, row.how)})
			p := b.registered(script.Config{Devices: devices(t, "a,b"), PreStart: true})
			view := admitted(t, b, p)
			p.Behave(script.PreStart, row.how)
			err := b.PreStart(b.ctx, view, owner)
			if errdefs.ClassOf(err) != row.class || !strings.Contains(err.Error(), "device plugin PreStartContainer rpc failed with err") {
				t.Errorf("%v (%v), want class %v", err, errdefs.ClassOf(err), row.class)
			}
			if code, _ := errdefs.CodeOf(err, errdefs.Unavailable); row.class == errdefs.Unavailable && code != "PLUGIN_FAILED" {
				t.Errorf("code %s", code)
			}
		})
	}
	t.Run("away", func(t *testing.T) {
		t.Parallel()
		b := start(t, deviceplugin.Config{})
		p := b.registered(script.Config{Devices: devices(t, "a,b"), PreStart: true})
		view := admitted(t, b, p)
		p.Stop()
		b.untilCounts(gpu, 2, 0)
		if err := b.PreStart(b.ctx, view, owner); errdefs.ClassOf(err) != errdefs.Unavailable {
			t.Errorf("plugin away: %v", err)
		}
		if names := b.inv.Expire(time.Now().Add(time.Hour)); len(names) != 1 {
			t.Fatalf("expired %q", names)
		}
		err := b.PreStart(b.ctx, view, owner)
		if err == nil || !strings.Contains(err.Error(), "endpoint not found in cache for a registered resource: "+gpu) {
			t.Errorf("plugin expired: %v", err)
		}
		if err := b.PreStart(b.ctx, view, ledger.Owner{Pod: "other"}); errdefs.ClassOf(err) != errdefs.NotFound {
			t.Errorf("unknown pod: %v", err)
		}
		if err := b.PreStart(b.ctx, view, ledger.Owner{Pod: "pod", Container: "no devices"}); err != nil {
			t.Errorf("a container without devices: %v", err)
		}
	})
}

// A plugin that registers again during a call, as it does when it notices a
// restart of berthd, loses the call on its former connection; the call is repeated
// on the new one.
func TestCallOutlivesAReRegistration(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "a")})
	p.Behave(script.Allocate, script.Hang)
	answered := make(chan error, 1)
	go func() {
		_, err := b.Allocate(b.ctx, gpu, []string{"a"})
		answered <- err
	}()
	if _, err := p.Await(b.ctx, script.Allocate, 1); err != nil {
		t.Fatal(err)
	}
	p.Behave(script.Allocate, script.Well)
	if err := p.Register(b.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil {
		t.Errorf("the call ended with the former connection: %v", err)
	}
}
