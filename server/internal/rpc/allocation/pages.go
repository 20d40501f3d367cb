package allocation

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/rpc"
)

const (
	// longestPage limits the pods of a page.
	longestPage = 1000
	// keptViews limits the revisions of which pages can be read. Views share their data, so
	// an old one costs little more than what has changed since.
	keptViews = 16
)

// position is the content of a page token: the revision of the pages, the last pod of the
// page before, and the filters.
type position struct {
	Revision             uint64
	Namespace, Name, UID string
	Filter               [7]string
}

func (p position) token() string {
	raw, _ := json.Marshal(p) // numbers and texts can be encoded
	return base64.RawURLEncoding.EncodeToString(raw)
}

// readPosition reads a page token.
func readPosition(req *allocationv1.ListRequest) (p position, err error) {
	raw, err := base64.RawURLEncoding.DecodeString(req.GetPageToken())
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	var vs errdefs.Violations
	switch {
	case err != nil:
		vs.Addf("page_token", "expected next_page_token of the page before")
	case p.Filter != filterOf(req):
		vs.Addf("page_token", "is of a list with other filters: expected the same ones on every page")
	}
	return p, vs.Err("request")
}

func filterOf(req *allocationv1.ListRequest) [7]string {
	return [7]string{req.GetNamespace(), req.GetName(), req.GetResource(), req.GetOwner(), req.GetPodUid(), req.GetLabelSelector(),
		momentOf(req)}
}

// momentOf parses the moment that a list names; empty is none.
func momentOf(req *allocationv1.ListRequest) string {
	m := req.GetAt()
	if m == nil {
		return ""
	}
	return fmt.Sprintf("%d %d.%d", m.GetRevision(), m.GetTime().GetSeconds(), m.GetTime().GetNanos())
}

// inOrder compares pods in the order of lists.
func inOrder(a, b *ledger.Pod) int {
	return cmp.Or(cmp.Compare(a.Pod.Namespace, b.Pod.Namespace), cmp.Compare(a.Pod.Name, b.Pod.Name), cmp.Compare(a.UID(), b.UID()))
}

// after returns whether a pod is on a later page.
func (p position) after(pod *ledger.Pod) bool {
	return cmp.Or(cmp.Compare(pod.Pod.Namespace, p.Namespace), cmp.Compare(pod.Pod.Name, p.Name), cmp.Compare(pod.UID(), p.UID)) > 0
}

// views keeps the views of lists whose pages are being read, the last used one last.
type views struct {
	mu   sync.Mutex
	kept []keptView
}

// keptView is a view with the moment that its list named; empty is none. Views of the past can
// have the revision of another one, or of the current one, and not its contents.
type keptView struct {
	view *ledger.View
	at   string
}

// keep keeps a view for the next page.
func (v *views) keep(view keptView) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.kept = slices.DeleteFunc(v.kept, func(k keptView) bool { return k == view })
	if len(v.kept) == keptViews {
		v.kept = slices.Delete(v.kept, 0, 1)
	}
	v.kept = append(v.kept, view)
}

// at returns the kept view of a revision, of lists that named a moment.
func (v *views) at(revision uint64, at string) (*ledger.View, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i := slices.IndexFunc(v.kept, func(k keptView) bool { return k.at == at && k.view.Revision() == revision })
	if i < 0 {
		return nil, false
	}
	return v.kept[i].view, true
}

// list reads one page, or everything without a page size.
func (s *service) list(ctx context.Context, req *allocationv1.ListRequest) (*allocationv1.ListResponse, error) {
	if n := req.GetPageSize(); n > longestPage {
		var vs errdefs.Violations
		vs.Addf("page_size", "%d: expected at most %d", n, longestPage)
		return nil, vs.Err("request")
	}
	selector, err := readSelector(req.GetLabelSelector())
	if err != nil {
		return nil, err
	}
	view, from := s.Ledger.View(), position{}
	if req.GetPageToken() != "" {
		if from, err = readPosition(req); err != nil {
			return nil, err
		}
		if view.Revision() != from.Revision || req.GetAt() != nil {
			var ok bool
			if view, ok = s.views.at(from.Revision, momentOf(req)); !ok {
				return nil, errdefs.Gonef("pages of revision %d are not kept any more: list from the beginning", from.Revision)
			}
		}
	} else if req.GetAt() != nil {
		if view, err = rpc.ViewAt(ctx, s.Ledger, req.GetAt()); err != nil {
			return nil, err
		}
	}
	var pods []*ledger.Pod
	for p := range candidates(view, req.GetPodUid()) {
		if matches(p, req) && selector.Matches(labels.Set(p.Pod.Labels)) && (req.GetPageToken() == "" || from.after(p)) {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, inOrder)
	out := &allocationv1.ListResponse{Revision: view.Revision(), SharedCpus: convert.CPUSet(view.CommonCPUs())}
	if n := int(req.GetPageSize()); n > 0 && len(pods) > n {
		pods = pods[:n]
		last := pods[n-1]
		out.NextPageToken = position{view.Revision(), last.Pod.Namespace, last.Pod.Name, last.UID(), filterOf(req)}.token()
		s.views.keep(keptView{view, momentOf(req)})
	}
	snap := s.Inventory.Inventory()
	for _, p := range pods {
		a := allocations.Pod(view, p)
		if req.GetAt() == nil {
			allocations.PodHealth(a, snap, allocations.Health)
		}
		out.Pods = append(out.Pods, a)
	}
	if req.GetPageToken() == "" {
		for u := range view.UnknownLivePods() {
			if matches(u.Held(), req) && selector.Empty() && (req.GetPodUid() == "" || req.GetPodUid() == u.UID) {
				out.UnadmittedPods = append(out.UnadmittedPods, allocations.Unadmitted(view, &u))
			}
		}
	}
	return out, nil
}

// longestSelector is how many characters a selector of labels may have.
const longestSelector = 4096

// readSelector reads a selector of labels; an empty one selects all pods. Errors are of class Invalid.
func readSelector(text string) (labels.Selector, error) {
	if text == "" {
		return labels.Everything(), nil // without the work of nearly every list
	}
	var vs errdefs.Violations
	if len(text) > longestSelector {
		vs.Addf("label_selector", "%d characters: expected at most %d", len(text), longestSelector)
		return nil, vs.Err("request")
	}
	selector, err := labels.Parse(text)
	if err != nil {
		vs.Addf("label_selector", "%v: expected labels such as app=web,tier!=test", err)
	}
	return selector, vs.Err("request")
}

// candidates yields the pod of a uid, or without one all pods.
func candidates(view *ledger.View, uid string) func(yield func(*ledger.Pod) bool) {
	if uid == "" {
		return view.Pods()
	}
	return func(yield func(*ledger.Pod) bool) {
		if p, ok := view.Pod(uid); ok {
			yield(p)
		}
	}
}
