package get

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthctl/top"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const topLong = `Show what containers use, until q is pressed: CPU time, how busy each exclusive CPU and the shared CPUs are, throttling,
memory by NUMA node, huge pages, pressure, and values of cgroups that another program changed.

CPU and MEMORY are the container's own. BUSY is how busy each CPU of EXCLUSIVE is in percent, by any process.
PRESSURE is the share of the time in which a process of the container waited for CPU, memory and I/O. "-" is unknown:
two readings of a container are needed, and pressure needs cgroups of version 2.

Keys: arrows, j and k select, PgUp and PgDn scroll by a screen, Home and End go to the first and last row. Enter opens
the pod with its claims and the explanation of its admission, s changes the order, r reverses it, / filters by name, q
quits. The line above the headings says which rows are visible, and which columns a narrow terminal hides, the least
important ones. Without a terminal, and with --once, the command prints one table with all columns.`

type TopFlags struct {
	once     bool
	Interval time.Duration
	By       string
	reverse  bool
	filter   string
}

func Top(c *command.Ctl) *cobra.Command {
	var f TopFlags
	var cmd *cobra.Command
	cmd = c.Local(command.About{
		Use:   "top [--once] [--sort COLUMN] [--filter TEXT]",
		Short: "Show live what containers use",
		Long:  topLong,
		Example: `  berthctl top
  berthctl top --sort memory --filter shop/
  berthctl top --once -o json`,
	}, func(ctx context.Context, _ []string) error {
		if f.Interval < minInterval {
			return command.Usagef("top", "--interval %v: expected at least %v, because berthd reads once in that time", f.Interval,
				minInterval)
		}
		if !slices.Contains(top.Orders(), f.By) {
			return command.Usagef("top", "--sort %s: expected one of %s", f.By, strings.Join(top.Orders(), ", "))
		}
		screen := command.TerminalOf(c.In, c.Out)
		if f.once || c.ForPrograms() || screen == nil {
			return c.Connected(ctx, func(ctx context.Context, s *command.Session) error { return topOnce(ctx, s, f) })
		}
		if !cmd.Flags().Changed("timeout") {
			c.Timeout = 0
		}
		return c.Connected(ctx, func(ctx context.Context, s *command.Session) error {
			if c.Kubelet != "" { // a copy of its files has none, now and later
				if _, err := s.Node().GetUsage(ctx, &nodev1.GetUsageRequest{}); err != nil {
					return err
				}
			}
			return TopLive(ctx, s, f, screen)
		})
	})
	fs := cmd.Flags()
	fs.BoolVar(&f.once, "once", false, "print one table after two readings, and end")
	fs.DurationVar(&f.Interval, "interval", 2*time.Second, "time between two readings")
	fs.StringVar(&f.By, "sort", "cpu", "column to sort by: "+strings.Join(top.Orders(), ", "))
	fs.BoolVar(&f.reverse, "reverse", false, "reverse the order")
	fs.StringVar(&f.filter, "filter", "", "show only containers with this text in their name or in that of their pod")
	command.Choices(cmd, "sort", top.Orders()...)
	return cmd
}

// minInterval is how long berthd's readings are shared.
const minInterval = 500 * time.Millisecond

// topOnce prints the table of two readings.
func topOnce(ctx context.Context, s *command.Session, f TopFlags) error {
	first, err := s.Node().GetUsage(ctx, &nodev1.GetUsageRequest{})
	if err != nil {
		return err
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(f.Interval):
	}
	last, err := s.Node().GetUsage(ctx, &nodev1.GetUsageRequest{})
	if err != nil {
		return err
	}
	list, err := s.List(ctx, &allocationv1.ListRequest{})
	if err != nil {
		return err
	}
	source := top.Source{Pods: map[string]*typesv1.PodAllocation{}, Shared: command.Set(list.GetSharedCpus()),
		Revision: list.GetRevision(), Previous: first, Last: last}
	for _, p := range list.GetPods() {
		source.Pods[p.GetUid()] = p
	}
	t := top.New(source)
	t.Rows = top.Filter(t.Rows, f.filter)
	top.Sort(t.Rows, f.By, f.reverse)
	if !s.ForPrograms() {
		return s.Say(func(w io.Writer) { fmt.Fprint(w, t.Text()) })
	}
	raw, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return s.Print("Usage", raw)
}

// topLive shows the table until a key ends it. All state belongs to the loop of run; other
// goroutines post what changes it.
type topLive struct {
	*command.Session
	screen command.Screen
	model  top.Model
	source top.Source
	posts  chan func(context.Context)
	ended  bool
	// failure is why it ended.
	failure error
}

const (
	// The alternate screen without a cursor, and back.
	enterScreen = "\x1b[?1049h\x1b[?25l"
	LeaveScreen = "\x1b[?25h\x1b[?1049l"
)

func TopLive(ctx context.Context, s *command.Session, f TopFlags, screen command.Screen) error {
	restore, err := screen.Raw()
	if err != nil {
		return fmt.Errorf("prepare the terminal: %w", err)
	}
	defer restore()
	if _, err := io.WriteString(s.Out, enterScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(s.Out, LeaveScreen) }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	l := &topLive{
		Session: s, screen: screen, posts: make(chan func(context.Context)),
		model:  top.Model{By: f.By, Reverse: f.reverse, Filter: f.filter},
		source: top.Source{Pods: map[string]*typesv1.PodAllocation{}},
	}
	go l.keys(ctx)
	go l.node(ctx)
	go l.pods(ctx)
	go l.usage(ctx, f.Interval)
	for !l.ended {
		if err := l.draw(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case post := <-l.posts:
			post(ctx)
		}
	}
	return l.failure
}

// node keeps the answers about a kubelet's node up to date.
func (l *topLive) node(ctx context.Context) {
	err := l.Follow(ctx, func(problem error) {
		l.post(ctx, func(context.Context) {
			if l.model.Problem = ""; problem != nil {
				l.model.Problem = fmt.Sprintf("the node is not up to date: %v", problem)
			}
		})
	})
	if ctx.Err() == nil {
		l.post(ctx, func(context.Context) { l.ended, l.failure = true, err })
	}
}

// post hands a change to the loop.
func (l *topLive) post(ctx context.Context, change func(context.Context)) {
	select {
	case l.posts <- change:
	case <-ctx.Done():
	}
}

// keys reads keys until the input ends, which ends the program.
func (l *topLive) keys(ctx context.Context) {
	var rest []byte
	buffer := make([]byte, 256)
	for ctx.Err() == nil {
		n, err := l.In.Read(buffer)
		var keys []top.Key
		keys, rest = top.Keys(append(rest, buffer[:n]...))
		if err != nil {
			keys = append(keys, top.KeyInterrupt)
		}
		l.post(ctx, func(ctx context.Context) {
			for _, k := range keys {
				l.press(ctx, k)
			}
		})
		if err != nil {
			return
		}
	}
}

func (l *topLive) press(ctx context.Context, k top.Key) {
	_, height := l.screen.Size()
	switch l.model.Press(k, height) {
	case top.Quit:
		l.ended = true
	case top.Open:
		uid := l.model.Opened()
		go func() {
			lines := l.podLines(ctx, uid)
			l.post(ctx, func(context.Context) { l.model.Show(uid, lines) })
		}()
	}
}

// podLines are the claims of a pod and the explanation of its admission, with the hints.
func (l *topLive) podLines(ctx context.Context, uid string) []string {
	own := *l.Ctl // its shared CPUs belong to the loop
	s := &command.Session{Ctl: &own, Client: l.Client}
	var text bytes.Buffer
	var got *allocationv1.GetResponse
	pod, err := s.Find(ctx, uid)
	if err == nil {
		got, err = s.Whole(ctx, pod)
	}
	if err != nil {
		fmt.Fprintf(&text, "%v\n", err)
	} else {
		describeAll(s.Ctl, &text, got)
	}
	trace, err := s.Inspect().GetTrace(ctx, &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: uid}})
	if err != nil {
		fmt.Fprintf(&text, "\nno explanation: %v\n", err)
	} else {
		fmt.Fprintln(&text)
		explainHead(&text, trace.GetTrace())
		ExplainAll(s.Ctl, &text, trace.GetTrace())
	}
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
}

// pods follows the pods and the shared CPUs by Watch, over restarts of berthd.
func (l *topLive) pods(ctx context.Context) {
	var revision uint64
	for ctx.Err() == nil {
		err := l.follow(ctx, &revision)
		if ctx.Err() != nil {
			return
		}
		// After any end of the stream the state is read again, and the screen shows the reason.
		revision = 0
		l.post(ctx, func(context.Context) { l.model.Problem = fmt.Sprintf("pods are not up to date: %v", err) })
		_ = l.WaitReady(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

func (l *topLive) follow(ctx context.Context, revision *uint64) error {
	stream, err := l.Allocation().Watch(ctx, &allocationv1.WatchRequest{FromRevision: *revision, Types: []allocationv1.EventType{
		allocationv1.EventType_EVENT_TYPE_ADDED, allocationv1.EventType_EVENT_TYPE_CHANGED, allocationv1.EventType_EVENT_TYPE_REMOVED,
		allocationv1.EventType_EVENT_TYPE_BOUND, allocationv1.EventType_EVENT_TYPE_UNBOUND, allocationv1.EventType_EVENT_TYPE_SHARED_CPUS,
	}})
	if err != nil {
		return err
	}
	for again := *revision == 0; ; again = false {
		message, err := stream.Recv()
		if err != nil {
			return err
		}
		*revision = message.GetRevision()
		l.post(ctx, func(context.Context) {
			if again {
				clear(l.source.Pods)
				l.model.Problem = ""
			}
			l.apply(message)
		})
	}
}

// apply applies a message to the pods.
func (l *topLive) apply(message *allocationv1.WatchResponse) {
	l.source.Revision = message.GetRevision()
	for _, e := range message.GetEvents() {
		if pod := cmp.Or(e.GetAdded(), e.GetChanged()); pod != nil {
			l.source.Pods[pod.GetUid()] = pod
		}
		if pod := e.GetRemoved(); pod != nil {
			delete(l.source.Pods, pod.GetUid())
		}
		if cpus := e.GetSharedCpus(); cpus != nil {
			l.source.Shared = command.Set(cpus)
		}
	}
	l.model.Table = top.New(l.source)
}

// usage reads the usage periodically.
func (l *topLive) usage(ctx context.Context, interval time.Duration) {
	failed := false
	for ctx.Err() == nil {
		read, err := l.Node().GetUsage(ctx, &nodev1.GetUsageRequest{})
		l.post(ctx, func(context.Context) {
			if err != nil {
				failed, l.model.Problem = true, fmt.Sprintf("usage is not up to date: %v", err)
				return
			}
			if failed {
				failed, l.model.Problem = false, ""
			}
			l.source.Previous, l.source.Last = l.source.Last, read
			l.model.Table = top.New(l.source)
		})
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}

func (l *topLive) draw() error {
	width, height := l.screen.Size()
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range l.model.View(width, height) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		if line.Selected {
			b.WriteString("\x1b[7m" + table.Printable(line.Text) + "\x1b[0m\x1b[K")
			continue
		}
		b.WriteString(table.Printable(line.Text) + "\x1b[K")
	}
	_, err := io.WriteString(l.Out, b.String())
	return err
}
