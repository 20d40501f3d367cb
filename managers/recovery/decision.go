package recovery

import (
	"cmp"
	"fmt"
	"strings"
)

// String describes the decision in one line.
func (d Decision) String() string {
	name := d.UID
	if d.Name != "" {
		name = d.Namespace + "/" + d.Name + " (" + d.UID + ")"
	}
	text := fmt.Sprintf("pod %s: %s; kept: %s", name, d.Case, d.Content())
	if d.Source != "" {
		text += " (from: " + string(d.Source) + ")"
	}
	if d.Text != "" {
		text += "; " + d.Text
	}
	if d.Waits {
		text += "; waiting for the agent to admit it"
	}
	return text
}

// Content describes the kept claims.
func (d Decision) Content() string {
	var parts []string
	for i := range d.Kept {
		parts = append(parts, cmp.Or(d.Kept[i].Owner.Container, "pod")+": "+d.Kept[i].Content())
	}
	if d.DevicesUnknown {
		parts = append(parts, "devices that are not known")
	}
	switch {
	case len(parts) > 0:
		return strings.Join(parts, ", ")
	case d.Source == "" && !d.Waits:
		return "nothing"
	case d.Source == "":
		return "not known"
	}
	return "no exclusive resources"
}
