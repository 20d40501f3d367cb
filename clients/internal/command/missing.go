package command

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/internal/table"
)

// ExplainMissing prints the missing resources, with their nodes and holders.
func ExplainMissing(w io.Writer, t *typesv1.Trace, n Names) {
	title := "\nmissing\n"
	for _, short := range Shortages(t) {
		fmt.Fprintf(w, "%s  %s\n", title, ShortText(short, n))
		title = ""
	}
}

// Shortages lists the missing resources. A shortage of the whole node is omitted if the NUMA
// nodes have the same one.
func Shortages(t *typesv1.Trace) []*typesv1.Shortage {
	var all []*typesv1.Shortage
	for _, step := range t.GetSteps() {
		all = append(all, step.GetShortages()...)
	}
	return slices.DeleteFunc(slices.Clone(all), func(s *typesv1.Shortage) bool {
		return s.GetNumaNodes() == nil && slices.ContainsFunc(all, func(o *typesv1.Shortage) bool {
			return o.GetNumaNodes() != nil && o.GetResource() == s.GetResource() && o.GetNeed() == s.GetNeed() && o.GetFree() == s.GetFree()
		})
	})
}

// AmountOf returns an amount of a resource.
func AmountOf(resource string, n uint64) string {
	if resource == "memory" || strings.HasPrefix(resource, "hugepages-") {
		return table.Bytes(n)
	}
	return strconv.FormatUint(n, 10)
}

// ShortText describes a missing resource and its holders.
func ShortText(s *typesv1.Shortage, n Names) string {
	amount := func(n uint64) string { return AmountOf(s.GetResource(), n) }
	text := s.GetResource()
	if s.GetNumaNodes() != nil {
		text += " on " + NodeNoun(Nodes(s.GetNumaNodes()))
	}
	text += fmt.Sprintf(": %s needed, %s free", amount(s.GetNeed()), amount(s.GetFree()))
	held := "held"
	if s.GetHeld() > 0 {
		held = amount(s.GetHeld()) + " held"
	}
	if len(s.GetHolders()) > 0 {
		text += ", " + held + " by " + n.Owners(s.GetHolders())
		if s.GetMoreHolders() > 0 {
			text += fmt.Sprintf(" and %d more", s.GetMoreHolders())
		}
	} else if s.GetHeld() > 0 {
		text += ", " + held
	}
	switch {
	case s.GetWithheld() > 0:
		text += ", " + amount(s.GetWithheld()) + " " + s.GetWhy()
	case s.GetWhy() != "":
		text += ", " + s.GetWhy()
	}
	return text
}
