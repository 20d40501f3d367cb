package policy

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/servertest"
)

// history is a node and what happens on it.
type history struct {
	// crio and kubelet are whether the runtime is like CRI-O, and whether berth-nri reads the kubelet's API. cgroups is
	// whether it reads the cgroups of pods. answers means that containers change only in answers to events.
	// full is whether the kubelet admits more than berthd has room for, and pass whether containers start without a place.
	crio, kubelet, cgroups, answers, full, pass bool
	happenings                                  []happening
	// logs adds the log of berth-nri.
	logs bool
}

// newHistory draws a history.
func newHistory(seed uint64) history {
	r := rand.New(rand.NewPCG(seed, 0))
	all := 0
	for _, k := range kinds {
		all += k.share
	}
	h := history{crio: r.IntN(4) == 0, kubelet: r.IntN(5) > 0, cgroups: r.IntN(2) == 0, answers: seed%4 == 3, full: r.IntN(4) == 0,
		pass: true}
	if h.full {
		for range 6 {
			h.happenings = append(h.happenings, happening{kinds[0], r.IntN(1 << 10), 6 + 7*r.IntN(100)})
		}
	}
	for range 6 + r.IntN(25) {
		i, at := 0, r.IntN(all)
		for ; at >= kinds[i].share; i++ {
			at -= kinds[i].share
		}
		h.happenings = append(h.happenings, happening{kinds[i], r.IntN(1 << 10), r.IntN(1 << 10)})
	}
	return h
}

var local = sync.OnceValues(func() (*servertest.Local, error) {
	c := config.Default()
	c.Machine, c.Cgroups.Tree = "1s2n4c1t", config.TreeMemory
	c.CPU.Policy, c.Topology.Policy, c.Reserved.CPUs = "static", topology.BestEffort, cpuset.Of(0)
	return servertest.NewLocal(c)
})

