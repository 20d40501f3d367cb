package placement

import (
	"fmt"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cpuset"
)

// story is a tracker that gets events one after another.
type story struct {
	*testing.T
	Tracker
	now    time.Time
	shared cpuset.Set
}

// at is the key of a container of a runtime.
func at(id string) Key { return Key{ID: id} }

func newStory(t *testing.T) *story { return &story{T: t, now: time.Unix(100, 0)} }

func set(t *testing.T, list string) cpuset.Set {
	t.Helper()
	s, err := cpuset.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *story) tell(kind EventKind, id, cpus string) Effects {
	s.Helper()
	return s.Apply(Event{Kind: kind, Key: at(id), Owner: Owner{"pod", id}, CPUs: set(s.T, cpus), At: s.now})
}

// start has a container start on some CPUs, up to the answer.
func (s *story) start(id, cpus, own string) {
	s.Helper()
	s.tell(Plan, id, "")
	s.Want(at(id), set(s.T, cpus), set(s.T, own))
	s.tell(Sent, id, cpus)
	s.tell(Confirmed, id, cpus)
	s.tell(Allow, id, "")
}

func (s *story) runs(id, cpus, own string) {
	s.Helper()
	s.start(id, cpus, own)
	s.tell(ShownRunning, id, "")
	s.tell(KernelRuns, id, cpus)
}

func (s *story) blocked(id, want string) {
	s.Helper()
	if got := fmt.Sprint(s.Blockers(at(id))); got != "["+want+"]" {
		s.Errorf("%s is blocked by %s, want [%s]", id, got, want)
	}
}

func (s *story) writes(want string) {
	s.Helper()
	got := ""
	for _, w := range s.Writes(s.shared) {
		got += fmt.Sprintf("%s=%s ", w.ID, w.CPUs)
	}
	if got != want {
		s.Errorf("writes %q, want %q", got, want)
	}
}

// own makes the ledger have a container with CPUs 2-3 for itself, and the rest share 0-1.
func (s *story) own(sharers ...string) {
	s.tell(Plan, "own", "")
	s.Want(at("own"), set(s.T, "2-3"), set(s.T, "2-3"))
	for _, id := range sharers {
		s.Want(at(id), set(s.T, "0-1"), cpuset.Set{})
	}
}

// A container counts with every set that it was given until it is seen.
func TestToldContainersCount(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		tell func(s *story)
		want string
	}{
		"told": {func(*story) {}, "CPUs 2-3 may be in use by container pod/a, which is being started"},
		"listed without a process": {func(s *story) { s.tell(ShownCreated, "a", "") },
			"CPUs 2-3 may be in use by container pod/a, which is being started"},
		"not listed": {func(s *story) { s.tell(Unlisted, "a", ""); s.tell(Unlisted, "a", "") },
			"CPUs 2-3 may be in use by container pod/a, which is being started"},
		"written since": {func(s *story) { s.tell(Sent, "a", "0-1"); s.tell(Confirmed, "a", "0-1") },
			"CPUs 2-3 may be in use by container pod/a, which is being started"},
		"listed once and then not": {func(s *story) { s.tell(ShownCreated, "a", ""); s.tell(Unlisted, "a", "") },
			"CPUs 2-3 may be in use by container pod/a, whose CPUs are unknown"},
		"seen elsewhere": {func(s *story) { s.tell(ShownRunning, "a", ""); s.tell(KernelRuns, "a", "0-1") }, ""},
		"seen": {func(s *story) { s.tell(ShownRunning, "a", ""); s.tell(KernelRuns, "a", "0-3") },
			"CPUs 2-3 may be in use by container pod/a, which is running"},
		"seen, moved": {func(s *story) {
			s.runs("a", "0-3", "")
			s.own("a")
			s.tell(Sent, "a", "0-1")
			s.tell(Confirmed, "a", "0-1")
		}, ""},
		"seen, being moved": {func(s *story) { s.runs("a", "0-3", ""); s.own("a"); s.tell(Sent, "a", "0-1") },
			"CPUs 2-3 may be in use by container pod/a, which is running"},
		"ended":     {func(s *story) { s.tell(Ended, "a", "") }, ""},
		"forgotten": {func(s *story) { s.Forget(at("a")) }, ""},
		"withdrawn": {func(s *story) { s.tell(Withdraw, "a", "") }, ""},
		"being removed": {func(s *story) { s.tell(Stop, "a", "") },
			"CPUs 2-3 may be in use by container pod/a, which is ending"},
		"given up, and written": {func(s *story) {
			s.now = s.now.Add(StartTime)
			if ids := s.Overdue(s.now); len(ids) != 1 {
				s.Errorf("overdue: %v", ids)
			}
			s.tell(StartOverdue, "a", "")
			s.blocked("own", "CPUs 2-3 may be in use by container pod/a, which is idle")
			s.tell(Sent, "a", "0-1")
			s.tell(Confirmed, "a", "0-1")
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.start("a", "0-3", "")
			s.own("a")
			row.tell(s)
			s.blocked("own", row.want)
			s.blocked("a", "") // sharers do not wait
		})
	}
}

