package hintproxy

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/breaker"
)

// Config of all proxies. The zero value is good.
type Config struct {
	// Deadline of each call where a registration has none; 0 means 2 s.
	Deadline time.Duration
	// Connect is how long a provider that registers may take to answer and to
	// confirm its holdings; 0 means 10 s.
	Connect time.Duration
	// Lease is for how long providers are asked to hold what they reserve; 0
	// means 1 min.
	Lease time.Duration
	// MaxAnswerBytes bounds one answer; 0 means 4 MiB.
	MaxAnswerBytes int
	// Breaker says when a provider is suspended.
	Breaker breaker.Config
	// Required are names without which nothing is admitted, whether or not a
	// provider has registered under them. No other provider is required.
	Required []string
	// Allowed says what single providers may do beyond hints and claims.
	Allowed []Allowance
}

// Allowance is what one provider may do beyond hints and claims, and who may be it.
type Allowance struct {
	Provider string
	// UID is the user who may register under the name.
	UID uint32
	// Edits are the kinds of container edits that its grants may have, of EditKinds.
	Edits []string
}

// allowance returns what a name is allowed; false if the configuration does not have it.
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

// reservation is what an admission under way has asked a provider to hold.
type reservation struct {
	lease ledger.Lease
	// held is false while the provider has not agreed; it may hold it all the same.
	held bool
}

// proxy is a provider outside berthd as the bus sees it. It is safe for concurrent
// use.
type proxy struct {
	registration ledger.ExternalProvider

	config Config
	parts  Parts
	conn   *grpc.ClientConn
	client hintv1.HintProviderServiceClient

	wake    chan struct{} // holds one: there may be something to tell the provider
	retired chan struct{} // closed when another proxy has taken this one's place
	refused chan error    // holds one: why it did not confirm its holdings
	// telling is held while the provider is told its holdings, so that it hears of
	// them in the order of generations.
	telling chan struct{}

	mu           sync.Mutex
	breaker      *breaker.Breaker
	alone        int                     // calls that go on without their callers
	connection   int                     // counts changes of the connection
	reachable    bool                    // the connection is ready, and watch has noted it
	introduced   bool                    // it has confirmed its holdings on this connection
	away         string                  // why it is not introduced
	foreign      string                  // why its endpoint is not taken for its own
	told         []*hintv1.Holding       // what it has confirmed last
	confirmed    map[string]ledger.Lease // leases that the ledger had then, by id
	again        bool                    // it is to be told in any case
	settled      bool                    // it has been told once that no admission is under way
	silent       bool                    // another proxy tells it now
	confirmation chan struct{}           // closed when it has confirmed for the first time
	reservations map[string]reservation  // by admission
	aborts       map[string]time.Time    // not delivered, with the lease's end
	quiet        time.Time               // until then it is not asked to explain
}

var (
	_ hint.Provider = (*proxy)(nil)
	_ hint.Aborter  = (*proxy)(nil)
	_ hint.Leaser   = (*proxy)(nil)
)

// Dialer makes a connection to the endpoint of a user's process. An error of class
// PermissionDenied says that it is not that user's.
type Dialer func(ctx context.Context, endpoint string, uid uint32) (net.Conn, error)

// redial is how often a provider that is away is looked for.
var redial = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 20 * time.Second,
}

// newProxy makes a proxy that has not begun to connect. settled tells that there
// may be admissions under way, which a provider must keep its reservations for.
func newProxy(o ledger.ExternalProvider, cfg Config, parts Parts, settled bool) (*proxy, error) {
	p := &proxy{
		registration: o, config: cfg, parts: parts,
		wake: make(chan struct{}, 1), retired: make(chan struct{}), refused: make(chan error, 1), telling: make(chan struct{}, 1),
		breaker: breaker.New(cfg.Breaker), settled: settled,
		away:         "nobody has answered at " + o.Endpoint + " yet",
		confirmation: make(chan struct{}), confirmed: map[string]ledger.Lease{},
		reservations: map[string]reservation{}, aborts: map[string]time.Time{},
	}
	var err error
	// The dialer knows the path, so that no character of it can be taken for part
	// of a URL.
	p.conn, err = grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := parts.Dial(ctx, o.Endpoint, o.UID)
			p.noteDial(err)
			return c, err
		}),
		grpc.WithConnectParams(redial),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(cfg.MaxAnswerBytes)),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to provider %s: %w", o.Name, err)
	}
	p.client = hintv1.NewHintProviderServiceClient(p.conn)
	return p, nil
}

// noteDial keeps why an endpoint is not the provider's.
func (p *proxy) noteDial(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.foreign = ""
	if err != nil && errdefs.ClassOf(err) == errdefs.PermissionDenied {
		p.foreign = err.Error()
	}
}

// unanswered says why nobody can be asked while there is no connection.
func (p *proxy) unanswered() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return cmp.Or(p.foreign, "nobody answers at "+p.registration.Endpoint)
}

// Name returns the name under which the provider has registered.
func (p *proxy) Name() string { return p.registration.Name }

// Lease implements hint.Leaser.
func (p *proxy) Lease(admissionID string) (ledger.Lease, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.reservations[admissionID]
	return r.lease, r.held
}

// poke has the keeper look whether there is something to tell the provider.
func (p *proxy) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
