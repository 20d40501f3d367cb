package observe

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/kubeletnode"
)

// loader adds pods to a node.
type loader struct {
	*Node
	// App decides with the kubelet's planning.
	*app.App
	states map[kubelet.Kind][]byte
	// another makes managers without pods. idle are those with the kubelet's planning, and whole those with berth's, with the first adopted
	// pods; both are made for the first rejected pod that needs them.
	another     func(topology.Planning) (*app.App, error)
	idle, whole *app.App
	adopted     int
	options     Options
}

// newLoader adds pods to an App on a node that was read. What is missing becomes the node's.
func newLoader(ctx context.Context, n *Node, to *app.App, read *kubeletnode.Node, o Options) *loader {
	return &loader{Node: n, App: to, states: read.States, options: o, another: func(planning topology.Planning) (*app.App, error) {
		c := read.Config
		c.Topology.Planning = planning
		return build(ctx, c, read, o)
	}}
}

// inOrder returns the pods in the order in which the kubelet has decided about them.
func inOrder(pods []Pod) []Pod {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b Pod) int {
		return cmp.Or(a.Started.Compare(b.Started), a.Created.Compare(b.Created), rank(a)-rank(b))
	})
	return pods
}

// decided are those of the pods that are decided about, each uid once. load has said why others cannot be.
func decided(c config.Config, pods []Pod) (out []Pod) {
	seen := map[string]bool{}
	for _, p := range pods {
		uid := p.GetMetadata().GetUid()
		if _, err := app.NodePod(c, p.Pod); err != nil || seen[uid] || p.Ended && !p.Rejected() {
			continue
		}
		seen[uid] = true
		p.Pod = app.WithoutClaims(p.Pod)
		out = append(out, p)
	}
	return out
}

// load adds the pods, which are in order. One that the kubelet has rejected is decided about on the state with the pods that were there
// before, as far as they still exist, and is not added.
func (l *loader) load(ctx context.Context, pods []Pod) error {
	var there []app.Adopted
	var others []Pod // rejected in the second of the last pod, for another reason than on this state
	added, second := 0, 0
	for i, p := range pods {
		if i == 0 || !p.Started.Equal(pods[i-1].Started) {
			if err := l.stepwise(ctx, others, there, second); err != nil {
				return err
			}
			others, second = nil, len(there)
		}
		switch {
		case !p.Ended:
			there = append(there, app.Adopted{Pod: p.Pod, At: p.Started, Devices: p.devices, Containers: p.Containers})
		case p.Rejected():
			unread, _, err := l.Adopt(ctx, there[added:], kubeletnode.Kinds(), l.states)
			if err != nil {
				return err
			}
			l.Missing, added = append(l.Missing, unread...), len(there)
			why, err := l.reject(ctx, p, there, reconstructed(there), true)
			if err != nil {
				return err
			}
			if why != "" {
				others = append(others, p)
			}
		}
	}
	unread, problems, err := l.Adopt(ctx, there[added:], kubeletnode.Kinds(), l.states)
	l.Missing = append(append(l.Missing, unread...), problems...)
	if err != nil {
		return err
	}
	return l.stepwise(ctx, others, there, second)
}

func reconstructed(there []app.Adopted) string {
	return fmt.Sprintf("on the state reconstructed from the %d pods that still exist and were there before", len(there))
}

// mostSteps limits the states of one second that are tried.
const mostSteps = 64

