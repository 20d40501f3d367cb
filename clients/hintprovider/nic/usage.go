package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
)

// usage is which cards are taken. It is safe for concurrent use.
type usage struct {
	out io.Writer

	mu sync.Mutex
	// held has the owner of each card that a pod holds.
	held map[string]string
	// reserved has the cards of admissions in flight, and their owners.
	reserved map[string]map[string]string
}

func newUsage(out io.Writer) *usage {
	return &usage{out: out, held: map[string]string{}, reserved: map[string]map[string]string{}}
}

// reserve takes cards for an owner, in place of those that the admission has
// reserved for it before. A card that another admission or pod has is refused, and
// nothing changes then.
func (b *usage) reserve(admissionID, owner string, cards []string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, card := range cards {
		for other, cards := range b.reserved {
			if _, taken := cards[card]; taken && other != admissionID {
				return errdefs.Refuse("", "card %s is reserved for admission %s", card, other)
			}
		}
		if holder, taken := b.held[card]; taken && holder != owner {
			return errdefs.Refuse("", "card %s is held by %s", card, holder)
		}
	}
	mine := maps.Clone(b.reserved[admissionID])
	if mine == nil {
		mine = map[string]string{}
	}
	maps.DeleteFunc(mine, func(_, o string) bool { return o == owner })
	for _, card := range cards {
		mine[card] = owner
	}
	b.reserved[admissionID] = mine
	b.print("reserved")
	return nil
}

// abort releases the reservations of an admission.
func (b *usage) abort(admissionID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.reserved[admissionID]; ok {
		delete(b.reserved, admissionID)
		b.print("aborted")
	}
}

// commit makes held all that is held, and ends the reservations of the admissions
// that came to it.
func (b *usage) commit(held map[string]string, admissions []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = held
	for _, id := range admissions {
		delete(b.reserved, id)
	}
	b.print("committed")
}

// print writes the usage as a line. mu is held.
func (b *usage) print(event string) {
	text, err := json.Marshal(struct {
		Event    string                       `json:"event"`
		Held     map[string]string            `json:"held"`
		Reserved map[string]map[string]string `json:"reserved"`
	}{event, b.held, b.reserved})
	if err == nil {
		_, _ = fmt.Fprintf(b.out, "%s\n", text)
	}
}
