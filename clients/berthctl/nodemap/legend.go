package nodemap

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/berthd/berth/clients/internal/table"
)

// legendPods is how many pods the legend names; the others are counted.
const legendPods = 26

// legend names the signs, and the pods by size.
func (c *canvas) legend() {
	c.line("")
	also := ""
	if c.plan.sharesReserved() {
		also = ", also shared"
	}
	words := []string{
		string(c.signs.Shared) + " shared or free", string(c.signs.Reserved) + " reserved" + also,
		string(c.signs.Offline) + " offline or unhealthy",
		string(c.signs.Broken) + " held and offline or unhealthy", string(c.signs.Unknown) + " unknown holder",
		string(c.signs.Other) + " another pod",
	}
	if !c.plan.ForClaims.IsEmpty() {
		words = append(words, string(c.signs.ForClaims)+" reserved and free for claims"+also)
	}
	if c.Detail == DetailCores {
		words = append(words, string(c.signs.Several)+" differs by thread")
	}
	row := ""
	for _, w := range words {
		if row != "" && utf8.RuneCountInString(row)+3+utf8.RuneCountInString(w) > c.Width {
			c.line("%s", row)
			row = ""
		}
		if row != "" {
			row += "   "
		}
		row += w
	}
	c.line("%s", row)
	if len(c.plan.pods) > 0 {
		c.line("")
	}
	for i, pod := range c.plan.pods {
		if c.only >= 0 && i != c.only {
			continue
		}
		if c.only < 0 && i >= legendPods {
			c.line("and %s", table.Count(len(c.plan.pods)-i, "smaller pod"))
			return
		}
		mark := ""
		if pod.New {
			mark = "  new"
		}
		name := table.Printable(pod.Name)
		if pod.Claim {
			name = "claim " + name
			mark += "  " + usedBy(pod.UsedBy)
		}
		text := fmt.Sprintf("%s  %s%s", name, c.podText(pod), mark)
		c.lines = append(c.lines, strings.TrimRight(c.paint([]sign{c.pod(i)})+" "+c.cut(text, c.Width-2), " "))
	}
}

// usedBy names the containers that use a claim.
func usedBy(containers []string) string {
	if len(containers) == 0 {
		return "not in use"
	}
	return "used by " + table.Printable(strings.Join(containers, ", "))
}

// podText returns what a pod holds.
func (c *canvas) podText(pod Pod) string {
	var out []string
	if n := pod.CPUs.Len(); n > 0 {
		out = append(out, fmt.Sprintf("%s: %s", table.Count(n, "CPU"), pod.CPUs))
	}
	sums := map[string]uint64{}
	var order []string
	for _, b := range pod.Blocks {
		if _, ok := sums[b.Resource]; !ok {
			order = append(order, b.Resource)
		}
		sums[b.Resource] += b.Bytes
	}
	for _, r := range order {
		out = append(out, r+" "+table.Bytes(sums[r]))
	}
	n := 0
	for _, d := range c.plan.Devices {
		if d.Pod == pod.UID {
			n++
		}
	}
	if n > 0 {
		out = append(out, table.Count(n, "device"))
	}
	if len(out) == 0 {
		return "on the shared CPUs"
	}
	return strings.Join(out, ", ")
}