// stepwise explains pods that the kubelet has rejected in one second, and not for the reason that they have on the state after that second.
// The order within a second is not known: the states in between are tried. there[second:] are the pods that were admitted in that second.
func (l *loader) stepwise(ctx context.Context, pods []Pod, there []app.Adopted, second int) error {
	if len(pods) > 0 && len(there) > second {
		a, err := l.another(topology.ByContainer)
		if err != nil {
			return err
		}
		between := *l
		between.App = a
		stride := 1 + (len(there)-second)/mostSteps
		for from, to := 0, second; len(pods) > 0 && to < len(there); from, to = to, to+stride {
			if _, _, err := a.Adopt(ctx, there[from:to], kubeletnode.Kinds(), l.states); err != nil {
				return err
			}
			var left []Pod
			for _, p := range pods {
				why, err := between.reject(ctx, p, there[:to], reconstructed(there[:to]), true)
				if err == nil && why == "" {
					err = l.Explained(ctx, a, p.GetMetadata().GetUid())
				} else {
					left = append(left, p)
				}
				if err != nil {
					return err
				}
			}
			pods = left
		}
		l.idle, l.whole, l.adopted = between.idle, between.whole, between.adopted
	}
	for _, p := range pods {
		why, err := l.reject(ctx, p, there, reconstructed(there), false)
		if err != nil {
			return err
		}
		l.unsure[p.GetMetadata().GetUid()] = true
		if why != "" && !l.options.later(p) {
			l.Missing = append(l.Missing, why)
		}
	}
	return nil
}

// rank orders pods of the same moment: those that were admitted may be why another one was rejected.
func rank(p Pod) int {
	if p.Ended {
		return 1
	}
	return 0
}

// reject has the managers decide about a pod that the kubelet has rejected, and keeps the explanation. there are the pods that were there;
// state names them. exact wants the kubelet's reason. unknown is why there is no explanation.
func (l *loader) reject(ctx context.Context, p Pod, there []app.Adopted, state string, exact bool) (unknown string, err error) {
	title := p.GetMetadata().GetNamespace() + "/" + p.GetMetadata().GetName()
	v, err := l.Try(ctx, p.Pod)
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return fmt.Sprintf("why the kubelet rejected %s (%s): %v", title, p.Reason, err), nil
	case v.Admitted():
		return fmt.Sprintf("why the kubelet rejected %s (%s): it is admitted %s", title, p.Reason, state), nil
	}
	if exact && string(v.Reason) != p.Reason {
		return fmt.Sprintf("why the kubelet rejected %s (%s): the reason is %s %s", title, p.Reason, v.Reason, state), nil
	}
	note := fmt.Sprintf("the kubelet rejected it with %s; it is explained %s", p.Reason, state)
	if string(v.Reason) != p.Reason {
		note += ", where the reason is " + string(v.Reason)
	}
	notes := []string{note}
	more, err := l.instead(ctx, p, there)
	if err != nil {
		return "", err
	}
	if more != "" {
		notes = append(notes, more)
	}
	return "", l.Reject(ctx, p.Pod, p.Started, notes)
}

// instead says where a rejected pod fits: never, or with berth's planning; empty if neither.
func (l *loader) instead(ctx context.Context, p Pod, there []app.Adopted) (string, error) {
	var err error
	if l.idle == nil {
		if l.idle, err = l.another(topology.ByContainer); err != nil {
			return "", err
		}
	}
	alone, err := l.idle.Try(ctx, p.Pod)
	if err != nil {
		return "", err
	}
	if !alone.Admitted() {
		text := "it never fits on this machine with these policies, even if no other pod is there"
		if why := alone.Apart(); why != "" && l.Single() {
			text += ": " + why
		}
		return text, nil
	}
	if l.whole == nil {
		if l.whole, err = l.another(topology.ByPod); err != nil {
			return "", err
		}
	}
	if l.adopted < len(there) { // else pods that came later are there, too
		if _, _, err := l.whole.Adopt(ctx, there[l.adopted:], kubeletnode.Kinds(), l.states); err != nil {
			return "", err
		}
		l.adopted = len(there)
	}
	whole, err := l.whole.Try(ctx, p.Pod)
	if err != nil || !whole.Admitted() {
		return "", err
	}
	return fmt.Sprintf("berth would admit it on NUMA nodes %s: it plans the containers of a pod together (kubernetes#123816; row T6 of "+
		"docs/deviations.md)", whole.Nodes()), nil
}
