package plugintest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

func (l *life) soaked() error {
	if l.Soak == 0 {
		return skipped("not requested: --soak")
	}
	return l.allocatable()
}

// disturbance is one thing that a soak does to berthd or to the plugin.
type disturbance struct {
	name string
	run  func(*life, context.Context) (string, error)
}

// disturbances lists those that are possible with this plugin.
func (l *life) disturbances() []disturbance {
	out := []disturbance{{"restarts of berthd", (*life).restart}}
	if l.signalled() == nil && l.passed("kubelet.sock is new") {
		out = append(out, disturbance{"new kubelet.sock", (*life).renewServer})
	}
	if l.startedHere() == nil {
		out = append(out, disturbance{"deaths of the plugin", func(l *life, ctx context.Context) (string, error) {
			if _, err := l.killPlugin(ctx); err != nil {
				return "", err
			}
			return l.startAgain(ctx)
		}})
	}
	return out
}

// passed reports whether a check has passed.
func (l *life) passed(name string) bool {
	return slices.ContainsFunc(l.report.Checks, func(c Check) bool { return c.Name == name && c.Outcome == Passed })
}

// soak has pods come and go, also while berthd and the plugin are restarted in turns, and counts what becomes
// of the devices' health.
func (l *life) soak(ctx context.Context) (string, error) {
	began := time.Now()
	kinds := l.disturbances()
	did := make([]int, len(kinds))
	total, rounds := 0, 0
	var odd error
	health := l.watchHealth(ctx)
	for time.Since(began) < l.Soak && ctx.Err() == nil {
		kind := rounds % len(kinds)
		rounds++
		for _, part := range []func() (int, error){
			func() (int, error) { return l.pods(ctx, "calm", l.pool(), nil) },
			func() (int, error) { return l.disturbed(ctx, kinds[kind]) },
		} {
			n, err := part()
			total += n
			var warned warning
			if err == nil {
				continue
			}
			err = fmt.Errorf("round %d (%s), after %s: %w", rounds, kinds[kind].name, rounded(time.Since(began)), err)
			if !errors.As(err, &warned) {
				health()
				return "", err
			}
			odd = cmp.Or(odd, warnf("%v", err))
		}
		did[kind]++
	}
	changes := health()
	if odd != nil {
		return "", odd
	}
	var texts []string
	for i, k := range kinds {
		texts = append(texts, fmt.Sprintf("%d %s", did[i], k.name))
	}
	return fmt.Sprintf("%d pods in %s, %s, %d changes of a device's health", total, time.Since(began).Round(time.Second), strings.Join(texts, ", "),
		changes), ctx.Err()
}

// disturbed does one thing while pods come and go, which may be refused meanwhile.
func (l *life) disturbed(ctx context.Context, d disturbance) (pods int, err error) {
	defer l.cause()()
	over := make(chan struct{})
	var group sync.WaitGroup
	var errs [2]error
	wants := l.pool() // which the disturbance reads again
	group.Go(func() { pods, errs[0] = l.pods(ctx, "disturbed", wants, over) })
	_, errs[1] = d.run(l, ctx)
	close(over)
	group.Wait()
	for _, err := range errs {
		if err != nil && !errors.As(err, new(warning)) {
			return pods, err // which a warning of the other does not hide
		}
	}
	return pods, errors.Join(errs[:]...)
}

// pool is what a pod of a soak requests: a device of every resource that has a free one.
func (l *life) pool() map[string]int64 {
	return l.wants(func(r *devicev1.Resource) int64 { return min(free(r), 1) })
}

// soakSides is how many pods come and go at once.
const soakSides = 4

// pods has pods come and go from several sides: one for each, of which at least one is admitted, or until
// it is over, where pods may be refused.
func (l *life) pods(ctx context.Context, name string, wants map[string]int64, over <-chan struct{}) (int, error) {
	if len(wants) == 0 {
		return 0, nil
	}
	var group sync.WaitGroup
	errs, admitted := make([]error, soakSides), make([]int, soakSides)
	for side := range soakSides {
		group.Go(func() {
			for i := 0; ; i++ {
				ok, err := l.comeAndGo(ctx, fmt.Sprintf("%s-%d-%d", name, side, i), wants, over != nil)
				if ok {
					admitted[side]++
				}
				if errs[side] = err; err != nil || over == nil {
					return
				}
				select {
				case <-over:
					return
				case <-ctx.Done():
					return
				case <-time.After(look):
				}
			}
		})
	}
	group.Wait()
	total := 0
	for _, n := range admitted {
		total += n
	}
	err := errors.Join(errs...)
	if err == nil && total == 0 && over == nil {
		err = errors.New("no pod was admitted, though there are free devices")
	}
	return total, err
}

// comeAndGo admits a pod, and removes it. Where berthd or the plugin may be away, a call that fails
// for that says nothing, and the removal is tried until it has an answer.
func (l *life) comeAndGo(ctx context.Context, name string, wants map[string]int64, away bool) (admitted bool, err error) {
	resp, err := l.daemon.client.AdmitPod(ctx, podOf(name, wants))
	if err != nil && !(away && passing(err)) {
		return false, err
	}
	admitted = err == nil && resp.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
	if err == nil && !admitted {
		return false, nil
	}
	limited, cancel := context.WithTimeout(ctx, l.Wait)
	defer cancel()
	for {
		err := l.remove(limited, name)
		switch {
		case err == nil || status.Code(err) == codes.NotFound:
			return admitted, nil
		case !away || !passing(err) || limited.Err() != nil:
			return admitted, err
		}
		select {
		case <-limited.Done():
		case <-time.After(look):
		}
	}
}

// passing reports whether an error is of a berthd or a plugin that is away.
func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.FailedPrecondition:
		return true
	}
	return false
}

// watchHealth looks at the devices until it is asked how often the health of one has changed while the plugin
// was connected.
func (l *life) watchHealth(ctx context.Context) (count func() int) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	changes := 0
	group.Go(func() {
		before := map[string]bool{}
		_ = l.daemon.until(ctx, func(now []*devicev1.Resource) bool {
			for _, r := range now {
				if r.GetPluginState() != typesv1.PluginState_PLUGIN_STATE_CONNECTED || r.GetAwaited() {
					continue
				}
				for _, d := range r.GetDevices() {
					key := r.GetName() + "/" + d.GetDevice().GetId()
					healthy := d.GetDevice().GetHealth() == typesv1.Health_HEALTH_HEALTHY
					if was, known := before[key]; known && was != healthy {
						changes++
					}
					before[key] = healthy
				}
			}
			return false
		})
	})
	return func() int {
		cancel()
		group.Wait()
		return changes
	}
}
