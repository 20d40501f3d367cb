package allocation

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// noDevices has reported nothing.
type noDevices struct{}

func (noDevices) Inventory() *device.Snapshot { return &device.Snapshot{} }

// TestPagesUnderChange: whatever is admitted and removed between pages, they are together
// what was there at the first one.
func TestPagesUnderChange(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
		n := 0
		change := func() {
			_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
				uids := []string{}
				for p := range d.View().Pods() {
					uids = append(uids, p.UID())
				}
				if len(uids) > 0 && rapid.Bool().Draw(rt, "remove") {
					d.RemovePod(rapid.SampledFrom(uids).Draw(rt, "uid"))
					return nil
				}
				n++
				p := ledgertest.Pod(fmt.Sprint("u", n), "main")
				p.Pod.Namespace = rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "namespace")
				p.Pod.Name = rapid.SampledFrom([]string{"x", "y", "z"}).Draw(rt, "name")
				p.Claims = nil
				d.PutPod(p)
				return nil
			})
			if err != nil {
				rt.Fatal(err)
			}
		}
		for range rapid.IntRange(0, 12).Draw(rt, "pods") {
			change()
		}
		s := &service{Parts: Parts{Ledger: history.Ledger{Ledger: l}, Inventory: noDevices{}}}
		filter := &allocationv1.ListRequest{}
		if rapid.Bool().Draw(rt, "filtered") {
			filter.Namespace = "a"
		}
		want, err := s.list(t.Context(), filter)
		if err != nil {
			rt.Fatal(err)
		}
		var got []*typesv1.PodAllocation
		req := proto.CloneOf(filter)
		req.PageSize = uint32(rapid.IntRange(1, 5).Draw(rt, "size"))
		for {
			page, err := s.list(t.Context(), req)
			if err != nil || page.GetRevision() != want.GetRevision() || len(page.GetPods()) > int(req.GetPageSize()) {
				rt.Fatalf("%v, %v", page, err)
			}
			got = append(got, page.GetPods()...)
			if req.PageToken = page.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
			for range rapid.IntRange(0, 3).Draw(rt, "changes") {
				change()
			}
		}
		if !slices.EqualFunc(got, want.GetPods(), func(a, b *typesv1.PodAllocation) bool { return proto.Equal(a, b) }) {
			rt.Errorf("got\n%v\nwant\n%v", got, want.GetPods())
		}
	})
}

// TestBadSelectors: a selector that cannot be read is refused by the name of its field, and one that is too long is not read.
func TestBadSelectors(t *testing.T) {
	t.Parallel()
	s := &service{}
	for selector, want := range map[string]string{
		"app=":                           "", // an empty value is one
		"app in web":                     `label_selector: unable to parse requirement: found 'web' expected: '('`,
		strings.Repeat("a,", 2048) + "a": "label_selector: 4097 characters: expected at most 4096",
	} {
		if want == "" {
			if _, err := readSelector(selector); err != nil {
				t.Errorf("%s: %v", selector, err)
			}
			continue
		}
		_, err := s.list(t.Context(), &allocationv1.ListRequest{LabelSelector: selector})
		if errdefs.ClassOf(err) != errdefs.Invalid || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%.20s: %v, want %s", selector, err, want)
		}
	}
}