// A list that lacks a container is followed by another list; only then the kernel decides.
func TestUnlistedIsListedAgainOnce(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.runs("a", "0-3", "")
	if e := s.tell(Unlisted, "a", ""); !e.List || e.Look {
		t.Errorf("the first time: %+v", e)
	}
	if e := s.tell(Unlisted, "a", ""); e.List || !e.Look {
		t.Errorf("the second time: %+v", e)
	}
	if e := s.tell(KernelEmpty, "a", ""); !e.Freed {
		t.Errorf("it is gone: %+v", e)
	}
	if c, _ := s.Get(at("a")); c.Phase != Exited || !c.PossibleCPUs.IsEmpty() {
		t.Errorf("it is gone: %+v", c)
	}
}

// A write whose answer was lost may be carried out late: until a later one is confirmed
// its set counts.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.runs("a", "0-1", "")
	s.tell(Sent, "a", "0-3")
	s.tell(KernelRuns, "a", "0-1")
	s.own("a")
	s.blocked("own", "CPUs 2-3 may be in use by container pod/a, which is running")
	s.writes("a=0-1 ")
	if !s.Unconfirmed(at("a")) || s.Unconfirmed(at("own")) || s.Unconfirmed(at("nobody")) {
		t.Error("only a is unlisted")
	}
	s.tell(Sent, "a", "0-1")
	s.tell(Confirmed, "a", "0-1")
	s.blocked("own", "")
	if s.Unconfirmed(at("a")) {
		t.Error("it is unlisted")
	}
	// A write that was not carried out for sure does not count.
	s.tell(Sent, "a", "0-3")
	s.tell(Refused, "a", "0-3")
	s.blocked("own", "")
}

// A container from before the tracker may be anywhere until it is observed.
func TestRestored(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.tell(Restore, "a", "")
	s.own("a")
	s.blocked("own", "CPUs 2-3 may be in use by container pod/a, which is being started")
	s.tell(ShownRunning, "a", "")
	s.tell(KernelRuns, "a", "0-1")
	s.blocked("own", "")
}

// First those leave who have to, and a container with CPUs of its own gets what is
// released.
func TestOrderOfWrites(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.runs("b", "0-1", "")
	s.runs("c", "0-3", "")
	s.runs("own", "2", "2")
	s.Want(at("own"), set(t, "2-3"), set(t, "2-3"))
	s.Want(at("b"), set(t, "0"), cpuset.Set{})
	s.Want(at("c"), set(t, "0-1"), cpuset.Set{})
	s.writes("c=0-1 b=0 ")
	for _, w := range s.Writes(s.shared) {
		s.tell(Sent, w.ID, w.CPUs.String())
		s.tell(Confirmed, w.ID, w.CPUs.String())
	}
	s.writes("own=2-3 ")
	s.tell(Sent, "own", "2-3")
	s.writes("own=2-3 ") // until the kernel or an answer shows it
	s.tell(KernelRuns, "own", "2-3")
	s.writes("")
}

