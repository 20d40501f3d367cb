package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestReference: the page in docs/ has every declaration of the API, and each link has a
// target. make check compares it with proto/.
func TestReference(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/api-reference.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, want := range []string{
		"#### AdmissionService.Admit", "role `agent`", "| `POD_SPEC_DIFFERS` |", "### berth.types.v1.NUMANodeSet",
		"One of `subject`.", "optional uint64", "stream of [WatchResponse]", "map of string to string",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	targets := map[string]bool{}
	for _, h := range regexp.MustCompile(`(?m)^##+ (.*)$`).FindAllStringSubmatch(page, -1) {
		targets[anchor(h[1])] = true
	}
	for _, l := range regexp.MustCompile(`\]\(#([^)]*)\)`).FindAllStringSubmatch(page, -1) {
		if !targets[l[1]] {
			t.Errorf("a link to #%s, which is no heading", l[1])
		}
	}
	for _, line := range strings.Split(page, "\n") {
		if strings.Contains(line, "buf:lint") {
			t.Errorf("a line for the linter: %s", line)
		}
	}
}

// TestRun: what is not a set of descriptors is an error.
func TestRun(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := run(strings.NewReader("no descriptors"), &out); err == nil {
		t.Error("no error")
	}
	set := &descriptorpb.FileDescriptorSet{}
	set.File = append(set.File, protodesc.ToFileDescriptorProto(typesv1.File_berth_types_v1_types_proto),
		protodesc.ToFileDescriptorProto(admissionv1.File_berth_admission_v1_admission_proto))
	text, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	if err := run(bytes.NewReader(text), &out); err == nil {
		t.Error("no error for a set without its imports")
	}
}
