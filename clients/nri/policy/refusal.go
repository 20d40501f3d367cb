package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/workload"
)

const (
	// maxRefusal bounds the text of a refusal in bytes. It becomes the message of an event of the
	// pod, and the API server takes 1 KiB of it; the runtime and the kubelet add some words.
	maxRefusal = 800
	// The most elements of each kind in a refusal.
	shownShortages   = 3
	shownSuggestions = 2
	shownDevices     = 4
)

// rejection is the text for a rejected pod: the reason, the missing amounts on each node, a change that
// would help, and the devices that determine the nodes.
func rejection(answer *admissionv1.AdmitResponse, devices []*admissionv1.ExternalDevices) string {
	parts := []string{answer.GetReason() + ": " + answer.GetMessage()}
	parts = append(parts, missing(answer.GetTrace())...)
	var help []string
	for _, s := range answer.GetTrace().GetSuggestions() {
		if len(help) < shownSuggestions {
			help = append(help, s.GetText())
		}
	}
	if len(help) > 0 {
		parts = append(parts, "it would fit "+strings.Join(help, ", or "))
	}
	if text := fixedBy(devices); text != "" {
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

// fixedBy names the first devices of the kubelet that have NUMA nodes.
func fixedBy(devices []*admissionv1.ExternalDevices) string {
	var out []string
	for _, c := range devices {
		for _, d := range c.GetDevices() {
			if nodes := convert.Nodes(d.GetNumaNodes()); !nodes.IsEmpty() && len(out) < shownDevices {
				out = append(out, fmt.Sprintf("%.100s %.64s is on NUMA node %s", d.GetResource(), d.GetId(), nodes))
			}
		}
	}
	return strings.Join(out, ", ")
}

// missing lists the first shortages.
func missing(t *typesv1.Trace) (out []string) {
	for _, step := range t.GetSteps() {
		for _, s := range step.GetShortages() {
			if len(out) == shownShortages {
				return out
			}
			where := "the machine"
			if nodes := convert.Nodes(s.GetNumaNodes()); !nodes.IsEmpty() {
				where = "NUMA node " + nodes.String()
			}
			out = append(out, fmt.Sprintf("%s has %s free of the %s %s that are needed", where, amount(s.GetResource(), s.GetFree()),
				amount(s.GetResource(), s.GetNeed()), s.GetResource()))
		}
	}
	return out
}

// amount formats an amount of a resource in the resource's unit.
func amount(resource string, n uint64) string {
	if r := workload.Resource(resource); r == workload.Memory || r.IsHugePages() {
		return r.Text(int64(min(n, math.MaxInt64)))
	}
	return strconv.FormatUint(n, 10)
}

// refusal returns an error for the runtime. It names berth as the source, because it becomes an event of the pod.
func refusal(what string, err error) error {
	text := fmt.Sprintf("berth: %s: %v", what, err)
	if len(text) <= maxRefusal {
		return fmt.Errorf("berth: %s: %w", what, err)
	}
	cut := maxRefusal - len("…")
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return &shortened{text[:cut] + "…", err}
}

// shortened is an error whose text is cut.
type shortened struct {
	text  string
	cause error
}

func (s *shortened) Error() string { return s.text }

func (s *shortened) Unwrap() error { return s.cause }