// TestLostPages: a page of a revision that is not kept, and a token that is none, are
// refused.
func TestLostPages(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	put := func(uid string) {
		_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			p := ledgertest.Pod(uid, "main")
			p.Claims = nil
			d.PutPod(p)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("a")
	put("b")
	s := &service{Parts: Parts{Ledger: history.Ledger{Ledger: l}, Inventory: noDevices{}}}
	first := func() *allocationv1.ListResponse {
		t.Helper()
		got, err := s.list(t.Context(), &allocationv1.ListRequest{PageSize: 1})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	lost := first()
	for i := range keptViews {
		put(fmt.Sprint("c", i))
		first()
	}
	for name, row := range map[string]struct {
		req  *allocationv1.ListRequest
		want errdefs.Class
	}{
		"not kept":      {&allocationv1.ListRequest{PageSize: 1, PageToken: lost.GetNextPageToken()}, errdefs.Gone},
		"no token":      {&allocationv1.ListRequest{PageSize: 1, PageToken: "next"}, errdefs.Invalid},
		"other filters": {&allocationv1.ListRequest{PageSize: 1, Name: "n", PageToken: lost.GetNextPageToken()}, errdefs.Invalid},
		"too large":     {&allocationv1.ListRequest{PageSize: 1001}, errdefs.Invalid},
	} {
		if _, err := s.list(t.Context(), row.req); errdefs.ClassOf(err) != row.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(s.views.kept) != keptViews {
		t.Errorf("%d views are kept", len(s.views.kept))
	}
	one, err := s.list(t.Context(), &allocationv1.ListRequest{PodUid: "b"})
	if err != nil || len(one.GetPods()) != 1 || one.GetPods()[0].GetUid() != "b" ||
		!proto.Equal(one.GetSharedCpus(), convert.CPUSet(l.View().SharedCPUs())) {
		t.Errorf("%v, %v", one, err)
	}
}

// Two states of the past can have one revision, as those before and after a start with other
// rules: pages of a list are of the moment that the list named.
func TestPagesOfAMoment(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	j, r := ledgertest.NewJournal(), ledger.Rules{Machine: machinetest.Build("4c")}
	open := func(j *ledgertest.Journal) history.Ledger {
		l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: r}, history.Limits{Entries: 9}, func() time.Time { return now })
		return l
	}
	put := func(l history.Ledger, uid string) {
		p := ledgertest.Pod(uid, "c")
		p.Claims = nil
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(p); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	l := open(j)
	put(l, "a")
	put(l, "b")
	r.ReservedCPUs, r.StrictReservation = cpuset.Of(3), true
	now = now.Add(time.Hour)
	l = open(j.Reopen())
	now = now.Add(time.Hour)
	put(l, "c")
	s := &service{Parts: Parts{Ledger: l, Inventory: noDevices{}}}
	at := func(back time.Duration) *allocationv1.ListRequest {
		return &allocationv1.ListRequest{PageSize: 1,
			At: &typesv1.Moment{Moment: &typesv1.Moment_Time{Time: timestamppb.New(now.Add(-back))}}}
	}
	requests := []*allocationv1.ListRequest{at(2 * time.Hour), at(time.Hour), {PageSize: 1}}
	var shared []string
	var revisions []uint64
	for _, req := range requests {
		page, err := s.list(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		req.PageToken = page.GetNextPageToken()
		shared, revisions = append(shared, page.GetSharedCpus().GetList()), append(revisions, page.GetRevision())
	}
	for i, req := range requests {
		page, err := s.list(t.Context(), req)
		if err != nil || page.GetSharedCpus().GetList() != shared[i] {
			t.Errorf("list %d: the second page is of %v, %v, want %s", i, page.GetSharedCpus(), err, shared[i])
		}
	}
	if shared[0] == shared[1] || revisions[0] != revisions[1] {
		t.Errorf("shared CPUs %q, revisions %d", shared, revisions)
	}
}

// TestListUnadmitted: a list has the matching pods that are not in the ledger, on its first page.
func TestListUnadmitted(t *testing.T) {
	t.Parallel()
	options := journal.Options{Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: machinetest.Build("4c")}}
	l := ledgertest.OpenRecording(t, options, history.Limits{Entries: 9}, time.Now)
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		for _, uid := range []string{"a", "b"} {
			p := ledgertest.Pod(uid, "c")
			p.Claims = nil
			d.PutPod(p)
		}
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "x", Namespace: "shop", Name: "web", Source: ledger.FromClaimRecord, OwnedBy: "agent",
			Claims: ledgertest.With(ledgertest.Pod("x", "c"), ledgertest.Exclusive("c", "2")).Claims})
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "y", Namespace: "default", Name: "job", Source: ledger.FromClaimRecord})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s := &service{Parts: Parts{Ledger: l, Inventory: noDevices{}}}
	for _, test := range []struct {
		req  *allocationv1.ListRequest
		want string
	}{
		{&allocationv1.ListRequest{}, "x y"},
		{&allocationv1.ListRequest{Namespace: "shop"}, "x"},
		{&allocationv1.ListRequest{Name: "job"}, "y"},
		{&allocationv1.ListRequest{Resource: "cpu"}, "x"},
		{&allocationv1.ListRequest{Owner: "agent"}, "x"},
		{&allocationv1.ListRequest{PodUid: "y"}, "y"},
		{&allocationv1.ListRequest{PageSize: 1}, "x y"},
	} {
		page, err := s.list(t.Context(), test.req)
		if err != nil {
			t.Fatal(err)
		}
		var uids []string
		for _, p := range page.GetUnadmittedPods() {
			uids = append(uids, p.GetUid())
		}
		if got := strings.Join(uids, " "); got != test.want {
			t.Errorf("%v: %q, want %q", test.req, got, test.want)
		}
		if token := page.GetNextPageToken(); token != "" {
			test.req.PageToken = token
			if page, err := s.list(t.Context(), test.req); err != nil || len(page.GetUnadmittedPods()) > 0 {
				t.Errorf("the second page: %v, %v", page.GetUnadmittedPods(), err)
			}
		}
	}
}
