package page

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/api/access"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// Bounds of what callers may cost together.
const (
	// maxBody bounds the text of a trial, maxStreams the open streams of events. A new stream
	// begins with all pods, so streamsPerSecond and streamBurst bound how often one begins.
	maxBody          = 256 << 10
	maxStreams       = 16
	streamsPerSecond = 4
	streamBurst      = maxStreams
	// trialsPerSecond and trialBurst bound trials; for a rejected pod berthd computes changes
	// for up to a quarter of a second.
	trialsPerSecond = 2
	trialBurst      = 5
	// trialWait bounds how long a trial waits for its turn; one that would wait longer is refused at once.
	trialWait = 2 * time.Second
	// callTimeout bounds a call with the wait for its turn, and writeTimeout the writing of an
	// answer, which a reader that does not read would delay.
	callTimeout  = 20 * time.Second
	writeTimeout = 10 * time.Second
)

//go:embed static
var static embed.FS

// Options of a page.
type Options struct {
	// Conn reaches berthd; calls have its rights.
	Conn grpc.ClientConnInterface
	// Turns is how many answers are made at once; 0 is 1. The others wait. An answer can cost as
	// much as a large list, and all callers of a page are one caller of berthd.
	Turns int
	// About is the version of the shown berthd, in a line.
	About string
}

// server answers requests.
type server struct {
	Options
	trials, begins *rate.Limiter
	// turns has an element for each answer that is being made, streams for each stream.
	turns, streams chan struct{}
	// drawn is the machine that was answered last. Its JSON takes longer than all else that a page
	// loads, and a machine hardly ever changes.
	drawn atomic.Pointer[encoded]
}

// encoded is a message with its JSON.
type encoded struct {
	message proto.Message
	text    json.RawMessage
}

// New makes the handler of the page and its data.
func New(o Options) http.Handler {
	s := &server{
		Options: o, trials: rate.NewLimiter(trialsPerSecond, trialBurst), begins: rate.NewLimiter(streamsPerSecond, streamBurst),
		turns: make(chan struct{}, max(1, o.Turns)), streams: make(chan struct{}, maxStreams),
	}
	mux := http.NewServeMux()
	files, err := fs.Sub(static, "static")
	if err != nil {
		panic(err) // the directory is embedded
	}
	mux.Handle("GET /", http.FileServerFS(files))
	mux.HandleFunc("GET /api/v1/about", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, object{"about": s.About})
	})
	for path, read := range map[string]func(context.Context, *http.Request) (any, error){
		"machine": s.machine, "state": s.state, "pods": s.pods, "policy": s.policy, "traces": s.traces, "trace": s.trace,
		"attention": s.attention, "history": s.history, "past": s.past,
	} {
		mux.HandleFunc("GET /api/v1/"+path, s.handle(read))
	}
	mux.HandleFunc("GET /api/v1/events", s.events)
	for path, try := range trials {
		mux.HandleFunc("POST "+path, s.trial(try.make))
	}
	return guard(mux)
}

// Reader is the role that the page needs.
const Reader = access.Read

// RoleOf is the role that a request needs: that of the call that it makes.
func RoleOf(r *http.Request) access.Role {
	if try, ok := trials[r.URL.Path]; ok {
		return try.role
	}
	return Reader
}

// handle serves a call that reads.
func (s *server) handle(read func(context.Context, *http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
		defer cancel()
		if err := readable(r); err != nil {
			fail(w, err)
			return
		}
		end, err := s.turn(ctx)
		if err != nil {
			fail(w, err)
			return
		}
		defer end()
		got, err := read(ctx, r)
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		if err != nil {
			fail(w, err)
			return
		}
		answer(w, got)
	}
}

// readable refuses parameters that no message can have: the error is the caller's, not berthd's.
func readable(r *http.Request) error {
	for name, values := range r.URL.Query() {
		for _, value := range values {
			if !utf8.ValidString(value) {
				return status.Errorf(codes.InvalidArgument, "%.40q: expected text in UTF-8", name)
			}
		}
	}
	return nil
}

// turn waits until fewer answers are being made than may be. The returned function ends the turn;
// it may be called more than once.
func (s *server) turn(ctx context.Context) (end func(), err error) {
	select {
	case s.turns <- struct{}{}:
		return sync.OnceFunc(func() { <-s.turns }), nil
	case <-ctx.Done():
		return nil, status.Error(codes.ResourceExhausted, "too many requests wait for their turn: try again")
	}
}

// allow waits for the turn of a trial.
func (s *server) allow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, trialWait)
	defer cancel()
	if s.trials.Wait(ctx) != nil {
		return errTooMany
	}
	return nil
}

// trial serves a dry run, within the bounds of its text and of the rate.
func (s *server) trial(try func(s *server, ctx context.Context, r *http.Request, body []byte) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(trialHeader) == "" {
			http.Error(w, "the header "+trialHeader+" is missing", http.StatusForbidden)
			return
		}
		if err := s.allow(r.Context()); err != nil {
			fail(w, err)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			fail(w, status.Errorf(codes.InvalidArgument, "the text is too long: at most %d bytes are read", maxBody))
			return
		}
		s.handle(func(ctx context.Context, r *http.Request) (any, error) { return try(s, ctx, r, body) })(w, r)
	}
}

