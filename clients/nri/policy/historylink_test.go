package policy

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/servertest"
)

// reach is how berthd can be reached.
type reach string

const (
	answers reach = "answers"
	slow    reach = "answers slowly"
	away    reach = "is away"
	stuck   reach = "does nothing and does not answer"
	mute    reach = "does not answer, but does what it is told"
	// These are of one call, and not of those after it. Streams go on.
	refuses reach = "refuses"
	drops   reach = "carries out, and does not answer"
)

// prompt returns whether calls take no time. Only then does Follow go on beside events, as it does when the runtime has not answered its
// request: for one that waits for the lock of a slow call of the other, the clock of synctest would stand still for ever.
func (l *link) prompt() bool { return l.is(answers) || l.is(away) }

func (l *link) is(r reach) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.reach == r
}

// slowCall is the time of a call of a slow berthd: a pass of Follow has time for a few of them.
const slowCall = 60 * time.Millisecond

// link is the connection to berthd.
type link struct {
	*servertest.Daemon
	mu    sync.Mutex // guards the fields below: Follow calls beside events
	reach reach
	// after is in how many calls reach becomes next; 0 for never.
	after int
	next  reach
	// fail is called if berth-nri calls berthd without end: at is a moment, and calls are those at that moment.
	fail func(format string, args ...any)
	// note, if any, is told each call and its answer.
	note  func(format string, args ...any)
	at    time.Time
	calls int
}

// mostCalls are more than berth-nri has reason for at one moment.
const mostCalls = 3000

// of returns how berthd is reached by the next call, and whether it is away afterwards. endless means that the calls are a loop.
func (l *link) of() (now reach, gone, endless bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := time.Now()
	if l.calls++; !at.Equal(l.at) {
		l.at, l.calls = at, 0
	}
	endless = l.calls == mostCalls
	now = l.reach
	if l.after > 0 {
		if l.after--; l.after == 0 {
			if now = l.next; now == away { // it ends after this call
				now, gone = answers, true
			}
		}
	}
	return now, gone, endless
}

// Invoke implements grpc.ClientConnInterface.
func (l *link) Invoke(ctx context.Context, method string, req, reply any, opts ...grpc.CallOption) (err error) {
	now, gone, endless := l.of()
	if l.note != nil {
		defer func() { l.note("    berthd %s: %s(%v): %v, %v", now, path.Base(method), req, reply, err) }()
	}
	if endless {
		l.fail("berth-nri has called berthd %d times without a pause", mostCalls)
	}
	if gone || endless {
		defer l.become(away)
	}
	if now == slow {
		select {
		case <-time.After(slowCall):
		case <-ctx.Done():
		}
	}
	switch now {
	case away:
		return status.Error(codes.Unavailable, "connection refused")
	case refuses:
		return status.Error(codes.Unavailable, "stream refused")
	}
	if now != stuck {
		err = l.Daemon.Invoke(ctx, method, req, reply, opts...)
	}
	if now != stuck && now != mute && now != drops {
		return err
	}
	if proto.Reset(reply.(proto.Message)); now == drops {
		return status.Error(codes.Unavailable, "stream reset")
	}
	<-ctx.Done()
	return status.FromContextError(ctx.Err()).Err()
}

// NewStream implements grpc.ClientConnInterface.
func (l *link) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	switch {
	case l.is(away):
		return nil, status.Error(codes.Unavailable, "connection refused")
	case l.is(stuck), l.is(mute):
		<-ctx.Done()
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	return l.Daemon.NewStream(ctx, desc, method, opts...)
}

// become changes how berthd can be reached. One that is away has ended.
func (l *link) become(r reach) {
	if r == away {
		l.Stop()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reach, l.after = r, 0
}

// misses has one of the next calls fail, unless one is to fail already.
func (l *link) misses(after int, how reach) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reach == answers && l.after == 0 {
		l.after, l.next = after, how
	}
}

// renew replaces berthd by one that was started later.
func (l *link) renew(d *servertest.Daemon, err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.Daemon, l.reach, l.after = d, answers, 0
	}
	return err
}

// fakeKubelet is the kubelet's API.
type fakeKubelet struct {
	node *madeUpNode
	// away means that it does not answer, and early that it has not been in contact with the API server yet.
	away, early bool
}

var (
	errKubelet = errors.New("the kubelet is away")
	errEarly   = errdefs.Preconditionf("the kubelet has no pods of the API server yet")
)

// Pod implements Source.
func (k *fakeKubelet) Pod(_ context.Context, uid string) (*typesv1.Pod, string, error) {
	k.node.publish()
	if k.away {
		return nil, "", errKubelet
	}
	if k.early {
		return nil, "", errEarly
	}
	for _, p := range k.node.pods {
		if p.uid() == uid && p.shown && !p.deleted {
			return p.specification(), FromKubelet, nil
		}
	}
	return nil, "", nil
}

// Active implements Source.
func (k *fakeKubelet) Active(context.Context) (uids []string, err error) {
	k.node.publish()
	if k.away {
		return nil, errKubelet
	}
	if k.early {
		return nil, errEarly
	}
	for _, p := range k.node.pods {
		if !p.deleted {
			uids = append(uids, p.uid())
		}
	}
	return uids, nil
}

// ledgerPods returns the uids of berthd's pods.
func (l *link) ledgerPods() (uids []string) {
	for p := range l.Ledger.View().Pods() {
		uids = append(uids, p.UID())
	}
	slices.Sort(uids)
	return uids
}

// owner splits the uid of a pod in berthd into that of the kubelet's pod and the container that was admitted apart.
func owner(uid string) (pod, container string) {
	pod, container, _ = strings.Cut(uid, ".")
	return pod, container
}
