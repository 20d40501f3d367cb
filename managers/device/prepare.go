package device

import (
	"context"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Prepare asks the plugin of each claim to allocate its devices, those taken
// over from earlier containers included, and keeps its answer in the claim. A
// plugin that refuses, is away or is silent is a refusal with the plugin's words;
// a caller that gave up gets its own context's error.
func (m *Manager) Prepare(ctx context.Context, admissionID string, _ hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	done := slices.Clone(claims)
	for i := range done {
		c := &done[i]
		if c.Devices == nil || c.Devices.Response != nil {
			continue
		}
		response, err := m.allocate(ctx, admissionID, c)
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

func (m *Manager) allocate(ctx context.Context, admissionID string, c *ledger.Claim) ([]byte, error) {
	ids := c.Devices.IDs()
	key := call{c.Owner, strings.Join(ids, "\x00")}
	if response, ok := m.remembered(admissionID, c.Resource, key); ok {
		return response, nil
	}
	response, err := m.plugins.Allocate(ctx, c.Resource, ids)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inFlight.admission == admissionID {
		m.inFlight.answers[c.Resource] = append(m.inFlight.answers[c.Resource], answer{key, response})
	}
	return response, nil
}

// remembered finds an answer of the admission in flight, and makes this the
// admission in flight if it is another. Where a plan was made anew with other
// devices for a container, the answers for it and for the containers after it are
// forgotten: what a plugin was asked last about a device is what holds.
func (m *Manager) remembered(admissionID, resource string, key call) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inFlight.admission != admissionID || m.inFlight.answers == nil {
		m.inFlight = inFlight{admissionID, map[string][]answer{}}
	}
	have := m.inFlight.answers[resource]
	i := slices.IndexFunc(have, func(a answer) bool { return a.owner == key.owner })
	switch {
	case i < 0:
		return nil, false
	case have[i].call != key:
		m.inFlight.answers[resource] = have[:i]
		return nil, false
	}
	return have[i].response, true
}

// Abort forgets the answers to an admission. The v1beta1 API has no way to tell
// the plugins; to them a device that is allocated again is no news.
func (m *Manager) Abort(_ context.Context, admissionID string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.inFlight.admission == admissionID {
		m.inFlight = inFlight{}
	}
}

// Released forgets the answers for containers that have gone: their pod may come
// back under the same admission id, with the plugin restarted meanwhile.
func (m *Manager) Released(_ context.Context, claims []ledger.Claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := func(a answer) bool {
		return slices.ContainsFunc(claims, func(c ledger.Claim) bool { return c.Owner == a.owner })
	}
	for resource, have := range m.inFlight.answers {
		m.inFlight.answers[resource] = slices.DeleteFunc(have, gone)
	}
}
