package check

import (
	"strings"

	"github.com/berthd/berth/managers/ledger"
)

// unknown checks an unknown living pod: no other pod may have its claims. Its containers
// are unknown, so the owners inside the pod are not checked.
func (c *checker) unknown(uid string) {
	u, ok := c.view.UnknownLivePod(uid)
	if !ok {
		return
	}
	c.unknownIsKnown(uid)
	for i := range u.Claims {
		claim := &u.Claims[i]
		switch {
		case claim.Payloads() != 1 || claim.Owner.Pod != uid:
			c.add(Structural, RulePayload, claim.Owner, ledger.Owner{}, claim.Resource,
				"claim of %s on %s has %d payloads, not one, or is not that of pod %s", claim.Owner, claim.Resource, claim.Payloads(), uid)
		case claim.Devices != nil:
			c.holdDevices(u.Held(), claim)
		}
	}
	c.unknownMemory(u.Held())
}

// unknownIsKnown checks the uid of an unknown living pod: it must be valid and not in the
// ledger.
func (c *checker) unknownIsKnown(uid string) {
	_, known := c.view.Pod(uid)
	if c.view.UnknownLive(uid) && (known || uid == "" || strings.Contains(uid, "/")) {
		c.add(Structural, RuleUnknownLive, ledger.Owner{Pod: uid}, ledger.Owner{}, "", "pod %q is noted as living and unknown, and is known or no pod",
			uid)
	}
}

// unknownMemory adds the memory of an unknown living pod to the sums. Which of its
// containers pass memory on is unknown, so all of it counts.
func (c *checker) unknownMemory(u *ledger.Pod) {
	for i := range u.Claims {
		claim := &u.Claims[i]
		if whole, ok := u.Claim("", claim.Resource); ok && len(whole.Memory) > 0 && claim.Owner.Container != "" {
			continue
		}
		for _, b := range claim.Memory {
			if c.memory.pods == nil {
				c.memory.pods = make(map[memoryKey]uint64)
			}
			key := memoryKey{claim.Resource, b.Nodes}
			c.memory.pods[key] = ledger.AddBytes(c.memory.pods[key], b.Bytes)
		}
	}
}