// run has a history happen, and returns its first failure with what has happened.
func (h history) run(t *testing.T) (found failure, log []string) {
	l, err := local()
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		n := &madeUpNode{t: t, local: l, pids: map[int]*nodeContainer{}, pauses: map[int]bool{}, crio: h.crio,
			busy: make(chan struct{}, 1)}
		n.kubelet = &fakeKubelet{node: n}
		d, err := l.Start(in())
		if err != nil {
			t.Fatal(err)
		}
		n.link = &link{Daemon: d, reach: answers, fail: n.fail}
		n.config = Config{
			Client: berth.Over(n.link, berth.Options{Attempts: 1}), Host: Host{CPUsOf: n.cpusOf, Online: online},
			Unsolicited: abilities.UnsolicitedAlways, Timeout: func() time.Duration { return 2 * time.Second }, Now: n.now,
			Log: slog.New(slog.DiscardHandler), Pass: h.pass,
		}
		if n.most = most; h.full {
			n.most = tooMany
		}
		if n.answers = h.answers; h.answers {
			n.config.Unsolicited = abilities.UnsolicitedNever
		}
		if h.kubelet {
			n.config.Kubelet = n.kubelet
		}
		if h.cgroups {
			n.config.PodQuota = n.podQuota
		}
		if h.logs {
			n.link.note = n.note
			n.config.Log = slog.New(slog.NewTextHandler(noting{n}, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
		n.note("the runtime reports processes of sandboxes: %v; berth-nri reads the kubelet's API: %v, and cgroups: %v; "+
			"it changes containers only in answers: %v; the kubelet admits too many pods: %v; containers start without a place: %v",
			!h.crio, h.kubelet, h.cgroups, h.answers, h.full, h.pass)
		n.policy = n.newPolicy()
		n.connect(nothing)
		for _, e := range h.happenings {
			if n.failure.kind == "" {
				e.kind.do(n, e.a, e.n)
			}
		}
		for _, end := range []func(){n.heal, n.finish} {
			if n.failure.kind == "" {
				end()
			}
		}
		n.unfollow()
		for len(n.queue) > 0 {
			n.answer(true, false)
		}
		n.link.Stop()
		synctest.Wait()
		found, log = n.failure, n.log
	})
	return found, log
}

func online() (cpuset.Set, error) { return allCPUs, nil }

// noting adds lines of a log to the notes of a node.
type noting struct{ *madeUpNode }

// Write implements io.Writer.
func (w noting) Write(b []byte) (int, error) {
	w.note("    %s", strings.TrimSpace(string(b)))
	return len(b), nil
}

// shrink leaves out what is not needed for a failure of the same kind.
func (h history) shrink(t *testing.T, kind string) history {
	for size := len(h.happenings); size > 0; {
		left := false
		for at := 0; at+size <= len(h.happenings); {
			without := h
			without.happenings = slices.Concat(h.happenings[:at], h.happenings[at+size:])
			if f, _ := without.run(t); f.kind == kind {
				h, left = without, true
			} else {
				at += size
			}
		}
		if !left {
			size /= 2
		}
	}
	return h
}

// historyParts run in parallel.
const historyParts = 10

// histories returns how many there are in a test.
func histories() uint64 {
	if os.Getenv("BERTH_LONG") != "" {
		return 10_000
	}
	return 3000
}

// again are the numbers of later histories that have failed once.
var again = []uint64{25377, 36157, 45872, 61699, 61931, 62378, 65401, 65455, 70033, 76318, 76579, 78498, 80995, 81345, 92354, 103011,
	103633, 120371, 131230, 133838, 143956, 152655, 161307, 187461, 316429, 318070, 330914, 366831,
	474249}

// TestRandomHistories: on random histories of a node, no process ever runs on CPUs that a container has for itself, such
// a container keeps its CPUs and gets no quota, none is resized without berthd's consent, and one that crashes returns to
// its CPUs. When everything is reachable again, everything runs where berthd has it, with the size that berthd counts,
// and berthd has each container once; when all pods have ended, nothing is left. A history that fails is told in as few
// steps as possible. BERTH_HISTORY is the number of the only one that is wanted, with the log of berth-nri; with FROM-TO, all from one
// number up to another one are wanted.
func TestRandomHistories(t *testing.T) {
	t.Parallel()
	first, end := uint64(0), histories()
	if text := os.Getenv("BERTH_HISTORY"); text != "" {
		from, to, several := strings.Cut(text, "-")
		var err error
		if first, err = strconv.ParseUint(from, 10, 64); err == nil && several {
			end, err = strconv.ParseUint(to, 10, 64)
		}
		if err != nil {
			t.Fatalf("BERTH_HISTORY: %v", err)
		}
		if !several {
			newHistory(first).tell(t, first, "")
			return
		}
	}
	if os.Getenv("BERTH_HISTORY") == "" {
		t.Run("again", func(t *testing.T) {
			t.Parallel()
			for _, n := range again {
				h := newHistory(n)
				if f, _ := h.run(t); f.kind != "" {
					h.tell(t, n, f.kind)
				}
			}
		})
	}
	for part := range uint64(historyParts) {
		t.Run(strconv.FormatUint(part, 10), func(t *testing.T) {
			t.Parallel()
			for n := first + part; n < end && !t.Failed(); n += historyParts {
				h := newHistory(n)
				if f, _ := h.run(t); f.kind != "" {
					h.tell(t, n, f.kind)
				}
			}
		})
	}
}

// tell reports a history, without what is not needed for a failure of a kind.
func (h history) tell(t *testing.T, n uint64, kind string) {
	t.Helper()
	if kind != "" {
		h = h.shrink(t, kind)
	}
	h.logs = kind == ""
	f, log := h.run(t)
	t.Logf("history %d:\n%s", n, strings.Join(log, "\n"))
	if kind != "" || f.kind != "" {
		t.Errorf("history %d: %s", n, f.text)
	}
}
