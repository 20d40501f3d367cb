package main

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// exampleOf returns the part of a text that a pattern has in parentheses.
func exampleOf(t *testing.T, text, pattern string) string {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("nothing matches %s", pattern)
	}
	return found[1]
}

// TestReservedExamples starts berthd with the examples of reserved memory in docs/configuration.md and in berthd --help. The huge
// pages in them are reserved.
func TestReservedExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	docs := string(text)
	example := func(flag string) string {
		return exampleOf(t, command().PersistentFlags().Lookup(flag).Usage, ` as (.*?)(; may be|$)`)
	}
	const shape = "1s2n4c1t,mem=16Gi,huge=2Mi:8,huge=1Gi:3"
	for name, row := range map[string]struct {
		node *node
		// reserved of resource are on NUMA node 0, which leaves most; both nodes leave all.
		resource, reserved, most, all string
	}{
		"docs": {simulated(t, shape, "memory:\n  policy: Static\n  "+exampleOf(t, docs, `(?m)^  #(reserved: .*)$`)+
			"\nreserved:\n  "+exampleOf(t, docs, `(?m)^  #(system: .*)$`)+"\n  "+exampleOf(t, docs, `(?m)^  #(kube: .*)$`)+"\n"),
			"hugepages-2Mi", "4Mi", "12Mi", "28Mi"},
		"help": {simulated(t, shape, "", "--memory-manager-policy", "Static",
			"--reserved-memory", example("reserved-memory"),
			"--system-reserved", example("system-reserved"), "--kube-reserved", example("kube-reserved")),
			"hugepages-1Gi", "2Gi", "1Gi", "4Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			d := row.node.start("--node-fit")
			got, err := nodev1.NewNodeServiceClient(d.conn).GetAllocatable(d.ctx(), &nodev1.GetAllocatableRequest{})
			if err != nil {
				t.Fatal(err)
			}
			bytes := func(text string) int64 {
				q, err := resource.ParseQuantity(text)
				if err != nil {
					t.Fatal(err)
				}
				return q.Value()
			}
			all, most := bytes(row.all), bytes(row.most)
			if have := bytes(got.GetAllocatable()[row.resource]); have != all {
				t.Errorf("%d of %s are allocatable, want %d", have, row.resource, all)
			}
			for _, n := range d.memoryState().GetNodes() {
				for _, r := range n.GetResources() {
					want := uint64(all - most)
					if n.GetNumaNode() == 0 {
						want = uint64(most)
					}
					if r.GetResource() == row.resource && r.GetAllocatableBytes() != want {
						t.Errorf("NUMA node %d has %d, want %d", n.GetNumaNode(), r.GetAllocatableBytes(), want)
					}
				}
			}
			if v := d.admit(pinned("more", "64Mi", row.resource, "17Gi")); v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED {
				t.Errorf("more than there is: %v", v)
			}
			d.admitted(pinned("all", "64Mi", row.resource, row.all))
			v := d.admit(pinned("one", "64Mi", row.resource, strings.TrimPrefix(row.resource, "hugepages-")))
			lacks := func(s *typesv1.TraceStep) bool {
				return slices.ContainsFunc(s.GetShortages(),
					func(l *typesv1.Shortage) bool { return l.GetWithheld() == uint64(bytes(row.reserved)) })
			}
			if v.GetVerdict() != admissionv1.Verdict_VERDICT_REJECTED || !slices.ContainsFunc(v.GetTrace().GetSteps(), lacks) {
				t.Errorf("a page of the reserved ones: %v", v)
			}
			d.check()
		})
	}
}
