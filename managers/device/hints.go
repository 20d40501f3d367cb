package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Hints answers for every resource of the request that a plugin serves. It has
// no preference where no device has nodes, and finds impossible what the free
// devices cannot cover or what contradicts devices that the owner holds already.
// Devices without nodes count for no placement, as in the kubelet.
func (m *Manager) Hints(_ context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	b := newUsage(view, m.inventory.Snapshot())
	var answers []hint.ResourceAnswer
	for name, n := range demand(req).Sorted() {
		r, counted, concerned := b.resource(string(name))
		if !concerned {
			continue
		}
		answer := hint.Answer{Kind: hint.NoPreference}
		if counted && hasNodes(r) {
			answer = b.answer(req, r, int(n))
		}
		answers = append(answers, hint.ResourceAnswer{Resource: string(name), Answer: answer})
	}
	fixed := external(req, view.Machine().NodeMask(), func(name string) bool {
		_, _, concerned := b.resource(name)
		return concerned
	})
	if len(fixed) == 0 {
		return answers, nil
	}
	answers = slices.DeleteFunc(answers, func(a hint.ResourceAnswer) bool {
		return slices.ContainsFunc(fixed, func(f hint.ResourceAnswer) bool { return f.Resource == a.Resource })
	})
	answers = append(answers, fixed...)
	slices.SortFunc(answers, func(a, b hint.ResourceAnswer) int { return cmp.Compare(a.Resource, b.Resource) })
	return answers, nil
}

func hasNodes(r *Resource) bool {
	for i := range r.Devices {
		if r.Devices[i].near() {
			return true
		}
	}
	return false
}

// answer decides between impossible and a family of node sets.
func (b *usage) answer(req hint.Request, r *Resource, n int) hint.Answer {
	f := family{machine: b.view.Machine().NodeMask(), need: n, all: r.Devices}
	var owned, reusable []ledger.Device
	if req.Container < 0 {
		owned = b.podOwned(req.Pod, r.Name)
	} else {
		name := req.Pod.Containers[req.Container].Name
		owned = b.owned(req.Pod, name, r.Name)
		// Like the kubelet, whatever the pod's containers left so far. Unlike in
		// a plan this includes later ones, which only have devices if the pod was
		// planned before.
		reusable = b.reusable(req.Pod, nextContainer, r.Name)
	}
	lent := []ledger.Device(nil)
	if req.Borrows {
		lent, reusable = b.handedTo(req, r.Name), nil
		if req.Near != "" {
			reusable = b.owned(req.Pod, req.Near, r.Name)
			lent = minus(lent, reusable)
		}
	}
	switch {
	case len(owned) > 0 && len(owned) != n:
		return impossible("%s has %d devices of %s already and now requests %d", req.Owner(), len(owned), r.Name, n)
	case len(owned) > 0:
		f.free = present(r, owned)
		f.all = withVanished(r, f.free)
	default:
		f.free, f.reusable = append(b.available(r), handedOn(r, lent)...), handedOn(r, reusable)
		if have := len(f.free) + len(f.reusable); have < n {
			answer := impossible("%s", hint.TooFew(n, have, "device", "devices"))
			if wait := new(WaitError); r.Allocatable() == 0 && errors.As(r.unusable(n), &wait) {
				w := wait.Waits()
				answer.Wait = &w
			}
			return answer
		}
	}
	return f.answer()
}

// withVanished returns the devices of a resource and those owned ones that its
// plugin does not list any more.
func withVanished(r *Resource, owned []Device) []Device {
	all := r.Devices[:len(r.Devices):len(r.Devices)]
	for _, d := range owned {
		if _, listed := r.Device(d.ID); !listed {
			all = append(all, d)
		}
	}
	return all
}

func impossible(format string, args ...any) hint.Answer {
	return hint.Answer{Kind: hint.Impossible, Reason: fmt.Sprintf(format, args...)}
}