// A container whose start was abandoned and that starts all the same is checked against those that were let
// start meanwhile.
// Two containers that are to get each other's CPUs leave them first.
func TestLeavesBeforeItsCPUsAreFree(t *testing.T) {
	t.Parallel()
	s := &story{T: t}
	s.runs("a", "2,7", "2,7")
	s.runs("b", "0,8-9", "")
	s.Want(at("a"), set(t, "8-9"), set(t, "8-9"))
	s.Want(at("b"), set(t, "2"), set(t, "2"))
	for _, want := range []string{"a=7 b=0 ", "a=8-9 b=2 ", ""} {
		s.writes(want)
		for _, w := range s.Writes(s.shared) {
			s.tell(Sent, w.ID, w.CPUs.String())
			s.tell(Confirmed, w.ID, w.CPUs.String())
		}
	}
}

// Containers that are to get each other's CPUs, and run on no others, go on by way of the shared CPUs, one after the other.
func TestCircle(t *testing.T) {
	t.Parallel()
	s := &story{T: t, shared: set(t, "0,8")}
	for id, cpus := range map[string]string{"a": "1-2", "b": "3-4", "c": "5-6", "d": "7", "e": "8"} {
		s.runs(id, cpus, cpus)
	}
	for id, cpus := range map[string]string{"d": "1", "a": "3-4", "b": "5-6", "c": "2", "e": "8"} {
		s.Want(at(id), set(t, cpus), set(t, cpus))
	}
	s.shared = cpuset.Set{}
	s.writes("")
	s.shared = set(t, "0,8")
	for _, want := range []string{"a=0 ", "c=2 d=1 ", "b=5-6 ", "a=3-4 ", ""} {
		s.writes(want)
		writes := s.Writes(s.shared)
		for _, w := range writes {
			s.tell(Sent, w.ID, w.CPUs.String())
		}
		s.writes(want) // until they have arrived
		for _, w := range writes {
			s.tell(Confirmed, w.ID, w.CPUs.String())
		}
	}
}

func TestLateStartsAreCompared(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.start("a", "0-3", "")
	s.tell(StartOverdue, "a", "")
	s.own("a")
	s.tell(Allow, "own", "")
	if got := fmt.Sprint(s.Intrusions(at("a"))); got != "[CPUs 2-3 may be in use by container pod/own, which is being started]" {
		t.Errorf("it comes to run on CPUs of %s", got)
	}
	s.tell(Withdraw, "own", "")
	if got := s.Intrusions(at("a")); len(got) > 0 {
		t.Errorf("it comes to run on CPUs of %v", got)
	}
}

func TestBlockIsNoted(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.runs("a", "0-3", "")
	s.own("a")
	begun := s.now
	for range 2 {
		if got := s.Block(at("own"), s.now); len(got) != 1 {
			t.Errorf("blocked by %v", got)
		}
		if c, _ := s.Get(at("own")); fmt.Sprint(c.BlockedBy) != "[{pod a}]" || c.BlockedSince != begun {
			t.Errorf("blocked by %v since %s", c.BlockedBy, c.BlockedSince)
		}
		s.now = s.now.Add(time.Second)
	}
	if got := s.Count(); got[Running] != 1 || got[Planned] != 1 {
		t.Errorf("counted %v", got)
	}
	s.tell(KernelRuns, "a", "0-1")
	s.Block(at("own"), s.now)
	if c, _ := s.Get(at("own")); len(c.BlockedBy) > 0 || !c.BlockedSince.IsZero() {
		t.Errorf("blocked by %v since %s", c.BlockedBy, c.BlockedSince)
	}
	s.tell(KernelRuns, "a", "0-3")
	s.Block(at("own"), s.now)
	s.Unblock(at("own"))
	if c, _ := s.Get(at("own")); len(c.BlockedBy) > 0 || !c.BlockedSince.IsZero() {
		t.Errorf("nobody asks any more, and blocked by %v since %s", c.BlockedBy, c.BlockedSince)
	}
}

