package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/hack/allocs"
	"github.com/berthd/berth/managers/cpuset"
)

// TestAllocations: the events of a pod with a container on exclusive CPUs, from its creation to its
// removal, with the calls of a berthd in this process, whose messages are copied twice.
func TestAllocations(t *testing.T) {
	l, err := local()
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	p := New(Config{
		Client: berth.Over(d, berth.Options{Attempts: 1}), Unsolicited: abilities.UnsolicitedNever,
		Host:    Host{CPUsOf: func(int) (cpuset.Set, error) { return cpuset.Set{}, nil }},
		Timeout: func() time.Duration { return timeout }, Log: slog.New(slog.DiscardHandler),
	})
	ctx := t.Context()
	if _, err := p.Synchronize(ctx, nil, nil); err != nil {
		t.Fatal(err)
	}
	allocs.AtMost(t, "events of a pod", 811, func() error {
		sandbox := pod("job", "guaranteed")
		c := container(sandbox, "main", "job-main", 2000, 1<<30)
		adjust, _, err := p.CreateContainer(ctx, sandbox, c)
		if cpus := adjust.GetLinux().GetResources().GetCpu().GetCpus(); err == nil && cpus != "1-2" {
			err = fmt.Errorf("CPUs %q", cpus)
		}
		err = errors.Join(err, p.PostCreateContainer(ctx, sandbox, c), p.StartContainer(ctx, sandbox, c),
			p.PostStartContainer(ctx, sandbox, c))
		_, stop := p.StopContainer(ctx, sandbox, c)
		return errors.Join(err, stop, p.RemoveContainer(ctx, sandbox, c), p.StopPodSandbox(ctx, sandbox), p.RemovePodSandbox(ctx, sandbox))
	})
}
