// Package refusal writes the texts of refusals. They become events of pods, so they are bounded.
package refusal

import (
	"fmt"
	"strings"
	"unicode/utf8"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	"github.com/berthd/berth/api/convert"
)

const (
	// maxRefusal bounds the text of a refusal in bytes. It becomes the message of an event of the
	// pod, and the API server takes 1 KiB of it; the runtime and the kubelet add some words.
	maxRefusal = 800
	// The most elements of each kind in a refusal.
	shownMissing     = 3
	shownSuggestions = 2
	shownDevices     = 4
	// maxMissing bounds the text of a shortage in bytes: it names up to eight holders.
	maxMissing = 160
)

// Rejection is the text for a rejected pod: the reason, the missing amounts on each node, a change that
// would help, and the devices that determine the nodes.
func Rejection(answer *admissionv1.AdmitResponse, devices []*admissionv1.ExternalDevices) string {
	parts := []string{answer.GetReason() + ": " + answer.GetMessage()}
	missing := answer.GetTrace().GetMissing()
	for _, text := range missing[:min(len(missing), shownMissing)] {
		parts = append(parts, cut(text, maxMissing))
	}
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

// New returns an error for the runtime. It names berth as the source, because it becomes an event of the pod.
func New(what string, err error) error {
	text := fmt.Sprintf("berth: %s: %v", what, err)
	if len(text) <= maxRefusal {
		return fmt.Errorf("berth: %s: %w", what, err)
	}
	return &shortened{cut(text, maxRefusal), err}
}

// cut returns at most so many bytes of a text.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	end := most - len("…")
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "…"
}

// shortened is an error whose text is cut.
type shortened struct {
	text  string
	cause error
}

func (s *shortened) Error() string { return s.text }

func (s *shortened) Unwrap() error { return s.cause }