func TestOverdue(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.runs("runs", "0-3", "")
	s.start("a", "0-3", "")
	first := s.now
	s.now = s.now.Add(time.Second)
	s.start("b", "0-3", "")
	if ids := s.Overdue(s.now); len(ids) > 0 || len(s.Starts()) != 2 {
		t.Errorf("overdue are %v, starts %v", ids, s.Starts())
	}
	s.start("a", "0-3", "") // another call: the start may have begun just now
	if ids := s.Overdue(first.Add(StartTime)); len(ids) > 0 || len(s.Starts()) != 2 {
		t.Errorf("overdue are %v, starts %v", ids, s.Starts())
	}
	if ids := s.Overdue(s.now.Add(StartTime)); fmt.Sprint(ids) != "[a b]" {
		t.Errorf("overdue are %v, starts %v", ids, s.Starts())
	}
}

// The CPUs of a pod that its containers share are own CPUs against others only.
func TestOwnCPUsOfAPod(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.runs("a", "2-3", "2-3")
	s.tell(Plan, "b", "")
	s.Want(at("b"), set(t, "2-3"), set(t, "2-3"))
	s.blocked("b", "")
	s.runs("c", "0-3", "")
	s.Want(at("c"), set(t, "0-1"), cpuset.Set{})
	s.blocked("b", "CPUs 2-3 may be in use by container pod/c, which is running")
	if got := s.Grantable(at("b"), set(t, "1-3")).String(); got != "1" {
		t.Errorf("it may get %s", got)
	}
	if got := s.Grantable(at("a"), set(t, "2-3")).String(); got != "2-3" {
		t.Errorf("who is there may get %s", got)
	}
}

// A container that has not started does not get CPUs back that were taken from it, until
// those have left them that came to run there.
func TestCPUsAreNotGivenBack(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.start("own", "2-3", "2-3")
	s.Want(at("own"), set(t, "3"), set(t, "3"))
	s.tell(Sent, "own", "3")
	s.tell(Confirmed, "own", "3")
	s.runs("a", "0-2", "")
	s.Want(at("a"), set(t, "0-1"), cpuset.Set{})
	s.Want(at("own"), set(t, "2-3"), set(t, "2-3"))
	if got := s.Grantable(at("own"), set(t, "2-3")).String(); got != "3" {
		t.Errorf("it may get %s, and a runs on 0-2", got)
	}
	s.tell(Sent, "a", "0-1")
	s.tell(Confirmed, "a", "0-1")
	if got := s.Grantable(at("own"), set(t, "2-3")).String(); got != "2-3" {
		t.Errorf("it may get %s, and a has left", got)
	}
}

// TestAssignedCPUsOfAStart: a write is confirmed while a start may have read the set of before. The process does not have the
// CPUs by that; what the kernel shows of it counts. A set that every start reads is assigned, whatever the kernel shows.
func TestAssignedCPUsOfAStart(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		during, kernel, want string
	}{
		"another set was confirmed":      {during: "0-3", kernel: "0-1", want: "0-1"},
		"the same set was confirmed":     {during: "0-1", kernel: "0", want: "0-1"},
		"nothing was written meanwhile":  {kernel: "0", want: "0-1"},
		"the kernel shows what it reads": {during: "0-3", kernel: "0-3", want: "0-3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStory(t)
			s.start("a", "0-1", "")
			if row.during != "" {
				s.tell(Sent, "a", row.during)
				s.tell(Confirmed, "a", row.during)
			}
			s.tell(ShownRunning, "a", "")
			s.tell(KernelRuns, "a", row.kernel)
			if c, _ := s.Get(at("a")); c.AssignedCPUs != set(t, row.want) {
				t.Errorf("assigned CPUs %s, want %s", c.AssignedCPUs, row.want)
			}
		})
	}
}
