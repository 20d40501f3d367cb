package hintproxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/server/internal/breaker"
	"golang.org/x/time/rate"
)

// maxAnswerElements bounds the items of lists and the entries of maps in one answer, which
// take a hundred times as much memory as bytes of the answer.
const maxAnswerElements = 50_000

// Config of all proxies. The zero value is valid.
type Config struct {
	// Deadline of each call if the registration has none; 0 means 2 s.
	Deadline time.Duration
	// Connect limits the time in which a provider that registers has to answer and confirm
	// its allocations; 0 means 10 s.
	Connect time.Duration
	// Lease is the time for which providers have to hold a reservation; 0 means 1 min.
	Lease time.Duration
	// MaxAnswerBytes limits one answer; 0 means 4 MiB.
	MaxAnswerBytes int
	// Breaker defines when a provider is suspended.
	Breaker breaker.Config
	// Required are the names of required providers. Without them no pod is admitted, even
	// if they never registered. No other provider is required.
	Required []string
	// Allowed lists what single providers may do in addition to hints and claims.
	Allowed []Allowance
}

// Allowance defines which user may register a name, and what the provider may do in
// addition to hints and claims.
type Allowance struct {
	Provider string
	// UID is the user that may register the name.
	UID uint32
	// Edits are the allowed kinds of container edits, of EditKinds.
	Edits []string
}

// allowance returns the allowance of a name, and whether the configuration has one.
func (c Config) allowance(name string) (Allowance, bool) {
	for _, a := range c.Allowed {
		if a.Provider == name {
			return a, true
		}
	}
	return Allowance{}, false
}

func (c Config) withDefaults() Config {
	for _, d := range []struct {
		have *time.Duration
		def  time.Duration
	}{{&c.Deadline, 2 * time.Second}, {&c.Connect, 10 * time.Second}, {&c.Lease, time.Minute}} {
		if *d.have == 0 {
			*d.have = d.def
		}
	}
	if c.MaxAnswerBytes == 0 {
		c.MaxAnswerBytes = 4 << 20
	}
	c.Breaker = c.Breaker.WithDefaults()
	return c
}

// reservation is a reservation that a running admission has requested.
type reservation struct {
	lease ledger.Lease
	// held is false until the provider has answered. It may hold the reservation anyway.
	held bool
}

// proxy is the hint.Provider of an external provider. It is safe for concurrent use.
type proxy struct {
	registration ledger.ExternalProvider

	config Config
	parts  Parts
	conn   *connection
	client hintv1.HintProviderServiceClient
	// release gives the connection up.
	release func()
	// explanations are shared by all providers.
	explanations *explanations
	// stop ends the keeper; nil before it is started.
	stop context.CancelFunc

	retired chan struct{} // closed when another proxy has replaced this one
	refused chan error    // capacity 1: why the provider did not confirm its allocations
	sending

	lines *rate.Limiter // of the log, because a provider can come and go often

	mu      sync.Mutex // guards the fields below
	breaker *breaker.Breaker
	alone   int // calls that continue without their callers
	presence
	confirmations
	reservations map[string]reservation // by admission
	aborts       map[string]time.Time   // undelivered aborts, with the lease's end
	quiet        time.Time              // no explanation is requested until then
}

// sending is what sends allocations to the provider.
type sending struct {
	wake chan struct{} // capacity 1: there may be something to send to the provider
	// notifying is held while allocations are sent, so that they arrive in the order of
	// generations.
	notifying chan struct{}
	// sequences is the number of the last list that was sent. notifying guards it. It begins with
	// a random number, because another proxy or an earlier berthd may have sent lists to the
	// same process.
	sequences uint64
}

// presence is whether the provider is connected. proxy.mu guards it.
type presence struct {
	lost       bool      // it had confirmed its allocations, and its connection ended since
	connection int       // counts changes of the connection
	reachable  bool      // the connection is ready, and watch has recorded it
	introduced bool      // the provider has confirmed its allocations on this connection
	away       string    // why introduced is false
	since      time.Time // of away: the end of the last connection with a confirmation
}

// confirmations are what the provider has confirmed. proxy.mu guards them.
type confirmations struct {
	machine      *machine.Topology            // the last confirmed machine
	acknowledged []*hintv1.ProviderAllocation // the last confirmed allocations
	sequence     uint64                       // the number of acknowledged; 0: the provider does not have it
	confirmed    map[string]ledger.Lease      // the ledger's leases at that time, by id
	again        bool                         // send the allocations even if they are confirmed
	decided      bool                         // the provider knows that no admission of an earlier berthd is running
	silent       bool                         // another proxy sends the allocations now
	confirmation chan struct{}                // closed after the first confirmation
}

var (
	_ hint.Provider = (*proxy)(nil)
	_ hint.Preparer = (*proxy)(nil)
	_ hint.Aborter  = (*proxy)(nil)
	_ hint.Leaser   = (*proxy)(nil)
)

// Dialer connects to the endpoint of a user's process. An error of class PermissionDenied
// means that the endpoint does not belong to that user.
type Dialer func(ctx context.Context, endpoint string, uid uint32) (net.Conn, error)

// redial is how often a proxy tries to connect to a provider that is away.
var redial = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 20 * time.Second,
}

// newProxy returns a proxy that has not begun to connect. If decided is false, its first
// Commit lets the provider release the reservations of an earlier berthd. With decided it
// does not, because admissions of this berthd may be running.
func (r *Registry) newProxy(o ledger.ExternalProvider, decided bool) (*proxy, error) {
	conn, err := r.connections.acquire(connectionKey{o.Endpoint, o.UID})
	if err != nil {
		return nil, fmt.Errorf("provider %s: %w", o.Name, err)
	}
	return &proxy{
		registration: o, config: r.config, parts: r.parts, explanations: &r.explanations,
		conn: conn, client: hintv1.NewHintProviderServiceClient(conn), release: sync.OnceFunc(func() { r.connections.release(conn) }),
		retired: make(chan struct{}), refused: make(chan error, 1),
		sending: sending{wake: make(chan struct{}, 1), notifying: make(chan struct{}, 1), sequences: 1 + rand.Uint64N(1<<62)},
		breaker: breaker.New(r.config.Breaker), lines: rate.NewLimiter(rate.Every(time.Second), 20),
		presence:      presence{away: "no process has answered at " + o.Endpoint + " yet", since: r.parts.Now()},
		confirmations: confirmations{decided: decided, confirmation: make(chan struct{}), confirmed: map[string]ledger.Lease{}},
		reservations:  map[string]reservation{}, aborts: map[string]time.Time{},
	}, nil
}

// Name returns the registered name.
func (p *proxy) Name() string { return p.registration.Name }

// Lease implements hint.Leaser.
func (p *proxy) Lease(admissionID string) (ledger.Lease, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.reservations[admissionID]
	return r.lease, r.held
}

// poke makes the keeper check whether there is something to send to the provider.
func (p *proxy) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