func (s *server) machine(ctx context.Context, _ *http.Request) (any, error) {
	m, err := nodev1.NewNodeServiceClient(s.Conn).GetMachine(ctx, &nodev1.GetMachineRequest{})
	if err != nil {
		return nil, err
	}
	m.SnapshotJson = nil // the page draws from the messages
	if last := s.drawn.Load(); last != nil && proto.Equal(last.message, m) {
		return last.text, nil
	}
	text, err := marshal.Marshal(m)
	if err == nil {
		s.drawn.Store(&encoded{m, text})
	}
	return json.RawMessage(text), err
}

func (s *server) pods(ctx context.Context, _ *http.Request) (any, error) {
	return allocationv1.NewAllocationServiceClient(s.Conn).List(ctx, &allocationv1.ListRequest{})
}

func (s *server) policy(ctx context.Context, _ *http.Request) (any, error) {
	return topologyv1.NewTopologyServiceClient(s.Conn).GetPolicy(ctx, &topologyv1.GetPolicyRequest{})
}

func (s *server) traces(ctx context.Context, r *http.Request) (any, error) {
	return inspectv1.NewInspectServiceClient(s.Conn).ListTraces(ctx, &inspectv1.ListTracesRequest{
		PodUid: r.FormValue("pod"), Refused: r.FormValue("refused") == "true", Reason: r.FormValue("reason"),
		PageToken: r.FormValue("page"),
	})
}

// events is Watch as server-sent events. The id of an event is its revision, from which a browser
// resumes by itself.
func (s *server) events(w http.ResponseWriter, r *http.Request) {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		fail(w, status.Errorf(codes.ResourceExhausted, "there are already %d streams of events", maxStreams))
		return
	}
	req := &allocationv1.WatchRequest{}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		from, err := strconv.ParseUint(last, 10, 64)
		if err != nil {
			fail(w, status.Error(codes.InvalidArgument, "Last-Event-ID: a revision is expected"))
			return
		}
		req.FromRevision = from
	}
	if err := s.begins.Wait(r.Context()); err != nil {
		return // the caller has gone
	}
	end, err := s.turn(r.Context())
	if err != nil {
		return
	}
	defer end()
	defer time.AfterFunc(callTimeout, end).Stop() // a beginning that takes longer delays no other stream
	stream, err := allocationv1.NewAllocationServiceClient(s.Conn).Watch(r.Context(), req)
	if err != nil {
		fail(w, err)
		return
	}
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // of the request; a stream has no end
	for first := true; ; first = false {
		message, err := stream.Recv()
		switch {
		case first && status.Code(err) == codes.OutOfRange:
			// The browser would repeat this revision forever: let it begin again.
			w.WriteHeader(http.StatusNoContent)
			return
		case first && err != nil:
			fail(w, err)
			return
		case err != nil:
			return // the browser connects again
		}
		leaveOut(message)
		raw, err := protojson.Marshal(message)
		if err != nil {
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout)) // a reader that does not read loses its place
		if _, err := fmt.Fprintf(w, "id: %d\ndata: %s\n\n", message.GetRevision(), raw); err != nil || out.Flush() != nil {
			return
		}
		end() // what follows are changes, which are few
	}
}

// leaveOut takes from the pods of events what the page has otherwise, and what is half of a pod: where its CPUs are, which the machine
// says, and the affinity of a container, which its claims have.
func leaveOut(m *allocationv1.WatchResponse) {
	for _, e := range m.GetEvents() {
		for _, pod := range []*typesv1.PodAllocation{e.GetAdded(), e.GetChanged(), e.GetRemoved()} {
			for _, c := range pod.GetContainers() {
				c.CpuLocations, c.Affinity = nil, nil
			}
		}
	}
}

// marshal encodes messages with their default values.
var marshal = protojson.MarshalOptions{EmitDefaultValues: true}

// object is an answer of several parts: messages, and what has a form in JSON of its own.
type object map[string]any

// encodeJSON encodes a message, or an object of messages, as JSON; JSON stays as it is.
func encodeJSON(v any) (json.RawMessage, error) {
	switch v := v.(type) {
	case json.RawMessage:
		return v, nil
	case proto.Message:
		return marshal.Marshal(v)
	case object:
		parts := map[string]json.RawMessage{}
		for name, m := range v {
			part, err := encodeJSON(m)
			if err != nil {
				return nil, err
			}
			parts[name] = part
		}
		return json.Marshal(parts)
	}
	return json.Marshal(v)
}

// answer writes an answer as JSON.
func answer(w http.ResponseWriter, v any) {
	raw, err := encodeJSON(v)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(raw)
}

// httpCodes are the statuses of errors; all others are 502, since berthd did not answer.
var httpCodes = map[codes.Code]int{
	codes.InvalidArgument: http.StatusBadRequest, codes.NotFound: http.StatusNotFound, codes.PermissionDenied: http.StatusForbidden,
	codes.ResourceExhausted: http.StatusTooManyRequests, codes.FailedPrecondition: http.StatusConflict,
	codes.Unimplemented: http.StatusNotImplemented,
}

// fail writes an error as {"code", "message"}, and of a pod that cannot be read also {"mistakes"}.
func fail(w http.ResponseWriter, err error) {
	code, message := status.Code(err), err.Error()
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		code, message = s.GRPCStatus().Code(), s.GRPCStatus().Message()
	}
	at, ok := httpCodes[code]
	if !ok {
		at = http.StatusBadGateway
	}
	answer := map[string]any{"code": code.String(), "message": message}
	if bad := (*badPod)(nil); errors.As(err, &bad) {
		answer["mistakes"] = mistakes(bad.text, message)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(at)
	_ = json.NewEncoder(w).Encode(answer)
}
