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
}

// newLoader adds pods to an App on a node that was read. What is missing becomes the node's.
func newLoader(ctx context.Context, n *Node, to *app.App, read *kubeletnode.Node, o Options) *loader {
	return &loader{Node: n, App: to, states: read.States, another: func(planning topology.Planning) (*app.App, error) {
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
	added := 0
	for _, p := range pods {
		switch {
		case !p.Ended:
			there = append(there, app.Adopted{Pod: p.Pod, At: p.Started, Devices: p.devices, Containers: p.Containers})
		case p.Rejected():
			unread, _, err := l.Adopt(ctx, there[added:], kubeletnode.Kinds(), l.states)
			if err != nil {
				return err
			}
			l.Missing, added = append(l.Missing, unread...), len(there)
			why, err := l.reject(ctx, p, there, fmt.Sprintf("on the state reconstructed from the %d pods that still exist and were there before",
				len(there)))
			if err != nil {
				return err
			}
			if why != "" {
				l.Missing = append(l.Missing, why)
			}
		}
	}
	unread, problems, err := l.Adopt(ctx, there[added:], kubeletnode.Kinds(), l.states)
	l.Missing = append(append(l.Missing, unread...), problems...)
	return err
}

// rank orders pods of the same moment: those that were admitted may be why another one was rejected.
func rank(p Pod) int {
	if p.Ended {
		return 1
	}
	return 0
}

// reject has the managers decide about a pod that the kubelet has rejected, and keeps the explanation. there are the pods that were there;
// state names them. unknown is why there is no explanation.
func (l *loader) reject(ctx context.Context, p Pod, there []app.Adopted, state string) (unknown string, err error) {
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
	return "", l.Reject(ctx, p.Pod, notes)
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
	if _, _, err := l.whole.Adopt(ctx, there[l.adopted:], kubeletnode.Kinds(), l.states); err != nil {
		return "", err
	}
	l.adopted = len(there)
	whole, err := l.whole.Try(ctx, p.Pod)
	if err != nil || !whole.Admitted() {
		return "", err
	}
	return fmt.Sprintf("berth would admit it on NUMA nodes %s: it plans the containers of a pod together (kubernetes#123816; row T6 of "+
		"docs/deviations.md)", whole.Nodes()), nil
}
