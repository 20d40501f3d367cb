package app

import (
	"fmt"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/store"
)

// maxReported is how many findings and how many unread places the start reports; the file
// beside the damaged ledger has them all.
const maxReported = 20

// damageLines tells, in sentences, what was damaged and what became of it.
func damageLines(d *store.Damage, r ledger.Report) []string {
	if d == nil {
		return nil
	}
	lines := []string{fmt.Sprintf("the ledger was damaged and is set aside as %s: %s", d.SetAside, d.Error)}
	lines = append(lines, "after the damage "+r.Outcome())
	for _, l := range r.Lost {
		line := fmt.Sprintf("pod %s is lost: %s; %d of its claims are known", l.UID, l.Why, len(l.Claims))
		if l.PerhapsStale {
			line += ", and may be out of date"
		}
		lines = append(lines, line)
	}
	for i, f := range r.Damage {
		if i == maxReported {
			lines = append(lines, fmt.Sprintf("%d more entries are damaged, see %s.json", len(r.Damage)-maxReported, d.SetAside))
			break
		}
		lines = append(lines, "damaged: "+f.Text)
	}
	for i, text := range r.Unread {
		if i == maxReported {
			lines = append(lines, fmt.Sprintf("%d more places could not be read, see %s.json", len(r.Unread)-maxReported, d.SetAside))
			break
		}
		lines = append(lines, "not read: "+text)
	}
	return lines
}
