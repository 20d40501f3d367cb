package device

import (
	"context"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Prepare calls Allocate of each claim's plugin for its devices, those taken
// over from earlier containers included, and keeps its answer in the claim. A
// plugin that refuses, is away or is silent is a refusal with the plugin's words;
// a caller that cancelled gets its own context's error.
func (m *Manager) Prepare(ctx context.Context, _ string, _ hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	done := slices.Clone(claims)
	for i := range done {
		c := &done[i]
		if c.Devices == nil || c.Devices.Response != nil {
			continue
		}
		response, err := m.allocate(ctx, c)
		if ctx.Err() != nil {
			return nil, err
		}
		if err != nil {
			return nil, refuseCall(c.Resource, err)
		}
		c.Devices = &ledger.Devices{Devices: c.Devices.Devices, Response: response}
	}
	return done, nil
}

// answered are the plugins' answers to the admission that is being prepared, by
// resource, so that a second preparation calls no plugin twice. The answers of one
// resource are in the order of the calls, which is that of the containers; there is
// at most one for each container.
type answered map[string][]answer

// answer is a plugin's answer to an Allocate.
type answer struct {
	owner    ledger.Owner
	ids      string
	response []byte
}

func (m *Manager) allocate(ctx context.Context, c *ledger.Claim) ([]byte, error) {
	ids := c.Devices.IDs()
	answers := hint.Scratch[answered](ctx)
	call := answer{owner: c.Owner, ids: strings.Join(ids, "\x00")}
	if response, ok := answers.find(c.Resource, call); ok {
		return response, nil
	}
	var err error
	if call.response, err = m.plugins.Allocate(ctx, c.Resource, ids); err != nil {
		return nil, err
	}
	if *answers == nil {
		*answers = answered{}
	}
	(*answers)[c.Resource] = append((*answers)[c.Resource], call)
	return call.response, nil
}

// find returns the answer to a call that was made before. Where a plan was made
// anew with other devices for a container, the answers for it and for the
// containers after it are deleted: the last call for a device
// counts.
func (a answered) find(resource string, call answer) ([]byte, bool) {
	have := a[resource]
	i := slices.IndexFunc(have, func(o answer) bool { return o.owner == call.owner })
	switch {
	case i < 0:
		return nil, false
	case have[i].ids != call.ids:
		a[resource] = have[:i]
		return nil, false
	}
	return have[i].response, true
}
