package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// nowhere is the node of a card whose bus is near to no node in particular. It is
// what the kernel writes too (Documentation/ABI/testing/sysfs-bus-pci, numa_node).
const nowhere = -1

// card is one network card.
type card struct {
	name string
	node int
}

// readCards reads the cards of a sysfs tree, in order of their names.
func readCards(sysfs fs.FS) ([]card, error) {
	const class = "class/net"
	entries, err := fs.ReadDir(sysfs, class)
	if err != nil {
		return nil, errdefs.Unavailablef("list network interfaces: %w", err)
	}
	var cards []card
	for _, e := range entries {
		text, err := fs.ReadFile(sysfs, path.Join(class, e.Name(), "device/numa_node"))
		if err != nil {
			continue // virtual: there is no device, or it is on no bus that has nodes
		}
		node, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || node < nowhere || node >= numa.MaxNodes {
			return nil, errdefs.Unavailablef("interface %s: numa_node %.40q is no node", e.Name(), text)
		}
		cards = append(cards, card{e.Name(), node})
	}
	slices.SortFunc(cards, func(a, b card) int { return cmp.Compare(a.name, b.name) })
	return cards, nil
}

// mask returns the card's node as a set; empty for nowhere.
func (c card) mask() numa.Mask {
	if c.node == nowhere {
		return 0
	}
	return numa.Of(c.node)
}

// count writes a number of cards.
func count(n int) string {
	if n == 1 {
		return "1 card"
	}
	return fmt.Sprintf("%d cards", n)
}
